"""What the nodes found when they tried each other, and what their places say: pure, and on every node the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from netdoctor.cluster.connectivity import Fault, Miss
from netdoctor.cluster.tcp_stats import Flow

if TYPE_CHECKING:
    from netdoctor.cluster.combine import Heard

# Of what is sent, sent again.  At 0.5 % a connection of 1 ms round trip stays below 25 MB/s (Mathis et al., CCR 27(3), 1997);
# a network that is not overloaded shows less than a thousandth of that.
LOST: Final = 0.005
AGAIN: Final = 1 << 20  # bytes: a few packets prove nothing
SLOWER: Final = 4.0  # times: routes of unequal length and busy CPUs make two
ENOUGH: Final = 16 << 20  # bytes
WAITED: Final = 0.3  # seconds

Reach = Mapping[int, Mapping[int, Miss | None]]  # from -> to -> None or why not
Pairs = list[tuple[int, int, Miss]]  # from, to, why not
Whom = int | tuple[int, int]  # by whom it lies with: a node, or what is between two


def tried(heard: Heard) -> dict[int, dict[int, Miss | None]]:
    """`reach` without those that share an address: who answers there hangs on chance."""
    shared = {node for nodes in twice(heard).values() for node in nodes}
    return {a: {b: why for b, why in row.items() if b not in shared} for a, row in heard.reach.items() if a not in shared}


def connections(reach: Reach) -> dict[int, dict[int, Miss | None]]:
    """Whether connections are made, whatever becomes of them."""
    return {a: {b: None if why and why.of_data else why for b, why in row.items()} for a, row in reach.items()}


def transfers(reach: Reach) -> dict[int, dict[int, Miss | None]]:
    """Whether data follows where connections are made."""
    return {a: {b: why for b, why in row.items() if not why or why.of_data} for a, row in reach.items()}


def broken(reach: Reach) -> dict[Whom, Pairs]:
    """What does not work, by whom it lies with: the node that nobody reaches or that reaches nobody, else the pair."""
    into: dict[int, list[Miss | None]] = {}
    for row in reach.values():
        for b, why in row.items():
            into.setdefault(b, []).append(why)
    shut = {n for n, answers in into.items() if all(answers)}
    out = {n for n, row in reach.items() if len(row) > 1 and all(row.values())}
    told: dict[Whom, Pairs] = {}
    for a, row in sorted(reach.items()):
        for b, why in sorted(row.items()):
            if why:
                told.setdefault(
                    a if a in out and b not in shut - out else b if b in shut else a if a in out else (a, b), []
                ).append((a, b, why))
    return told


def who_shares(heard: Heard, ip: str, nodes: Mapping[int, str]) -> str:
    where = ", ".join(f"{heard.name(n)} ({interface})" for n, interface in sorted(nodes.items()))
    return f"{ip} is an address of several hosts: {where}"


def who_and_whom(heard: Heard, whom: Whom, pairs: Pairs) -> str:
    kinds = ", ".join(sorted({str(why) for _, _, why in pairs}))
    if isinstance(whom, tuple):
        return f"{heard.name(whom[0])} cannot reach {heard.name(whom[1])}: {kinds}"
    into, out = {a for a, b, _ in pairs if b == whom}, {b for a, b, _ in pairs if a == whom}
    told = [f"cannot be reached by {listed(into)}"] if into else []
    told += [f"cannot reach {listed(out)}"] if out else []
    return f"{heard.name(whom)} {' and '.join(told)}: {kinds}"


def who_loses(heard: Heard, whom: Whom, pairs: Pairs) -> str:
    """Of `transfers`."""
    sizes = ", ".join(sorted({f"{why.segment} bytes" for _, _, why in pairs if why.fault is Fault.LOSES}))
    what = f"segments of {sizes} are lost, small ones arrive" if sizes else "not even 64 KiB in 3 s, in segments of any size"
    if isinstance(whom, tuple):
        way = f"from {heard.name(whom[0])} to {heard.name(whom[1])}"
    else:
        into, out = {a for a, b, _ in pairs if b == whom}, {b for a, b, _ in pairs if a == whom}
        ways = [f"from {listed(into)} to it"] if into else []
        ways += [f"from it to {listed(out)}"] if out else []
        way = f"of {heard.name(whom)}, {' and '.join(ways)}"
    return f"connections {way} are made, but large messages do not pass: {what}"


def astray(heard: Heard, backend: str) -> dict[int, Pairs]:
    """Nodes whose ranks listen where others do not come to, though they reach the node: Node -> who does not."""
    found: dict[int, Pairs] = {}
    for a, row in sorted(heard.taken.get(backend, {}).items()):
        for b, why in sorted(row.items()):
            tried_before = heard.reach.get(a, {})
            if why and b in tried_before and tried_before[b] != why and not why.of_data:
                found.setdefault(b, []).append((a, b, why))
    return found


def who_strays(heard: Heard, backend: str, node: int, pairs: Pairs) -> str:
    interface, ip = heard.places[node].takes.get(backend, ("", ""))
    kinds = ", ".join(sorted({str(why) for _, _, why in pairs}))
    name = {"gloo": "Gloo", "nccl": "NCCL"}[backend]
    at = f"{ip} ({interface})" if interface else ip
    return f"{heard.name(node)}: {name} listens on {at}, where {listed({a for a, _, _ in pairs})} cannot reach it: {kinds}"


def frames(heard: Heard) -> Iterator[tuple[str, dict[int, tuple[str, int]]]]:
    """Networks of the meeting on which nodes have different MTUs: the network, and each node's interface and MTU."""
    for network in _networks(heard):
        have: dict[int, tuple[str, int]] = {}
        for node, place in sorted(heard.places.items()):
            mine = [own for own in place.owns if own.network() == network]
            exact = [own for own in mine if own.ip == heard.addresses.get(node)]
            for own in (exact or mine)[:1]:
                have[node] = own.interface, own.mtu
        if len({mtu for _, mtu in have.values()}) > 1:
            yield network, have


