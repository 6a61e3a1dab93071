"""What the nodes found when they tried each other and ran together: pure questions about a `Cluster`, with their words.

A run that fails is explained by these (`combine`), and the check allreduce.nodes makes findings of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from netdoctor.cluster.observations import UNSURE, Cluster, Culprit, Fault, Flow, Miss, Reach
from netdoctor.compare.mtu import HOW as MTU
from netdoctor.model import record

# Of what is sent, sent again.  At 0.5 % a connection of 1 ms round trip stays below 25 MB/s (Mathis et al., CCR 27(3), 1997);
# a network that is not overloaded shows less than a thousandth of that.
LOST: Final = 0.005
AGAIN: Final = 1 << 20  # bytes: a few packets prove nothing
SLOWER: Final = 4.0  # times: routes of unequal length and busy CPUs make two
ENOUGH: Final = 16 << 20  # bytes
WAITED: Final = 0.3  # seconds

_BACKENDS: Final = {"gloo": ("Gloo", "GLOO_SOCKET_IFNAME"), "nccl": ("NCCL", "NCCL_SOCKET_IFNAME")}

Pair = tuple[int, int, Miss]  # from, to, why not


@record
class Trouble:
    """One fault of the network between nodes: where, in words, its cause, and what to look at next."""

    culprit: Culprit
    text: str
    cause: str
    expected: str
    how: str
    pairs: tuple[Pair, ...]
    place: tuple[str, str] | None = None  # interface and address where ranks listen

    @property
    def evidence(self) -> dict[str, Any]:
        place = {"interface": self.place[0], "address": self.place[1]} if self.place else {}
        return {**place, "pairs": [[a, b, str(why)] for a, b, why in self.pairs]}


def unreachable(cluster: Cluster) -> list[Trouble]:
    """Where no connection is made: a node that cannot be reached is told apart from one that cannot reach anybody."""
    made = {a: {b: None if why and why.of_data else why for b, why in row.items()} for a, row in _tried(cluster).items()}
    expected = "every node accepts connections of the others on the ports that its kernel gives out"
    how = "nft list ruleset; iptables -S; the network policy"
    return [
        Trouble(culprit, _unreachable_text(cluster, culprit, pairs), "firewall_connect", expected, how, tuple(pairs))
        for culprit, pairs in _failures(made).items()
    ]


def left_out(cluster: Cluster) -> list[str]:
    """Which nodes tried no other, and which none tried: of those the sample shows nothing."""
    every = set(range(cluster.nodes.count)) if cluster.nodes.count > 1 else set()
    silent = every - {node for node, row in cluster.reach.items() if row}
    unseen = every - {node for row in cluster.reach.values() for node in row}
    return [
        *([f"{listed(silent)} tried no other node, or did not tell of it"] if silent else []),
        *([f"no other node tried {listed(unseen)}, or told of it"] if unseen else []),
    ]


def losing(cluster: Cluster) -> list[Trouble]:
    """Where connections are made and no data follows.  A lost segment size is an MTU, slowness alone is none."""
    tried = {a: {b: why for b, why in row.items() if not why or why.of_data} for a, row in _tried(cluster).items()}
    found = _failures(tried)
    sizes = any(why.fault is Fault.LOSES for pairs in found.values() for _, _, why in pairs)
    cause, how = ("mtu", MTU) if sizes else ("low_bandwidth", "ss -ti of a connection there: lost packets, or a rate limit")
    expected = "64 KiB arrive at once on every connection between nodes"
    return [
        Trouble(culprit, _losing_text(cluster, culprit, pairs), cause, expected, how, tuple(pairs))
        for culprit, pairs in found.items()
    ]


def unreachable_listeners(cluster: Cluster) -> list[Trouble]:
    """Nodes whose ranks listen on an address that others cannot reach, though they reach the node."""
    if (backend := cluster.backend) is None:
        return []
    found: dict[int, list[Pair]] = {}
    for a, row in sorted(cluster.listen_reach.get(backend, {}).items()):
        before = cluster.reach.get(a, {})
        for b, why in sorted(row.items()):
            if why and b in before and before[b] != why and not why.of_data:
                found.setdefault(b, []).append((a, b, why))
    name, variable = _BACKENDS[backend]
    how = f"{variable} there, or what the host's own name resolves to; net.socket_ifname of its report"
    expected, troubles = "an address that the other nodes reach", []
    for node, pairs in found.items():
        place = interface, ip = _listener(cluster, backend, node)
        unsure = bool(ip) and interface == UNSURE
        if unsure and cluster.run is not None and cluster.run.finished:  # the ranks did not meet it
            continue
        at = f"{ip} (its own name does not resolve there)" if unsure else f"{ip} ({interface})" if interface else ip
        who = listed({a for a, _, _ in pairs})
        text = f"{cluster.name(node)}: {name} listens on {at}, where {who} cannot reach it: {_kinds(pairs)}"
        troubles.append(
            Trouble(Culprit(node), text, "socket_ifname", expected, how, tuple(pairs), ("lo", ip) if unsure else place)
        )
    return troubles


def _listener(cluster: Cluster, backend: str, node: int) -> tuple[str, str]:
    """Interface and address where its ranks listen; empty where that is not known."""
    endpoints = cluster.endpoints.get(node)
    return endpoints.listen.get(backend, ("", "")) if endpoints else ("", "")


def _kinds(pairs: Iterable[Pair]) -> str:
    return ", ".join(sorted({str(why) for _, _, why in pairs}))


def _tried(cluster: Cluster) -> Reach:
    """`reach` without the nodes that share an address of it: which of them answers there is not determined."""
    shared = {node for one in cluster.shared_addresses() if one.used for node in one.nodes}
    return {a: {b: why for b, why in row.items() if b not in shared} for a, row in cluster.reach.items() if a not in shared}


def _failures(reach: Reach) -> dict[Culprit, list[Pair]]:
    """What does not work, by culprit: the node that nobody reaches or that reaches nobody, else the way between two."""
    into: dict[int, list[Miss | None]] = {}
    for row in reach.values():
        for b, why in row.items():
            into.setdefault(b, []).append(why)
    shut = {n for n, answers in into.items() if all(answers)}
    cut_off = {n for n, row in reach.items() if len(row) > 1 and all(row.values())}
    found: dict[Culprit, list[Pair]] = {}
    for a, row in sorted(reach.items()):
        for b, why in sorted(row.items()):
            if why:
                found.setdefault(_culprit(a, b, shut, cut_off), []).append((a, b, why))
    return found


def _culprit(a: int, b: int, shut: set[int], cut_off: set[int]) -> Culprit:
    """Of a connection from `a` to `b`.  `shut`: nobody reaches it; `cut_off`: it reaches nobody."""
    if a in cut_off and (b in cut_off or b not in shut):
        return Culprit(a)
    if b in shut:
        return Culprit(b)
    return Culprit(a, b)


def _unreachable_text(cluster: Cluster, culprit: Culprit, pairs: list[Pair]) -> str:
    kinds = _kinds(pairs)
    if culprit.peer is not None:
        return f"{cluster.name(culprit.node)} cannot reach {cluster.name(culprit.peer)}: {kinds}"
    into, out = _directions(culprit.node, pairs)
    phrases = [f"cannot be reached by {listed(into)}"] if into else []
    phrases += [f"cannot reach {listed(out)}"] if out else []
    return f"{cluster.name(culprit.node)} {' and '.join(phrases)}: {kinds}"


def _losing_text(cluster: Cluster, culprit: Culprit, pairs: list[Pair]) -> str:
    sizes = ", ".join(sorted({f"{why.segment} bytes" for _, _, why in pairs if why.fault is Fault.LOSES}))
    what = f"segments of {sizes} are lost, small ones arrive" if sizes else "not even 64 KiB in 3 s, in segments of any size"
    if culprit.peer is not None:
        way = f"from {cluster.name(culprit.node)} to {cluster.name(culprit.peer)}"
    else:
        into, out = _directions(culprit.node, pairs)
        ways = [f"from {listed(into)} to it"] if into else []
        ways += [f"from it to {listed(out)}"] if out else []
        way = f"of {cluster.name(culprit.node)}, {' and '.join(ways)}"
    return f"connections {way} are made, but large messages do not pass: {what}"


def _directions(node: int, pairs: Iterable[Pair]) -> tuple[set[int], set[int]]:
    """Who does not reach it, and whom it does not reach."""
    every = list(pairs)
    return {a for a, b, _ in every if b == node}, {b for a, b, _ in every if a == node}


def listed(numbers: Iterable[int]) -> str:
    every = sorted(set(numbers))
    return ("node " if len(every) == 1 else "nodes ") + ", ".join(map(str, every))


# What TCP counted while the ranks ran


def flows(cluster: Cluster) -> dict[tuple[int, int], Flow]:
    """What the ranks' TCP connections carried from node to node."""
    owners: dict[str, set[int]] = {}
    for node, place in cluster.endpoints.items():
        for ip in {own.ip for own in place.addresses}:
            owners.setdefault(ip, set()).add(node)
    found: dict[tuple[int, int], Flow] = {}
    for a, row in cluster.flows.items():
        for ip, flow in row.items():
            there = owners.get(ip, set())
            if len(there) == 1 and (b := next(iter(there))) != a:
                found[a, b] = found.get((a, b), Flow()).plus(flow)
    return found


