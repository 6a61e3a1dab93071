"""Which errors of the driver are still open: of an NVLink that went down, what the links are now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.model import Status
from netdoctor.nccl.open_errors import links_up
from tests.lab import fixtures
from tests.support.machines import composed

WENT_DOWN = "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up"
FATAL = "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 23001, Fatal, Link 28 egress"


@pytest.mark.parametrize(
    ("line", "change", "status"),
    [
        (WENT_DOWN, {}, Status.PASS),  # it came back, by a reset
        (WENT_DOWN, {"nvlinks": [True] * 17 + [False]}, Status.FAIL),
        (WENT_DOWN, {"nvlinks": [True] * 17}, Status.FAIL),  # NVML's list ends at the first that it does not tell of
        (WENT_DOWN, {"nvlinks": {"unavailable": "failed", "detail": "NVML"}}, Status.FAIL),
        (WENT_DOWN, {"fabric": {"state": 2, "status": 0}}, Status.FAIL),  # not yet back in its fabric
        (WENT_DOWN, {"fabric": {"state": 3, "status": 999}}, Status.FAIL),
        (WENT_DOWN, {"fabric": {"unavailable": "failed", "detail": "NVML"}}, Status.FAIL),
        (WENT_DOWN, {"fabric": {"unavailable": "unsupported", "detail": ""}}, Status.PASS),  # a driver that knows none
        (WENT_DOWN, None, Status.FAIL),  # a GPU is gone
        (FATAL, {}, Status.FAIL),  # whose links tell nothing
    ],
)
def test_a_link_that_went_down(line: str, change: dict[str, Any] | None, status: Status) -> None:
    machine = composed.Composed("dgx-h100", {"host.kmsg": [line]})
    devices: Any = machine.host.answers["ask:nvml"]["devices"]  # type: ignore[index,call-overload]
    if change is None:
        devices.pop()
    for name, told in (change or {}).items():
        devices[0][name] = {**devices[0][name], **told} if name == "fabric" and "state" in told else told
    found = [one for one in machine.judged("gpu.health") if one.subject.endswith("kernel log")]
    assert [one.status for one in found] == [status]
    assert status is Status.FAIL or "SXid 20034" in found[0].notes[0]


def test_a_trunk_between_two_boards_is_no_gpus_link() -> None:
    facts = fixtures.facts_of(composed.Composed("dgx-h100").snapshot())
    gpus, health, pci = facts["Gpus"], facts["GpuHealth"], facts["Pci"]
    assert links_up(pci, gpus, health.gpus)
    cards = [one for one in pci.devices if one.is_gpu]
    more = [replace(one, address=f"0001:{one.address[5:]}") for one in cards]
    assert not links_up(replace(pci, devices=(*pci.devices, *more)), replace(gpus, all=gpus.all * 2), health.gpus * 2)
