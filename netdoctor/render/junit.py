"""The report as JUnit XML: every check is a test case.

fail     <failure>, whatever its severity; where every fail of the check is waived <skipped> with reason and expiry
error    <error>
unknown  <error> where the profile requires the check (the exit code is 4 then), else <skipped> with the reason: a CI that
         shows skipped tests shows it, and it never counts as passed
skip     <skipped> with the evidence that the check does not apply
A run that is not whole, in which no check ran, or whose exit code no case explains (a required check that did not run) has a
test case ``netdoctor.run`` that fails: an exit code other than 0 is never all green.
"""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as Xml

from netdoctor.causes import CAUSES
from netdoctor.model import CheckResult, Finding, Report, Status
from netdoctor.render.common import WRONG, headline, shown
from netdoctor.textsafe import clean

_SUITE: Final = "netdoctor"


def render(report: Report) -> str:
    """XML text with its declaration."""
    suite = Xml.Element("testsuite", name=_SUITE)
    host = report.identity.get("host")
    if isinstance(host, str):
        suite.set("hostname", clean(host))
    time = report.volatile.get("time")
    if isinstance(time, str):
        suite.set("timestamp", clean(time))
    properties = Xml.SubElement(suite, "properties")
    about = (("version", report.tool_version), ("profile", report.profile), ("verdict", report.verdict.text))
    for name, value in about:
        Xml.SubElement(properties, "property", name=f"netdoctor.{name}", value=clean(value))
    for check in report.checks:
        _case(suite, check)
    red = any(case.find(kind) is not None for case in suite.findall("testcase") for kind in ("failure", "error"))
    if report.partial or not report.checks or (report.verdict.exit_code != 0 and not red):
        _died(suite, report.partial or report.verdict.text or "no check ran")
    return _text(suite)


def setup_failed(reason: str) -> str:
    """The document of a run that died before there was a report: one failed case."""
    suite = Xml.Element("testsuite", name=_SUITE)
    _died(suite, reason)
    return _text(suite)


def _died(suite: Xml.Element, reason: str) -> None:
    case = Xml.SubElement(suite, "testcase", classname=_SUITE, name="run")
    Xml.SubElement(case, "failure", type="netdoctor.run", message=clean(reason)).text = clean(reason, lines=True)


def _case(suite: Xml.Element, check: CheckResult) -> None:
    area, _, name = check.id.rpartition(".")
    classname = f"{_SUITE}.{area}" if area else _SUITE
    case = Xml.SubElement(suite, "testcase", classname=clean(classname), name=clean(name))
    fails = [f for f in check.findings if f.status is Status.FAIL]
    others = [f for f in check.findings if f.status in WRONG and f.status is not Status.FAIL]
    must_tell = [f for f in others if f.status is Status.ERROR or f.blocking]
    bad = [f for f in fails if not f.waived]
    if bad:
        kind = "failure"
    elif must_tell or not check.findings:
        kind = "error"
    elif fails or others or check.status is Status.SKIP:
        kind = "skipped"
    else:
        Xml.SubElement(case, "system-out").text = "\n".join(_line(f) for f in check.findings)
        return
    message = headline(check)
    if kind == "skipped" and fails:
        message = f"waived: {clean(fails[0].waived or '')}: {message}"
    elif others and not fails:
        message = f"{check.status.value}: {message}"
    result = Xml.SubElement(case, kind, message=message)
    if kind != "skipped":
        result.set("type", clean(next((f.cause for f in (*bad, *others) if f.cause), check.cause)))
    result.text = "\n".join(_detail(check, f) for f in check.findings if f.status in WRONG) or message


def _line(finding: Finding) -> str:
    subject = "" if finding.subject == "node" else f"{finding.subject}: "
    return clean(f"{finding.status.value}: {subject}{finding.message}")


def _detail(check: CheckResult, finding: Finding) -> str:
    lines = [_line(finding)]
    row = CAUSES.get(finding.cause or check.cause)
    why = finding.why or (f"{row.title}: {row.costs}" if row and finding.status is Status.FAIL else "")
    rows = (
        ("severity", finding.severity.value if finding.severity else ""),
        ("waived", finding.waived or ""),
        ("expected", finding.expected or ""),
        ("evidence", shown(finding.evidence, 2000) if finding.evidence else ""),
        ("why", why),
        ("measured", shown(finding.measured, 2000) if finding.measured else ""),
        ("cost", finding.cost.summary if finding.cost else ""),
        ("find out", finding.how or ""),
        ("mend", finding.fix.summary if finding.fix else ""),
    )
    lines += [f"  {label}: {clean(text)}" for label, text in rows if text]
    if finding.fix:
        lines += [f"    {clean(command)}" for command in (*finding.fix.commands, *finding.fix.persistent)]
    return "\n".join(lines)


def _text(suite: Xml.Element) -> str:
    cases = suite.findall("testcase")
    counts = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "error", "skipped")}
    suite.set("tests", str(len(cases)))
    for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(counts[kind]))
    suites = Xml.Element("testsuites", {k: v for k, v in suite.attrib.items() if k in {"tests", "failures", "errors", "name"}})
    suites.append(suite)
    Xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(suites, encoding="unicode") + "\n"
