"""What an all-reduce across nodes says about the nodes: a check's result and the report's section, the same from every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from netdoctor.allreduce.cause import cause_of
from netdoctor.cluster.combine import Heard
from netdoctor.cluster.connectivity import Fault
from netdoctor.cluster.network_findings import network, subject
from netdoctor.compare.majority import clear_majority
from netdoctor.compare.traits import NOT_SET, family, title
from netdoctor.facts.runs import State
from netdoctor.model import CheckResult, Finding, Status
from netdoctor.textsafe import line

ID: Final = "allreduce.nodes"
TITLE: Final = "Every node of the run is there, reachable, and runs the same"
# Of all traits those that a common run hangs on; the others are the fleet report's.
_COMPARED: Final = frozenset({"torch", "torch_cuda", "nccl", "plugins", "driver", "netdoctor", "env", "mtu"})
MAX_TRAITS: Final = 400


def chosen(traits: Mapping[str, str], env_read: bool) -> dict[str, str]:
    """What a node tells of itself to be compared by."""
    kept = {name: value for name, value in traits.items() if name.partition(" ")[0] in _COMPARED}
    return {**dict(sorted(kept.items())[:MAX_TRAITS]), **({"env": "read"} if env_read else {})}


def result(heard: Heard, partial: str | None = None) -> CheckResult:
    """The check's result; where this node was interrupted, what it did not get to know is unknown."""
    found = list(_findings(heard))
    if heard.nodes.count == 1 and not found:
        found.append(Finding(Status.SKIP, "one node alone was asked for"))
    if partial:
        found.append(Finding(Status.UNKNOWN, f"not all is known: {partial}", subject="run"))
    severities = tuple(_completed(f) for f in found)
    return CheckResult(ID, TITLE, "missing_node", severities)


def _completed(finding: Finding) -> Finding:
    from dataclasses import replace

    from netdoctor.causes import CAUSES

    cause = finding.cause or "missing_node"
    severity = (finding.severity or CAUSES[cause].severity) if finding.status is Status.FAIL else None
    return replace(finding, check=ID, cause=cause, severity=severity)


def _findings(heard: Heard) -> Iterator[Finding]:
    nodes = heard.nodes
    bad: set[int] = set()
    for node, finding in (*_missing(heard), *network(heard), *_blamed(heard)):
        if node is not None:
            bad.add(node)
        yield finding
    for node, finding in _differing(heard):
        if node is not None:
            bad.add(node)
        yield finding
    for turned in heard.refused:
        # Whoever it was says so itself; a stranger must not cost a run that is whole its verdict.
        whole = heard.run is not None and heard.run.finished and not heard.gone
        words = f"the master turned somebody away{', and every node took part' if whole else ''}: {turned}"
        how = None if whole else "start every node once"
        yield Finding(Status.PASS if whole else Status.UNKNOWN, words, subject="meeting", how=how)
    for node in range(nodes.count):
        cannot = heard.ready.get(node, {}).get("cannot")  # beside what is said of its versions
        if node != nodes.rank and (node not in bad or cannot) and node not in heard.gone:
            yield _fine(heard, node)


def _fine(heard: Heard, node: int) -> Finding:
    who = _name(heard, node)
    both = ((heard.nodes.rank, node), (node, heard.nodes.rank))
    tried = [heard.reach[a][b] for a, b in both if b in heard.reach.get(a, {})]
    if node not in heard.hosts:
        how = "see what is said of node 0" if heard.master else None
        return Finding(Status.UNKNOWN, f"{who}: whether it is there is not known", subject=subject(heard, node), how=how)
    if cannot := line(heard.ready.get(node, {}).get("cannot")):
        how = "netdoctor preflight there; --python names the job's Python"
        return Finding(Status.UNKNOWN, f"{who} is there, but cannot run: {cannot}", subject=subject(heard, node), how=how)
    if heard.run is None:
        return Finding(Status.UNKNOWN, f"{who} is there; nothing was run with it", subject=subject(heard, node))
    state = heard.run.state
    if state != State.FINISHED:
        return Finding(
            Status.UNKNOWN,
            f"{who} is there; the all-reduce did not finish ({state})",
            subject=subject(heard, node),
            how="see allreduce.run",
        )
    ways = ", reached both ways" if len(tried) == 2 and not any(tried) else ""
    return Finding(Status.PASS, f"{who} took part{ways}", subject=subject(heard, node))


def _name(heard: Heard, node: int) -> str:
    """As `heard` calls it; one of which nothing was heard by the launcher's name."""
    if node and node not in heard.hosts and heard.nodes.names:
        return f"node {node} ({heard.nodes.names[node]})"
    return heard.name(node)


