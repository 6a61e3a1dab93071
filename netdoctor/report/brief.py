"""The report in one line."""

from __future__ import annotations

from typing import Final

from netdoctor.model import Health, Report
from netdoctor.report.values import cut, fails
from netdoctor.textsafe import clean

WIDTH: Final = 200


def render(report: Report, *, width: int = WIDTH, prefix: str = "") -> str:
    """Verdict and causes in at most `width` bytes of UTF-8 with the prefix; no line break."""
    verdict = report.verdict
    head = f"{prefix}{verdict.status}: "
    room = width - len(head.encode("utf-8", "replace"))
    if verdict.status is Health.HEALTHY:
        return cut(head + clean(verdict.words), width)
    items = list(dict.fromkeys(f"{clean(f.cause or 'other')} ({clean(f.check)})" for f in fails(report.checks)))
    if verdict.status is Health.UNHEALTHY and items:
        tail = f"; not whole: {clean(report.partial)}" if report.partial else ""
        return cut(head + _fitting(items, room - len(tail.encode())) + tail, width)
    return cut(head + clean(verdict.words), width)


def _fitting(items: list[str], room: int) -> str:
    """As many items as fit, and how many more there are."""
    for count in range(len(items), 0, -1):
        more = len(items) - count
        text = ", ".join(items[:count]) + (f", +{more} more" if more else "")
        if len(text.encode("utf-8", "replace")) <= room:
            return text
    return ", ".join(items)
