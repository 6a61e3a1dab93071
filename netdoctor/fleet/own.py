"""What is known of one node without the others: its own report, its older ones, its clock, and whoever asked it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from netdoctor.causes.cost import WORST
from netdoctor.fleet.history import doubts, to_and_fro
from netdoctor.fleet.machines import CLOCK_SKEW, newest_of_others
from netdoctor.fleet.nodes import Item, Node, NodeRun, NodeState, Reason
from netdoctor.model import Health, Severity, Status, count
from netdoctor.textsafe import listed


def judge(node: Node) -> None:
    """What speaks against it.  A waiver of its fails must not excuse what could not be told: both are kept apart."""
    if (run := node.run) is None:
        return
    node.against += [*_verdict(run), *_other_vantages(node, run)]
    for rule in _DOUBTS:
        if all(one.state is NodeState.BAD for one in node.against):
            node.against += rule(node, run)
    node.notes += _notes(node, run)


def _verdict(run: NodeRun) -> Iterator[Reason]:
    if run.partial:
        yield Reason(NodeState.UNKNOWN, f"its report is not whole: {run.partial}")
    fails = [i for i in run.items if i.status is Status.FAIL and not i.waived]
    bad = run.verdict is Health.UNHEALTHY
    if bad or (fails and not run.doubt):  # a report that contradicts itself shows neither
        worst = WORST if bad else max((i.severity or WORST for i in fails), key=lambda s: s.rank)
        yield from _said(NodeState.BAD, fails, run, worst)
    # What had to be able to tell is the verdict's own reason.
    blind = sorted((i for i in run.items if i.status is not Status.FAIL), key=lambda i: not i.blocking)
    if bad:  # what had to be able to tell, and could not
        blind = [i for i in blind if i.blocking]
    nobody = not run.partial and blind and not any(i.blocking for i in blind)
    if run.verdict is Health.INCONCLUSIVE and run.verdict_text and nobody:
        # No single check is why: the whole look came to nothing, as of a machine without a GPU.
        yield Reason(NodeState.UNKNOWN, run.verdict_text.removeprefix(f"{run.verdict}: "))
    if run.verdict is Health.INCONCLUSIVE or set(run.statuses) <= {"s", "u", "e"} or (bad and blind):
        yield from _said(NodeState.UNKNOWN, blind, run)


def _said(state: NodeState, items: list[Item], run: NodeRun, severity: Severity = WORST) -> Iterator[Reason]:
    """By its report's findings, else by its verdict."""
    if not items:
        yield Reason(state, run.verdict_text or str(run.verdict), severity)
    yield from (Reason(state, f"{i.check}: {i.message}", severity, i.how) for i in items[:5])


def _other_vantages(node: Node, run: NodeRun) -> Iterator[Reason]:
    """The newest report of each other place that the node was seen from, where it is the worse news."""
    if run.verdict is Health.UNHEALTHY:
        return
    for other in newest_of_others(run, node.older):
        if other.verdict is not Health.HEALTHY:
            state = NodeState.BAD if other.verdict is Health.UNHEALTHY else NodeState.UNKNOWN
            yield Reason(state, f"seen from {other.shape.vantage}: {other.verdict_text or other.verdict} ({other.file})")


_ANEW: Final = "its machine id is not the same in all reports: it was installed anew, or two machines have one name"


def _ids(node: Node, run: NodeRun) -> set[str]:
    return {r.machine for r in (run, *node.older)} - {""}


def _another_machine(node: Node, run: NodeRun) -> Iterator[Reason]:
    if len(_ids(node, run)) > 1 and any(r.verdict is not Health.HEALTHY and r.machine != run.machine for r in node.older):
        yield Reason(NodeState.UNKNOWN, _ANEW)


def _to_and_fro(node: Node, run: NodeRun) -> Iterator[Reason]:
    if node.older and to_and_fro(run, node.older):
        verdicts = ", ".join(r.verdict for r in (*reversed(node.older), run))
        yield Reason(NodeState.FLAKY, f"its reports change between healthy and unhealthy: {verdicts}")


def _doubtful(node: Node, _run: NodeRun) -> Iterator[Reason]:
    yield from (Reason(NodeState.UNKNOWN, why) for why in doubts(node))


def _asked_again(_node: Node, run: NodeRun) -> Iterator[Reason]:
    if run.attempts > 1:
        yield Reason(NodeState.FLAKY, f"answered only when it was asked again (attempt {run.attempts})")


# What makes a node doubtful; the first that does, where its report itself could tell.
_DOUBTS: Final[tuple[Callable[[Node, NodeRun], Iterator[Reason]], ...]] = (
    _another_machine,
    _to_and_fro,
    _doubtful,
    _asked_again,
)


def _notes(node: Node, run: NodeRun) -> Iterator[str]:
    if node.older:
        older = listed([f"{r.file} ({r.verdict})" for r in node.older], 3)
        number = count(len(node.older) + 1, "report")
        yield f"{number} of this node; {run.file} is the newest and counts, older: {older}"
        if len(_ids(node, run)) > 1:
            yield _ANEW
    yield from (one.why for one in _asked_again(node, run) if one not in node.against)
    if run.skewed > CLOCK_SKEW:
        yield f"its clock is ahead by {_duration(run.skewed)}: the report is newer than its file, {run.file}"


def _duration(seconds: float) -> str:
    for unit, size in (("years", 31_557_600), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"
