"""The report for people: one line a check, what is wrong expanded below its line, the verdict last.

The word at the start of a line says the status; colour only repeats it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from netdoctor.model import CheckResult, Command, Finding, Health, Report, Status, size_text
from netdoctor.report.values import (
    MOST_NAMES,
    WRONG,
    excused,
    groups,
    headline,
    identity,
    outlook,
    points,
    rows,
    runs,
    shown,
    view,
)
from netdoctor.textsafe import clean, listed

_WORDS: Final = {
    Status.PASS: "pass",
    Status.FAIL: "FAIL",
    Status.SKIP: "skip",
    Status.UNKNOWN: "UNKNOWN",
    Status.ERROR: "ERROR",
}
_WAIVED: Final = "WAIVED"
# ECMA-48 select graphic rendition.
_COLOURS: Final = {
    Status.PASS: "32",
    Status.FAIL: "1;31",
    Status.SKIP: "2",
    Status.UNKNOWN: "33",
    Status.ERROR: "1;35",
}
_WAIVED_COLOUR: Final = "33"
_VERDICTS: Final = {Health.HEALTHY: "1;32", Health.UNHEALTHY: "1;31", Health.INCONCLUSIVE: "1;33"}
_INDENT: Final = " " * 9
_LABEL: Final = 10
_NARROWEST: Final = 40  # below this, lines are left to the terminal
_MOST: Final = 60  # of one check: what a fleet of thousands has more of is in the JSON


def render(report: Report, *, width: int | None = None, colour: bool = False) -> str:
    """The whole report, ending in a line break.  `width` in columns wraps prose, never commands; None wraps nothing."""
    width = width if width is not None and width >= _NARROWEST else None
    paint = _paint if colour else lambda text, _: text
    lines = [clean(line) for line in _head(report)]
    lines += _wrapped(clean(outlook(report)), "", "  ", width) if outlook(report) else []
    lines.append("")
    column = max((len(c.id) for c in report.checks), default=0)
    for check in report.checks:
        lines += _check(check, min(column, 28), width, paint)
    lines += _runs(report, width)
    if report.section is not None:
        lines += [clean(line) for line in report.section.text()]
    lines.append("")
    if report.partial:
        lines += _wrapped(f"this report is not whole: {clean(report.partial)}", "", "  ", width)
    lines.append(paint(clean(report.verdict.text), _VERDICTS[report.verdict.status]))
    return "\n".join(lines) + "\n"


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _head(report: Report) -> Iterator[str]:
    if report.command is not Command.PREFLIGHT:
        yield f"netdoctor {report.tool_version} {report.command}; profile {report.profile}"
        if report.section is not None:
            yield report.section.about()
        return
    where, profile, *doubt = view(report)
    yield f"netdoctor {report.tool_version} on {', '.join(identity(report))}"
    yield f"{where}; {profile}"
    yield from doubt


def _check(check: CheckResult, column: int, width: int | None, paint: Any) -> Iterator[str]:
    waived = excused(check)
    word, code = (_WAIVED, _WAIVED_COLOUR) if waived else (_WORDS[check.status], _COLOURS[check.status])
    severity = check.severity
    tag = f"[{severity.value}] " if severity and check.status is Status.FAIL and not waived else ""
    first = f"{word:<8} {clean(check.id):<{column}}  "
    lines = _wrapped(tag + headline(check), first, _INDENT + " " * (column + 2), width)
    yield lines[0].replace(word, paint(word, code), 1)
    yield from lines[1:]
    wrong = groups(f for f in check.findings if f.status in WRONG)
    for finding, subjects in wrong[:_MOST]:
        yield from _expanded(check, finding, subjects, width)
    if len(wrong) > _MOST:
        yield f"{_INDENT}… and {len(wrong) - _MOST:,} more (all in --format json)"
    notes = dict.fromkeys(n for f in check.findings if f.status not in WRONG for n in f.notes)
    for note in notes:
        yield from _row("note", clean(note), width)


def _expanded(check: CheckResult, finding: Finding, subjects: list[str], width: int | None) -> Iterator[str]:
    if len(check.findings) > 1:
        word = _WAIVED if finding.waived else _WORDS[finding.status]
        severity = f" [{finding.severity.value}]" if finding.severity and not finding.waived else ""
        text = f"{listed([clean(s) for s in subjects], MOST_NAMES)}: {clean(finding.message)}"
        yield from _wrapped(text, f"{_INDENT}- {word}{severity} ", f"{_INDENT}    ", width)
    for row in rows(finding):
        if row.commands:
            yield from _commands(row.parts, row.label)
        else:
            yield from _row(row.label, "; ".join(row.parts), width)


def _row(label: str, text: str, width: int | None) -> list[str]:
    return _wrapped(text, f"{_INDENT}{label:<{_LABEL}}", _INDENT + " " * _LABEL, width)


def _commands(commands: Iterable[str], label: str) -> Iterator[str]:
    """Never wrapped: they are there to be copied."""
    for command in commands:
        for line in command.expandtabs(4).splitlines():
            yield f"{_INDENT}{label:<{_LABEL}}{line}"
            label = ""


def _wrapped(text: str, first: str, rest: str, width: int | None) -> list[str]:
    if width is None:
        return [f"{first}{text}".rstrip()]
    if len(rest) > width - 24:  # a long id in a narrow window: better a small indent than one word a line
        rest = _INDENT
    wrapped = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapped or [first.rstrip()]


def _runs(report: Report, width: int | None) -> Iterator[str]:
    """A line for each all-reduce that ran, with its largest size's bandwidth."""
    for index, (run, figure) in enumerate(runs(report)):
        if not index:
            yield ""
        yield from _wrapped(clean(_run(run, figure)), "", "  ", width)
    if report.runs and not any(str(run.get("backend")) == "nccl" for run in report.runs):
        yield "NCCL did not run: no all-reduce above went through it"


def _run(run: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    backend = {"nccl": "NCCL", "gloo": "Gloo"}.get(str(run.get("backend")), str(run.get("backend")))
    where = "" if run.get("path") in (None, "default") else f", {run.get('path')}"
    alone = " without torch" if run.get("via") == "nccl" else ""
    text = f"all-reduce: {backend}{alone}, {run.get('ranks')} ranks on {run.get('device')}{where}: {run.get('state')}"
    if run.get("verified") is not None:
        text += ", data right" if run["verified"] else ", DATA WRONG"
    if busbw := points(figure.get("busbw_gb_s")):
        size, speed = busbw[-1]
        text += f", {shown(speed)} GB/s bus bandwidth at {size_text(size)}"
    reason = figure.get("reason")
    return f"{text} ({reason})" if isinstance(reason, str) and reason else text
