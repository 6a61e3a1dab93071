"""The fleet's report: every name that was given, in exactly one state, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from netdoctor import policy
from netdoctor.causes.cost import SOMETIMES
from netdoctor.causes.results import own_result
from netdoctor.compare.majority import Fault
from netdoctor.compare.traits import Family, Marker
from netdoctor.facts.vantage import Place
from netdoctor.fleet import notes, own
from netdoctor.fleet.drift import Drift, drift
from netdoctor.fleet.expected import result
from netdoctor.fleet.groups import Group, group
from netdoctor.fleet.machines import STALE, by_machine, timed, unique
from netdoctor.fleet.nodes import Node, NodeRun, NodeState, Problem, Reading, Reason
from netdoctor.fleet.outliers import METRICS, Distribution, distributions
from netdoctor.fleet.pairwise import across
from netdoctor.fleet.read import KINDS
from netdoctor.model import CheckResult, Command, Finding, Severity, Status, Verdict, count
from netdoctor.textsafe import as_line, listed


@dataclass(slots=True)
class Fleet:
    """Everything a fleet renderer may use."""

    nodes: list[Node]
    groups: list[Group]
    drift: list[Drift]
    distributions: list[Distribution]
    problems: list[Problem]
    files: int
    reports: int
    bytes: int
    expected: int | None
    checks: tuple[CheckResult, ...]
    verdict: Verdict
    notes: list[str] = field(default_factory=list)
    node_checks: tuple[str, ...] = ()  # of any node's report

    @property
    def accounting(self) -> dict[str, int]:
        """{given, good, bad, flaky, unknown, missing}; the first is the sum of the others."""
        states = Counter(n.state for n in self.nodes)
        return {"given": len(self.nodes)} | {state.value: states[state] for state in NodeState}


def by_default(checks: tuple[CheckResult, ...], _facts: Mapping[str, Any]) -> tuple[tuple[CheckResult, ...], Verdict]:
    """The policy where no configuration says anything."""
    return policy.decide(checks, fail_on=policy.FAIL_ON[Command.FLEET], command=Command.FLEET)


def examine(
    reading: Reading, expected: Sequence[str] | None = None, decide: policy.Decide = by_default, now: float | None = None
) -> Fleet:
    """Judge what was read.  `expected` are the names that must be there; a node is bad where a fail that counts names it.

    `now` is what the age of the newest report is held against; None: nothing is said of it.
    """
    nodes = by_machine(reading.runs)
    _place(nodes, reading.problems)
    if expected is not None:
        _expect(nodes, [as_line(name, 253) or as_line(repr(name), 253) for name in expected])
    unique(nodes)
    live = [n for n in nodes if n.run is not None]
    groups = group(live)
    drifted, figures = drift(groups), distributions(groups)
    for node in nodes:
        own.judge(node)
    _one_machine(live)
    _of_another_week(live)
    faults = [*_same_name(live), *across(groups, live)]
    expects = result(nodes, asked=reading.asked)
    found = (_of_nodes(nodes), *expects, *_of_faults(faults), _of_drift(drifted, groups), _of_figures(figures, groups))
    checks, verdict = decide(found, {})
    _settle(nodes, checks)
    nodes.sort(key=lambda n: n.name)
    fleet = Fleet(
        nodes,
        groups,
        drifted,
        figures,
        reading.problems,
        reading.files,
        len(reading.runs),
        reading.bytes,
        None if expected is None else len(expected),
        checks,
        verdict,
        node_checks=_checks(live),
    )
    fleet.notes += notes.of(nodes, groups, figures, now)
    return fleet


def _place(nodes: list[Node], problems: list[Problem]) -> None:
    """Unusable files: a note on the node that they name, else a node of which nothing is known."""
    by_name = {n.name: n for n in nodes}
    for problem in problems:
        if not problem.counts:
            continue
        words = f"{problem.file}: {KINDS[problem.kind]}" + (f" ({problem.detail})" if problem.detail else "")
        if (node := by_name.get(problem.name)) is None:
            node = by_name[problem.name] = Node(problem.name)
            nodes.append(node)
        node.lost.append(problem)
        if node.run is None:
            node.against.append(Reason(NodeState.UNKNOWN, words))
        else:
            node.notes.append(words)


def _expect(nodes: list[Node], expected: Sequence[str]) -> None:
    """Mark who was expected, add who is missing.  A short name finds its full one where that is unambiguous."""
    by_key: dict[str, list[Node]] = defaultdict(list)
    by_head: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        node.expected = False
        key = (node.run.host if node.run else node.name).casefold()
        by_key[key].append(node)
        by_head[key.partition(".")[0]].add(key)
    asked = Counter(name.casefold().partition(".")[0] for name in expected)
    for name in expected:
        key = name.casefold()
        head = key.partition(".")[0]
        found = by_key.get(key, [])
        if not found and head and asked[head] == 1 and len(by_head[head]) == 1:
            (other,) = by_head[head]
            if "." not in key or "." not in other:  # `n1` and `n1.cluster` are one name; `n1.a` and `n1.b` are two
                found = by_key[other]
        for node in found:
            node.expected = True
            if len(found) == 1 and node.name != name:
                node.notes.append(f"calls itself {node.name}")
                node.name = name
        if not found:
            nodes.append(Node(name, expected=True, against=[Reason(NodeState.MISSING, "no report was given")]))


def _one_machine(live: list[Node]) -> None:
    """One machine that answered under two names: one of the nodes was not looked at.  (Of pods, several see one machine.)"""
    by_machine: dict[object, list[Node]] = defaultdict(list)
    for node in live:
        run = node.run
        if run is None or node.expected is False:
            continue
        if run.ids and run.shape.vantage == Place.HOST:
            by_machine[run.ids].append(node)
        elif not run.ids and run.installation:
            by_machine[run.installation].append(node)
    for of, same in by_machine.items():
        for node in same if len({n.run.host.casefold() for n in same if n.run}) > 1 else ():
            others = [n.name for n in same if n is not node]
            what = "GPUs" if isinstance(of, frozenset) else "machine id and addresses"
            why = f"the same {what} as {listed(others, 3)}: one machine answered for both names"
            node.against.append(Reason(NodeState.UNKNOWN, why))


def _same_name(live: list[Node]) -> Iterator[Fault[str]]:
    """Different machines that call themselves alike."""
    by_host: dict[str, list[tuple[Node, NodeRun]]] = defaultdict(list)
    for node in live:
        if node.run is not None:
            by_host[node.run.host].append((node, node.run))
    for host, same in sorted(by_host.items()):
        if len(same) > 1 and not all(run.pod for _, run in same):
            files = listed([run.file for _, run in same], 4)
            words = f"{len(same)} different machines call themselves {host} (no GPU in common, or ids that alternate or meet)"
            how, check = "give each its own host name; jobs and lists name nodes by it", "fleet.host_name"
            finding = Finding(
                Status.FAIL, f"{words}: {files}", host, cause="duplicate_address", how=how, check=check, loss=SOMETIMES
            )
            yield finding, tuple(node.name for node, _ in same)


# What is shown in part must show the worst.
_WORST_FIRST: Final = (NodeState.BAD, NodeState.MISSING, NodeState.FLAKY, NodeState.UNKNOWN, NodeState.GOOD)


def _worst(against: Iterable[Reason]) -> NodeState:
    return min((one.state for one in against), key=_WORST_FIRST.index, default=NodeState.GOOD)


def _of_nodes(nodes: list[Node]) -> CheckResult:
    """What the nodes say of themselves."""
    wrong = sorted((n for n in nodes if n.against), key=lambda n: (_WORST_FIRST.index(_worst(n.against)), n.name))
    found = [finding for node in wrong for finding in _of_node(node)]
    if good := len(nodes) - len(wrong):
        found.append(
            Finding(
                Status.PASS,
                f"{count(good, 'node')} healthy by {'its own report' if good == 1 else 'their own reports'}",
                "good nodes",
            )
        )
    if not nodes:
        found.append(Finding(Status.UNKNOWN, "no node report was given"))
    return own_result("fleet.nodes", found)


def _of_node(node: Node) -> Iterator[Finding]:
    """What failed, and beside it what could not be told: a waiver of the one does not excuse the other."""
    for status, states in (
        (Status.FAIL, (NodeState.BAD, NodeState.MISSING)),
        (Status.UNKNOWN, (NodeState.FLAKY, NodeState.UNKNOWN)),
    ):
        if not (reasons := [one for one in node.against if one.state in states]):
            continue
        more = f" (and {count(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        evidence = {"reasons": [one.why for one in reasons]} if len(reasons) > 1 else {}
        if status is Status.UNKNOWN:
            words = f"{'flaky: ' if _worst(reasons) is NodeState.FLAKY else ''}{reasons[0].why}{more}"
            yield Finding(status, words, node.name, evidence=evidence, how=reasons[0].how or None, nodes=(node.name,))
            continue
        missing = reasons[0].state is NodeState.MISSING
        fails = [i.cause for i in node.run.items if i.status is Status.FAIL and not i.waived and i.cause] if node.run else []
        yield Finding(
            status,
            f"{reasons[0].why}{more}",
            node.name,
            max((one.severity for one in reasons), key=lambda s: s.rank),
            "missing_node" if missing else fails[0] if fails else "other",
            evidence=evidence,
            how=reasons[0].how or None,
            waived_by_name=missing,
            nodes=(node.name,),
        )


def _of_faults(faults: Iterable[Fault[str]]) -> Iterator[CheckResult]:
    by_check: dict[str, list[Finding]] = {}
    for finding, names in faults:
        by_check.setdefault(finding.check, []).append(replace(finding, nodes=names))
    yield from (own_result(id, found) for id, found in by_check.items())


def _of_drift(rows: list[Drift], groups: list[Group]) -> CheckResult:
    found = []
    for row in rows:
        for finding, nodes in row.faults(str):
            evidence = {"kind": groups[row.group].name, **finding.evidence}
            if not nodes:
                evidence.pop("values")  # every name: the rows of `Fleet.drift` have them
            # Differences may be meant where nobody is alone with his; NCCL refuses a job of two versions in any case.
            refused = row.family is Family.NCCL and sum(not isinstance(value, Marker) for value in row.sides.values) > 1
            if not nodes and not refused:
                finding = replace(finding, status=Status.UNKNOWN, severity=None, expected=None)
            found.append(replace(finding, evidence=evidence, nodes=nodes))
    several = [g for g in groups if len(g.members) > 1]
    if not found and several:
        found.append(
            Finding(Status.PASS, f"{count(sum(len(g.members) for g in several), 'node')}: no difference in what was read")
        )
    elif not found:
        found.append(Finding(Status.SKIP, "no two nodes are of one kind"))
    return own_result("fleet.drift", found)


def _of_figures(figures: list[Distribution], groups: list[Group]) -> CheckResult:
    found = []
    for dist in figures:
        metric = METRICS[dist.metric]
        for one in dist.outliers:
            speed, usual = one.value * metric.scale, dist.median * metric.scale
            words = f"{metric.title} ({dist.what}): {speed:.3g} {metric.unit}, {one.of_best:.0%} of best, median {usual:.3g}"
            evidence = {"kind": groups[dist.group].name, "sigmas": round(one.sigmas)}
            found.append(
                Finding(
                    Status.FAIL,
                    words,
                    one.node,
                    cause=metric.cause,
                    evidence=evidence,
                    nodes=(one.node,),
                    loss=dist.loss(one),
                )
            )
    judged = [d for d in figures if d.judged]
    if not found and judged:
        found.append(Finding(Status.PASS, f"{count(len(judged), 'figure')} compared: no node is far from its kind"))
    elif not found:
        how = "netdoctor preflight with its all-reduce, on three nodes of a kind at least"
        found.append(Finding(Status.UNKNOWN, "no figure that enough nodes of one kind have", how=how))
    return own_result("fleet.outliers", [*found, *_of_other_runs(figures, groups)])


def _of_other_runs(figures: Iterable[Distribution], groups: Sequence[Group]) -> Iterator[Finding]:
    """Nodes whose kind was compared, and they were not: of another size, or by another run."""
    compared: dict[tuple[int, str], set[str]] = defaultdict(set)
    others: dict[tuple[int, str], set[str]] = defaultdict(set)
    for dist in figures:
        (compared if dist.judged else others)[dist.group, dist.metric] |= {name for _, name in dist.values}
    for (kind, metric), names in others.items():
        left = tuple(sorted(names - compared[kind, metric]))
        if left and compared[kind, metric]:
            title, name = METRICS[metric].title, groups[kind].name
            words = f"{title} of {listed(left, 3)} is of another size or run than that of their kind ({name}): not compared"
            how = "the same netdoctor preflight on all of them: its budget, its ranks, its path"
            yield Finding(Status.UNKNOWN, words, name, how=how, nodes=left)


def _settle(nodes: list[Node], checks: Iterable[CheckResult]) -> None:
    """Each node's state.  A fail that counts makes it bad, the others are worth knowing; what could not be told, or is not
    there, no waiver makes good."""
    by_name = {n.name: n for n in nodes}
    excused: dict[str, str] = {}
    for check in checks:
        for finding in check.findings:
            if finding.status is Status.UNKNOWN and finding.blocking and check.id != "fleet.nodes":
                for name in finding.nodes:
                    by_name[name].against.append(Reason(NodeState.UNKNOWN, finding.message))
            if finding.status is not Status.FAIL:
                continue
            if check.id == "fleet.nodes":
                if not finding.blocking:
                    excused[finding.subject] = "waived: " if finding.waived else ""
                continue
            for name in finding.nodes:
                by_name[name].blamed.append((finding, finding.blocking))
    for node in nodes:
        own = [one for one in node.against if one.state is NodeState.BAD]
        left = [one for one in node.against if one.state is not NodeState.BAD]
        if node.name in excused:
            node.notes += [f"{excused[node.name]}{one.why}" for one in own]
        else:
            left = [*own, *left]
        node.blamed.sort(key=lambda b: -(b[0].severity or Severity.INFO).rank)
        hard = [finding.message for finding, counts in node.blamed if counts]
        node.notes += [finding.message for finding, counts in node.blamed if not counts]
        node.state = NodeState.BAD if hard else _worst(left)
        node.reasons = [*(one.why for one in left), *hard]


def _checks(nodes: list[Node]) -> tuple[str, ...]:
    """Every check of any node, in the order that most reports have."""
    counted = Counter(n.run.checks for n in nodes if n.run)
    seen: dict[str, None] = {}
    for checks, _ in counted.most_common():
        seen.update(dict.fromkeys(checks))
    return tuple(seen)


def _of_another_week(nodes: list[Node]) -> None:
    """What lies there of a node that was not reached today says nothing of today."""
    known, alone = timed(nodes)
    newest = known[-1][0] if known else 0.0
    for time, node in known:
        if time < newest - STALE:
            _doubted(
                node, f"its report is {(newest - time) / 86400:.0f} days older than the newest: how it is now is not known"
            )
    for time, node in alone:
        days = f"{(time - newest) / 86400:.0f} days newer than every other"
        _doubted(node, f"its report is {days}: its clock is ahead, or only this node was reached since")


def _doubted(node: Node, words: str) -> None:
    if not any(one.state is NodeState.BAD for one in node.against):
        node.against.append(Reason(NodeState.UNKNOWN, words))