def _missing(heard: Heard) -> Iterator[tuple[int | None, Finding]]:
    if heard.master is not None:
        kind, why = heard.master
        own = heard.nodes.rank
        if kind == Fault.PORT_TAKEN:
            told = Finding(
                Status.FAIL,
                f"this node is the master, and {why}",
                subject=subject(heard, own),
                cause="bootstrap_ports",
                how=f"ss -ltnp 'sport = :{heard.nodes.port}'; or another port: --master HOST:PORT on every node",
            )
            yield own, told
        elif kind == Fault.NO_LOCAL_PORT:
            told = Finding(
                Status.FAIL,
                f"{heard.name(own)}: {why}",
                subject=subject(heard, own),
                cause="bootstrap_ports",
                how="ss -tan; net.port_range of this report",
            )
            yield own, told
        elif kind == Fault.NO_THREAD:
            how = "ulimit -u; pids.max of its cgroup"
            yield own, Finding(Status.UNKNOWN, f"{heard.name(own)}: {why}", subject=subject(heard, own), how=how)
        elif kind == Fault.TURNED_AWAY:
            told = Finding(Status.FAIL, f"{heard.name(0)} {why}", subject=subject(heard, own), evidence={"kind": kind})
            yield own, told
        else:
            yield (
                0,
                Finding(
                    Status.FAIL,
                    f"{heard.name(0)}: {why}",
                    subject=subject(heard, 0),
                    evidence={"kind": kind, "master": heard.nodes.named()},
                    how="is it up, and was netdoctor started there in time? nc -vz from here; nft list ruleset there",
                ),
            )
    for node, (missing, why) in sorted(heard.gone.items()):
        if node == 0 and heard.master is not None:
            continue
        phase = {"join": "", "result": " during the all-reduce"}.get(missing, f" before the all-reduce ({missing})")
        yield (
            node,
            Finding(
                Status.FAIL,
                f"{_name(heard, node)} is missing{phase}: {why}",
                subject=subject(heard, node),
                evidence={"missing_from": missing},
                how="its own report, if there is one; is it up, and does it reach the master?",
            ),
        )


def _blamed(heard: Heard) -> Iterator[tuple[int | None, Finding]]:
    run = heard.run
    if run is None or run.state not in (State.FAILED, State.HUNG) or run.told:  # what is told there has its own finding
        return
    by_node: dict[int, list[int]] = {}
    for rank in run.blamed:
        by_node.setdefault(heard.node_of(rank), []).append(rank)
    for node, ranks in by_node.items():
        named = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        phase = next((r.phase for r in run.ranks if r.rank in ranks), "")
        what = (
            f"{named} failed in phase {phase}: {run.reason}"
            if run.state == State.FAILED
            else f"{named} never arrived in phase {phase}"
        )
        yield (
            node,
            Finding(
                Status.FAIL,
                f"{heard.name(node)}: {what}",
                subject=subject(heard, node),
                cause=cause_of(run) or ("rank_died" if run.state == State.FAILED else "hang"),
                evidence={"ranks": ranks, "phase": phase},
                how="its own report; dmesg there",
            ),
        )


def _differing(heard: Heard) -> Iterator[tuple[int | None, Finding]]:
    """Versions and variables that are not the same everywhere."""
    said = {n: _traits(one) for n, one in heard.ready.items()}
    names = sorted({name for one in said.values() for name in one if name != "env"})
    for name in names:
        variable = name.startswith("env ")
        values = {n: one.get(name, NOT_SET if variable and "env" in one else None) for n, one in said.items()}
        known = {n: value for n, value in values.items() if value is not None}
        if len(set(known.values())) < 2:
            continue
        counts: dict[str, int] = {}
        for value in known.values():
            counts[value] = counts.get(value, 0) + 1
        most = clear_majority(counts, len(values) - len(known))
        yield from _different(heard, name, known, most)


def _different(heard: Heard, name: str, known: Mapping[int, str], most: str | None) -> Iterator[tuple[int | None, Finding]]:
    kind = family(name)
    what = title(name)
    if most is None:
        text_of = "; ".join(f"{heard.name(n)}: {value}" for n, value in sorted(known.items())[:8])
        evidence = {"trait": name, "values": {str(n): v for n, v in sorted(known.items())}}
        yield (
            None,
            Finding(
                Status.FAIL,
                f"the nodes differ in {what}: {text_of}",
                subject=f"nodes, {what}",
                cause=kind.cause,
                severity=kind.severity,
                expected="the same on every node",
                evidence=evidence,
            ),
        )
        return
    for node, value in sorted(known.items()):
        if value != most:
            yield (
                node,
                Finding(
                    Status.FAIL,
                    f"{heard.name(node)} differs in {what}: {value}, where the others have {most}",
                    subject=f"{subject(heard, node)}, {what}",
                    cause=kind.cause,
                    severity=kind.severity,
                    expected=most,
                    evidence={"trait": name, "value": value, "others": most},
                ),
            )


def _traits(said: Mapping[str, Any]) -> dict[str, str]:
    given = said.get("traits")
    if not isinstance(given, Mapping):
        return {}
    return {
        line(name, 120): line(value)
        for name, value in list(given.items())[: MAX_TRAITS + 8]
        if isinstance(name, str) and isinstance(value, str) and name.partition(" ")[0] in _COMPARED
    }


def section(heard: Heard) -> dict[str, Any]:
    """The report's ``nodes``: who took part, as this node knows it."""
    nodes = heard.nodes
    members = []
    for node in range(nodes.count):
        said = heard.ready.get(node, {})
        gone = heard.gone.get(node)
        members.append(
            {
                "node": node,
                "host": heard.hosts.get(node),
                "address": heard.addresses.get(node),
                "state": "missing" if gone else "there" if node in heard.hosts else "not known",
                "why": gone[1] if gone else None,
                "first_rank": heard.firsts.get(node),
                "ranks": said.get("ranks") if type(said.get("ranks")) is int else None,
                "backend": line(said.get("backend"), 20) or None,
                "cannot": line(said.get("cannot")) or None,
                "reaches": {str(to): str(why) if why else "ok" for to, why in sorted(heard.reach.get(node, {}).items())},
            }
        )
    return {
        "count": nodes.count,
        "rank": nodes.rank,
        "master": nodes.named(),
        "launcher": nodes.launcher,
        "master_error": list(heard.master) if heard.master else None,
        "members": members,
    }
