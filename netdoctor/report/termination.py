"""A container's termination message: the verdict in one line, then what is wrong and what mends it, a line each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.model import NODE, Finding, Health, Report, Status
from netdoctor.report import brief
from netdoctor.report.values import cut, fails, fitting, step
from netdoctor.textsafe import clean

# Kubernetes keeps 4096 bytes of a termination message (kubelet, MaxContainerTerminationMessageLength).
WIDTH: Final = 4096
_LINE: Final = 600  # bytes: a few findings fit in whole


def render(report: Report, *, limit: int = WIDTH) -> str:
    """At most `limit` bytes; findings that do not fit are counted.  Healthy: one line."""
    first = brief.render(report, width=min(limit, _LINE), prefix="netdoctor: ")
    wrong = () if report.verdict.status is Health.HEALTHY else _wrong(report)
    return fitting([first, *map(_line, wrong)], limit, "\n", "\n… and {} more") or first


def _wrong(report: Report) -> Iterator[Finding]:
    """Fails, the most severe first; where nothing failed, what could not tell."""
    found = fails(report.checks)
    yield from found
    if not found:
        yield from (f for f in report.findings(Status.UNKNOWN, Status.ERROR) if f.blocking)


def _line(finding: Finding) -> str:
    subject = "" if finding.subject == NODE else f" {finding.subject}:"
    mend = f"; mend: {finding.fix.summary}" if finding.fix else f"; {step(finding)}: {finding.how}" if finding.how else ""
    commands = f": {' ; '.join(finding.fix.persistent or finding.fix.commands)}" if finding.fix else ""
    return cut(clean(f"{finding.status.value} {finding.check}:{subject} {finding.message}{mend}{commands}"), _LINE)
