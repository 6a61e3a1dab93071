"""Which RDMA devices NCCL takes for a GPU: bandwidth of the path, then distance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.facts.pci import CpuModel, CpuVendor, Pci, PciDevice, PciLink
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import Unavailable
from netdoctor.nccl import hcas, net_path
from netdoctor.nccl.gpudirect import rank
from netdoctor.nccl.turns import Nccl, turns
from tests.support import facts as f
from tests.unit.test_nccl_hcas import CPU_0, CPU_1, DOWN, GPU, LOST, NEAR, NEAR_TOO, A, B, C, D, bus, dev, names, place

# What NCCL takes: the path of highest bandwidth, then the nearest.  The scenes are those that the unmodified NCCL 2.18.3,
# 2.27.5 and 2.30.7 was run through; the numbers in its print of paths are these: links of 32 GT/s and 16 lanes have 48 GB/s.

V = (2, 27, 5)
AMD, SKYLAKE, SAPPHIRE = CpuModel(CpuVendor.AMD, 25, 17), CpuModel(CpuVendor.INTEL, 6, 0x55), CpuModel(CpuVendor.INTEL, 6, 0x8F)


def rated(name: str, address: str, gbps: float | Unavailable) -> RdmaDevice:
    return dev(name, address, f.port(rate_gbps=gbps))


def taken(devices: list[RdmaDevice], pci: Pci, version: Any = V, direct: bool = True, gpu: PciDevice = GPU) -> Any:
    got = hcas.used(place(gpu), devices, pci, version, lambda _, __: direct)
    return got.kind, names(got.devices), got.certain


@pytest.mark.parametrize(
    ("own", "other", "where", "cpu", "version", "found"),
    [
        (400.0, 400.0, CPU_0, AMD, V, ("PIX", ["a"], True)),
        (100.0, 400.0, CPU_0, AMD, V, ("PHB", ["x"], True)),  # 12.5 against 48
        (100.0, 400.0, CPU_1, AMD, V, ("SYS", ["x"], True)),  # 12.5 against 16, what AMD's sockets have between them
        (200.0, 400.0, CPU_1, AMD, V, ("PIX", ["a"], True)),  # 25 against 16
        (200.0, 400.0, CPU_1, AMD, (2, 18, 3), ("SYS", ["x"], True)),  # which they had not before 2.19
        (100.0, 400.0, CPU_1, SKYLAKE, V, ("PIX", ["a"], True)),  # 10
        (100.0, 400.0, CPU_1, SAPPHIRE, V, ("SYS", ["x"], True)),  # 22
        (100.0, 400.0, CPU_1, SAPPHIRE, (2, 25, 1), ("PIX", ["a"], True)),  # 10 before 2.26
        (100.0, 400.0, CPU_1, LOST, V, ("", ["a", "x"], False)),  # whose sockets these are is not known
        (400.0, 100.0, CPU_1, LOST, V, ("PIX", ["a"], True)),  # and need not be
        (100.0, LOST, CPU_0, AMD, V, ("", ["a", "x"], False)),
    ],
)
def test_bandwidth_counts_before_distance(
    own: Any, other: Any, where: PciDevice, cpu: Any, version: Any, found: tuple[str, list[str], bool]
) -> None:
    devices = [rated("a", A, own), rated("x", where.address, other)]
    assert taken(devices, f.pci(devices=(GPU, NEAR, where), cpu=cpu), version) == found


def test_a_narrow_link_on_the_way_makes_the_near_one_slow() -> None:
    narrow = f.hca_device(0, link=PciLink(8.0, 8, 8.0, 8))  # 6 GB/s
    devices = [rated("a", A, 400.0), rated("c", C, 400.0)]
    assert taken(devices, bus(GPU, narrow, CPU_0)) == ("PHB", ["c"], True)
    above = replace(NEAR, address=NEAR.path[-1], rdma=False, link=PciLink(32.0, 16, 8.0, 8))
    assert taken(devices, bus(GPU, NEAR, above, CPU_0)) == ("PHB", ["c"], True)  # its port is as narrow
    unread = f.hca_device(0, link=LOST)
    assert taken(devices, bus(GPU, unread, CPU_0)) == ("", ["a", "c"], False)
    virtual = f.hca_device(0, link=Unavailable("unsupported"))  # NCCL then takes 8 GT/s and 16 lanes: 12 GB/s
    assert taken(devices, bus(GPU, virtual, CPU_0)) == ("PHB", ["c"], True)


@pytest.mark.parametrize(("version", "kind"), [((2, 28, 9), "P2C"), ((2, 29, 2), "PHB"), ((2, 32, 3), "PHB"), (LOST, "P2C")])
def test_nvlink_c2c_leads_to_the_best_alone(version: Any, kind: str) -> None:
    """Since 2.29.2 (src/graph/paths.cc): "P2C is only set when the NET is the closest to the GPU"."""
    slower = f.hca_device(6, address=D, path=CPU_1.path, root=CPU_0.root, numa_node=0)
    devices = [rated("c", C, 400.0), rated("d", D, 200.0)]
    got = hcas.used(place(GPU, "NVIDIA GB200"), devices, f.pci(devices=(GPU, CPU_0, slower), cpu=AMD), version)
    assert (got.kind, names(got.devices)) == ("P2C", ["c"])
    assert got.figures == {"c": (48.0, rank("P2C")), "d": (25.0, rank(kind))}


def test_since_2_30_the_lanes_that_a_gpu_has_now_count() -> None:
    devices, pci = [rated("a", A, 100.0), rated("c", C, 400.0)], bus(GPU, NEAR, CPU_0)
    lame = f.gpu_device(0, link=PciLink(32.0, 4, 32.0, 16))  # 12 GB/s
    assert taken(devices, pci, (2, 29, 7), gpu=lame) == ("PHB", ["c"], True)
    assert taken(devices, pci, (2, 30, 7), gpu=lame) == ("PIX", ["a"], True)  # both are as fast as its link
    idle = f.gpu_device(0, link=PciLink(2.5, 16, 32.0, 16))
    assert taken(devices, pci, (2, 30, 7), gpu=idle) == ("PHB", ["c"], True)


def test_without_gpudirect_all_of_a_socket_are_as_near() -> None:
    devices, pci = [rated("a", A, 200.0), rated("c", C, 200.0), rated("d", D, 200.0)], bus(GPU, NEAR, CPU_0, CPU_1)
    assert taken(devices, replace(pci, cpu=AMD), direct=False) == ("PHB", ["a", "c"], True)
    assert taken(devices, replace(pci, cpu=AMD)) == ("PIX", ["a"], True)


def test_ports_that_are_not_active_are_none() -> None:
    pci = f.pci(devices=(GPU, NEAR, CPU_0), cpu=AMD)
    assert taken([dev("a", A, DOWN), rated("c", C, 200.0)], pci) == ("PHB", ["c"], True)
    assert taken([dev("a", A, f.port(state=LOST)), rated("c", C, 200.0)], pci) == ("", ["a", "c"], False)


@pytest.mark.parametrize(
    ("count", "version", "found"),
    [
        (4, V, ["a", "c", "b", "d"]),  # the bits of the GPU's number mirrored
        (4, (2, 18, 3), ["a", "b", "c", "d"]),
        (3, V, ["a", "b", "c", "a"]),
        (1, V, ["a", "a", "a", "a"]),
    ],
)
def test_gpus_that_share_devices_start_at_different_ones(count: int, version: Any, found: list[str]) -> None:
    gpus = tuple(hcas.GpuPlace(f"GPU{i}", i, GPU, None, f.gpu(i)) for i in range(4))
    near = tuple(f.hca_device(0, address=f"0000:{0x28 + i:02x}:00.0") for i in range(count))
    devices = [rated("abcd"[i], near[i].address, 200.0) for i in range(count)]
    pci = bus(GPU, *near)
    ways = [hcas.used(gpu, devices, pci, version) for gpu in gpus]
    assert [names(turns(g, gpus, w, ways, pci, Nccl(version))) for g, w in zip(gpus, ways, strict=True)] == [[n] for n in found]


@pytest.mark.parametrize(("gbps", "found"), [(200.0, ["b"]), (100.0, ["b", "a"])])  # 25 twice is more than a link of 48
def test_a_gpu_by_itself_uses_what_its_link_carries(gbps: float, found: list[str]) -> None:
    gpu = hcas.GpuPlace("GPU0", 0, GPU, None, f.gpu(1))
    devices = [rated("a", A, gbps), rated("b", B, gbps)]
    way = hcas.used(gpu, devices, bus(GPU, NEAR, NEAR_TOO), V)
    assert names(turns(gpu, (gpu,), way, [way], bus(GPU, NEAR, NEAR_TOO), Nccl(V))) == found
    # since 2.30 its number among those that share them counts
    assert names(turns(gpu, (gpu,), way, [way], bus(GPU, NEAR, NEAR_TOO), Nccl((2, 30, 7))))[0] == "a"


def test_the_ring_of_a_gpu_alone_takes_the_fewest_hops() -> None:
    """Seen on 2.30.7: of two that a 12 GB/s link reaches as well, not the one behind a switch."""
    gpu, two = hcas.GpuPlace("GPU0", 0, GPU, None, f.gpu(0)), hcas.GpuPlace("GPU1", 1, GPU, None, f.gpu(1))
    port = replace(CPU_0, path=CPU_0.path[-1:])
    pci = bus(GPU, NEAR, port)
    way = hcas.used(gpu, [rated("a", A, 200.0), rated("c", C, 200.0)], pci, V, lambda _, __: False)
    assert (way.kind, names(way.devices)) == ("PHB", ["a", "c"])
    assert names(turns(gpu, (gpu,), way, [way], pci, Nccl(V))) == ["c"]
    assert names(turns(gpu, (gpu, two), way, [way, way], pci, Nccl(V))) == ["a"]  # each begins with its own


@pytest.mark.parametrize(("version", "found"), [((2, 18, 3), ["c"]), ((2, 18, 6), ["a"])])
def test_before_2_18_6_the_hca_on_a_gpus_switch_is_the_first(version: tuple[int, int, int], found: list[str]) -> None:
    """Seen on 2.18.3 without GPUDirect: the second GPU of the node begins with the HCA that is not on its switch."""
    far = replace(CPU_0, path=("0000:05:01.0", "0000:06:00.0", "0000:07:00.0"))  # read first by its address, as near by hops
    gpu = hcas.GpuPlace("GPU1", 0, GPU, None, f.gpu(1))
    pci = bus(GPU, NEAR, far)
    way = hcas.used(gpu, [rated("a", A, 400.0), rated("c", C, 400.0)], pci, version, lambda _, __: False)
    assert names(turns(gpu, (gpu,), way, [way], pci, Nccl(version))) == found


@pytest.mark.parametrize(
    ("family", "version", "bandwidth"),
    [
        (0x19, (2, 18, 3), 5000.0),
        (0x19, (2, 30, 7), 16.0),
        (0x17, (2, 32, 3), 16.0),
        (0x19, (2, 32, 3), 24.0),
        (0x1A, (2, 32, 3), 32.0),
    ],
)
def test_the_link_between_sockets_of_amd(family: int, version: tuple[int, int, int], bandwidth: float) -> None:
    """As the libraries print it: "SYS[24.0] - CPU/0-1"."""
    assert net_path.between_cpus(CpuModel(CpuVendor.AMD, family, 1), version) == (bandwidth, bandwidth)
