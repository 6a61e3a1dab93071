"""The report in one line."""

from __future__ import annotations

from typing import Final

from netdoctor.model import Finding, Health, Report
from netdoctor.report.fold import scope
from netdoctor.report.values import cut, fails, fitting
from netdoctor.textsafe import clean

WIDTH: Final = 200


def render(report: Report, *, width: int = WIDTH, prefix: str = "") -> str:
    """Verdict, in the whole report's words, or causes, in at most `width` bytes of UTF-8 with the prefix; no line break."""
    verdict = report.verdict
    items = list(dict.fromkeys(_told(f) for f in fails(report.checks)))
    bare = "; no GPU here: nothing seen of GPUs or NCCL" if any(scope(report)) else ""
    if verdict.status is Health.UNHEALTHY and items:
        head = f"{prefix}{verdict.status}: "
        room = width - len(head.encode("utf-8", "replace"))
        tail = (f"; not whole: {clean(report.partial)}" if report.partial else "") + bare
        causes = fitting(items, room - len(tail.encode()), ", ", ", +{} more") or ", ".join(items)
        return cut(head + causes + tail, width)
    return cut(cut(prefix + clean(verdict.text), max(width - len(bare), len(prefix.encode()))) + bare, width)


def _told(finding: Finding) -> str:
    """Its cause and check; "other" tells nothing that the check does not."""
    cause, check = clean(finding.cause or "other"), clean(finding.check)
    return check if cause == "other" else f"{cause} ({check})"
