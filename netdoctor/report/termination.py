"""A container's termination message: the verdict in one line, then what is wrong and what mends it, a line each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.model import Finding, Health, Report, Status
from netdoctor.report import brief
from netdoctor.report.values import cut, fails, step
from netdoctor.textsafe import clean

# Kubernetes keeps 4096 bytes of a termination message (kubelet, MaxContainerTerminationMessageLength).
WIDTH: Final = 4096
_LINE: Final = 600  # bytes: a few findings fit in whole


def render(report: Report, *, limit: int = WIDTH) -> str:
    """At most `limit` bytes; findings that do not fit are counted.  Healthy: one line."""
    lines = [brief.render(report, width=min(limit, _LINE), prefix="netdoctor: ")]
    wrong = [] if report.verdict.status is Health.HEALTHY else list(_wrong(report))
    room = limit - len(lines[0].encode("utf-8", "replace"))
    for number, finding in enumerate(wrong):
        line = "\n" + _line(finding)
        left = len(wrong) - number - 1
        more = f"\n… and {left + 1} more" if left or len(line.encode("utf-8", "replace")) > room else ""
        if len((line + (more if left else "")).encode("utf-8", "replace")) > room:
            lines.append(cut(more, room))
            break
        lines.append(line)
        room -= len(line.encode("utf-8", "replace"))
    return "".join(lines)


def _wrong(report: Report) -> Iterator[Finding]:
    """Fails, the most severe first; where nothing failed, what could not tell."""
    found = fails(report.checks)
    yield from found
    if not found:
        yield from (f for f in report.findings(Status.UNKNOWN, Status.ERROR) if f.blocking)


def _line(finding: Finding) -> str:
    subject = "" if finding.subject == "node" else f" {finding.subject}:"
    mend = f"; mend: {finding.fix.summary}" if finding.fix else f"; {step(finding)}: {finding.how}" if finding.how else ""
    commands = f": {' ; '.join(finding.fix.persistent or finding.fix.commands)}" if finding.fix else ""
    return cut(clean(f"{finding.status.value} {finding.check}:{subject} {finding.message}{mend}{commands}"), _LINE)
