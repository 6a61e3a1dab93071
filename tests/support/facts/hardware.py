"""Kernel, CPUs, PCI, GPUs and RDMA devices of a healthy DGX H100."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from netdoctor.facts.cpu import Cpu, MemoryPolicy, Node
from netdoctor.facts.gpu import Gpu, Gpus, VisibleGpu
from netdoctor.facts.interrupts import Interrupts
from netdoctor.facts.kernel import UNLIMITED, Kernel, Module
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.pci_path import Config, Group, PciPath
from netdoctor.facts.rdma import Provider, Rdma, RdmaDevice, Uverbs
from netdoctor.facts.rdma_ports import Gid, RdmaPort
from netdoctor.facts.system import Room, System
from netdoctor.model import Unavailable

NONE = Unavailable("absent")

# Buses of a DGX H100: GPU and its HCA under one PCIe switch, four of them per socket.
GPU_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
HCA_BUSES = (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xCE, 0xDC)
GPU_NAME = "NVIDIA H100 80GB HBM3"


def room(number: int) -> dict[str, Any]:
    """The answer to `room:` of a folder, where this errno met who tried it."""
    return {
        "errno": number,
        "name": errno.errorcode.get(number, ""),
        "tried": True,
        "size": 1 << 30,
        "free": 0 if number else 1 << 29,
    }


def system(**changes: Any) -> System:
    """Nothing ails it, and its folders take files."""
    rooms = dict.fromkeys(("/tmp", "/var/tmp", "the working folder"), Room("", True, 1 << 40, 1 << 39))
    return replace(System(12289, 3551000.0, NONE, rooms, (), ()), **changes)


def kernel(**changes: Any) -> Kernel:
    """nvidia_peermem loaded, memlock unlimited, wide sysctls."""
    base = Kernel(
        release="6.8.0-1019-nvidia",
        command_line="BOOT_IMAGE=/vmlinuz root=/dev/md0 iommu=pt",
        modules={
            "nvidia": Module("580.95.05"),
            "nvidia_peermem": Module("580.95.05"),
            "ib_core": Module(None),
            "ib_uverbs": Module(None),
            "mlx5_core": Module(None),
            "mlx5_ib": Module(None),
        },
        memory_peers={},
        sysctls={
            "net.ipv4.ip_local_port_range": "32768 60999",
            "net.ipv4.tcp_rmem": "4096 131072 67108864",
            "net.ipv4.tcp_wmem": "4096 65536 67108864",
            "net.ipv4.tcp_moderate_rcvbuf": "1",
            "net.ipv4.tcp_congestion_control": "cubic",
            "net.ipv4.tcp_available_congestion_control": "reno cubic",
            "net.core.somaxconn": "4096",
        },
        limits={
            "memlock": UNLIMITED,
            "nofile": 1048576,
            "stack": 8 << 20,
            "nproc": UNLIMITED,
        },
        shm_size=1 << 40,
        shm_free=1 << 40,
    )
    if "shm_size" in changes:  # empty, where nothing else is said
        changes = {"shm_free": changes["shm_size"], **changes}
    return replace(base, **changes)


def node(id: int, cpus: Iterable[int], distances: Mapping[int, int] | Unavailable | None = None) -> Node:
    return Node(id, frozenset(cpus), {0: 10, 1: 21} if distances is None else distances)


def cpu(**changes: Any) -> Cpu:
    """Two sockets of 56 cores with two threads each."""
    first, second = [*range(56), *range(112, 168)], [*range(56, 112), *range(168, 224)]
    base = Cpu(
        nodes=(node(0, first, {0: 10, 1: 21}), node(1, second, {0: 21, 1: 10})),
        allowed=frozenset(range(224)),
        memory_allowed=frozenset({0, 1}),
        online=frozenset(range(224)),
        memory_policy=MemoryPolicy("default", frozenset()),
    )
    return replace(base, **changes)


def interrupts(cpus: Mapping[str, frozenset[int] | Unavailable] | Unavailable | None = None) -> Interrupts:
    """Where there are RDMA devices they are not read."""
    return Interrupts(Unavailable("unsupported", "there are RDMA devices") if cpus is None else cpus)


def bdf(bus: int, device: int = 0, function: int = 0) -> str:
    return f"0000:{bus:02x}:{device:02x}.{function}"


def _slot(bus: int, index: int) -> tuple[str, tuple[str, ...]]:
    """(root, path) of a device behind switch number `index`, which a GPU and its HCA share."""
    base = HCA_BUSES[index] - 3
    return f"pci0000:{base:02x}", (bdf(base, 1), bdf(base + 1), bdf(base + 2, 0 if bus == HCA_BUSES[index] else 1))


def gpu_device(index: int, **changes: Any) -> PciDevice:
    root, path = _slot(GPU_BUSES[index], index)
    base = PciDevice(
        address=bdf(GPU_BUSES[index]),
        vendor=0x10DE,
        device=0x2330,
        klass=0x030200,
        numa_node=index // 4,
        driver="nvidia",
        link=PciLink(32.0, 16, 32.0, 16),
        path=path,
        root=root,
        physical_function=None,
    )
    return replace(base, **changes)


def hca_device(index: int, **changes: Any) -> PciDevice:
    root, path = _slot(HCA_BUSES[index], index)
    base = PciDevice(
        address=bdf(HCA_BUSES[index]),
        vendor=0x15B3,
        device=0x1021,
        klass=0x020700,
        numa_node=index // 4,
        driver="mlx5_core",
        link=PciLink(32.0, 16, 32.0, 16),
        path=path,
        root=root,
        physical_function=None,
        rdma=True,
    )
    return replace(base, **changes)


def pci(gpus: int = 8, hcas: int = 8, **changes: Any) -> Pci:
    base = Pci(devices=(*(gpu_device(i) for i in range(gpus)), *(hca_device(i) for i in range(hcas))), foreign_accelerators=())
    return replace(base, **changes)


def switches(index: int) -> tuple[PciDevice, ...]:
    """The upstream port of the switch that a GPU and its HCA share, and its ports to them, the HCA's first."""
    root, path = _slot(HCA_BUSES[index], index)
    own = {"vendor": 0x1000, "device": 0xC030, "klass": 0x060400, "driver": "pcieport", "rdma": False, "root": root}
    places = ((path[1], path[:1]), (path[2], path[:2]), (gpu_device(index).path[2], path[:2]))
    return tuple(hca_device(index, address=address, path=above, **own) for address, above in places)