def twice(heard: Heard) -> dict[str, dict[int, str]]:
    """Addresses of the meeting's networks that several hosts have: address -> node -> interface."""
    networks = _networks(heard)
    holders: dict[str, dict[int, str]] = {}
    for node, place in sorted(heard.places.items()):
        for own in place.owns:
            if place.space and own.network() in networks:
                holders.setdefault(own.ip, {})[node] = own.interface
    return {
        ip: nodes for ip, nodes in sorted(holders.items()) if len(nodes) > 1 and len({heard.places[n].space for n in nodes}) > 1
    }


def flows(heard: Heard) -> dict[tuple[int, int], Flow]:
    """What the ranks' TCP connections carried from node to node."""
    owners: dict[str, set[int]] = {}
    for node, place in heard.places.items():
        for ip in {own.ip for own in place.owns}:
            owners.setdefault(ip, set()).add(node)
    found: dict[tuple[int, int], Flow] = {}
    for a, row in heard.flows.items():
        for ip, flow in row.items():
            there = owners.get(ip, set())
            if len(there) == 1 and (b := next(iter(there))) != a:
                found[a, b] = found.get((a, b), Flow()).plus(flow)
    return found


def lossy(heard: Heard) -> dict[Whom, list[tuple[int, int, Flow]]]:
    """Where much was sent twice, by whom it lies with: the node that all such flows share, else each pair."""
    bad = {pair: one for pair, one in flows(heard).items() if one.again >= AGAIN and one.again >= LOST * one.sent}
    nodes = {n for pair in bad for n in pair if all(n in other for other in bad)}
    told: dict[Whom, list[tuple[int, int, Flow]]] = {}
    for (a, b), flow in sorted(bad.items()):
        told.setdefault(next(iter(nodes)) if len(nodes) == 1 and len(bad) > 1 else (a, b), []).append((a, b, flow))
    return told


def slow(heard: Heard) -> tuple[Whom, float, float] | None:
    """The node, or the way from one to another, whose flows are far slower than every other one, and kept the run waiting:
    with bytes a second there at most, and elsewhere at least.

    Busy is the time in which something was under way and the receiver had room: a rank that is slow itself does not count.
    """
    inside = max((rank.collective_seconds for rank in heard.run.ranks), default=0.0) if heard.run else 0.0
    rates = {pair: one.acked / max(one.busy, 1e-6) for pair, one in flows(heard).items() if one.acked >= ENOUGH}
    busy = {pair: one.busy for pair, one in flows(heard).items()}
    whoms: list[tuple[Whom, set[tuple[int, int]]]] = [(n, {p for p in rates if n in p}) for n in heard.places]
    whoms += [(pair, {pair}) for pair in rates]
    for whom, mine in whoms:
        rest = rates.keys() - mine
        if not mine or not rest or max(busy[p] for p in mine) < max(WAITED, inside / 2):
            continue
        here, there = max(rates[p] for p in mine), min(rates[p] for p in rest)
        if here * SLOWER < there:
            return whom, here, there
    return None


def _networks(heard: Heard) -> list[str]:
    """The networks of the addresses by which nodes came to the meeting."""
    every = (own.network() for node, place in heard.places.items() for own in place.owns if own.ip == heard.addresses.get(node))
    return sorted({network for network in every if network is not None})


def listed(numbers: Iterable[int]) -> str:
    every = sorted(set(numbers))
    return ("node " if len(every) == 1 else "nodes ") + ", ".join(map(str, every))
