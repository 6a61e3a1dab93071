"""Network hardware that is plainly not meant for RDMA, and what is not so plain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Severity, Status, Unavailable
from netdoctor.nccl import rails
from tests.support import facts as f

GPUS = f.pci().gpus or ()
ONBOARD = ("0000:00:02.0",)


def nic(number: int, path: tuple[str, ...] = ONBOARD, driver: str = "bnxt_en", klass: int = 0x020000) -> PciDevice:
    device = replace(GPUS[0], address=f"0000:{number:02x}:00.0", vendor=0x14E4, device=0x1750, klass=klass, path=path)
    return replace(device, driver=driver, rdma=True)


def kernel(*loaded: str) -> Kernel:
    some = {name: one for name, one in f.kernel().modules.items() if not name.endswith(("_ib", "_re", "irdma"))}
    gone = dict.fromkeys(("mlx5_ib", "bnxt_re", "irdma"), Unavailable("absent"))
    return f.kernel(modules={**some, **gone, **{name: f.kernel().modules["nvidia"] for name in loaded}})


BESIDE = GPUS[0].path
TABLE: dict[str, tuple[tuple[PciDevice, ...], tuple[str, ...], int]] = {
    "an onboard card": ((nic(0xC1),), (), 1),
    "one of Mellanox in Ethernet mode": ((nic(0xC1, driver="mlx5_core"),), (), 1),
    "one of Intel": ((nic(0xC1, driver="ice"),), (), 1),
    "its module is loaded": ((nic(0xC1),), ("bnxt_re",), 0),
    "an InfiniBand controller": ((nic(0xC1, driver="mlx5_core", klass=0x020700),), (), 0),
    "beside a GPU": ((nic(0xC1, BESIDE),), (), 0),
    "as many as there are GPUs": (tuple(nic(0xC0 + n) for n in range(8)), (), 0),
    "a driver that has no module known here": ((nic(0xC1, driver="qede"),), (), 0),
}


@pytest.mark.parametrize(("cards", "loaded", "count"), TABLE.values(), ids=TABLE)
def test_who_is_ethernet_alone(cards: tuple[PciDevice, ...], loaded: tuple[str, ...], count: int) -> None:
    pci = f.pci(devices=(*GPUS, *cards))
    assert len(rails.ethernet_alone(pci, kernel(*loaded))) == count
    facts = f.machine({Pci: pci, Kernel: kernel(*loaded), Rdma: f.no_rdma(), Intent: f.job()})
    wanted = Status.SKIP if count else Status.UNKNOWN
    assert f.statuses(f.judge(dev_infiniband, facts))["node"] is wanted
    assert f.only(f.judge(gpudirect_rdma, facts)).status is wanted


def test_modules_that_could_not_be_listed_excuse_nothing() -> None:
    pci = f.pci(devices=(*GPUS, nic(0xC1)))
    assert rails.ethernet_alone(pci, f.kernel(modules=dict.fromkeys(f.kernel().modules, Unavailable("denied")))) == ()


DOWN = (f.port(state="DOWN", physical="Polling"),)
BARE = f.rdma(devices=tuple(f.hca(n, ports=DOWN) for n in range(4)))


@pytest.mark.parametrize(
    ("stated", "changes", "status"),
    [
        ({}, {}, Status.UNKNOWN),
        ({"nodes": 1}, {}, Status.SKIP),
        ({"nodes": 2}, {}, Status.FAIL),
        ({"nodes": 1}, {Expected: f.expected(hcas=4)}, Status.FAIL),  # the site's own word
    ],
)
def test_ports_that_nobody_cabled(stated: dict[str, int], changes: dict[type, Any], status: Status) -> None:
    found = f.judge(dev_infiniband, f.machine({Rdma: BARE, Intent: f.job(**stated), **changes}))
    assert status in {one.status for one in found} and (status is Status.FAIL or len(found) == 1), found
    if not stated:
        assert found[0].perhaps is not None and found[0].perhaps.severity is Severity.WARNING


@pytest.mark.parametrize("port", [f.port(state="INIT"), f.port(state="DOWN", physical="LinkUp"), f.port()])
def test_one_port_with_a_link_is_a_fabric(port: Any) -> None:
    some = replace(BARE, devices=(*(BARE.devices or ())[:3], f.hca(3, ports=(port,))))
    assert rails.uncabled(BARE) and not rails.uncabled(some)
