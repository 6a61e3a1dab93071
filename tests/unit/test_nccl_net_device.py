"""What NCCL makes of an RDMA device, and whose it is then: both ports of a card, functions beside the first, PXN, policies.

Each was seen on the unmodified NCCL of the versions named (tests/fakegpu/differential draws them).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.facts.pci import PciLink
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.nccl import assignment, hcas, net_device, net_path
from netdoctor.nccl.turns import Nccl
from tests.support import facts as f
from tests.unit.test_nccl_hcas import CPU_0, GPU, LOST, NEAR, NEAR_TOO, A, B, C, bus, dev, names
from tests.unit.test_nccl_hcas_used import AMD, V, rated

TWO = dev("two", A, f.port(rate_gbps=200.0), f.port(2, rate_gbps=100.0))
ONE = dev("one", B, f.port(rate_gbps=200.0))
FAR_GPU = f.gpu_device(1, numa_node=0)


@pytest.mark.parametrize(
    ("version", "beside", "low", "high"),
    [
        ((2, 18, 3), TWO, 12.5, 25.0),  # a device a port, and both have one name
        ((2, 20, 5), ONE, 37.5, 37.5),
        ((2, 23, 4), ONE, 12.5, 25.0),  # "Detected a mix of single and multiple-port NICs"
        ((2, 23, 4), TWO, 37.5, 37.5),
        ((2, 27, 5), ONE, 37.5, 37.5),
        ((2, 32, 3), ONE, 12.5, 37.5),  # refused, as far as the fake can tell
        (LOST, ONE, 12.5, 37.5),
    ],
)
def test_the_ports_of_a_card(version: Any, beside: RdmaDevice, low: float, high: float) -> None:
    assert net_device.bandwidth(TWO, (TWO, beside), version) == (low, high)


def test_a_rate_that_was_not_read_is_any() -> None:
    lost = rated("lost", A, LOST)
    assert net_device.bandwidth(lost, (lost,), V).low == 0.0
    assert net_device.bandwidth(ONE, (ONE,), V) == (25.0, 25.0)


def test_a_function_whose_card_is_not_there_hangs_on_the_cpu() -> None:
    """ "network path … is not a PCI device.  Attaching to first CPU"; 2.24.3 to 2.26.6 leave each function where it is."""
    guest = f.hca_device(0, address="0000:18:02.0", link=PciLink(32.0, 1, 32.0, 1))
    card = replace(NEAR, address="0000:18:00.0")
    device = rated("vf", guest.address, 200.0)
    way = net_device.path(GPU, device, bus(GPU, guest), V, c2c=False, direct=True)
    assert way is not None and (way.kind, way.rest, way.on_bus) == ("PHB", net_path.LIMITLESS, False)
    beside = net_device.path(GPU, device, bus(GPU, guest, card), V, c2c=False, direct=True)
    assert beside is not None and (beside.kind, beside.on_bus) == ("PIX", True)
    several = net_device.path(GPU, device, bus(GPU, guest, f.gpu_device(7)), V, c2c=False, direct=True)
    assert several is not None and (several.kind, several.crosses) == ("PHB or SYS", None)
    for version in ((2, 24, 3), (2, 25, 1), (2, 26, 6)):
        there = net_device.path(GPU, device, bus(GPU, guest), version, c2c=False, direct=True)
        assert there is not None and (there.kind, there.on_bus) == ("PIX", True)
    assert net_device.path(GPU, device, bus(GPU, guest), LOST, c2c=False, direct=True) is None


def gpus(*devices: Any, linked: bool = False) -> tuple[hcas.GpuPlace, ...]:
    links = {"nvlinks": (True,) * 4 if linked else ()}
    return tuple(hcas.GpuPlace(f"GPU{n}", n, one, None, f.gpu(n, **links)) for n, one in enumerate(devices))


def taken(places: Any, devices: list[RdmaDevice], pci: Any, nccl: Nccl) -> list[list[str]]:
    found = assignment.assigned(places, tuple(devices), replace(pci, cpu=AMD), nccl, lambda _: lambda *_: True, by_place=False)
    return [names(one.taken) for one in found]


@pytest.mark.parametrize(
    ("policy", "version", "found"),
    [
        (None, V, ["a"]),
        ("ALL", (2, 29, 7), ["a", "b"]),
        ("all", (2, 25, 1), ["a"]),  # nobody reads it yet
        ("MAX:1", (2, 29, 7), ["a"]),
        ("max:2", (2, 29, 7), ["a", "b"]),
        ("MAX:0", (2, 29, 7), ["a"]),
        ("FEW", (2, 29, 7), ["a"]),
    ],
)
def test_how_many_hcas_one_gpu_uses(policy: str | None, version: Any, found: list[str]) -> None:
    both = (GPU, replace(GPU, address="0000:17:00.0"))
    devices = [rated("a", A, 100.0), rated("b", B, 100.0)]
    pci = bus(*both, NEAR, NEAR_TOO)
    assert taken(gpus(*both), devices, pci, Nccl(version, policy=policy))[0] == found


@pytest.mark.parametrize(("rate", "policy", "found"), [(100.0, "ALL", ["a", "b"]), (400.0, "ALL", []), (400.0, None, ["a"])])
def test_two_ranks_alone_take_more_than_a_ring(rate: float, policy: str | None, found: list[str]) -> None:
    """A link of 48 GB/s carries one of 50 in a ring, and what goes between two ranks takes both; seen from 2.28.9 on."""
    both = (GPU, replace(GPU, address="0000:17:00.0"))
    pci = bus(*both, NEAR, NEAR_TOO)
    assert taken(gpus(*both), [rated("a", A, rate), rated("b", B, rate)], pci, Nccl((2, 29, 7), policy=policy))[0] == found


def test_gpus_share_what_reaches_them_alike() -> None:
    """The devices of the second GPU are those that reach the first best: it has both to itself."""
    devices = [rated("a", A, 100.0), rated("b", B, 100.0)]
    pci = bus(GPU, FAR_GPU, NEAR, NEAR_TOO)
    first, second = taken(gpus(GPU, FAR_GPU), devices, pci, Nccl(V))
    assert (first, second) == (["a", "b"], ["b", "a"])


def test_another_gpu_may_send_for_one_without_an_hca_of_its_own() -> None:
    devices, pci = [rated("a", A, 200.0)], bus(GPU, FAR_GPU, NEAR)
    assert taken(gpus(GPU, FAR_GPU, linked=True), devices, pci, Nccl(V)) == [["a"], []]
    assert taken(gpus(GPU, FAR_GPU, linked=True), devices, pci, Nccl(V, pxn=False)) == [["a"], ["a"]]
    assert taken(gpus(GPU, FAR_GPU), devices, pci, Nccl(V)) == [["a"], ["a"]]


def test_a_lone_ring_may_take_a_nearer_hca() -> None:
    slow = f.hca_device(0, link=PciLink(32.0, 8, 32.0, 8))
    devices, pci = [rated("a", A, 400.0), rated("c", C, 200.0)], bus(GPU, slow, CPU_0)
    assert taken(gpus(GPU), devices, pci, Nccl(V)) == [[]]  # 24 GB/s near, 25 far
    assert taken(gpus(GPU), [rated("a", A, 100.0), rated("c", C, 200.0)], pci, Nccl(V)) == [["c"]]


@pytest.mark.parametrize(("version", "found"), [((2, 20, 5), []), (LOST, []), ((2, 21, 5), ["a"])])
def test_before_2_21_a_lone_ring_fills_the_link(version: Any, found: list[str]) -> None:
    """48 GB/s carry two of 25 as the search counts, 24 each; seen on 2.18.3 and 2.20.5."""
    as_fast, pci = [rated("a", A, 200.0), rated("b", B, 200.0)], bus(GPU, NEAR, NEAR_TOO)
    assert taken(gpus(GPU), as_fast, pci, Nccl(version)) == [found]
    assert taken(gpus(GPU), as_fast[:1], pci, Nccl(version)) == [["a"]]


def test_the_job_says_what_the_choice_depends_on() -> None:
    said = {"NCCL_PXN_DISABLE": "1", "NCCL_NETDEVS_POLICY": "ALL"}
    assert Nccl.told(V, said.__getitem__) == Nccl(V, False, "ALL")
    assert Nccl.told(LOST, lambda _: None) == Nccl(LOST)
