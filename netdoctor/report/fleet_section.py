"""What only `netdoctor fleet report` has to say: kinds of nodes, heat map, distributions, every node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from netdoctor.fleet.nodes import Node, NodeState
from netdoctor.fleet.read import KINDS
from netdoctor.fleet.report import Fleet
from netdoctor.model import count, record
from netdoctor.model.section import Case, Outcome, Page, Section
from netdoctor.report import fleet_html, fleet_json
from netdoctor.textsafe import listed

_MOST: Final = 60  # rows of one list of the text; all of them are in the JSON


@record
class FleetSection(Section):
    """Many nodes.  Every string of other machines was cleaned when it was read."""

    fleet: Fleet

    def about(self) -> str:
        """``12 reports from 12 files; 12 nodes given = 11 good, 1 bad, 0 flaky, 0 unknown, 0 missing``."""
        fleet, have = self.fleet, self.fleet.accounting
        parts = ", ".join(f"{have[state]:,} {state}" for state in NodeState)
        read = f"{count(fleet.reports, 'report')} from {count(fleet.files, 'file')}"
        return f"{read}; {count(have['given'], 'node')} given = {parts}"

    def data(self) -> Mapping[str, Any]:
        return fleet_json.document(self.fleet)

    def text(self) -> Iterable[str]:
        fleet = self.fleet
        kinds = ((g.name, len(g.members), sum(n.state == NodeState.GOOD for n in g.members)) for g in fleet.groups)
        yield from _listed("Kinds of nodes", [f"{nodes:>6,}  {name}: {good:,} good" for name, nodes, good in kinds])
        compared = [n for n in fleet.nodes if any(counts for _, counts in n.blamed)]
        yield from _listed("Nodes that the comparison blames", [f"{n.name}: {'; '.join(n.reasons[:4])}" for n in compared])
        yield from _listed("Worth knowing", [f"{n.name}: {note}" for n in fleet.nodes for note in n.notes[:3]])
        files = [
            f"{count(len(files), 'file')}: {KINDS[kind]}: {listed(files, 4)}" for kind, files in fleet_html.problems(fleet)
        ]
        yield from _listed("Files that are no report", files)
        yield from _listed("Notes", fleet.notes)

    def page(self) -> Page:
        return fleet_html.page(self.fleet)

    def cases(self) -> Iterable[Case]:
        """A case a node: bad and missing fail, flaky and unknown are errors and never count as passed."""
        return (self._case(node) for node in self.fleet.nodes)

    def _case(self, node: Node) -> Case:
        group = self.fleet.groups[node.group].name if node.group is not None else "no report"
        if node.state == NodeState.GOOD:
            return Case(f"netdoctor.fleet.{group}", node.name)
        kind = Outcome.FAILURE if node.state in (NodeState.BAD, NodeState.MISSING) else Outcome.ERROR
        why = node.reasons or [node.state]
        type = "missing_node" if node.state == NodeState.MISSING else node.state
        return Case(f"netdoctor.fleet.{group}", node.name, kind, type, why[0], "\n".join((*why, *node.notes)))


def _listed(title: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield from ("", title, *(f"  {row}" for row in rows[:_MOST]))
    if len(rows) > _MOST:
        yield f"  … and {len(rows) - _MOST:,} more (all in --format json)"
