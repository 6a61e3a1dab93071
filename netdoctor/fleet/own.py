"""What is known of one node without the others: its own report, its older ones, its clock, and whoever asked it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from netdoctor.fleet.history import doubts, to_and_fro
from netdoctor.fleet.machines import CLOCK_SKEW, newest_of_others
from netdoctor.fleet.nodes import Node, NodeRun, NodeState, count, shown
from netdoctor.model import Health, Status

Said = tuple[NodeState, str]  # (state, why); "" where the state speaks for itself


def judge(node: Node) -> None:
    """Set its state and the reasons: the worst of what the rules say."""
    if node.run is None:
        return
    said = [*_verdict(node.run), *_other_vantages(node, node.run)]
    for rule in _DOUBTS:
        if all(state == NodeState.GOOD for state, _ in said):
            said += rule(node, node.run)
    states = [state for state, _ in said]
    node.state = (
        NodeState.BAD if NodeState.BAD in states else next((s for s in states if s is not NodeState.GOOD), NodeState.GOOD)
    )
    node.reasons += [why for _, why in said if why]
    node.notes += _notes(node, node.run)


def _verdict(run: NodeRun) -> Iterator[Said]:
    state = NodeState.GOOD
    if run.verdict is Health.UNHEALTHY:
        state = NodeState.BAD
    elif run.verdict is Health.INCONCLUSIVE or run.partial or set(run.statuses) <= {"s", "u", "e"}:
        state = NodeState.UNKNOWN
    yield state, f"its report is not whole: {run.partial}" if run.partial else ""
    if state != NodeState.GOOD:
        fails = [i for i in run.items if i.status is Status.FAIL and not i.waived]
        told = fails or [i for i in run.items if i.status is not Status.FAIL]
        words = [f"{i.check}: {i.message}" for i in told[:5]] or [run.verdict_text or run.verdict]
        yield from ((state, why) for why in words)


def _other_vantages(node: Node, run: NodeRun) -> Iterator[Said]:
    """The newest report of each other place that the node was seen from, where it is the worse news."""
    if run.verdict is Health.UNHEALTHY:
        return
    for other in newest_of_others(run, node.older):
        if other.verdict is not Health.HEALTHY:
            state = NodeState.BAD if other.verdict is Health.UNHEALTHY else NodeState.UNKNOWN
            yield state, f"seen from {other.shape.vantage}: {other.verdict_text or other.verdict} ({other.file})"


_ANEW: Final = "its machine id is not the same in all reports: it was installed anew, or two machines have one name"


def _ids(node: Node, run: NodeRun) -> set[str]:
    return {r.machine for r in (run, *node.older)} - {""}


def _another_machine(node: Node, run: NodeRun) -> Iterator[Said]:
    if len(_ids(node, run)) > 1 and any(r.verdict is not Health.HEALTHY and r.machine != run.machine for r in node.older):
        yield NodeState.UNKNOWN, _ANEW


def _to_and_fro(node: Node, run: NodeRun) -> Iterator[Said]:
    if node.older and to_and_fro(run, node.older):
        verdicts = [r.verdict for r in (*reversed(node.older), run)]
        yield NodeState.FLAKY, "its reports change between healthy and unhealthy: " + ", ".join(verdicts)


def _doubtful(node: Node, _run: NodeRun) -> Iterator[Said]:
    yield from ((NodeState.UNKNOWN, why) for why in doubts(node))


def _asked_again(_node: Node, run: NodeRun) -> Iterator[Said]:
    if run.attempts > 1:
        yield NodeState.FLAKY, _again(run)


def _again(run: NodeRun) -> str:
    return f"answered only when it was asked again (attempt {run.attempts})"


# What makes a node doubtful of which nothing worse is known; the first that does.
_DOUBTS: Final[tuple[Callable[[Node, NodeRun], Iterator[Said]], ...]] = (
    _another_machine,
    _to_and_fro,
    _doubtful,
    _asked_again,
)


def _notes(node: Node, run: NodeRun) -> Iterator[str]:
    if node.older:
        older = shown([f"{r.file} ({r.verdict})" for r in node.older], 3)
        number = count(len(node.older) + 1, "report")
        yield f"{number} of this node; {run.file} is the newest and counts, older: {older}"
        if len(_ids(node, run)) > 1:
            yield _ANEW
    if run.attempts > 1 and _again(run) not in node.reasons:
        yield _again(run)
    if run.skewed > CLOCK_SKEW:
        yield f"its clock is ahead by {_duration(run.skewed)}: the report is newer than its file"


def _duration(seconds: float) -> str:
    for unit, size in (("years", 31_557_600), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} seconds"
