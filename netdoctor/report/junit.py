"""The report as JUnit XML: every check is a test case.

fail     <failure>; where no fail of the check counts for the exit code <skipped>: waived, with reason and expiry, or below the
         threshold
error    <error>, where the exit code is not 0 (audit and prolog let nobody stop for it), else <skipped>
unknown  <error> where the profile requires the check (the exit code is 4 then), else <skipped> with the reason: a CI that
         shows skipped tests shows it, and it never counts as passed
skip     <skipped> with the evidence that the check does not apply
A run that is not whole, in which no check ran, or whose exit code no case explains (a required check that did not run) has a
test case ``netdoctor.run`` that fails: an exit code other than 0 is never all green, and exit code 0 is never red.
What a section counts beside checks (the nodes of a fleet) is a suite of its own.

Written by junitparser, the extra ``junit``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from netdoctor.model import NODE, CheckResult, Finding, Report, Status
from netdoctor.model.section import Case, Outcome
from netdoctor.report.values import WRONG, headline, rows
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite

_SUITE: Final = "netdoctor"


def render(report: Report) -> str:
    """XML text with its declaration."""
    about = (("version", report.tool_version), ("profile", report.profile), ("verdict", report.verdict.text))
    made = [_case(check, stops=report.verdict.exit_code != 0) for check in report.checks]
    red = any(case.is_failure or case.is_error for case in made)
    if report.partial or not report.checks or (report.verdict.exit_code != 0 and not red):
        made.append(_died(report.partial or report.verdict.text or "no check ran"))
    suite = _suite(_SUITE, made)
    host, time = report.identity.get("host"), report.volatile.get("time")
    if isinstance(host, str) and host:
        suite.hostname = clean(host)
    if isinstance(time, str) and time:
        suite.timestamp = clean(time)
    for name, value in about:
        suite.add_property(f"netdoctor.{name}", clean(value))
    beside = [_made(case) for case in report.section.cases()] if report.section is not None else []
    return _document(suite, *([_suite(f"{_SUITE}.{report.command}", beside)] if beside else []))


def setup_failed(reason: str) -> str:
    """The document of a run that died before there was a report: one failed case."""
    return _document(_suite(_SUITE, [_died(reason)]))


def _died(reason: str) -> TestCase:
    return _made(Case(_SUITE, "run", Outcome.FAILURE, "netdoctor.run", reason, reason))


def _made(case: Case, out: str = "") -> TestCase:
    """Texts may be anybody's."""
    from junitparser import Error, Failure, Skipped, TestCase

    made = TestCase(clean(case.name), classname=clean(case.group))
    if case.kind:
        result = {Outcome.FAILURE: Failure, Outcome.ERROR: Error, Outcome.SKIPPED: Skipped}[case.kind](
            clean(case.message), clean(case.type) or None
        )
        if case.detail:
            result.text = clean(case.detail, lines=True)
        made.result = [result]
    if out:
        made.system_out = clean(out, lines=True)
    return made


def _suite(name: str, cases: Iterable[TestCase]) -> TestSuite:
    from junitparser import TestSuite

    made = TestSuite(clean(name))
    made.add_testcases(list(cases))
    return made


def _document(*suites: TestSuite) -> str:
    from junitparser import JUnitXml

    root: Any = JUnitXml("netdoctor")  # not all of it is typed
    root.extend(suites)
    root.update_statistics()
    stream = io.BytesIO()
    root.write(stream, pretty=True)
    return stream.getvalue().decode("utf-8").replace("\t", " ")  # its indentation


def _case(check: CheckResult, *, stops: bool) -> TestCase:
    """`stops`: whether the exit code is another than 0."""
    area, _, name = check.id.rpartition(".")
    classname = f"{_SUITE}.{area}" if area else _SUITE
    fails = [f for f in check.findings if f.status is Status.FAIL]
    others = [f for f in check.findings if f.status in WRONG and f.status is not Status.FAIL]
    must_tell = [f for f in others if f.status is Status.ERROR or f.blocking]
    bad = [f for f in fails if f.blocking]
    if bad:
        kind = Outcome.FAILURE
    elif stops and (must_tell or not check.findings):
        kind = Outcome.ERROR
    elif fails or others or check.status in (Status.SKIP, Status.ERROR):
        kind = Outcome.SKIPPED
    else:
        return _made(Case(classname, name), out="\n".join(_line(f) for f in check.findings))
    message = headline(check)
    if kind is Outcome.SKIPPED and fails:
        below = next((f for f in fails if not f.waived), None)
        message = f"waived: {fails[0].waived}: {message}" if below is None else f"fail below the threshold: {message}"
    elif others and not fails:
        message = f"{check.status.value}: {message}"
    cause = "" if kind is Outcome.SKIPPED else next((f.cause for f in (*bad, *others) if f.cause), check.cause)
    detail = "\n".join(_detail(f) for f in check.findings if f.status in WRONG)
    return _made(Case(classname, name, kind, cause, message, detail or message))


def _line(finding: Finding) -> str:
    subject = "" if finding.subject == NODE else f"{finding.subject}: "
    return clean(f"{finding.status.value}: {subject}{finding.message}")


def _detail(finding: Finding) -> str:
    lines = [_line(finding), *([f"  severity: {finding.severity.value}"] if finding.severity else [])]
    for row in rows(finding):
        if row.commands:
            lines += [f"  {row.label}:"] if row.label else []
            lines += [f"    {command}" for command in row.parts]
        else:
            lines.append(f"  {row.label}: {'; '.join(row.parts)}")
    return "\n".join(lines)
