"""What the renderers share: the rows of a finding, who was looked at, values as short text, text cut to a width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

from netdoctor.causes import CAUSES, cost
from netdoctor.model import EMPTY, NODE, CheckResult, Command, Finding, Fix, Quantity, Report, Status, Unavailable, plain
from netdoctor.textsafe import clean, listed

MOST_NAMES: Final = 40
WRONG: Final = (Status.FAIL, Status.ERROR, Status.UNKNOWN)


def shown(value: Any, limit: int = 400) -> str:
    """A value of evidence or of a measurement as one short line; control characters are gone."""
    return cut(clean(_shown(value)), limit)


def _shown(value: Any) -> str:
    if isinstance(value, Quantity | str):
        return str(value)
    if isinstance(value, Unavailable):
        return f"unavailable ({value})"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_nested(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_nested(item) for item in value) or "none"
    if isinstance(value, set | frozenset) or hasattr(value, "__dataclass_fields__"):
        return _shown(plain(value))
    return str(value)


def _nested(value: Any) -> str:
    text = _shown(value)
    if isinstance(value, Mapping):
        return f"({text})"
    return f"[{text}]" if isinstance(value, list | tuple | set | frozenset) else text


def tidy(value: Any) -> Any:
    """As JSON data whose strings are clean; numbers that JSON has no word for (RFC 8259, 6) are text."""
    return _tidy(plain(value))


def _tidy(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value, lines=True)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {clean(key): _tidy(item) for key, item in value.items()}
    return [_tidy(item) for item in value] if isinstance(value, list) else value


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, the cut marked with an ellipsis.  Readers of such lines count bytes."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    mark = "…".encode()
    if limit < len(mark):
        return data[: max(0, limit)].decode("utf-8", "ignore")
    return data[: limit - len(mark)].decode("utf-8", "ignore").rstrip() + "…"


def fitting(items: Sequence[str], room: int, between: str, more: str) -> str:
    """As many items as fit into so many bytes of UTF-8, and how many more there are; "" where none fits."""
    used = accumulate((len(f"{between}{item}".encode("utf-8", "replace")) for item in items), initial=-len(between))
    for count, size in reversed(list(enumerate(used))[1:]):
        tail = more.format(len(items) - count) if count < len(items) else ""
        if size + len(tail.encode()) <= room:
            return between.join(items[:count]) + tail
    return ""


def groups(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings that differ in nothing but their subject, as (one of them, all subjects); in the order of the first of each."""
    out: dict[str, tuple[Finding, list[str]]] = {}
    for finding in findings:
        alike = replace(finding, subject="", nodes=others(finding), cure=None)
        out.setdefault(repr(plain(alike)), (finding, []))[1].append(finding.subject)
    return list(out.values())


def others(finding: Finding) -> tuple[str, ...]:
    """The nodes that it names, where its subject is not the one of them."""
    return finding.nodes if finding.nodes != (finding.subject,) else ()


class Row(NamedTuple):
    """What a finding says beside one label."""

    label: str
    parts: tuple[str, ...]  # more than one of evidence, figures and commands
    commands: bool = False  # to be copied, so as they are


def rows(finding: Finding) -> Iterator[Row]:
    """What a finding says beside its message, clean, in the order that every format has."""
    evidence = dict(finding.evidence)
    lines = evidence.pop("lines") if isinstance(evidence.get("lines"), list | tuple) else ()  # of a log: FILE:LINE: TEXT
    # Of a node in a fleet: sentences, of which the message is the first.
    also = evidence.pop("reasons")[1:] if isinstance(evidence.get("reasons"), list | tuple) else ()
    fix = finding.fix or Fix("")
    for label, parts, commands in (
        Row("waived", (finding.waived or "",)),
        Row("expected", (finding.expected or "",)),
        Row("nodes", (listed(others(finding), MOST_NAMES),)),
        Row("evidence", _pairs(evidence)),
        *(Row("line", (shown(line),)) for line in lines),
        *(Row("also", (shown(one),)) for one in also),
        Row("why", (_why(finding),)),
        Row("measured", _pairs(finding.measured)),
        Row("cost", (cost.words(finding),)),
        Row("mend", (fix.summary,)),
        Row("", fix.commands, commands=True),
        Row("to last" if fix.commands else "", fix.persistent, commands=True),
        Row(step(finding), (finding.how or "",)),
        *(Row("note", (note,)) for note in finding.notes),
    ):
        if tidy := tuple(text for part in parts if (text := clean(part, lines=commands))):
            yield Row(label, tidy, commands)


