"""RoCE rails of one IPv4 subnet, and what the kernel does with the ARP that arrives on each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address, ip_interface, ip_network
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.net import Link, Net
from netdoctor.facts.peers import route, routes_to
from netdoctor.facts.rdma import Rdma
from netdoctor.host.base import Host, mapping, question, read, read_int, value
from netdoctor.model import Kind, Unavailable, missing

_CONF: Final = "/proc/sys/net/ipv4/conf"
# proc_pid_net(5): address, type, flags (0x0: incomplete; 0x4: permanent, linux/if_arp.h), MAC, mask, device
_ARP: Final = "/proc/net/arp"
_PERMANENT: Final = 0x4
STRICT: Final = 1


@dataclass(frozen=True)
class Rail:
    """An interface of a RoCE port."""

    name: str
    address: str
    strict: bool | Unavailable  # rp_filter 1: a packet must come in where the way back to its sender leads out
    by_source: bool | Unavailable  # a rule chooses the way back by this rail's own address
    own_way: bool | Unavailable  # to an address beside its own the route leads by this rail


@dataclass(frozen=True)
class FlatRails(Fact):
    """The largest IP subnet that several rails are in, and its hosts that did not answer."""

    network: str | Unavailable  # "": no two of them are in one
    rails: tuple[Rail, ...] | Unavailable = ()
    incomplete: tuple[str, ...] | Unavailable = ()  # hosts of that subnet that did not answer a rail's ARP
    fixed: tuple[str, ...] | Unavailable = ()  # of that subnet, whose MAC somebody wrote down: nobody asks for it


def probe(host: Host, net: Net, rdma: Rdma) -> FlatRails | Unavailable:
    """Asked only where there is such a subnet."""
    if (lost := missing(net.links, rdma.devices)) is not None:
        return lost
    ports = [port for device in rdma.devices or () for port in device.ports or () if port.link_layer == "Ethernet"]
    names = {gid.netdev for port in ports for gid in port.gids or ()}
    by: dict[str, list[tuple[Link, str]]] = {}
    for link in (one for one in net.links or () if one.name in names and one.controller is None):
        for one in link.addresses:
            if one.family == 4 and one.scope == "global" and one.prefix < 31:
                by.setdefault(str(ip_interface(f"{one.ip}/{one.prefix}").network), []).append((link, one.ip))
    network, held = max(by.items(), key=lambda item: len(item[1]), default=("", []))
    if len({link.name for link, _ in held}) < 2:
        return FlatRails("")
    sources, whole = _sources(host), IPv4Network(network)
    beside = {ip: _beside(ip, whole, [one for _, one in held]) for _, ip in held}
    ways = routes_to(host, [one for one in beside.values() if one])
    rails = tuple(
        Rail(link.name, ip, _strict(host, link.name), _by_source(ip, sources), _leads_by(link.name, beside[ip], ways))
        for link, ip in held
    )
    silent, fixed = _neighbours(host, whole, {rail.name for rail in rails})
    return FlatRails(network, rails, silent, fixed)


def _strict(host: Host, name: str) -> bool | Unavailable:
    """The larger of both holds (Documentation/networking/ip-sysctl.rst, rp_filter)."""
    both = [read_int(host, f"{_CONF}/{one}/rp_filter") for one in ("all", name)]
    lost = missing(*both)
    return max(int(one or 0) for one in both) == STRICT if lost is None else lost


def _sources(host: Host) -> list[str] | Unavailable:
    got = mapping(host, question("netlink", rules="4"))
    return got if isinstance(got, Unavailable) else value(got.get("sources"), list, "rules of routing")


def _by_source(ip: str, sources: list[str] | Unavailable) -> bool | Unavailable:
    if isinstance(sources, Unavailable):
        return sources
    try:
        return any(ip_address(ip) in ip_network(str(one), strict=False) for one in sources)
    except ValueError:
        return False


def _beside(ip: str, network: IPv4Network, own: list[str]) -> str:
    """Of the network's addresses one close to it, as its rail's peers have where each rail has a range; "": there is none."""
    taken = {*map(ip_address, own), network.network_address, network.broadcast_address}
    near = (ip_address(int(ip_address(ip)) ^ 1 << bit) for bit in range(32 - network.prefixlen))
    return next((str(one) for one in near if one not in taken), "")


def _leads_by(name: str, beside: str, ways: Mapping[str, Any]) -> bool | Unavailable:
    row = ways.get(beside)
    if isinstance(row, Unavailable):
        return row
    found = route(beside, row.get("main") if isinstance(row, dict) else None)
    if isinstance(found, Unavailable):
        return False if found.kind is Kind.ABSENT else found
    return found.interface == name


def _neighbours(
    host: Host, network: IPv4Network, names: set[str]
) -> tuple[tuple[str, ...] | Unavailable, tuple[str, ...] | Unavailable]:
    """On these interfaces, those that did not answer and those that are permanent."""
    text = read(host, _ARP)
    if isinstance(text, Unavailable):
        return text, text
    silent, fixed = list[str](), list[str]()
    for line in text.splitlines()[1:]:
        row = re.fullmatch(r"(\d[\d.]{6,14}) +0x\w+ +0x([0-9a-f]{1,4}) +\S+ +\S+ +(\S+) *", line)
        if row is None or row[3] not in names:
            continue
        flags = int(row[2], 16)
        kind = silent if not flags else fixed if flags & _PERMANENT else None
        try:
            if kind is not None and ip_address(row[1]) in network:
                kind.append(row[1])
        except ValueError:
            continue
    return tuple(silent), tuple(fixed)
