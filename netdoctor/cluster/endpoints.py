"""Where a node's ranks will listen, by the rules of Gloo and NCCL, and on which networks it is: told to the others before they
try it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Final

from netdoctor.facts.environ import Environ
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Net
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl import interfaces
from netdoctor.process.proc import boot_id
from netdoctor.textsafe import line

BACKENDS: Final = ("gloo", "nccl")
MAX_LINKS: Final = 64


@dataclass(frozen=True)
class Own:
    """An address of a node."""

    interface: str
    ip: str
    prefix: int
    mtu: int

    def network(self) -> str | None:
        """None where there is no other address in it."""
        return _network(self.ip, self.prefix)


@lru_cache(maxsize=1 << 16)  # of every node, asked again for every rule
def _network(ip: str, prefix: int) -> str | None:
    try:
        network = ip_network(f"{ip}/{prefix}", strict=False)
    except ValueError:
        return None
    return str(network) if network.num_addresses > 1 and not (network.is_loopback or network.is_link_local) else None


@dataclass(frozen=True)
class Place:
    """What one node told."""

    space: str = ""  # names its network namespace among all machines; "": not known
    takes: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # backend -> interface and address, where it is known
    owns: tuple[Own, ...] = ()


def told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """This node's place, as it goes to the others."""
    net = facts.get("Net")
    if not isinstance(net, Net) or isinstance(net.links, Unavailable):
        return {"space": _space()}
    links = [
        [link.name, one.ip, one.prefix, link.mtu]
        for link in net.links
        for one in link.addresses
        if link.up and not link.loopback
    ]
    return {"space": _space(), "gloo": _gloo(net, facts.get("Environ")), "nccl": _nccl(facts), "links": links[:MAX_LINKS]}


def read(said: object) -> Place:
    """Another node's place; what is not of the right shape is left out."""
    if not isinstance(said, Mapping):
        return Place()
    takes = {kind: pair for kind in BACKENDS if (pair := _pair(said.get(kind)))}
    links = said.get("links")
    owns = tuple(
        Own(*pair, *one[2:])
        for one in (links[:MAX_LINKS] if isinstance(links, list) else ())
        if isinstance(one, list) and len(one) == 4 and (pair := _pair(one[:2])) and all(type(n) is int for n in one[2:])
    )
    return Place(line(said.get("space"), 40), takes, owns)


def _pair(said: object) -> tuple[str, str] | None:
    if not isinstance(said, list | tuple) or len(said) != 2:
        return None
    try:
        return line(said[0], 40), str(ip_address(line(said[1], 64)))  # its zone may be any text (RFC 4007)
    except ValueError:  # no name of another node is ever looked up
        return None


def _gloo(net: Net, environ: Environ | Unavailable | None) -> tuple[str, str] | None:
    """The name in GLOO_SOCKET_IFNAME with its first address (gloo/transport/tcp/device.cc lookupAddrForIface), else the address
    of the host's name, else the loopback (torch ProcessGroupGloo::createDefaultDevice)."""
    if not isinstance(environ, Environ):
        return None
    named = environ.get("GLOO_SOCKET_IFNAME")
    if isinstance(named, Unavailable):
        return None
    if named is not None and len(named) > 1:  # shorter values are ignored
        name = named.split(",")[0]
        link = net.link(name)
        every = sorted(link.addresses, key=lambda one: one.family) if link else ()  # as getifaddrs(3) lists them
        return next(((name, one.ip) for one in every if link and name in (link.name, one.label)), None)
    if isinstance(net.hostname_addresses, Unavailable):
        return ("", "127.0.0.1") if net.hostname_addresses.kind == Kind.ABSENT else None
    where = {one.ip: link.name for link in net.links or () for one in link.addresses}
    fitting = [ip for ip in net.hostname_addresses if ip in where or interfaces.is_loopback(ip)]
    return (where.get(fitting[0], "lo"), fitting[0]) if fitting else ("lo", "127.0.0.1")


def _nccl(facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the job's libnccl itself answered."""
    choice = facts.get("NcclChoice")
    if not isinstance(choice, NcclChoice) or not isinstance(choice.interface, str) or not isinstance(choice.address, str):
        return None
    return choice.interface, choice.address.partition("%")[0]


def _space() -> str:
    """The same for two processes that share their network, on this machine and since it was started."""
    try:
        inode = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return ""
    boot = boot_id()
    return hashlib.sha256(f"{boot}{inode}".encode()).hexdigest()[:16] if boot else ""
