"""The fleet's report: every name that was given, in exactly one state, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from netdoctor.compare.traits import ABSENT
from netdoctor.fleet.drift import Drift, drift
from netdoctor.fleet.groups import Group, group
from netdoctor.fleet.history import doubts, to_and_fro
from netdoctor.fleet.machines import CLOCK_SKEW, by_machine, newest_of_others, unique
from netdoctor.fleet.nodes import (
    BAD,
    FLAKY,
    GOOD,
    MISSING,
    STATES,
    UNKNOWN,
    Node,
    NodeRun,
    Problem,
    Reading,
    clean,
    count,
    shown,
)
from netdoctor.fleet.outliers import METRICS, Distribution, distributions
from netdoctor.fleet.pairwise import Fault, across
from netdoctor.fleet.read import KINDS
from netdoctor.model import Finding, Severity, Status

FLEET_SCHEMA: Final = "netdoctor.fleet/1"
STALE: Final = 7 * 86400.0  # a report this much older than the newest one is of another week


@dataclass(slots=True)
class Fleet:
    """Everything a fleet renderer may use."""

    nodes: list[Node]
    groups: list[Group]
    drift: list[Drift]
    distributions: list[Distribution]
    faults: list[Fault]
    problems: list[Problem]
    files: int
    reports: int
    bytes: int
    expected: int | None
    notes: list[str] = field(default_factory=list)
    checks: tuple[str, ...] = ()
    fail_on: Severity = Severity.WARNING

    @property
    def accounting(self) -> dict[str, int]:
        """{given, good, bad, flaky, unknown, missing}; the first is the sum of the others."""
        states = Counter(n.state for n in self.nodes)
        return {"given": len(self.nodes)} | {state: states[state] for state in STATES}

    @property
    def status(self) -> str:
        """As a node's verdict: unhealthy where a node is bad or missing, or nodes do not fit together."""
        have = self.accounting
        if have[BAD] or have[MISSING] or any(f.severity and f.severity.rank >= self.fail_on.rank for f, _ in self.faults):
            return "unhealthy"
        return "inconclusive" if have[UNKNOWN] or have[FLAKY] or not have["given"] else "healthy"

    @property
    def exit_code(self) -> int:
        return {"healthy": 0, "unhealthy": 3, "inconclusive": 4}[self.status]

    @property
    def text(self) -> str:
        """The last line."""
        have = self.accounting
        parts = ", ".join(f"{have[state]:,} {state}" for state in STATES)
        if not have["given"]:
            return "INCONCLUSIVE: no node report was given"
        return f"{self.status.upper()}: {count(have['given'], 'node')} given = {parts}"


def examine(reading: Reading, expected: Sequence[str] | None = None, fail_on: Severity = Severity.WARNING) -> Fleet:
    """Judge what was read.  `expected` are the names that must be there; a node that the comparison blames with at least
    `fail_on` is bad."""
    nodes = by_machine(reading.runs)
    by_name = _place(nodes, reading.problems)
    names = _expect(
        nodes, by_name, None if expected is None else [clean(name, 253) or clean(repr(name), 253) for name in expected]
    )
    unique(nodes)
    live = [n for n in nodes if n.run is not None]
    groups = group(live)
    fleet = Fleet(
        nodes,
        groups,
        drift(groups),
        distributions(groups),
        across(groups, live),
        reading.problems,
        reading.files,
        len(reading.runs),
        reading.bytes,
        names,
        fail_on=fail_on,
    )
    for node in nodes:
        _judge_own(node)
    _one_machine(live)
    _same_name(fleet)
    _blame(fleet)
    for node in nodes:
        _state(node, fail_on)
    nodes.sort(key=lambda n: n.name)
    fleet.checks = _checks(live)
    fleet.notes += _notes(fleet)
    return fleet


def _place(nodes: list[Node], problems: list[Problem]) -> dict[str, Node]:
    """Unusable files: a note on the node that they name, else a node of which nothing is known."""
    by_name = {n.name: n for n in nodes}
    for problem in problems:
        if not problem.counts:
            continue
        words = f"{problem.file}: {KINDS[problem.kind]}" + (f" ({problem.detail})" if problem.detail else "")
        node = by_name.get(problem.name)
        if node is None:
            node = by_name[problem.name] = Node(problem.name)
            nodes.append(node)
        (node.reasons if node.run is None else node.notes).append(words)
        node.lost.append(problem)
    return by_name


