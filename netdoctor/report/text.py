"""The report for people.

Of a node: the verdict, what it costs and what to do first; what is wrong, the worst first; what is right, by area; the verdict
again.  Of other commands, and with `verbose`: one line a check, what is wrong expanded below its line, the verdict last.

The word at the start of a line says the status; colour only repeats it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from netdoctor.model import NODE, STATUS_ORDER, CheckResult, Command, Finding, Health, Report, Status, count, size_text
from netdoctor.report import blocks, fold
from netdoctor.report.values import (
    MOST_NAMES,
    WRONG,
    bare,
    excused,
    groups,
    headline,
    identity,
    outlook,
    points,
    rest,
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


def render(report: Report, *, width: int | None = None, colour: bool = False, verbose: bool = False) -> str:
    """The whole report, ending in a line break.  `width` in columns wraps prose, never commands; None wraps nothing."""
    width = width if width is not None and width >= _NARROWEST else None
    paint = _paint if colour else lambda text, _: text
    lines = [part for line in _head(report) for part in _wrapped(clean(line), "", "  ", width)]
    folded = report.command is Command.PREFLIGHT and not verbose
    lines += _folded(report, width, paint) if folded else _listed(report, width, paint)
    return "\n".join(lines) + "\n"


def _folded(report: Report, width: int | None, paint: Any) -> Iterator[str]:
    yield ""
    verdict = [*_partial(report, width), *_verdict(report, width, paint)]
    yield from verdict
    if text := clean(outlook(report)):
        yield from _wrapped(text, "", "  ", width)
    if (step := fold.first_step(report)) is not None:
        apart = step.command and width is not None and len(step.text) > width  # a command is copied: it is not wrapped
        yield from _wrapped(f"{step.words}:" if apart else step.text, "", "  ", width)
        yield from [f"  {step.command}"] if apart else ()
    yield ""
    found = blocks.wrong(report.checks)
    column = max((len(block.checks[0]) for block in found if len(block.checks) == 1), default=0)
    for block in found[:_MOST]:
        yield from _block(block, min(column, 28), width, paint)
    if len(found) > _MOST:
        yield f"{_INDENT}… and {len(found) - _MOST:,} more (all in --format json)"
    rest = list(fold.right(report.checks))
    if found and rest:
        yield ""
    column = max((len(who) for status, who, _ in rest if status is Status.PASS), default=0)
    for status, who, what in rest:
        named = f"{who:<{min(column, 28)}}  " if status is Status.PASS else f"{who}: "
        written = _wrapped(named + what if who else what, f"{_WORDS[status]:<8} ", _INDENT + ("  " if who else ""), width)
        yield written[0].replace(_WORDS[status], paint(_WORDS[status], _COLOURS[status]), 1)
        yield from written[1:]
    for note in fold.notes(report.checks):
        yield from _wrapped(note, f"{'note':<8} ", _INDENT, width)
    yield from _ran(report, list(fold.ran(report)), width, apart=width is None)
    yield ""
    yield from verdict  # who ran it sees the end of a long report, and a script reads its last line


def _block(block: blocks.Block, column: int, width: int | None, paint: Any) -> Iterator[str]:
    finding = block.first
    word, code = (_WAIVED, _WAIVED_COLOUR) if finding.waived else (_WORDS[finding.status], _COLOURS[finding.status])
    tag = f"[{finding.severity.value}] " if finding.severity and finding.status is Status.FAIL and not finding.waived else ""
    who = f"{block.checks[0]:<{column}}  " if len(block.checks) == 1 else ""
    if len(block.checks) > 1 and len({f.message for f in block.findings}) == 1 and not (block.lacks or block.parts):
        who = f"{', '.join(block.checks)}: "
    lines = _wrapped(tag + block.text, f"{word:<8} {who}", _INDENT + "  ", width)
    yield lines[0].replace(word, paint(word, code), 1)
    yield from lines[1:]
    for said in block.each:
        yield from _wrapped(said, _INDENT, _INDENT + "  ", width)
    for row in blocks.told(block, whole=width is None):
        if row.commands:
            yield from _commands(row.parts, row.label)
        else:
            yield from _row(row.label, "; ".join(row.parts), width)


def _listed(report: Report, width: int | None, paint: Any) -> Iterator[str]:
    yield from _wrapped(clean(outlook(report)), "", "  ", width) if outlook(report) else ()
    yield ""
    column = max((len(c.id) for c in report.checks), default=0)
    for check in report.checks:
        yield from _check(check, min(column, 28), width, paint)
    yield from _ran(report, [_run(run, figure) for run, figure in runs(report)], width)
    if report.section is not None:
        yield from (part for line in report.section.text() for part in _within(clean(line), width))
    yield ""
    yield from _partial(report, width)
    yield from _verdict(report, width, paint)


def _verdict(report: Report, width: int | None, paint: Any) -> list[str]:
    """One line in a pipe or a file, where a script reads the last; each of several is painted, as a pager shows them."""
    text = clean(report.verdict.text)
    lines = [text] if width is None else _wrapped(text, "", "  ", width)
    return [paint(line, _VERDICTS[report.verdict.status]) for line in lines]


def _partial(report: Report, width: int | None) -> list[str]:
    return _wrapped(f"this report is not whole: {clean(report.partial)}", "", "  ", width) if report.partial else []


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _head(report: Report) -> Iterator[str]:
    if report.command is not Command.PREFLIGHT:
        yield f"netdoctor {report.tool_version} {report.command}; profile {report.profile}"
        if report.section is not None:
            yield report.section.about()
        return
    where, profile, *doubt = view(report)
    yield from fold.scope(report)
    yield f"netdoctor {report.tool_version} on {', '.join(identity(report))}"
    yield f"{where}; {profile}"
    yield from doubt


def _check(check: CheckResult, column: int, width: int | None, paint: Any) -> Iterator[str]:
    waived = excused(check)
    word, code = (_WAIVED, _WAIVED_COLOUR) if waived else (_WORDS[check.status], _COLOURS[check.status])
    severity = check.severity
    tag = f"[{severity.value}] " if severity and check.status is Status.FAIL and not waived else ""
    first = f"{word:<8} {clean(check.id):<{column}}  "
    wrong = groups(f for f in check.findings if f.status in WRONG)
    lines = _wrapped(tag + _summed(check, wrong), first, _INDENT + " " * (column + 2), width)
    yield lines[0].replace(word, paint(word, code), 1)
    yield from lines[1:]
    if len(wrong) > _MOST:  # what is left out must not be the worst
        wrong.sort(key=lambda one: (STATUS_ORDER.index(one[0].status), bool(one[0].waived), not one[0].blocking))
    for finding, subjects in wrong[:_MOST]:
        yield from _expanded(finding, subjects if len(wrong) > 1 else [], width)
    if len(wrong) > _MOST:
        yield f"{_INDENT}… and {len(wrong) - _MOST:,} more (all in --format json)"
    named = len(check.findings) > 1  # below the rows of what is wrong a note has to say whose it is
    notes = ((f.subject if named else NODE, note) for f in check.findings if f.status not in WRONG for note in f.notes)
    for note in dict.fromkeys(notes):
        yield from _row("note", ": ".join(clean(part) for part in note if part != NODE), width)


def _summed(check: CheckResult, wrong: list[tuple[Finding, list[str]]]) -> str:
    """A check's line: how many of its subjects share its status, and what is said of them; where that differs, who they are."""
    if not wrong or len(check.findings) < 2:
        return headline(check)
    (finding, subjects), alike = wrong[0], [f for f in check.findings if f.status is check.status]
    said = f": {bare(finding)}" if len(wrong) == 1 else ""
    who = subjects if said else list(dict.fromkeys(f.subject for f in alike))
    return f"{len(alike)} of {len(check.findings)}{rest(check)}: {listed([clean(one) for one in who], MOST_NAMES)}{said}"


