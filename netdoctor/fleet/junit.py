"""The fleet's report as JUnit XML: a test case per node, and one per comparison.

bad, missing  <failure>        flaky, unknown  <error>: never counted as passed
"""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as Xml

from netdoctor.fleet.nodes import BAD, GOOD, MISSING, Node
from netdoctor.fleet.report import Fleet
from netdoctor.model import Status
from netdoctor.textsafe import clean

_SUITE: Final = "netdoctor.fleet"


def render(fleet: Fleet) -> str:
    """XML text with its declaration."""
    suites = Xml.Element("testsuites", name="netdoctor")
    nodes = Xml.SubElement(suites, "testsuite", name=f"{_SUITE}.nodes")
    for node in fleet.nodes:
        _node(nodes, fleet, node)
    between = Xml.SubElement(suites, "testsuite", name=f"{_SUITE}.across")
    for finding, blamed in fleet.faults:
        case = Xml.SubElement(between, "testcase", classname=_SUITE, name=clean(f"{finding.check}: {finding.subject}"))
        kind = "failure" if finding.status is Status.FAIL else "skipped"
        made = Xml.SubElement(case, kind, message=clean(finding.message))
        made.text = clean(f"blamed: {', '.join(blamed) or 'nobody'}")
    if not fleet.nodes:
        case = Xml.SubElement(nodes, "testcase", classname=_SUITE, name="run")
        Xml.SubElement(case, "failure", message=fleet.text).text = fleet.text
    for suite in (nodes, between):
        suite.set("tests", str(len(suite)))
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{kind}"))))
    Xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(suites, encoding="unicode") + "\n"


def _node(suite: Xml.Element, fleet: Fleet, node: Node) -> None:
    kind = fleet.groups[node.group].name if node.group is not None else "no report"
    case = Xml.SubElement(suite, "testcase", classname=clean(f"{_SUITE}.{kind}"), name=clean(node.name))
    if node.state == GOOD:
        return
    lines = [clean(reason) for reason in node.reasons] or [node.state]
    made = Xml.SubElement(case, "failure" if node.state in (BAD, MISSING) else "error", type=node.state, message=lines[0])
    made.text = "\n".join((*lines, *(clean(note) for note in node.notes)))