def _expect(nodes: list[Node], by_name: dict[str, Node], expected: Sequence[str] | None) -> int | None:
    """Mark who was expected, add who is missing.  A short name finds its full one where that is unambiguous."""
    if expected is None:
        return None
    short: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        node.expected = False
        short[_key(node).partition(".")[0]].add(_key(node))
    wanted_short = Counter(name.casefold().partition(".")[0] for name in expected)
    by_key: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        by_key[_key(node)].append(node)
    for name in expected:
        key = name.casefold()
        found = by_key.get(key)
        head = key.partition(".")[0]
        if (
            found is None
            and head
            and wanted_short[head] == 1
            and len(short.get(head, ())) == 1
            and _either_is_short(key, short[head])
        ):
            found = by_key[next(iter(short[head]))]
        if found is None:
            missing = Node(name, MISSING, expected=True, reasons=["no report was given"])
            nodes.append(missing)
            by_name[name] = missing
            continue
        for node in found:
            node.expected = True
            if len(found) == 1 and node.name != name:
                node.notes.append(f"calls itself {node.name}")
                node.name = name
    return len(expected)


def _key(node: Node) -> str:
    return (node.run.host if node.run else node.name).casefold()


def _either_is_short(key: str, others: set[str]) -> bool:
    """``n1`` and ``n1.cluster`` are one name; ``n1.a`` and ``n1.b`` are two."""
    other = next(iter(others))
    return "." not in key or "." not in other


Reason = tuple[str, str]  # a state that is not good, and why


def _judge_own(node: Node) -> None:
    """What the node's own report says, its older ones, its clock: the worst state that a rule gives."""
    run = node.run
    if run is None:
        return
    told = list(_own_verdict(run))
    if all(state != BAD for state, _ in told):
        told += _from_elsewhere(run, node.older)
    if not told:  # good in itself: the first rule that speaks against it
        told = next((against for rule in _AGAINST if (against := list(rule(node, run)))), [])
    node.state = max((state for state, _ in told), key=_WORST.index, default=GOOD)
    node.reasons += [reason for _, reason in told]
    node.notes += [note for note in _own_notes(node, run) if note not in node.reasons or note == NEW_ID]


def _own_verdict(run: NodeRun) -> Iterator[Reason]:
    """Nothing where its report is healthy and whole."""
    told_nothing = set(run.statuses) <= {"s", "u", "e"}
    if run.verdict != "unhealthy" and run.verdict != "inconclusive" and not run.partial and not told_nothing:
        return
    state = BAD if run.verdict == "unhealthy" else UNKNOWN
    if run.partial:
        yield state, f"its report is not whole: {run.partial}"
    fails = [i for i in run.items if i.status == "fail" and not i.waived]
    items = fails or [i for i in run.items if i.status != "fail"]
    for words in [f"{i.check}: {i.message}" for i in items[:5]] or [run.verdict_text or run.verdict]:
        yield state, words


def _from_elsewhere(run: NodeRun, older: tuple[NodeRun, ...]) -> Iterator[Reason]:
    """The newest report from each other vantage, up to the first that is bad."""
    for other in newest_of_others(run, older):
        if other.verdict != "healthy":
            state = BAD if other.verdict == "unhealthy" else UNKNOWN
            yield state, f"seen from {other.shape.vantage}: {other.verdict_text or other.verdict} ({other.file})"
            if state == BAD:
                return


def _another_machine(node: Node, run: NodeRun) -> Iterator[Reason]:
    if _has_new_id(node, run) and any(r.verdict != "healthy" and r.machine != run.machine for r in node.older):
        yield UNKNOWN, NEW_ID


def _changing(node: Node, run: NodeRun) -> Iterator[Reason]:
    if node.older and to_and_fro(run, node.older):
        verdicts = ", ".join(r.verdict for r in reversed((run, *node.older)))
        yield FLAKY, f"its reports change between healthy and unhealthy: {verdicts}"


def _doubtful(node: Node, run: NodeRun) -> Iterator[Reason]:
    return ((UNKNOWN, words) for words in doubts(node))


def _asked_again(node: Node, run: NodeRun) -> Iterator[Reason]:
    if run.attempts > 1:
        yield FLAKY, f"answered only when it was asked again (attempt {run.attempts})"


_WORST: Final = (UNKNOWN, FLAKY, BAD)  # the last one
_AGAINST: Final = (_another_machine, _changing, _doubtful, _asked_again)
NEW_ID: Final = "its machine id is not the same in all reports: it was installed anew, or two machines have one name"


def _has_new_id(node: Node, run: NodeRun) -> bool:
    return len({r.machine for r in (run, *node.older)} - {""}) > 1


def _own_notes(node: Node, run: NodeRun) -> Iterator[str]:
    if node.older:
        yield (
            f"{count(1 + len(node.older), 'report')} of this node; {run.file} is the newest and counts, older: "
            + shown([f"{r.file} ({r.verdict})" for r in node.older], 3)
        )
        if _has_new_id(node, run):
            yield NEW_ID
    yield from (words for _, words in _asked_again(node, run))
    if run.skewed > CLOCK_SKEW:
        yield f"its clock is ahead by {_duration(run.skewed)}: the report is newer than its file"


