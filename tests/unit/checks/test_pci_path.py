"""pci.path: what switches turn back, what that costs, and what was not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.pci_path import pci_path
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import GpuHealth, Pair as Peers
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.pci import Pci
from netdoctor.facts.pci_path import Config, Group, PciPath
from netdoctor.facts.rdma import Provider, Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from tests.support import facts as f

ROOT, UP, HCA, GPU = ("0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:17:01.0")
WHOLE = f.pci(devices=(*f.pci().devices, *(one for i in range(8) for one in f.switches(i))))
DENIED = Unavailable(Kind.DENIED, "configuration space beyond 64 bytes is for root alone")
ALL = {d.address: 0x1D for i in range(8) for d in f.switches(i)[1:]}
PLAIN = Config(0, 512, True, False)
NO_LINKS = f.gpus(all=tuple(f.gpu(i, nvlinks=()) for i in range(8)))
# Two GPUs below the first switch, without NVLink, that NVML lets access each other.
SECOND = f.gpu_device(1, path=(ROOT, UP, "0000:17:02.0"), root="pci0000:15", numa_node=0)
BESIDE = replace(WHOLE, devices=(*(d for d in WHOLE.devices or () if d.address != SECOND.address), SECOND))
PEERS = GpuHealth((), tuple(Peers(a, b, 0, 0, 5) for a in range(8) for b in range(a)))
TWO = {Pci: BESIDE, Gpus: replace(NO_LINKS, visible=f.gpus(2).visible), GpuHealth: PEERS, Intent: f.job(nodes=1)}


def runs(rate: float, **changes: Any) -> PathRun:
    return f.path_run(*(f.hca_run(i, (i + 1) % 8, f"mlx5_{i}:1", busbw={1 << 26: rate}, **changes) for i in range(8)))


def but(way: PciPath, address: str, told: Config | Unavailable) -> PciPath:
    return replace(way, config={**(way.config or {}), address: told})


def said(changes: dict[type, object]) -> dict[str, Finding]:
    return {one.subject: one for one in f.judge(pci_path, f.machine({Pci: WHOLE, **changes}))}


@pytest.mark.parametrize(
    ("acs", "share", "severity"),
    [
        ({HCA: 0x1D, GPU: 0x1D}, 0.37, Severity.CRITICAL),
        ({HCA: 0x04, GPU: 0x08}, 0.37, Severity.CRITICAL),
        ({HCA: 0x20, GPU: 0x20}, 0.37, Severity.CRITICAL),
        ({HCA: 0x04}, None, Severity.WARNING),  # one way fits into the link: what the CPU makes of it nobody knows
        ({GPU: 0x08}, None, Severity.WARNING),
        ({HCA: 0x5D, GPU: 0x5D}, 0.37, Severity.CRITICAL),  # translated requests pass, and the HCA asks for no translation
        (ALL, 0.37, Severity.CRITICAL),
    ],
)
def test_what_is_turned_back(acs: dict[str, int], share: float | None, severity: Severity) -> None:
    found = said({PciPath: f.pci_path(acs)})["GPU0–mlx5_0"]
    assert found.status is Status.FAIL, found.message
    assert found.loss
    assert (found.severity, found.loss.share and round(found.loss.share, 2)) == (severity, share)
    assert found.fix
    assert [command.split()[2] for command in found.fix.commands] == [b for b in (GPU, HCA) if b in acs]


def test_hcas_of_one_switch_share_its_link() -> None:
    """Two of 400 Gb/s below one: 63 of 200 GB/s."""
    second = f.hca_device(1, path=(ROOT, UP, "0000:17:03.0"), root="pci0000:15", numa_node=0)
    devices = (*(d for d in WHOLE.devices or () if d.address != second.address), second)
    found = said({Pci: replace(WHOLE, devices=devices), PciPath: f.pci_path({HCA: 0x1D, GPU: 0x1D, "0000:17:03.0": 0x1D})})
    assert {name: one.loss.share for name, one in found.items() if one.loss} == {
        "GPU0–mlx5_0": pytest.approx(0.685),
        "GPU0–mlx5_1": pytest.approx(0.685),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {PciPath: f.pci_path(dict.fromkeys(ALL, 0x11))},  # source validation and upstream forwarding turn nothing back
        {PciPath: f.pci_path({HCA: 0x08, GPU: 0x04})},  # of an HCA's completions and a GPU's requests nothing is sent here
        {PciPath: f.pci_path({ROOT: 0x7F, UP: 0x1D})},  # above the switch
        {PciPath: f.pci_path(ALL), PathRun: runs(22.5)},  # 67.5 GB/s do not go through a link of 63
        {PciPath: f.pci_path(config=DENIED), PathRun: runs(22.5)},
        {PciPath: f.pci_path(config=DENIED, guest=DENIED), PathRun: runs(22.5)},
        {PciPath: PciPath({**dict.fromkeys(ALL, PLAIN), HCA: replace(PLAIN, acs=None)}, guest=False)},  # none to switch on
    ],
)
def test_what_is_direct(changes: dict[type, object]) -> None:
    (found,) = said(changes).values()
    assert found.status is Status.PASS, found.message


@pytest.mark.parametrize(
    "changes",
    [
        {PciPath: f.pci_path(ALL, guest=True)},
        {PciPath: f.pci_path(config=DENIED, guest=True)},
        {PciPath: f.pci_path(ALL), Intent: f.job(nodes=1)},
        {PciPath: f.pci_path(ALL), Environ: f.environ({"NCCL_NET": "Socket"})},
        {PciPath: f.pci_path(ALL), Environ: f.environ({"NCCL_IB_DISABLE": "1"})},
        {
            PciPath: f.pci_path(ALL),
            PathRun: runs(10.0, log=f.log(vias=(f.via(0, 1, "send", False), f.via(1, 0, "receive", False)))),
        },
        {
            PciPath: f.pci_path(ALL),
            Kernel: f.kernel(modules={"nvidia_peermem": Unavailable("absent")}),
            Rdma: f.rdma(devices=tuple(f.hca(i, provider=Provider(True, "", "EOPNOTSUPP")) for i in range(8))),
        },
        {PciPath: f.pci_path(ALL), Rdma: f.no_rdma()},
        {
            PciPath: f.pci_path(ALL),
            Pci: f.pci(devices=tuple(replace(d, path=d.path[2:], root=d.address) for d in f.pci().devices or ())),
        },
    ],
)
def test_where_nothing_passes_a_switch(changes: dict[type, object]) -> None:
    found = list(said(changes).values())
    assert {one.status for one in found} <= {Status.SKIP}, [one.message for one in found]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({PciPath: f.pci_path(config=DENIED)}, "for root alone; they did when the kernel started"),
        ({PciPath: f.pci_path(config=DENIED, groups={})}, "for root alone"),
        ({PciPath: but(f.pci_path(), GPU, DENIED)}, "for root alone"),
        ({PciPath: f.pci_path(config=DENIED), PathRun: runs(20.0)}, "for root alone"),  # 60 GB/s do
        ({PciPath: f.pci_path(guest=DENIED)}, "whether this is a virtual machine"),
        ({Environ: f.environ(variables=DENIED, nccl=DENIED)}, "could not be told"),
        ({Rdma: f.rdma(devices=DENIED)}, "could not be told"),
        ({Pci: f.pci(devices=DENIED)}, "could not be read"),
        ({Pci: f.pci(devices=())}, "PCI shows no device"),
    ],
)
def test_what_was_not_seen(changes: dict[type, object], words: str) -> None:
    found = next(one for one in said(changes).values() if one.status is Status.UNKNOWN)
    assert words in found.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({PciPath: f.pci_path(ALL, guest=DENIED)}, "as it must in a virtual machine"),
        (
            {PciPath: but(f.pci_path(dict.fromkeys(ALL, 0x5D)), f.hca_device(0).address, replace(PLAIN, ats=True))},
            "whether the HCA asks for that",
        ),
        ({PciPath: f.pci_path(ALL), Intent: f.job()}, "a fault if the job has other nodes"),
    ],
)
def test_what_may_be_meant(changes: dict[type, object], words: str) -> None:
    found = said(changes)["GPU0–mlx5_0"]
    assert (found.status, words in found.message) == (Status.UNKNOWN, True), found.message


def test_one_iommu_group_says_nothing_of_now() -> None:
    one = dict.fromkeys(f.pci_path().groups, Group("7", "DMA"))
    assert "kernel started" not in said({PciPath: f.pci_path(config=DENIED, groups=one)})["GPUs and HCAs"].message


def test_gpus_that_only_pcie_joins() -> None:
    found = said({**TWO, PciPath: f.pci_path({GPU: 0x1D, "0000:17:02.0": 0x1D})})["GPU0–GPU1"]
    assert (found.status, found.severity, found.loss and found.loss.share) == (Status.FAIL, Severity.CRITICAL, 0.5)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.PASS),
        ({Gpus: f.gpus(2)}, Status.SKIP),  # NVLink joins them
        ({GpuHealth: GpuHealth((), (Peers(0, 1, 1, 1, 5),))}, Status.SKIP),  # the chipset does not let them
        ({GpuHealth: GpuHealth((), DENIED)}, Status.UNKNOWN),
        ({Environ: f.environ({"NCCL_P2P_DISABLE": "1"})}, Status.SKIP),
        ({PciPath: f.pci_path(config=DENIED)}, Status.UNKNOWN),
        (
            {PciPath: f.pci_path({GPU: 0x1D}), Baseline: f.baseline(f.run(2, log=f.log(vias=(f.via(transport="SHM"),))))},
            Status.SKIP,
        ),
        (
            {
                PciPath: f.pci_path(config=DENIED),
                Baseline: f.baseline(f.run(2, busbw={1 << 26: 40.0}, log=f.log(vias=(f.via(transport="P2P"),)))),
            },
            Status.PASS,
        ),
    ],
)
def test_gpus_below_one_switch(changes: dict[type, object], status: Status) -> None:
    clean = {"0000:17:02.0": 0}
    found = said({**TWO, PciPath: f.pci_path(clean), **changes})
    assert {one.status for one in found.values()} == {status}, [one.message for one in found.values()]


def test_hcas_that_are_not_as_their_like() -> None:
    way = but(f.pci_path(), f.hca_device(3).address, replace(PLAIN, max_read=128))
    found = said({PciPath: but(way, f.hca_device(5).address, replace(PLAIN, relaxed=False))})["GPUs and HCAs"]
    assert found.notes == (
        "0000:5e:00.0: bytes of a read request at most: 128, of its like 512",
        "0000:c0:00.0: relaxed ordering: False, of its like True",
    )
