"""node.clock: by what the kernel counts time."""

from __future__ import annotations

import pytest

from netdoctor.model import Kind, Status, Unavailable
from tests.support.machines.composed import Composed

FILE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def said(source: str | Unavailable | None) -> Status | None:
    machine = Composed("dgx-h100")
    if source is not None:
        machine.files.write(FILE, f"{source}\n")
    if isinstance(source, Unavailable):
        machine.files.errors[FILE] = source
    first, *rest = machine.judged("node.clock")
    assert (first.status, first.subject) == ("pass", "clock")
    assert all(one.subject == "clock source" for one in rest)
    return rest[0].status if rest else None


@pytest.mark.parametrize("source", ["hpet", "acpi_pm", "jiffies"])
def test_a_device_that_every_reading_waits_for(source: str) -> None:
    assert said(source) is Status.FAIL


@pytest.mark.parametrize("source", ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen", None])
def test_what_the_vdso_reads(source: str | None) -> None:
    assert said(source) is None


def test_what_may_not_be_read_is_not_known() -> None:
    assert said(Unavailable(Kind.DENIED, "EACCES")) is Status.UNKNOWN
