"""Faults that no node can see alone: they are between nodes."""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from netdoctor.compare.traits import ABSENT
from netdoctor.facts.nccl_version import parse
from netdoctor.fleet.drift import CLEAR, clear_majority
from netdoctor.fleet.groups import Group
from netdoctor.fleet.nodes import Node, NodeRun, count, shown
from netdoctor.model import Finding, Severity, Status

# An address on this many nodes, and on this share of them, is given to all on purpose (a BlueField's or BMC's host link).
EVERYWHERE_NODES: Final = 3
EVERYWHERE_SHARE: Final = 0.10
# One node alone in a subnet, while this share of its kind is in another one, is not a rack of its own.
ALONE_SHARE: Final = 0.9
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


def _sides(by: dict[str, list[str]]) -> str:
    ordered = sorted(by.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return "; ".join(f"{value} on {count(len(names), 'node')} ({shown(sorted(names), 3)})" for value, names in ordered[:5])


def _versions(group: Group) -> Iterator[Fault]:
    """Different NCCL versions in one job: refused at the handshake from 2.23.4 on, undefined before."""
    by: dict[str, list[str]] = defaultdict(list)
    for node, run in _with(group.members):
        if (version := run.traits.get("nccl")) and version != ABSENT:
            by[version].append(node.name)
    if len(by) < 2:
        return
    most = clear_majority(Counter({v: len(n) for v, n in by.items()}))
    blamed = [] if most is None else [n for v, names in by.items() if v != most for n in names]
    how = "install one NCCL everywhere; torch's own wheel decides: pip show torch nvidia-nccl-cu12"
    yield _fail(
        "nccl_version",
        group.name,
        f"NCCL differs: {_sides(by)}",
        "version_mismatch",
        Severity.CRITICAL,
        blamed,
        how,
        versions=dict(by),
    )


@lru_cache(maxsize=1 << 15)
def _network(taken: tuple[str, str, int | None, int | None]) -> str | None:
    _, ip, prefix, _ = taken
    if prefix is None or prefix in (32, 128):  # a single address says nothing about who is near (Google Cloud gives /32)
        return None
    try:
        return str(ipaddress.ip_network(f"{ip}/{prefix}", strict=False))
    except ValueError:
        return None


def _subnets(group: Group) -> Iterator[Fault]:
    """NCCL's interface on another subnet than the others', where that shows a wrong choice and not a routed network.

    Racks and pods with subnets of their own are routed on purpose.  A wrong choice shows as a node that is alone in its
    subnet while most share one, with another interface name or with an own address in the majority's subnet.
    """
    by: dict[str, list[tuple[Node, NodeRun, str]]] = defaultdict(list)
    for node, run in _with(group.members):
        if run.nccl_if and (network := _network(run.nccl_if)):
            by[network].append((node, run, run.nccl_if[0]))
    if len(by) < 2:
        return
    most = clear_majority(Counter({n: len(m) for n, m in by.items()}))
    told = False
    if most is not None and len(by[most]) > 1:
        usual = Counter(name for _, _, name in by[most]).most_common(1)[0][0]
        alone = len(by[most]) >= ALONE_SHARE * sum(map(len, by.values()))
        for network, members in sorted(by.items()):
            for node, run, name in members if network != most else ():
                inside = next((f"{i} {ip}" for ip, i in run.addresses if _inside(ip, most)), "")
                if inside or name != usual or (alone and len(members) == 1):
                    told = True
                    yield _wrong_subnet(group, node, run, network, most, usual, inside, len(by[most]))
    # As many subnets as nodes are a routed design (a subnet per pod or per link); a few are worth a word.
    if not told and len(by) * 2 <= sum(map(len, by.values())):
        sides = _sides({network: [n.name for n, _, _ in members] for network, members in by.items()})
        finding = Finding(
            Status.UNKNOWN,
            f"NCCL's interfaces are in {len(by)} subnets: {sides}; whether they are routed was not tried",
            group.name,
            cause="socket_ifname",
            how="netdoctor allreduce across nodes of both",
            check="fleet.nccl_subnet",
        )
        yield finding, ()


def _inside(ip: str, network: str) -> bool:
    return ipaddress.ip_address(ip) in ipaddress.ip_network(network)


def _wrong_subnet(
    group: Group, node: Node, run: NodeRun, network: str, most: str, usual: str, inside: str, others: int
) -> Fault:
    name, ip = run.nccl_if[:2] if run.nccl_if else ("", "")
    words = f"NCCL takes {name} ({ip}, {network}), {count(others, 'node')} are in {most} ({usual})"
    words += f"; this node is there too, with {inside}" if inside else ""
    severity = Severity.CRITICAL if inside else Severity.WARNING
    how = f"NCCL_SOCKET_IFNAME={usual}" if inside or name != usual else "check its address and the route to the others"
    return _fail(
        "nccl_subnet",
        node.name,
        words,
        "socket_ifname",
        severity,
        [node.name],
        how,
        group=group.name,
        interface=name,
        network=network,
        majority=most,
    )


def _mtu(nodes: list[Node]) -> Iterator[Fault]:
    """Different MTU within one subnet: small messages pass, full-size ones vanish."""
    by: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for node, run in _with(nodes):
        if run.nccl_if and run.nccl_if[3] and (network := _network(run.nccl_if)):
            by[network][run.nccl_if[3]].append(node.name)
    for network, mtus in sorted(by.items()):
        if len(mtus) < 2:
            continue
        most = clear_majority(Counter({str(m): len(n) for m, n in mtus.items()}))
        blamed = [] if most is None else [n for m, names in mtus.items() if str(m) != most for n in names]
        sides = _sides({str(m): names for m, names in mtus.items()})
        yield _fail(
            "mtu",
            network,
            f"MTU of the interface that NCCL takes differs in one subnet: {sides}",
            "mtu",
            Severity.CRITICAL,
            blamed,
            "ip link set dev IF mtu N, and in the network configuration",
            mtus={str(m): names for m, names in mtus.items()},
        )


def _addresses(nodes: list[Node]) -> Iterator[Fault]:
    """The same address on two nodes.  Not where it is the same machine twice, or an address that every node has."""
    holders: dict[str, list[tuple[Node, NodeRun, str]]] = defaultdict(list)
    total = 0
    for node, run in _with(nodes):
        total += 1
        for ip, interface in run.addresses:
            holders[ip].append((node, run, interface))
    for ip, having in sorted(holders.items()):
        names = {node.name for node, _, _ in having}
        if len(names) < 2:
            continue
        nccl = any(run.nccl_if and run.nccl_if[1] == ip for _, run, _ in having)
        everywhere = len(names) >= EVERYWHERE_NODES and len(names) >= EVERYWHERE_SHARE * total
        if everywhere and not nccl:
            continue
        if all(a.ids & b.ids for _, a, _ in having[:1] for _, b, _ in having[1:]):
            continue  # one machine under two names (two pods of one node)
        where = ", ".join(f"{node.name} ({interface})" for node, _, interface in having[:5])
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
