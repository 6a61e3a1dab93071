"""One address on several hosts: who answers there depends on whose ARP reply comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any, Final, Generic

from netdoctor.causes.cost import STOPS
from netdoctor.compare.majority import Fault, N
from netdoctor.compare.traits import MAX
from netdoctor.model import Finding, Status, record
from netdoctor.textsafe import as_line

# Kinds of interfaces whose address is a node's own only where a physical member stands behind them (docker0, virbr0 and
# cni0 carry the same address on every node), that carry addresses of services (kube-ipvs0 is a dummy), or that lead out of a
# container (each host's docker_gwbridge gives out the same ones).
_SHARED_KINDS: Final = frozenset(
    {"bridge", "dummy", "tun", "tap", "wireguard", "vxlan", "geneve", "ipip", "sit", "gre", "veth"}
)
_SHARED_NAMES: Final = ("tmfifo_net", "docker", "virbr", "lxcbr", "lxdbr", "cni", "kube-", "nodelocaldns", "usb", "enx")
# An address on this many nodes, and on this share of their kind, is given to all on purpose (a BlueField's or BMC's host link).
EVERYWHERE_NODES: Final = 3
EVERYWHERE_SHARE: Final = 0.9


def own(inventory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(address, interface) of what no other node may have; what NCCL takes is, whatever its interface is."""
    links, taken = inventory.get("links"), inventory.get("nccl_interface")
    nccl = str(taken.get("address")).partition("<")[0] if isinstance(taken, dict) else ""
    for link in links[:MAX] if isinstance(links, list) else ():
        if not isinstance(link, dict) or link.get("loopback") or not link.get("up", True):
            continue
        name, every = as_line(link.get("name"), 100), link.get("addresses")
        shared = name.startswith(_SHARED_NAMES) or (link.get("kind") in _SHARED_KINDS and not link.get("carries_physical"))
        given = [a.partition("/") for a in (every[:MAX] if isinstance(every, list) else ()) if isinstance(a, str)]
        wider = any(prefix not in ("32", "128") for _, _, prefix in given)
        for ip, _, prefix in given:
            # A second, single address is one that moves between nodes (keepalived, MetalLB).
            if (shared and ip != nccl) or (wider and prefix in ("32", "128")):
                continue
            try:
                parsed = ip_address(ip)
            except ValueError:
                continue
            if not (parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified):
                yield str(parsed), name


@record
class Holder(Generic[N]):
    """A node that has an address, and the interface that has it there."""

    node: N
    ip: str
    interface: str
    used: bool  # by the nodes, to reach each other
    kind: Hashable = None  # of nodes that are alike


@record
class Shared(Generic[N]):
    """An address that several hosts have."""

    ip: str
    holders: tuple[Holder[N], ...]

    @property
    def used(self) -> bool:
        return any(one.used for one in self.holders)

    @property
    def nodes(self) -> tuple[N, ...]:
        return tuple(dict.fromkeys(one.node for one in self.holders))

    def text(self, name: Callable[[N], str]) -> str:
        more = f" and {len(self.holders) - 8:,} more" if len(self.holders) > 8 else ""
        where = ", ".join(f"{name(one.node)} ({one.interface})" for one in self.holders[:8])
        return f"{self.ip} is an address of several hosts: {where}{more}"

    def fault(self, name: Callable[[N], str]) -> Fault[N]:
        how = f"arping -D -I IF {self.ip}; give one of them another address"
        words, evidence = self.text(name), {"nodes": sorted(self.nodes)}
        expected, cause = "one host for an address", "duplicate_address"
        found = Finding(Status.FAIL, words, self.ip, None, cause, expected, evidence, how=how, loss=STOPS)
        return found, self.nodes


def shared(holders: Iterable[Holder[N]], one_host: Callable[[N, N], bool], alike: Mapping[Any, int]) -> Iterator[Shared[N]]:
    """Each address that several nodes have, unless all of these are one host under several names, or every node of a kind has
    it and none uses it.  `alike` counts the nodes of each kind."""
    by: dict[str, list[Holder[N]]] = {}
    for holder in holders:
        by.setdefault(holder.ip, []).append(holder)
    for ip, having in sorted(by.items()):
        if len(having) < 2:
            continue
        one = Shared(ip, tuple(having))
        nodes = one.nodes
        if all(one_host(nodes[0], other) for other in nodes[1:]):
            continue
        kinds = Counter({holder.node: holder.kind for holder in having}.values())
        everywhere = len(nodes) >= EVERYWHERE_NODES
        if one.used or not everywhere or any(number < EVERYWHERE_SHARE * alike[kind] for kind, number in kinds.items()):
            yield one