def step(finding: Finding) -> str:
    """What `Finding.how` is: where to look next, or how an unknown is found out."""
    return "next" if finding.status is Status.FAIL else "find out"


def _pairs(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Of what was found; that nothing was is no evidence."""
    told = ((str(key).replace("_", " "), value) for key, value in values.items() if value not in ("", [], ()))
    return tuple(f"{key}: {shown(value)}" for key, value in told)


def _why(finding: Finding) -> str:
    """In its own words, else of a fail its cause's; "other" has none."""
    row = CAUSES.get(finding.cause or "") if finding.status is Status.FAIL and finding.cause != "other" else None
    return finding.why or (f"{row.title}: {row.costs}" if row else "")


def spoken(finding: Finding) -> str:
    """What it says, with whom it is about."""
    subject, message = clean(finding.subject), clean(finding.message)
    return message if finding.subject == NODE or message.startswith(f"{subject}: ") else f"{subject}: {message}"


def bare(finding: Finding) -> str:
    """Its message without its subject."""
    return clean(finding.message.removeprefix(f"{finding.subject}: "))


def excused(check: CheckResult) -> bool:
    """A check that fails, but with nothing that is not waived."""
    return check.status is Status.FAIL and all(f.waived for f in check.findings if f.status is Status.FAIL)


def identity(report: Report) -> tuple[str, ...]:
    """Of a node: its host name, the name that others call it by, its kernel."""
    host, node, kernel = (report.identity.get(key) for key in ("host", "node", "kernel"))
    return (
        shown(host) if isinstance(host, str) and host else "a node without a name",
        *([f"node {shown(node)}"] if isinstance(node, str) and node != host else []),
        *([f"Linux {shown(kernel)}"] if isinstance(kernel, str) else []),
    )


def outlook(report: Report) -> str:
    """What a job here would get of the node's bandwidth, where its fails take some; "" else, and of what is no node."""
    found = cost.outlook(report.checks) if report.command is Command.PREFLIGHT else None
    return found.text if found else ""


def view(report: Report) -> tuple[str, ...]:
    """From where a node was seen, by whom, for what; and why that is not as its job sees it."""
    place, runtime, user, why_not = (report.vantage.get(key) for key in ("kind", "runtime", "user", "why_not"))
    seen = f"seen from: {shown(place or 'an unknown place')}" + (f" ({shown(runtime)})" if isinstance(runtime, str) else "")
    return (
        seen + (f", as {shown(user)}" if isinstance(user, str) else ""),
        f"profile {clean(report.profile)}",
        *([f"not the job's own view: {shown(why_not)}"] if isinstance(why_not, str) and why_not else []),
    )


def runs(report: Report) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The all-reduces that ran, each with its figures."""
    figures = report.volatile.get("runs")
    for number, run in enumerate(report.runs):
        figure = figures[number] if isinstance(figures, list | tuple) and number < len(figures) else None
        yield run, figure if isinstance(figure, Mapping) else EMPTY


def points(by_size: Any) -> list[tuple[int, float]]:
    """A run's figure over message size, the smallest first."""
    pairs = by_size.items() if isinstance(by_size, Mapping) else ()
    return sorted(
        (int(size), float(value))
        for size, value in pairs
        if str(size).isdecimal() and isinstance(value, int | float) and value > 0
    )


def rest(check: CheckResult) -> str:
    """What the other subjects are: `` (1 skip, 2 unknown)``; "" where there are none."""
    others = [f.status.value for f in check.findings if f.status is not check.status]
    return f" ({', '.join(f'{others.count(word)} {word}' for word in dict.fromkeys(others))})" if others else ""


def headline(check: CheckResult) -> str:
    """The one line of a check: its worst finding, and how many of its subjects share that status."""
    worst = [f for f in check.findings if f.status is check.status]
    if not worst:
        return "the check said nothing"
    # A fail that nothing excuses before one that is waived.
    first = min(worst, key=lambda f: (bool(f.waived), -(f.severity.rank if f.severity else 0)))
    text = spoken(first)
    if len(check.findings) > 1:
        text = f"{len(worst)} of {len(check.findings)}{rest(check)}: {text}"
    return clean(text)


def fails(checks: Iterable[CheckResult]) -> list[Finding]:
    """Fails that are not waived, the most severe first."""
    found = [f for c in checks for f in c.findings if f.status is Status.FAIL and not f.waived]
    return sorted(found, key=lambda f: (not f.blocking, -(f.severity.rank if f.severity else 0)))
