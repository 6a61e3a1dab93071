"""The fleet's report for people at a terminal: what is wrong first and in full, what is well in one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.fleet.drift import Drift
from netdoctor.fleet.nodes import GOOD, STATES, count, shown
from netdoctor.fleet.outliers import METRICS
from netdoctor.fleet.read import KINDS
from netdoctor.fleet.report import Fleet
from netdoctor.model import Status

MOST_NODES: Final = 200  # nodes printed with their reasons; all of them are in the JSON
MOST_ROWS: Final = 60
MARK: Final = {"good": "✓", "bad": "✗", "flaky": "~", "unknown": "?", "missing": "!"}
_COLOUR: Final = {"good": "32", "bad": "31", "flaky": "35", "unknown": "33", "missing": "31"}


def render(fleet: Fleet, colour: bool = False) -> str:
    """The whole report; every string of other machines was cleaned when it was read."""
    return "\n".join(_lines(fleet, colour)) + "\n"


def _paint(words: str, state: str, colour: bool) -> str:
    return f"\033[{_COLOUR[state]}m{words}\033[0m" if colour else words


def _lines(fleet: Fleet, colour: bool) -> Iterator[str]:
    yield f"netdoctor fleet report: {count(fleet.reports, 'report')} from {count(fleet.files, 'file')}"
    yield from _groups(fleet)
    yield from _faults(fleet)
    yield from _drift(fleet)
    yield from _outliers(fleet)
    yield from _nodes(fleet, colour)
    yield from _problems(fleet)
    if fleet.notes:
        yield from ("", "Notes", *(f"  {note}" for note in fleet.notes))
    yield ""
    state = {"healthy": "good", "unhealthy": "bad"}.get(fleet.status, "unknown")
    yield _paint(fleet.text, state, colour)


def _groups(fleet: Fleet) -> Iterator[str]:
    if fleet.groups:
        yield from ("", "Kinds of nodes")
    for group in fleet.groups[:MOST_ROWS]:
        good = sum(n.state == GOOD for n in group.members)
        yield f"  {len(group.members):>6,}  {group.name}: {good:,} good"
    yield from _more(len(fleet.groups) - MOST_ROWS, "kinds")


def _faults(fleet: Fleet) -> Iterator[str]:
    if fleet.faults:
        yield from ("", "Between nodes")
    for finding, _ in fleet.faults[:MOST_ROWS]:
        mark = "✗" if finding.status is Status.FAIL else "?"
        severity = f" [{finding.severity.value}]" if finding.severity else ""
        yield f"  {mark} {finding.subject}: {finding.message}{severity}"
        if finding.how:
            yield f"      → {finding.how}"
    yield from _more(len(fleet.faults) - MOST_ROWS, "findings")


def _drift(fleet: Fleet) -> Iterator[str]:
    decided = [row for row in fleet.drift if row.majority is not None]
    open_rows = [row for row in fleet.drift if row.majority is None]
    if decided:
        yield from ("", "Drift: nodes that differ from most of their kind")
        for row in decided[:MOST_ROWS]:
            yield from _drift_row(fleet, row)
        yield from _more(len(decided) - MOST_ROWS, "rows")
    if open_rows:
        yield from ("", "Differs without a majority: nobody is blamed")
        for row in open_rows[:MOST_ROWS]:
            sides = "; ".join(f"{value} on {count(len(nodes), 'node')}" for value, nodes in row.values[:4])
            more = f"; {len(row.values) - 4:,} more values" if len(row.values) > 4 else ""
            yield f"  ? {row.title}: {sides}{more}  ({fleet.groups[row.group].name})"
        yield from _more(len(open_rows) - MOST_ROWS, "rows")


def _drift_row(fleet: Fleet, row: Drift) -> Iterator[str]:
    unknown = f", {row.unknown:,} could not tell" if row.unknown else ""
    kind = fleet.groups[row.group].name
    yield f"  ✗ {row.title} [{row.severity.value}]: {row.agreeing:,} have {row.majority}{unknown}  ({kind})"
    for value, nodes in row.values[:6]:
        yield f"      {value}: {shown(nodes)}"
    yield from _more(len(row.values) - 6, "values", "      ")


def _outliers(fleet: Fleet) -> Iterator[str]:
    rows = [(dist, one) for dist in fleet.distributions for one in dist.outliers]
    if rows:
        yield from ("", "Outliers")
    for dist, one in rows[:MOST_ROWS]:
        metric = METRICS[dist.metric]
        mark = "✗" if dist.severity.rank else "?"
        yield (
            f"  {mark} {one.node}: {metric.title} {one.value * metric.scale:.3g} {metric.unit} ({dist.what}), "
            f"{one.of_best:.0%} of the best, median {dist.median * metric.scale:.3g}, {one.sigmas:.0f} σ"
        )
    yield from _more(len(rows) - MOST_ROWS, "outliers")


def _nodes(fleet: Fleet, colour: bool) -> Iterator[str]:
    order = {state: place for place, state in enumerate(("bad", "missing", "flaky", "unknown", "good"))}
    wrong = sorted((n for n in fleet.nodes if n.state != GOOD), key=lambda n: (order[n.state], n.name))
    if wrong:
        yield from ("", "Nodes that are not good")
    for node in wrong[:MOST_NODES]:
        yield f"  {_paint(f'{MARK[node.state]} {node.state:<8}', node.state, colour)}{node.name}: " + (
            node.reasons[0] if node.reasons else ""
        )
        yield from (f"              {reason}" for reason in node.reasons[1:4])
        yield from _more(len(node.reasons) - 4, "reasons", "              ")
    for state in STATES:
        left = [n.name for n in wrong[MOST_NODES:] if n.state == state]
        if left:
            yield f"  {MARK[state]} {state}: {shown(left)}"
    told = [n for n in fleet.nodes if n.notes]
    if told:
        yield from ("", "Worth knowing")
        yield from (f"  {n.name}: {note}" for n in told[:MOST_ROWS] for note in n.notes[:3])
        yield from _more(len(told) - MOST_ROWS, "nodes")


def _problems(fleet: Fleet) -> Iterator[str]:
    by_kind: dict[str, list[str]] = {}
    for problem in fleet.problems:
        by_kind.setdefault(problem.kind, []).append(problem.file + (f" ({problem.detail})" if problem.detail else ""))
    if by_kind:
        yield from ("", "Files that are no report")
    for kind, files in sorted(by_kind.items()):
        yield f"  {count(len(files), 'file')} {KINDS[kind]}: {shown(files, 4)}"


def _more(number: int, what: str, indent: str = "  ") -> Iterator[str]:
    if number > 0:
        yield f"{indent}… and {number:,} more {what} (all in --format json)"
