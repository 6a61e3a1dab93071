"""The report as JSON: `netdoctor.report/1` of a node, and one schema a command beside it, with the same finding, check and
verdict.  What was measured lies under ``volatile``: two reports of one state are equal but for that member.

Strings are cleaned of control characters here (`textsafe.clean`), so that nothing downstream has to; fingerprints are those of
the cleaned findings.  Where two findings of a report have one fingerprint, the later ones carry ``.2``, ``.3`` …
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from netdoctor.causes.cost import outlook
from netdoctor.model import SCHEMAS, CheckResult, Command, Finding, Loss, Quantity, Report
from netdoctor.report.values import tidy
from netdoctor.textsafe import clean

# Whoever asks a log wants its likeliest cause, whichever check that is: the findings once more, in their order.
_FLAT: Final = frozenset({Command.LOG, Command.ENV})
_OWN: Final = frozenset({"measured", "cost"})  # members of volatile that belong to findings


def render(report: Report) -> str:
    """JSON text, ending in a line break.  Many nodes stand one a line, so that two reports can be compared line by line."""
    document = data(report)
    many = document.pop("nodes") if report.command is Command.FLEET else []
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    if report.command is Command.FLEET:
        lines = ",\n  ".join(json.dumps(node, ensure_ascii=False, allow_nan=False) for node in many)
        text = f'{text[:-2]},\n "nodes": [\n  {lines}\n ]\n}}' if many else f'{text[:-2]},\n "nodes": []\n}}'
    return text + "\n"


def data(report: Report) -> dict[str, Any]:
    """The report as JSON data."""
    measured: dict[str, Any] = {}
    cost: dict[str, Any] = {}
    seen: dict[str, int] = {}
    checks = [_check(check, seen, measured, cost) for check in report.checks]
    volatile = {k: v for k, v in tidy(report.volatile).items() if k not in _OWN}
    node = report.command is Command.PREFLIGHT
    ahead = outlook(report.checks) if node else None
    return {
        "schema": SCHEMAS[report.command],
        "tool_version": clean(report.tool_version),
        **({"identity": tidy(report.identity), "vantage": tidy(report.vantage)} if node else {}),
        "profile": clean(report.profile),
        "partial": None if report.partial is None else clean(report.partial),
        "verdict": {
            "status": report.verdict.status.value,
            "exit_code": report.verdict.exit_code,
            "text": clean(report.verdict.text),
            "causes": [clean(c) for c in report.verdict.causes],
        },
        **({"outlook": {**{k: v for k, v in tidy(ahead).items() if k != "bound" or v}, "text": ahead.text}} if ahead else {}),
        "checks": checks,
        **({"findings": [f for c in checks for f in c["findings"]]} if report.command in _FLAT else {}),
        **({"runs": [tidy(run) for run in report.runs], "inventory": tidy(report.inventory)} if node else {}),
        **({"nodes": tidy(report.nodes)} if report.nodes else {}),
        **(report.section.data() if report.section is not None else {}),
        "volatile": {**volatile, "measured": measured, "cost": cost},
    }


def _check(check: CheckResult, seen: dict[str, int], measured: dict[str, Any], cost: dict[str, Any]) -> dict[str, Any]:
    severity = check.severity
    return {
        "id": clean(check.id),
        "title": clean(check.title),
        "cause": clean(check.cause),
        "status": check.status.value,
        "severity": severity.value if severity else None,
        "findings": [_finding(f, seen, measured, cost) for f in check.findings],
    }


def _finding(finding: Finding, seen: dict[str, int], measured: dict[str, Any], cost: dict[str, Any]) -> dict[str, Any]:
    named = Finding(finding.status, "", clean(finding.subject), cause=_maybe(finding.cause), check=clean(finding.check))
    count = seen[named.fingerprint] = seen.get(named.fingerprint, 0) + 1
    fingerprint = named.fingerprint if count == 1 else f"{named.fingerprint}.{count}"
    if finding.measured:
        measured[fingerprint] = tidy(finding.measured)
    if finding.cost is not None:
        cost[fingerprint] = {
            "summary": clean(finding.cost.summary),
            "before": _quantity(finding.cost.before),
            "after": _quantity(finding.cost.after),
            "ratio": _finite(finding.cost.ratio),
            "significant": finding.cost.significant,
        }
    cure = finding.cure
    return {
        "fingerprint": fingerprint,
        "check": named.check,
        "status": finding.status.value,
        "severity": finding.severity.value if finding.severity else None,
        "cause": named.cause,
        "subject": named.subject,
        "message": clean(finding.message, lines=True),
        "expected": _maybe(finding.expected),
        "evidence": tidy(finding.evidence),
        "how": _maybe(finding.how),
        "why": _maybe(finding.why),
        "notes": [clean(note) for note in finding.notes],
        "fix": finding.fix and {name: tidy(getattr(finding.fix, name)) for name in ("summary", "commands", "persistent")},
        "cure": None if cure is None else clean(str(getattr(cure, "label", cure))),
        "waived": _maybe(finding.waived),
        "blocking": finding.blocking,
        **({"loss": _loss(finding.loss)} if finding.loss and finding.loss.partial else {}),
        **({"nodes": [clean(name) for name in finding.nodes]} if finding.nodes else {}),
    }


def _loss(loss: Loss) -> dict[str, Any]:
    """Without figures of a measurement: these are in volatile.cost."""
    if loss.measured:
        return {"share": None, "formula": "measured", "needed": loss.needed}
    return {
        "share": None if loss.share is None else round(loss.share, 3),
        "formula": clean(loss.formula),
        "needed": loss.needed,
    }


def _maybe(text: str | None) -> str | None:
    return None if text is None else clean(text)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _quantity(quantity: Quantity | None) -> Any:
    return tidy(quantity) if quantity is not None and math.isfinite(quantity.value) else None