def _duration(seconds: float) -> str:
    for unit, size in (("years", 31_557_600), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _one_machine(live: list[Node]) -> None:
    """One machine that answered under two names: one of the nodes was not looked at.  (Of pods, several see one machine.)"""
    by_cards: dict[frozenset[str], list[Node]] = defaultdict(list)
    for node in live:
        run = node.run
        if run is not None and run.ids and run.shape.vantage.startswith("host") and node.expected is not False:
            by_cards[run.ids].append(node)
    for same in by_cards.values():
        for node in same if len({n.run.host.casefold() for n in same if n.run}) > 1 else ():
            others = [n.name for n in same if n is not node]
            node.reasons.append(f"the same GPUs as {shown(others, 3)}: one machine answered for both names")
            if node.state is GOOD:
                node.state = UNKNOWN


def _same_name(fleet: Fleet) -> None:
    """Different machines that call themselves alike."""
    by_host: dict[str, list[Node]] = defaultdict(list)
    for node in fleet.nodes:
        if node.run is not None:
            by_host[node.run.host].append(node)
    for host, same in sorted(by_host.items()):
        if len(same) > 1 and not all(n.run and n.run.pod for n in same):
            files = [n.run.file for n in same if n.run]
            finding = Finding(
                Status.FAIL,
                f"{len(same)} different machines call themselves {host} (no GPU in common, or machine ids that alternate): "
                f"{shown(files, 4)}",
                host,
                Severity.CRITICAL,
                "duplicate_address",
                how="give each its own host name; jobs and lists name nodes by it",
                check="fleet.host_name",
            )
            fleet.faults.insert(0, (finding, tuple(n.name for n in same)))


def _blame(fleet: Fleet) -> None:
    """Hand the verdicts of the comparison to the nodes."""
    by_name = {n.name: n for n in fleet.nodes}
    for finding, names in fleet.faults:
        for name in names:
            by_name[name].blamed.append((finding.severity.value if finding.severity else "info", finding.message))
    for row in fleet.drift:
        for name, value in row.blamed:
            words = f"{row.title}: {value}; {row.agreeing:,} of its kind have {row.majority}"
            by_name[name].blamed.append((row.severity.value, words))
    for dist in fleet.distributions:
        metric = METRICS[dist.metric]
        for one in dist.outliers:
            speed, usual = one.value * metric.scale, dist.median * metric.scale
            words = f"{metric.title} ({dist.what}): {speed:.3g} {metric.unit}, {one.of_best:.0%} of best, median {usual:.3g}"
            by_name[one.node].blamed.append((dist.severity.value, words))


def _state(node: Node, fail_on: Severity) -> None:
    node.blamed.sort(key=lambda b: -Severity(b[0]).rank)
    hard = [words for severity, words in node.blamed if Severity(severity).rank >= fail_on.rank]
    if hard:
        node.state = BAD
        node.reasons += hard
    node.notes += [words for severity, words in node.blamed if Severity(severity).rank < fail_on.rank]


def _checks(nodes: list[Node]) -> tuple[str, ...]:
    """Every check of any node, in the order that most reports have."""
    counted = Counter(n.run.checks for n in nodes if n.run)
    seen: dict[str, None] = {}
    for checks, _ in counted.most_common():
        seen.update(dict.fromkeys(checks))
    return tuple(seen)


def _notes(fleet: Fleet) -> list[str]:
    notes = []
    extra = [n.name for n in fleet.nodes if n.expected is False]
    if extra:
        notes.append(f"{count(len(extra), 'node')} not on the list of expected nodes: {shown(extra)}")
    single = [g.name for g in fleet.groups if len(g.members) == 1]
    if single:
        notes.append(f"alone of their kind, so compared with nobody: {shown(single, 4)}")
    blind = sum(n.run is not None and n.run.shape.gpus is None for n in fleet.nodes)
    if blind:
        notes.append(f"the GPUs of {count(blind, 'node')} could not be read")
    versions: dict[str, list[str]] = defaultdict(list)
    for one in fleet.groups:
        have = Counter(n.run.traits["nccl"] for n in one.members if n.run and n.run.traits.get("nccl", ABSENT) != ABSENT)
        if have:
            versions[have.most_common(1)[0][0]].append(one.name)
    if len(versions) > 1:
        notes.append(
            "kinds have different NCCL versions, a job across them is refused: "
            + "; ".join(f"{v} ({shown(g, 2)})" for v, g in sorted(versions.items()))
        )
    times = [n.run.time for n in fleet.nodes if n.run and n.run.time is not None and n.run.skewed <= CLOCK_SKEW]
    newest = max(times, default=0.0)
    if old := sum(t < newest - STALE for t in times):
        notes.append(f"{count(old, 'report')} more than a week older than the newest")
    for dist in fleet.distributions:
        good = dist.median / dist.best if METRICS[dist.metric].more_is_better else dist.best / dist.median
        if dist.judged and dist.metric == "busbw" and good < 0.8:
            name = fleet.groups[dist.group].name
            notes.append(f"{name}: half of the nodes reach at most {good:.0%} of the best bus bandwidth")
    return notes
