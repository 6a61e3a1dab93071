"""Faults that no node can see alone: they are between nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from netdoctor.compare import addresses, mtu, subnets
from netdoctor.compare.majority import CLEAR, clear_majority, sides
from netdoctor.compare.traits import ABSENT
from netdoctor.facts.nccl_version import parse
from netdoctor.fleet.groups import Group
from netdoctor.fleet.nodes import Node, NodeRun, count, shown
from netdoctor.model import Finding, Severity, Status

# An address on this many nodes, and on this share of them, is given to all on purpose (a BlueField's or BMC's host link).
EVERYWHERE_NODES: Final = 3
EVERYWHERE_SHARE: Final = 0.10
# From here on NCCL picks the GID by itself (src/transport/net_ib.cc, NCCL_IB_GID_INDEX defaults to -1); before it took index 0.
AUTOMATIC_GID: Final = (2, 21, 5)
ROUTABLE: Final = "RoCE v2 IPv4"  # what it then looks for: NCCL_IB_ROCE_VERSION_NUM 2, NCCL_IB_ADDR_FAMILY AF_INET

Fault = tuple[Finding, tuple[str, ...]]  # what is wrong, and which nodes are blamed (none: it cannot be told which)


def across(groups: list[Group], nodes: list[Node]) -> list[Fault]:
    """Every fault between nodes, the worst first."""
    rules: tuple[Callable[[], Iterable[Fault]], ...] = (
        lambda: (f for g in groups for f in _versions(g)),
        lambda: (f for g in groups for f in _subnets(g)),
        lambda: _mtu(nodes),
        lambda: _addresses(nodes),
        lambda: (f for g in groups for f in _gids(g)),
    )
    found = [fault for rule in rules for fault in rule()]
    found.sort(key=lambda f: (f[0].status is not Status.FAIL, -(f[0].severity.rank if f[0].severity else 0), f[0].check))
    return found


def _fail(
    check: str, subject: str, message: str, cause: str, severity: Severity, blamed: Iterable[str], how: str, **evidence: object
) -> Fault:
    finding = Finding(
        Status.FAIL, message, subject, severity, cause, evidence=evidence, how=how or None, check=f"fleet.{check}"
    )
    return finding, tuple(sorted(blamed))


def _with(members: Iterable[Node]) -> Iterator[tuple[Node, NodeRun]]:
    for node in members:
        if node.run is not None:
            yield node, node.run


def _sides(by: Mapping[str, Sequence[str]]) -> str:
    ordered = sorted(by.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return "; ".join(f"{value} on {count(len(names), 'node')} ({shown(sorted(names), 3)})" for value, names in ordered[:5])


def _versions(group: Group) -> Iterator[Fault]:
    """Different NCCL versions in one job: refused at the handshake from 2.23.4 on, undefined before."""
    every = ((node.name, run.traits.get("nccl", ABSENT)) for node, run in _with(group.members))
    have = sides((name, version) for name, version in every if version and version != ABSENT)
    if have.differ:
        yield _fail(
            "nccl_version",
            group.name,
            f"NCCL differs: {_sides(have.values)}",
            "version_mismatch",
            Severity.CRITICAL,
            have.minority,
            "install one NCCL everywhere; torch's own wheel decides: pip show torch nvidia-nccl-cu12",
            versions=dict(have.values),
        )


def _network(run: NodeRun) -> str | None:
    """Of the interface that NCCL takes."""
    return subnets.network(run.nccl_if[1], run.nccl_if[2]) if run.nccl_if else None


def _subnets(group: Group) -> Iterator[Fault]:
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
        told = _sides({name: [one.node for one in members] for name, members in networks.items()})
        finding = Finding(
            Status.UNKNOWN,
            f"NCCL's interfaces are in {len(networks)} subnets: {told}; whether they are routed was not tried",
            group.name,
            cause="socket_ifname",
            how="netdoctor allreduce across nodes of both",
            check="fleet.nccl_subnet",
        )
        yield finding, ()


def _wrong_subnet(group: Group, one: subnets.Outsider[str]) -> Fault:
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
        Severity.CRITICAL if one.own else Severity.WARNING,
        [member.node],
        f"NCCL_SOCKET_IFNAME={one.usual}" if by_name else "check its address and the route to the others",
        group=group.name,
        interface=member.interface,
        network=member.network,
        majority=one.majority,
    )


def _mtu(nodes: list[Node]) -> Iterator[Fault]:
    """Different MTU within one subnet: small messages pass, full-size ones vanish."""
    ports = (
        mtu.Port(node.name, network, run.nccl_if[0], run.nccl_if[3])
        for node, run in _with(nodes)
        if run.nccl_if and run.nccl_if[3] and (network := _network(run))
    )
    for one in mtu.differences(ports):
        have = one.sides
        yield _fail(
            "mtu",
            one.network,
            f"MTU of the interface that NCCL takes differs in one subnet: {_sides(have.values)}",
            "mtu",
            Severity.CRITICAL,
            have.minority,
            "ip link set dev IF mtu N, and in the network configuration",
            mtus=dict(have.values),
        )


def _addresses(nodes: list[Node]) -> Iterator[Fault]:
    """The same address on two nodes.  Not where it is the same machine twice, or an address that every node has."""
    runs = {node.name: run for node, run in _with(nodes)}
    holders = (addresses.Holder(name, ip, interface) for name, run in runs.items() for ip, interface in run.addresses)
    for ip, having in addresses.shared(holders, lambda a, b: bool(runs[a].ids & runs[b].ids)):
        names = {one.node for one in having}
        taken = any((taken := runs[name].nccl_if) and taken[1] == ip for name in names)
        if len(names) >= EVERYWHERE_NODES and len(names) >= EVERYWHERE_SHARE * len(runs) and not taken:
            continue
        where = ", ".join(f"{one.node} ({one.interface})" for one in having[:5])
        yield _fail(
            "address",
            ip,
            f"{ip} is on {count(len(names), 'node')}: {where}",
            "duplicate_address",
            Severity.CRITICAL,
            names,
            f"arping -D -I IF {ip}; give one of them another address",
            nodes=sorted(names),
        )


def _gids(group: Group) -> Iterator[Fault]:
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
            Severity.CRITICAL,
            [name],
            "unset NCCL_IB_GID_INDEX (NCCL ≥ 2.21.5 picks it), or mend the addresses",
            group=group.name,
        )


def _fixed_index(run: NodeRun) -> int | None:
    """The GID index that NCCL takes on this node whatever is there; None: it picks one, or it is not known."""
    given = run.traits.get("env NCCL_IB_GID_INDEX")
    if given is not None:
        try:
            return index if (index := int(given)) >= 0 else None
        except ValueError:
            return None
    if not run.env_read or not (version := parse(run.traits.get("nccl", ""))):
        return None
    return 0 if version < AUTOMATIC_GID else None
