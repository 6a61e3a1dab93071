"""What only `netdoctor fleet report` has to say: kinds of nodes, heat map, distributions, every node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from netdoctor.fleet.nodes import Node, NodeState
from netdoctor.fleet.report import Fleet
from netdoctor.model import Case, Page


@dataclass(frozen=True)
class FleetSection:
    """Many nodes."""

    fleet: Fleet

    def about(self) -> str:
        from netdoctor.report import fleet_text

        return fleet_text.about(self.fleet)

    def data(self) -> Mapping[str, Any]:
        from netdoctor.report import fleet_json

        return fleet_json.document(self.fleet)

    def text(self) -> Iterable[str]:
        from netdoctor.report import fleet_text

        return fleet_text.lines(self.fleet)

    def page(self) -> Page:
        from netdoctor.report import fleet_html

        return fleet_html.page(self.fleet)

    def cases(self) -> Iterable[Case]:
        """A case a node: bad and missing fail, flaky and unknown are errors and never count as passed."""
        return (self._case(node) for node in self.fleet.nodes)

    def _case(self, node: Node) -> Case:
        group = self.fleet.groups[node.group].name if node.group is not None else "no report"
        if node.state == NodeState.GOOD:
            return Case(f"netdoctor.fleet.{group}", node.name, "")
        kind = "failure" if node.state in (NodeState.BAD, NodeState.MISSING) else "error"
        why = node.reasons or [node.state]
        type = "missing_node" if node.state == NodeState.MISSING else node.state
        return Case(f"netdoctor.fleet.{group}", node.name, kind, type, why[0], "\n".join((*why, *node.notes)))
