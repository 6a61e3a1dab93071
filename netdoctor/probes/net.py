"""Interfaces, addresses and routes, from netlink: /sys/class/net may show another namespace's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class Address:
    """One address of an interface."""

    ip: str
    prefix: int
    family: int  # 4 or 6
    scope: str  # "global" "link" "host"
    flags: frozenset[str] = frozenset()  # "tentative" "dadfailed" "deprecated" "temporary"

    @property
    def usable(self) -> bool:
        return not self.flags & {"tentative", "dadfailed"}


@dataclass(frozen=True)
class Link:
    """One interface of this network namespace."""

    name: str
    index: int
    up: bool  # IFF_UP
    running: bool  # IFF_RUNNING
    loopback: bool
    kind: str | None  # "veth" "bridge" "bond" "vlan" "macvlan" "tun" …; None for a physical one
    mtu: int
    controller: int | None  # index of its bridge or bond
    addresses: tuple[Address, ...]
    speed_mbps: int | Unavailable  # from sysfs, if sysfs shows this namespace; -1 and EINVAL are Unavailable
    vendor: str | Unavailable  # PCI vendor of /sys/class/net/IF/device, "0x1d0f"
    driver: str | Unavailable
    numa_node: int | Unavailable
    infiniband: bool = False  # ARPHRD_INFINIBAND (IPoIB)


@dataclass(frozen=True)
class Route:
    """What the kernel answers to RTM_GETROUTE for one destination."""

    destination: str
    interface: str
    source: str | None
    gateway: str | None
    kind: str = "unicast"  # "local" for an own address, "unreachable", …


@dataclass(frozen=True)
class Peer:
    """A name that ranks must reach (MASTER_ADDR, a configured peer) with its addresses and routes."""

    name: str
    addresses: tuple[str, ...] | Unavailable
    routes: Mapping[str, Route | Unavailable] = field(default_factory=dict)  # by address
    rtt_ms: float | Unavailable = Unavailable("not read")  # TCP_INFO of a connection, only where measured
    local: bool | Unavailable = Unavailable("not read")  # one of its addresses is this node's


@dataclass(frozen=True)
class LocalPorts:
    """The ports that bind(0) and connect() may take in this network namespace."""

    low: int | Unavailable
    high: int | Unavailable
    reserved: frozenset[int] | Unavailable  # ip_local_reserved_ports, all of them
    listening: frozenset[int] | Unavailable  # TCP ports with a listener in this namespace (v4 and v6)
    unprivileged_start: int | Unavailable  # ip_unprivileged_port_start


@dataclass(frozen=True)
class Net:
    """The network as this process sees it."""

    links: tuple[Link, ...]  # in kernel order (ifindex), as getifaddrs gives them
    sysfs_agrees: bool | Unavailable  # /sys/class/net lists the same interfaces
    hostname: str | Unavailable
    hostname_addresses: tuple[str, ...] | Unavailable  # what it resolves to
    master: Peer | None | Unavailable  # MASTER_ADDR; None: not set
    master_port: int | None | Unavailable  # MASTER_PORT
    peers: tuple[Peer, ...]  # of the configuration
    default_route: Route | None | Unavailable  # None: there is none

    def link(self, name: str) -> Link | None:
        return next((one for one in self.links if one.name == name), None)
