"""NVLinks that the driver was told to leave off (NVreg_NvLinkDisable): the reason and its mend, and where it is meant so."""

from __future__ import annotations

import pytest

from netdoctor.checks.hardware_gpus import gpus
from netdoctor.facts import gpu
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.platform import Platform
from netdoctor.host.base import ReplayHost
from netdoctor.model import Kind, Status, Unavailable
from tests.support import facts as f

NOBODY = Platform("", "", "")
LOST = Unavailable(Kind.DENIED, "x")
NO_SWITCH = f.pci(2, nvswitches=())


def bare(number: int, off: bool | Unavailable, links: tuple[bool, ...] = (), **changes: object) -> Gpus:
    return f.gpus(all=tuple(f.gpu(n, nvlinks=links, **changes) for n in range(number)), links_off=off)


ROWS = {
    "a board with NVSwitches": ({Gpus: bare(8, off=True), Pci: f.pci(nvswitches=("0000:07:00.0",))}, Status.FAIL),
    "two GPUs without NVSwitches": ({Gpus: bare(2, off=True), Pci: NO_SWITCH}, Status.UNKNOWN),
    "two whose links rest": ({Gpus: bare(2, True, (False,) * 18), Pci: NO_SWITCH}, Status.UNKNOWN),
    "two, told nothing": ({Gpus: bare(2, off=False), Pci: NO_SWITCH}, Status.PASS),
    "two, not known": ({Gpus: bare(2, LOST), Pci: NO_SWITCH}, Status.UNKNOWN),
    "two, and the site counts NVLinks itself": (
        {Gpus: bare(2, off=True), Pci: NO_SWITCH, Expected: f.expected(nvlinks=4)},
        Status.PASS,
    ),
    "two in MIG mode": ({Gpus: bare(2, True, (False,) * 18, mig=True), Pci: NO_SWITCH}, Status.PASS),
    "two of a model without NVLinks": ({Gpus: bare(2, True, name="NVIDIA L40S"), Pci: NO_SWITCH}, Status.PASS),
    "one alone, which needs it": ({Gpus: bare(1, off=True), Pci: f.pci(1, nvswitches=())}, Status.SKIP),
}


@pytest.mark.parametrize(("changes", "status"), ROWS.values(), ids=ROWS)
def test_what_is_said_of_it(changes: dict[type, object], status: Status) -> None:
    found = list(f.judge(gpus, f.machine({Platform: NOBODY, **changes})))
    assert {one.status for one in found} == {status}
    for one in found:
        if (mend := one.fix or (one.perhaps and one.perhaps.fix)) is not None:
            assert "NVreg_NvLinkDisable=1" in mend.summary and "NVreg_NvLinkDisable=1" in one.message


ANSWERS: dict[str, tuple[object, object]] = {
    "off": ('EnableMSI: 1\nNvLinkDisable: 1\nRegistryDwords: ""\n', True),
    "on": ("EnableMSI: 1\nNvLinkDisable: 0\n", False),
    "a driver that knows no such thing": ("EnableMSI: 1\n", False),
    "nothing at all": ("", Kind.EMPTY),
    "denied": (LOST, Kind.DENIED),
}


@pytest.mark.parametrize(("answer", "wanted"), ANSWERS.values(), ids=ANSWERS)
def test_what_the_driver_was_loaded_with(answer: object, wanted: object) -> None:
    device = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "nvlinks": [], "mig": False}
    nvml = {"driver": "580.1", "cuda": 13000, "devices": [device]}
    found = gpu.probe(ReplayHost({"ask:nvml": nvml, f"file:{gpu.PARAMETERS}": answer})).links_off
    assert (found.kind if isinstance(found, Unavailable) else found) == wanted


def test_nobody_is_asked_where_a_link_is_up() -> None:
    device = {"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "nvlinks": [True, False], "mig": False}
    found = gpu.probe(ReplayHost({"ask:nvml": {"devices": [device]}, f"file:{gpu.PARAMETERS}": "NvLinkDisable: 1\n"}))
    assert isinstance(found.links_off, Unavailable)
