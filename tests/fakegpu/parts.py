"""What a machine consists of, as the fake libraries are told it: GPUs, NVLinks, HCAs with ports and GIDs, network cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

STATES: Final = {"NOP": 0, "DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4}  # ibv_port_state, as sysfs spells them


@dataclass(frozen=True)
class Place:
    """Where a PCI function is: the bridges above it from the root port down, its address, its NUMA node."""

    bridges: tuple[str, ...]
    address: str
    numa: int

    @property
    def root(self) -> str:
        return "pci" + (self.bridges or (self.address,))[0].rpartition(":")[0]


@dataclass(frozen=True)
class Distances:
    """How far NUMA nodes are apart (SLIT): nodes of one socket, and of two."""

    socket: int = 1  # nodes a socket
    near: int = 12
    far: int = 21

    def between(self, one: int, other: int) -> int:
        return 10 if one == other else self.near if one // self.socket == other // self.socket else self.far


@dataclass(frozen=True)
class Link:
    """A PCIe link, now and at most."""

    generation: int = 5
    width: int = 16
    max_generation: int = 5
    max_width: int = 16


@dataclass(frozen=True)
class NvLink:
    """One NVLink of a GPU: the address of what is at its other end."""

    remote: str
    up: bool = True


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver and NVML show it."""

    place: Place
    link: Link
    name: str
    uuid: str  # 32 hex digits
    device: int  # PCI device id
    capability: int  # 90
    multiprocessors: int
    memory: int
    nvlinks: tuple[NvLink, ...]
    attributes: Mapping[int, int | str]  # CUdevice_attribute; "unknown" where the driver is older than it
    state: Mapping[str, int | str]  # what NVML tells: keys of nvml_health.c, "ecc.uncorrected", "xid", "lost" …

    def told(self) -> Iterator[tuple[str, object]]:
        """What the libraries read of it (c/fake.h), without what stands before each key."""
        yield from (("address", self.place.address), ("uuid", self.uuid), ("name", self.name), ("device", self.device))
        yield from (("capability", self.capability), ("multiprocessors", self.multiprocessors), ("memory", self.memory))
        yield from (("numa", self.place.numa), ("nvlinks", len(self.nvlinks)))
        link = self.link
        yield from (("pcie.generation", link.generation), ("pcie.width", link.width))
        yield from (("pcie.max_generation", link.max_generation), ("pcie.max_width", link.max_width))
        yield from ((f"attribute.{number}", value) for number, value in self.attributes.items())
        for n, one in enumerate(self.nvlinks):
            yield f"nvlink.{n}.remote", one.remote
            if not one.up:
                yield f"nvlink.{n}.down", 1
        yield from self.state.items()


@dataclass(frozen=True)
class Gid:
    """A filled entry of a GID table."""

    value: str
    kind: str  # "IB/RoCE v1" "RoCE v2"
    netdev: str


@dataclass(frozen=True)
class Port:
    """A port of an HCA."""

    state: str
    layer: str  # "InfiniBand" "Ethernet" "Unspecified" (EFA)
    rate: int  # Gb/s
    mtu: int
    lid: int
    vlan: int
    gids: Mapping[int, Gid]
    table: int  # entries of the GID table, filled or not

    @property
    def ethernet(self) -> bool:
        return self.layer == "Ethernet"


@dataclass(frozen=True)
class Hca:
    """An RDMA device."""

    place: Place
    link: Link
    name: str
    guid: str  # 16 hex digits
    firmware: str
    vendor: int
    device: int
    driver: str
    dmabuf: bool
    ports: tuple[Port, ...]
    netdev: str  # "" where it has none
    address: str  # IP address of netdev, with its prefix
    node: int | None  # N of uverbsN; None: the kernel has no node for it
    mode: int | None  # of /dev/infiniband/uverbsN; None: not in /dev

    def told(self) -> Iterator[tuple[str, object]]:
        """What the libraries read of it (c/fake.h), without what stands before each key."""
        yield from (("name", self.name), ("guid", self.guid), ("firmware", self.firmware), ("part", self.device))
        yield from (("dmabuf", int(self.dmabuf)), ("ports", len(self.ports)), ("verbs", int(self.node is not None)))
        if self.node is not None:
            yield "uverbs", self.node
        for n, port in enumerate(self.ports, 1):
            yield f"port.{n}.state", STATES[port.state]
            yield from ((f"port.{n}.{key}", getattr(port, key)) for key in ("layer", "rate", "mtu", "lid", "vlan"))
            yield f"port.{n}.gids", port.table
            for index, gid in port.gids.items():
                yield f"port.{n}.gid.{index}", gid.value
                yield f"port.{n}.type.{index}", gid.kind


@dataclass(frozen=True)
class Nic:
    """A network interface without RDMA, and its card."""

    place: Place | None  # None: a virtual one
    link: Link
    name: str
    address: str
    speed: int  # Mb/s


@dataclass(frozen=True)
class Interface:
    """A network interface, as the network namespace of a run has it and as sysfs shows it."""

    name: str
    index: int
    mac: str
    address: str  # with its prefix
    speed: int  # Mb/s