def lossy(cluster: Cluster) -> dict[Culprit, list[tuple[int, int, Flow]]]:
    """Where much was sent twice, by culprit: the node that all such flows share, else each way.

    Only where a control from either end, which never fills the way, lost packets too: what TCP sends again while it finds out
    how much a way carries is no fault.
    """
    bad = {pair: one for pair, one in flows(cluster).items() if one.again >= AGAIN and one.again >= LOST * one.sent}
    losing = [{node, (node + 1) % cluster.nodes.count} for node, one in cluster.controls.items() if one.loses]
    bad = {pair: one for pair, one in bad.items() if any(ends & set(pair) for ends in losing)}
    nodes = {n for pair in bad for n in pair if all(n in other for other in bad)}
    found: dict[Culprit, list[tuple[int, int, Flow]]] = {}
    for (a, b), flow in sorted(bad.items()):
        culprit = Culprit(next(iter(nodes))) if len(nodes) == 1 and len(bad) > 1 else Culprit(a, b)
        found.setdefault(culprit, []).append((a, b, flow))
    return found


def way(cluster: Cluster, pairs: Iterable[tuple[int, int, Flow]]) -> tuple[float, int, float]:
    """Round trip in seconds, bytes of a segment and the loopback's bytes a second, of the controls that the ends of these ways
    made; 0: not known."""
    ends = {n for a, b, _ in pairs for n in (a, b)}
    known = [one for node, one in sorted(cluster.controls.items()) if node in ends and one.round_trip and one.segment]
    if not known:
        return 0.0, 0, 0.0
    return max(one.round_trip for one in known), min(one.segment for one in known), min(one.own for one in known)


