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
    written: int  # what sysfs has for it: a kernel that knows no name of the speed writes SDR's
    mtu: int
    lid: int
    vlan: int
    gids: Mapping[int, Gid]
    table: int  # entries of the GID table, filled or not
    pkeys: tuple[int, ...] = (0xFFFF,)  # its table, without the empty entries at the end

    @property
    def ethernet(self) -> bool:
        return self.layer == "Ethernet"


@dataclass(frozen=True)
class Nic:
    """A network interface, and its card."""

    place: Place | None  # None: a virtual one
    link: Link
    vendor: int
    device: int
    driver: str  # of the card; of the device on a hypervisor's own bus, where there is no place
    name: str  # "": in another network namespace
    address: str  # with its prefix
    speed: int | None  # Mb/s; None: the kernel refuses to tell
    mtu: int
    kind: str  # of a virtual one, as the kernel calls it: "bond" "bridge" "veth"
    controller: str
    up: bool
    infiniband: bool = False


@dataclass(frozen=True)
class Hca:
    """An RDMA device."""

    place: Place
    link: Link
    name: str
    guid: str  # 16 hex digits
    image: str  # of the card: that of the other functions of a Socket Direct or dual-port one
    board: str
    firmware: str
    vendor: int
    device: int
    driver: str
    dmabuf: bool
    ports: tuple[Port, ...]
    netdev: str  # "" where it has none
    address: str  # IP address of netdev, with its prefix
    netdev_mtu: int
    controller: str  # the interface that netdev belongs to: a bond, the paravirtual one of a virtual function
    elsewhere: bool  # netdev is in another network namespace: the node's, and this is a pod
    node: int | None  # N of uverbsN; None: the kernel has no node for it
    mode: int | None  # of /dev/infiniband/uverbsN; None: not in /dev

    @property
    def nic(self) -> Nic:
        """Its interface, which has carrier where the first port is active."""
        up = self.ports[0].state == "ACTIVE"
        return Nic(
            place=self.place,
            link=self.link,
            vendor=self.vendor,
            device=self.device,
            driver=self.driver,
            name=self.netdev,
            address=self.address if up else "",
            speed=1000 * self.ports[0].rate if up else -1,
            mtu=self.netdev_mtu,
            kind="",
            controller=self.controller,
            up=up,
            infiniband=not self.ports[0].ethernet,
        )

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
class Interface:
    """A network interface, as the network namespace of a run has it and as sysfs shows it."""

    index: int
    mac: str
    nic: Nic

    @property
    def name(self) -> str:
        return self.nic.name

    @property
    def address(self) -> str:
        return self.nic.address
