"""What the renderers share: values as short text, findings in groups, text cut to a width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from netdoctor.causes import CAUSES
from netdoctor.model import CheckResult, Finding, Quantity, Status, Unavailable, plain
from netdoctor.textsafe import clean

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
    if isinstance(value, set | frozenset):
        return _shown(plain(value))
    if isinstance(value, list | tuple):
        return ", ".join(_nested(item) for item in value) or "none"
    if hasattr(value, "__dataclass_fields__"):
        return _shown(plain(value))
    return str(value)


def _nested(value: Any) -> str:
    text = _shown(value)
    if isinstance(value, Mapping):
        return f"({text})"
    return f"[{text}]" if isinstance(value, list | tuple | set | frozenset) else text


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, the cut marked with an ellipsis.  Readers of such lines count bytes."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    mark = "…".encode()
    if limit < len(mark):
        return data[: max(0, limit)].decode("utf-8", "ignore")
    return data[: limit - len(mark)].decode("utf-8", "ignore").rstrip() + "…"


def groups(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Findings that differ in nothing but their subject, as (one of them, all subjects); in the order of the first of each."""
    out: dict[str, tuple[Finding, list[str]]] = {}
    for finding in findings:
        parts = (
            finding.status,
            finding.severity,
            finding.message,
            finding.cause,
            finding.expected,
            plain(finding.evidence),
            plain(finding.measured),
            finding.how,
            finding.why,
            finding.notes,
            plain(finding.fix),
            plain(finding.cost),
            finding.waived,
            others(finding),
        )
        out.setdefault(repr(parts), (finding, []))[1].append(finding.subject)
    return list(out.values())


def others(finding: Finding) -> tuple[str, ...]:
    """The nodes that it names, where its subject is not the one of them."""
    return finding.nodes if finding.nodes != (finding.subject,) else ()


def some(names: Sequence[str]) -> str:
    """Names for people: the first of them, and how many more."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def why(check: CheckResult, finding: Finding) -> str:
    """Why a fail matters: in its own words, else its cause's."""
    row = CAUSES.get(finding.cause or check.cause)
    return finding.why or (f"{row.title}: {row.costs}" if row else "")


def headline(check: CheckResult) -> str:
    """The one line of a check: its worst finding, and how many of its subjects share that status."""
    worst = [f for f in check.findings if f.status is check.status]
    if not worst:
        return "the check said nothing"
    # A fail that nothing excuses before one that is waived.
    first = min(worst, key=lambda f: (bool(f.waived), -(f.severity.rank if f.severity else 0)))
    text = first.message if first.subject == "node" else f"{first.subject}: {first.message}"
    if len(check.findings) > 1:
        text = f"{len(worst)} of {len(check.findings)}: {text}"
    return clean(text)


def fails(checks: Iterable[CheckResult]) -> list[Finding]:
    """Fails that are not waived, the most severe first."""
    found = [f for c in checks for f in c.findings if f.status is Status.FAIL and not f.waived]
    return sorted(found, key=lambda f: (not f.blocking, -(f.severity.rank if f.severity else 0)))
