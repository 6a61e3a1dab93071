"""hardware.accelerator: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

import pytest

from netdoctor.checks.hardware_accelerator import accelerator
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

LOST = Unavailable("not recorded")
GONE = Unavailable("absent")
Changes = dict[type, object]
OTHER, GPUS = "other accelerators", "GPUs"


def judged(changes: Changes) -> dict[str, Finding]:
    found = f.judge(accelerator, f.machine(changes))
    assert len({x.subject for x in found}) == len(found) > 0
    return {x.subject: x for x in found}


def given_away(driver: str) -> Pci:
    return f.pci(devices=(*(f.gpu_device(i) for i in range(7)), f.gpu_device(7, driver=driver)))


CASES: dict[str, tuple[Changes, str, Status]] = {
    "eight everywhere": ({}, GPUS, Status.PASS),
    "one in the container": ({Vantage: f.pod(), Gpus: f.gpus(1)}, GPUS, Status.PASS),
    "one given to a virtual machine": ({Pci: given_away("vfio-pci"), Gpus: f.gpus(7)}, GPUS, Status.PASS),
    "all given to virtual machines": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i, driver="vfio-pci") for i in range(8))), Gpus: f.gpus(0)},
        GPUS,
        Status.SKIP,
    ),
    "all given to virtual machines, and libcuda shows one": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i, driver="vfio-pci") for i in range(8))), Gpus: f.gpus(1, all=())},
        GPUS,
        Status.UNKNOWN,
    ),
    "all given to virtual machines, NVML lost": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i, driver="vfio-pci") for i in range(8))), Gpus: f.gpus(0, all=LOST)},
        GPUS,
        Status.UNKNOWN,
    ),
    "NVML lost all": ({Gpus: f.gpus(0)}, GPUS, Status.FAIL),
    "eight expected": ({Expected: f.expected(gpus=8, hcas=8)}, "expected GPUs", Status.PASS),
    "HCAs as expected": ({Expected: f.expected(gpus=8, hcas=8)}, "expected HCAs", Status.PASS),
    "NVML shows more than PCI": ({Pci: f.pci(devices=tuple(f.gpu_device(i) for i in range(5)))}, GPUS, Status.UNKNOWN),
    "WSL2 gives GPUs that are not on PCI": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i) for i in range(5)), foreign_accelerators=("/dev/dxg",))},
        GPUS,
        Status.PASS,
    ),
    "NVML lost one": ({Gpus: f.gpus(7)}, GPUS, Status.FAIL),
    "NVML shows another one": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i) for i in range(7))), Gpus: f.gpus(all=tuple(f.gpu(i) for i in range(1, 8)))},
        GPUS,
        Status.FAIL,
    ),
    "fewer GPUs than expected": ({Expected: f.expected(gpus=16)}, "expected GPUs", Status.FAIL),
    "fewer GPUs on PCI than expected": (
        {Pci: f.pci(7), Gpus: f.gpus(all=LOST), Expected: f.expected(gpus=8)},
        "expected GPUs",
        Status.FAIL,
    ),
    "fewer HCAs than expected": ({Rdma: f.rdma(6), Expected: f.expected(hcas=8)}, "expected HCAs", Status.FAIL),
    "no accelerator": ({Pci: f.pci(0, 0), Gpus: f.gpus(0)}, "node", Status.SKIP),
    "no accelerator, no driver": ({Pci: f.pci(0, 0), Gpus: f.gpus(0, visible=GONE, all=GONE)}, "node", Status.SKIP),
    "AMD": ({Pci: f.pci(0, 0, foreign_accelerators=("AMD (0000:c1:00.0)",)), Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "/dev/kfd": ({Pci: f.pci(0, 0, foreign_accelerators=("/dev/kfd",)), Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "other vendors lost": ({Pci: f.pci(0, 0, foreign_accelerators=LOST), Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "PCI lost": ({Pci: LOST}, GPUS, Status.UNKNOWN),
    "PCI lost, no GPU seen": ({Pci: LOST, Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "NVML lost": ({Gpus: f.gpus(all=Unavailable("timed out"))}, GPUS, Status.UNKNOWN),
    "libcuda lost": ({Gpus: f.gpus(visible=LOST)}, GPUS, Status.UNKNOWN),
    "libcuda shows the job none": ({Gpus: f.gpus(visible=())}, GPUS, Status.UNKNOWN),
    "a container without GPUs": ({Vantage: f.pod(), Gpus: f.gpus(0)}, GPUS, Status.UNKNOWN),
    "addresses lost": ({Gpus: f.gpus(all=tuple(f.gpu(i, pci=LOST) for i in range(8)))}, GPUS, Status.UNKNOWN),
    "expected, NVML lost": ({Gpus: f.gpus(all=LOST), Expected: f.expected(gpus=8)}, "expected GPUs", Status.UNKNOWN),
    "expected, sysfs lost": ({Rdma: f.rdma(devices=LOST), Expected: f.expected(hcas=8)}, "expected HCAs", Status.UNKNOWN),
}


@pytest.mark.parametrize(("changes", "subject", "status"), CASES.values(), ids=CASES)
def test_case(changes: Changes, subject: str, status: Status) -> None:
    assert judged(changes)[subject].status is status, judged(changes)


@pytest.mark.parametrize(
    ("controllers", "words", "command"),
    [
        (8, "PCI shows 8 RDMA controllers, sysfs 6 RDMA devices, 8 expected", "lsmod"),  # a driver is missing
        (7, "6 RDMA devices, 8 expected", "lspci"),  # a card is
    ],
)
def test_an_hca_that_pci_shows_lacks_its_driver(controllers: int, words: str, command: str) -> None:
    found = judged({Pci: f.pci(8, controllers), Rdma: f.rdma(6), Expected: f.expected(hcas=8)})["expected HCAs"]
    assert found.status is Status.FAIL and found.message == words
    assert found.fix is not None and found.fix.commands[0].startswith(command)


@pytest.mark.parametrize(
    ("variables", "words"),
    [({}, "NVIDIA_VISIBLE_DEVICES is not set"), ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, "NVIDIA_VISIBLE_DEVICES is 0,1")],
)
def test_what_a_container_asked_for_is_said(variables: dict[str, str], words: str) -> None:
    none = judged({Vantage: f.pod(), Gpus: f.gpus(0), Environ: f.environ(variables)})[GPUS]
    assert none.status is Status.UNKNOWN and words in none.message


def test_the_missing_gpu_is_named() -> None:
    found = judged({Gpus: f.gpus(7)})[GPUS]
    assert found.evidence["missing"] == [f.bdf(f.GPU_BUSES[7])]
