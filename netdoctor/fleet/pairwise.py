"""Faults that no node can see alone: they are between nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from netdoctor.causes.cost import MIGHT, SOMETIMES, STOPS
from netdoctor.compare import addresses, mtu, subnets
from netdoctor.compare.majority import CLEAR, Fault, Sides, clear_majority
from netdoctor.compare.traits import Family, Trait
from netdoctor.facts.nccl_version import AUTOMATIC_GID, parse
from netdoctor.fleet.groups import Group
from netdoctor.fleet.nodes import Node, NodeRun
from netdoctor.model import Finding, Health, Loss, Status, count
from netdoctor.nccl.integers import strtoll
from netdoctor.textsafe import listed

ROUTABLE: Final = (
    "RoCE v2 IPv4"  # what NCCL looks for from AUTOMATIC_GID on: NCCL_IB_ROCE_VERSION_NUM 2, NCCL_IB_ADDR_FAMILY AF_INET
)

MEETING: Final = 120.0  # seconds within which the nodes of one common run start (cluster.session.WAIT)


def across(groups: list[Group], nodes: list[Node]) -> list[Fault[str]]:
    """Every fault between nodes, the worst first."""
    rules: tuple[Iterable[Fault[str]], ...] = (
        (f for g in groups for f in _subnets(g)),
        _mtu(nodes),
        _addresses(groups, nodes),
        _ranks(nodes),
        (f for g in groups for f in _gids(g)),
    )
    found = [fault for rule in rules for fault in rule]
    found.sort(key=lambda f: (f[0].status is not Status.FAIL, -(f[0].loss or MIGHT).severity.rank, f[0].check))
    return found


def _fail(
    check: str, subject: str, message: str, cause: str, loss: Loss, blamed: Iterable[str], how: str, **evidence: object
) -> Fault[str]:
    finding = Finding(Status.FAIL, message, subject, None, cause, evidence=evidence, how=how, loss=loss, check=f"fleet.{check}")
    return finding, tuple(sorted(blamed))


def _with(members: Iterable[Node]) -> Iterator[tuple[Node, NodeRun]]:
    for node in members:
        if node.run is not None:
            yield node, node.run


def _network(run: NodeRun) -> str | None:
    """Of the interface that NCCL takes."""
    return subnets.network(run.nccl_if[1], run.nccl_if[2]) if run.nccl_if else None


def _subnets(group: Group) -> Iterator[Fault[str]]:
    """NCCL's interface on another subnet than the others', where that shows a wrong choice and not a routed network."""
    networks = subnets.by_network(
        subnets.Member(node.name, *run.nccl_if[:2], network, run.addresses)
        for node, run in _with(group.members)
        if run.nccl_if and (network := _network(run))
    )
    wrong = subnets.outsiders(networks)
    yield from (_wrong_subnet(group, one) for one in wrong)
    # As many subnets as nodes are a routed design (a subnet per pod or per link); a few are worth a word.
    if not wrong and 1 < len(networks) <= sum(map(len, networks.values())) / 2:
        text = Sides({name: [one.node for one in members] for name, members in networks.items()}).text(str)
        finding = Finding(
            Status.UNKNOWN,
            f"NCCL's interfaces are in {len(networks)} subnets: {text}; whether they are routed was not tried",
            group.name,
            cause="socket_ifname",
            how="netdoctor allreduce across nodes of both",
            check="fleet.nccl_subnet",
        )
        yield finding, ()


def _wrong_subnet(group: Group, one: subnets.Outsider[str]) -> Fault[str]:
    member = one.member
    words = f"NCCL takes {member.interface} ({member.ip}, {member.network}), "
    words += f"{count(one.others, 'node')} are in {one.majority} ({one.usual})"
    words += f"; this node is there too, with {one.own}" if one.own else ""
    by_name = one.own or member.interface != one.usual
    return _fail(
        "nccl_subnet",
        member.node,
        words,
        "socket_ifname",
        STOPS if one.own else SOMETIMES,
        [member.node],
        f"NCCL_SOCKET_IFNAME={one.usual}" if by_name else "check its address and the route to the others",
        group=group.name,
        interface=member.interface,
        network=member.network,
        majority=one.majority,
    )


def _mtu(nodes: list[Node]) -> Iterator[Fault[str]]:
    """Of the interfaces that NCCL takes."""
    ports = (
        mtu.Port(node.name, network, run.nccl_if[0], run.nccl_if[3])
        for node, run in _with(nodes)
        if run.nccl_if and run.nccl_if[3] and (network := _network(run))
    )
    for difference in mtu.differences(ports):
        for finding, names in difference.faults(str):
            yield replace(finding, check="fleet.mtu"), tuple(sorted(names))


def _addresses(groups: list[Group], nodes: list[Node]) -> Iterator[Fault[str]]:
    """The same address on two nodes.  Not where it is the same machine twice."""
    runs = {node.name: run for node, run in _with(nodes)}
    holders = (
        addresses.Holder(node.name, ip, interface, run.nccl_if is not None and run.nccl_if[1] == ip, node.group)
        for node, run in _with(nodes)
        for ip, interface in run.addresses
    )
    alike = {n: sum(bool(node.run and node.run.addresses) for node in group.members) for n, group in enumerate(groups)}
    for one in addresses.shared(holders, lambda a, b: _one_host(runs[a], runs[b]), alike):
        finding, names = one.fault(str)
        yield replace(finding, check="fleet.address"), tuple(sorted(names))


def _one_host(one: NodeRun, other: NodeRun) -> bool:
    if one.ids and other.ids:
        return bool(one.ids & other.ids)
    return one.installation is not None and one.installation == other.installation


def _ranks(nodes: list[Node]) -> Iterator[Fault[str]]:
    """Two nodes that took one place in a common run: the others wait for whoever should have had another.

    Who took part in a run that is whole is not to blame for somebody who came later with its number.  Of pairs, where all did,
    each had a run of its own: a master tries the others one after the other.
    """
    places: dict[tuple[str, int, int], list[tuple[float, Node, NodeRun]]] = defaultdict(list)
    for node, run in _with(nodes):
        if run.place is not None and run.time is not None:
            places[run.place].append((run.time, node, run))
    for (master, size, rank), every in sorted(places.items()):
        every.sort(key=lambda one: (one[0], one[1].name))
        together = [pair for pair in pairwise(every) if pair[1][0] - pair[0][0] <= MEETING]
        same = {node.name: run for pair in together for _, node, run in pair}
        late = [name for name, run in same.items() if run.verdict is not Health.HEALTHY]
        if same and (late or size > 2):
            yield _fail(
                "node_rank",
                f"node {rank} of {master}",
                f"{listed(sorted(same))} all say that they are node {rank} of the {size} that meet at {master}",
                "duplicate_address",
                STOPS,
                late or same,
                "start each node once, with a number of its own: --node-rank, or the launcher's variables",
                nodes=sorted(same),
            )


def _gids(group: Group) -> Iterator[Fault[str]]:
    """GID tables that differ where NCCL uses a fixed index, or a node without the kind of GID that most have."""
    tables: dict[str, list[tuple[Node, NodeRun, dict[int, str]]]] = defaultdict(list)
    for node, run in _with(group.members):
        for port, entries in run.gids:
            tables[port].append((node, run, dict(entries)))
    blamed: dict[str, list[str]] = defaultdict(list)
    for port, rows in sorted(tables.items()):
        if len(rows) < 2:
            continue
        usual = sum(ROUTABLE in table.values() for _, _, table in rows) >= CLEAR * len(rows)
        at: dict[int, str | None] = {}
        for node, run, table in rows:
            index = _fixed_index(run)
            if index is not None:
                if index not in at:
                    at[index] = clear_majority(Counter(t.get(index, "nothing") for _, _, t in rows))
                want, have = at[index], table.get(index, "nothing")
                if want is not None and have != want:
                    blamed[node.name].append(f"{port} index {index}: {have}, most have {want}")
                    continue
            if usual and ROUTABLE not in table.values():
                blamed[node.name].append(f"{port}: no {ROUTABLE} GID, most have one")
    for name, words in sorted(blamed.items()):
        yield _fail(
            "gid",
            name,
            "GID table differs: " + "; ".join(words[:4]) + ("; …" if len(words) > 4 else ""),
            "roce_gid",
            STOPS,
            [name],
            "unset NCCL_IB_GID_INDEX (NCCL ≥ 2.21.5 picks it), or mend the addresses",
            group=group.name,
        )


_GID_INDEX: Final = Trait(Family.ENV, "NCCL_IB_GID_INDEX")


def _fixed_index(run: NodeRun) -> int | None:
    """The GID index that NCCL takes on this node whatever is there; None: it picks one, or it is not known."""
    given = run.traits.values.get(_GID_INDEX)
    if given is not None:
        number = strtoll(given)
        return number.value if number.digits and number.value >= 0 else None
    if not run.traits.variables_read or not (version := parse(run.traits.of(Family.NCCL) or "")):
        return None
    return 0 if version < AUTOMATIC_GID else None
