"""RoCE rails of one IPv4 subnet, and what the kernel does with the ARP that arrives on each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, ip_address, ip_interface
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.net import Link, Net
from netdoctor.facts.rdma import Rdma
from netdoctor.host.base import Host, mapping, question, read, value
from netdoctor.model import Kind, Unavailable, missing, record

# proc_pid_net(5): address, type, flags (0x0: incomplete; 0x4: permanent, linux/if_arp.h), MAC, mask, device
_ARP: Final = "/proc/net/arp"
_PERMANENT: Final = 0x4


@record
class Rail:
    """An interface of a RoCE port."""

    name: str
    address: str
    hears: bool | Unavailable  # the kernel takes what comes in there from an address beside its own


@record
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
    for link in (one for one in net.links or () if one.name in names and one.controller is None and one.up):
        for one in link.addresses:
            if one.family == 4 and one.scope == "global" and one.prefix < 31:
                by.setdefault(str(ip_interface(f"{one.ip}/{one.prefix}").network), []).append((link, one.ip))
    network, held = max(by.items(), key=lambda item: len(item[1]), default=("", []))
    if len({link.name for link, _ in held}) < 2:
        return FlatRails("")
    whole = IPv4Network(network)
    own = [one.ip for link in net.links or () for one in link.addresses if one.family == 4]
    asked = {ip: f"{ip}/{near}/{link.name}" for link, ip in held if (near := _beside(ip, whole, own))}
    got = mapping(host, question("netlink", heard=",".join(asked.values()))) if asked else {}
    rails = tuple(Rail(link.name, ip, _heard(got, asked.get(ip, ""))) for link, ip in held)
    silent, fixed = _neighbours(host, whole, {rail.name for rail in rails})
    return FlatRails(network, rails, silent, fixed)


def _heard(got: Mapping[str, Any] | Unavailable, asked: str) -> bool | Unavailable:
    if not asked or isinstance(got, Unavailable):
        return got if isinstance(got, Unavailable) else Unavailable(Kind.NOT_READ, "its subnet has no address beside its own")
    told = value(got.get("heard"), dict, "what the kernel hears")
    one = told if isinstance(told, Unavailable) else told.get(asked)
    if isinstance(one, dict) and "error" in one:
        return Unavailable(Kind.FAILED, str(one["error"]))
    return one if isinstance(one, bool | Unavailable) else Unavailable(Kind.MALFORMED, "what the kernel hears")


def _beside(ip: str, network: IPv4Network, own: list[str]) -> str:
    """Of the network's addresses one close to it, as its rail's peers have where each rail has a range; "": there is none."""
    taken = {*map(ip_address, own), network.network_address, network.broadcast_address}
    near = (ip_address(int(ip_address(ip)) ^ 1 << bit) for bit in range(32 - network.prefixlen))
    return next((str(one) for one in near if one not in taken), "")


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