def _expanded(finding: Finding, subjects: list[str], width: int | None) -> Iterator[str]:
    """`subjects`: whose it is, where several lines have to say so."""
    if subjects:
        word = _WAIVED if finding.waived else _WORDS[finding.status]
        severity = f" [{finding.severity.value}]" if finding.severity and not finding.waived else ""
        text = f"{listed([clean(s) for s in subjects], MOST_NAMES)}: {bare(finding)}"
        yield from _wrapped(text, f"{_INDENT}- {word}{severity} ", f"{_INDENT}    ", width)
    for row in rows(finding):
        if row.commands:
            yield from _commands(row.parts, row.label)
        else:
            yield from _row(row.label, "; ".join(row.parts), width)


def _within(line: str, width: int | None) -> list[str]:
    """A line of a section, its own indentation kept."""
    if width is None or len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return _wrapped(line.lstrip(), indent, f"{indent}  ", width)


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
        return [f"{first}{text}".rstrip().replace(fold.GLUE, " ")]
    if len(rest) > width - 24:  # a long id in a narrow window: better a small indent than one word a line
        rest = _INDENT
    wrapped = textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(fold.GLUE, " ") for line in wrapped] or [first.rstrip()]


def _ran(report: Report, lines: Iterable[str], width: int | None, *, apart: bool = True) -> Iterator[str]:
    """A line for each all-reduce, or each kind, with its largest size's bandwidth; `apart` from what stands before."""
    for index, line in enumerate(lines):
        if not index and apart:
            yield ""
        yield from _wrapped(clean(line), "", "  ", width)
    if report.runs and not any(str(run.get("backend")) == "nccl" for run in report.runs):
        yield from _wrapped("NCCL did not run: no all-reduce above went through it", "", "  ", width)


def _run(run: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    backend = {"nccl": "NCCL", "gloo": "Gloo"}.get(str(run.get("backend")), str(run.get("backend")))
    where = "" if run.get("path") in (None, "default") else f", {run.get('path')}"
    alone = " without torch" if run.get("via") == "nccl" else ""
    ranks = count(int(run.get("ranks") or 0), "rank")
    text = f"all-reduce: {backend}{alone}, {ranks} on {run.get('device')}{where}: {run.get('state')}"
    if run.get("verified") is not None:
        text += ", data right" if run["verified"] else ", DATA WRONG"
    if busbw := points(figure.get("busbw_gb_s")):
        size, speed = busbw[-1]
        text += f", {shown(speed)} GB/s bus bandwidth at {size_text(size)}"
    reason = figure.get("reason")
    told = not isinstance(reason, str) or not reason or run.get("state") in fold.TOLD
    return text if told else f"{text} ({reason})"
