"""What of a fleet stands in its text beside the findings: kinds of nodes, what is worth knowing, files that are no report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.fleet.nodes import NodeState, ProblemKind
from netdoctor.fleet.read import KINDS
from netdoctor.fleet.report import Fleet
from netdoctor.model import count, shown

_MOST: Final = 60  # rows of one list; all of them are in the JSON


def about(fleet: Fleet) -> str:
    """``12 reports from 12 files; 12 nodes given = 11 good, 1 bad, 0 flaky, 0 unknown, 0 missing``."""
    have = fleet.accounting
    parts = ", ".join(f"{have[state]:,} {state}" for state in NodeState)
    read = f"{count(fleet.reports, 'report')} from {count(fleet.files, 'file')}"
    return f"{read}; {count(have['given'], 'node')} given = {parts}"


def lines(fleet: Fleet) -> Iterator[str]:
    """Every string of other machines was cleaned when it was read."""
    yield from _listed("Kinds of nodes", [_kind(fleet, number) for number in range(len(fleet.groups))])
    compared = [n for n in fleet.nodes if any(counts for _, counts in n.blamed)]
    yield from _listed("Nodes that the comparison blames", [f"{n.name}: {'; '.join(n.reasons[:4])}" for n in compared])
    yield from _listed("Worth knowing", [f"{n.name}: {note}" for n in fleet.nodes for note in n.notes[:3]])
    by_kind: dict[ProblemKind, list[str]] = {}
    for problem in fleet.problems:
        by_kind.setdefault(problem.kind, []).append(problem.file + (f" ({problem.detail})" if problem.detail else ""))
    files = [f"{count(len(files), 'file')} {KINDS[kind]}: {shown(files, 4)}" for kind, files in sorted(by_kind.items())]
    yield from _listed("Files that are no report", files)
    yield from _listed("Notes", fleet.notes)


def _kind(fleet: Fleet, number: int) -> str:
    group = fleet.groups[number]
    return f"{len(group.members):>6,}  {group.name}: {sum(n.state == NodeState.GOOD for n in group.members):,} good"


def _listed(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield from ("", title, *(f"  {row}" for row in rows[:_MOST]))
    if len(rows) > _MOST:
        yield f"  … and {len(rows) - _MOST:,} more (all in --format json)"
