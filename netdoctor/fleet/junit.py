"""The fleet's report as JUnit XML: a test case per node, and one per comparison.

bad, missing  <failure>        flaky, unknown  <error>: never counted as passed
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from netdoctor.fleet.nodes import BAD, GOOD, MISSING, Node
from netdoctor.fleet.report import Fleet
from netdoctor.model import Status
from netdoctor.report import junit_cases

if TYPE_CHECKING:
    from junitparser import TestCase

_SUITE: Final = "netdoctor.fleet"


def render(fleet: Fleet) -> str:
    """XML text with its declaration.  Raises MissingExtraError."""
    nodes = [_node(fleet, node) for node in fleet.nodes]
    if not nodes:
        nodes = [junit_cases.case(_SUITE, "run", "failure", message=fleet.text, detail=fleet.text)]
    between = []
    for finding, blamed in fleet.faults:
        kind = "failure" if finding.status is Status.FAIL else "skipped"
        who = f"blamed: {', '.join(blamed) or 'nobody'}"
        name = f"{finding.check}: {finding.subject}"
        between.append(junit_cases.case(_SUITE, name, kind, message=finding.message, type=finding.cause or "", detail=who))
    return junit_cases.document(junit_cases.suite(f"{_SUITE}.nodes", nodes), junit_cases.suite(f"{_SUITE}.across", between))


def _node(fleet: Fleet, node: Node) -> TestCase:
    group = fleet.groups[node.group].name if node.group is not None else "no report"
    classname = f"{_SUITE}.{group}"
    if node.state == GOOD:
        return junit_cases.case(classname, node.name)
    kind = "failure" if node.state in (BAD, MISSING) else "error"
    lines = node.reasons or [node.state]
    detail = "\n".join((*lines, *node.notes))
    type = "missing_node" if node.state == MISSING else node.state
    return junit_cases.case(classname, node.name, kind, type=type, message=lines[0], detail=detail)
