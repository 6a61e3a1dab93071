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

from typing import TYPE_CHECKING, Final

from netdoctor.causes import CAUSES
from netdoctor.model import CheckResult, Finding, Report, Status
from netdoctor.report import junit_cases
from netdoctor.report.values import WRONG, headline, shown
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from junitparser import TestCase

_SUITE: Final = "netdoctor"


def render(report: Report) -> str:
    """XML text with its declaration.  Raises MissingExtraError."""
    host, time = report.identity.get("host"), report.volatile.get("time")
    about = (("version", report.tool_version), ("profile", report.profile), ("verdict", report.verdict.text))
    made = [_case(check) for check in report.checks]
    red = any(case.is_failure or case.is_error for case in made)
    if report.partial or not report.checks or (report.verdict.exit_code != 0 and not red):
        made.append(_died(report.partial or report.verdict.text or "no check ran"))
    suite = junit_cases.suite(
        _SUITE,
        made,
        hostname=host if isinstance(host, str) else "",
        timestamp=time if isinstance(time, str) else "",
        properties=[(f"netdoctor.{name}", value) for name, value in about],
    )
    return junit_cases.document(suite)


def setup_failed(reason: str) -> str:
    """The document of a run that died before there was a report: one failed case."""
    return junit_cases.document(junit_cases.suite(_SUITE, [_died(reason)]))


def _died(reason: str) -> TestCase:
    return junit_cases.case(_SUITE, "run", "failure", type="netdoctor.run", message=reason, detail=reason)


def _case(check: CheckResult) -> TestCase:
    area, _, name = check.id.rpartition(".")
    classname = f"{_SUITE}.{area}" if area else _SUITE
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
        return junit_cases.case(classname, name, out="\n".join(_line(f) for f in check.findings))
    message = headline(check)
    if kind == "skipped" and fails:
        message = f"waived: {fails[0].waived or ''}: {message}"
    elif others and not fails:
        message = f"{check.status.value}: {message}"
    cause = "" if kind == "skipped" else next((f.cause for f in (*bad, *others) if f.cause), check.cause)
    detail = "\n".join(_detail(check, f) for f in check.findings if f.status in WRONG)
    return junit_cases.case(classname, name, kind, message=message, type=cause, detail=detail or message)


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