def pci_path(acs: Mapping[str, int] | None = None, **changes: Any) -> PciPath:
    """Bare metal with the IOMMU in passthrough: the CPU's ports turn back what comes by, `acs` others by address."""
    plain = Config(0, 512, True, False)
    every = {d.address: plain for i in range(8) for d in (*switches(i), hca_device(i))}
    every |= {hca_device(i).path[0]: replace(plain, acs=0x1D) for i in range(8)}
    every |= {address: replace(plain, acs=bits) for address, bits in (acs or {}).items()}
    ends = [f(i).address for i in range(8) for f in (gpu_device, hca_device)]
    groups = {address: Group(str(n), "identity") for n, address in enumerate(ends)}
    return replace(PciPath(every, groups, guest=False), **changes)


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-1111-2222-3333-444444444444"


def gpu(index: int, **changes: Any) -> Gpu:
    base = Gpu(
        uuid=uuid(index),
        index=index,
        name=GPU_NAME,
        pci=bdf(GPU_BUSES[index]),
        numa_node=index // 4,
        memory_total=80 << 30,
        memory_used=0,
        utilization=0,
        processes=0,
        nvlinks=(True,) * 18,
        mig=False,
        capability=(9, 0),
    )
    return replace(base, **changes)


def visible(index: int, **changes: Any) -> VisibleGpu:
    return replace(VisibleGpu(index, uuid(index), GPU_NAME, gpudirect_rdma=True, dmabuf=True, integrated=False), **changes)


def gpus(count: int = 8, **changes: Any) -> Gpus:
    base = Gpus(
        driver="580.95.05",
        cuda_driver=13000,
        all=tuple(gpu(i) for i in range(count)),
        visible=tuple(visible(i) for i in range(count)),
    )
    return replace(base, **changes)


def gid(index: int = 0, value: str = "fe80:0000:0000:0000:a088:c203:00b0:0001", **changes: Any) -> Gid:
    return replace(Gid(index, value, "IB/RoCE v1", Unavailable("failed", "EINVAL")), **changes)


def roce_gids(netdev: str | Unavailable, address: str = "0a0a:0001") -> tuple[Gid, ...]:
    """What a RoCE port with an IPv4 address (in hexadecimal) has."""
    local, mapped = f"fe80:0000:0000:0000:a288:c2ff:{address}", f"0000:0000:0000:0000:0000:ffff:{address}"
    return (
        Gid(0, local, "IB/RoCE v1", netdev),
        Gid(1, local, "RoCE v2", netdev),
        Gid(2, mapped, "IB/RoCE v1", netdev),
        Gid(3, mapped, "RoCE v2", netdev),
    )


def port(number: int = 1, **changes: Any) -> RdmaPort:
    return replace(RdmaPort(number, "ACTIVE", "LinkUp", "InfiniBand", 400.0, (gid(),)), **changes)


def roce_port(netdev: str | Unavailable, **changes: Any) -> RdmaPort:
    return port(**{"link_layer": "Ethernet", "gids": roce_gids(netdev), **changes})


def uverbs(index: int, **changes: Any) -> Uverbs:
    base = Uverbs(
        node=f"/dev/infiniband/uverbs{index}",
        numbers=(231, 192 + index),
        node_numbers=(231, 192 + index),
        open_errno="",
        owner=(0o666, 0, 0),
    )
    return replace(base, **changes)


def hca(index: int, **changes: Any) -> RdmaDevice:
    base = RdmaDevice(
        name=f"mlx5_{index}",
        pci=bdf(HCA_BUSES[index]),
        driver="mlx5_core",
        numa_node=index // 4,
        virtual_function=False,
        firmware="28.39.3560",
        ports=(port(),),
        uverbs=uverbs(index),
        provider=Provider(True, "", "EBADF"),
    )
    return replace(base, **changes)


def rdma(count: int = 8, **changes: Any) -> Rdma:
    base = Rdma(
        devices=tuple(hca(i) for i in range(count)),
        libibverbs="libibverbs.so.1",
        verbs_devices=tuple(f"mlx5_{i}" for i in range(count)),
        shared=True,
    )
    return replace(base, **changes)


def no_rdma() -> Rdma:
    """Positive evidence: /sys/class/infiniband was read and is empty."""
    return Rdma((), NONE, ())