@record
class Slow:
    """Flows that are far slower than every other one: bytes a second there at most, and elsewhere at least."""

    culprit: Culprit
    here: float
    elsewhere: float


def slow(cluster: Cluster) -> Slow | None:
    """The node, or the way from one to another, that is far slower than the rest and kept the run waiting.

    Busy is the time in which something was under way and the receiver had room: a rank that is slow itself does not count.
    """
    ranks = cluster.run.ranks if cluster.run else ()
    collective_seconds = max((rank.collective_seconds for rank in ranks), default=0.0)
    every = flows(cluster)
    rates = {pair: one.acked / max(one.busy, 1e-6) for pair, one in every.items() if one.acked >= ENOUGH}
    of_node: dict[int, set[tuple[int, int]]] = {n: set() for n in cluster.endpoints}
    for pair in rates:
        for node in pair:
            of_node[node].add(pair)
    slowest = sorted(rates, key=lambda pair: rates[pair])
    culprits = [*((Culprit(n), own) for n, own in of_node.items()), *((Culprit(*pair), {pair}) for pair in rates)]
    for culprit, own in culprits:
        if not own or max(every[p].busy for p in own) < max(WAITED, collective_seconds / 2):
            continue
        here, elsewhere = max(rates[p] for p in own), next((rates[p] for p in slowest if p not in own), None)
        if elsewhere is not None and here * SLOWER < elsewhere:
            return Slow(culprit, here, elsewhere)
    return None
