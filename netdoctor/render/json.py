"""The report as JSON, `netdoctor.report/1`, and back.  What was measured lies under ``volatile``: two reports of one state
are equal but for that member.

Strings are cleaned of control characters here (`textsafe.clean`), so that nothing downstream has to; fingerprints are those of
the cleaned findings.  Where two findings of a report have one fingerprint, the later ones carry ``.2``, ``.3`` …
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from netdoctor.model import (
    REPORT_SCHEMA,
    CheckResult,
    Cost,
    Finding,
    Fix,
    Quantity,
    Report,
    Severity,
    Status,
    Unavailable,
    Verdict,
    kind_named,
)
from netdoctor.model import plain as _plain
from netdoctor.textsafe import clean

_PREFIX: Final = REPORT_SCHEMA.rpartition("/")[0] + "/"
_OWN: Final = frozenset({"measured", "cost"})  # members of volatile that belong to findings


class ReportError(ValueError):
    """Not a report that this netdoctor can read; one line that says why."""


def render(report: Report) -> str:
    """JSON text, ending in a line break."""
    return json.dumps(data(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def data(report: Report) -> dict[str, Any]:
    """The report as JSON data."""
    measured: dict[str, Any] = {}
    cost: dict[str, Any] = {}
    seen: dict[str, int] = {}
    checks = [_check(check, seen, measured, cost) for check in report.checks]
    volatile = {k: v for k, v in _mapping(report.volatile).items() if k not in _OWN}
    return {
        "schema": REPORT_SCHEMA,
        "tool_version": clean(report.tool_version),
        "identity": _mapping(report.identity),
        "vantage": _mapping(report.vantage),
        "profile": clean(report.profile),
        "partial": None if report.partial is None else clean(report.partial),
        "verdict": {
            "status": report.verdict.status,
            "exit_code": report.verdict.exit_code,
            "text": clean(report.verdict.text),
            "causes": [clean(c) for c in report.verdict.causes],
        },
        "checks": checks,
        "runs": [_mapping(run) for run in report.runs],
        "inventory": _mapping(report.inventory),
        **({"nodes": _mapping(report.nodes)} if report.nodes else {}),
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
    tidy = Finding(finding.status, "", clean(finding.subject), cause=_maybe(finding.cause), check=clean(finding.check))
    count = seen[tidy.fingerprint] = seen.get(tidy.fingerprint, 0) + 1
    fingerprint = tidy.fingerprint if count == 1 else f"{tidy.fingerprint}.{count}"
    if finding.measured:
        measured[fingerprint] = _mapping(finding.measured)
    if finding.cost is not None:
        cost[fingerprint] = {
            "summary": clean(finding.cost.summary),
            "before": _quantity(finding.cost.before),
            "after": _quantity(finding.cost.after),
            "ratio": _finite(finding.cost.ratio),
            "significant": finding.cost.significant,
        }
    fix, cure = finding.fix, finding.cure
    return {
        "fingerprint": fingerprint,
        "check": tidy.check,
        "status": finding.status.value,
        "severity": finding.severity.value if finding.severity else None,
        "cause": tidy.cause,
        "subject": tidy.subject,
        "message": clean(finding.message, lines=True),
        "expected": _maybe(finding.expected),
        "evidence": _mapping(finding.evidence),
        "how": _maybe(finding.how),
        "why": _maybe(finding.why),
        "notes": [clean(note) for note in finding.notes],
        "fix": None
        if fix is None
        else {
            "summary": clean(fix.summary),
            "commands": [clean(c, lines=True) for c in fix.commands],
            "persistent": [clean(c, lines=True) for c in fix.persistent],
        },
        "cure": None if cure is None else clean(str(getattr(cure, "label", cure))),
        "waived": _maybe(finding.waived),
        "blocking": finding.blocking,
    }


def _maybe(text: str | None) -> str | None:
    return None if text is None else clean(text)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _quantity(quantity: Quantity | None) -> dict[str, Any] | None:
    if quantity is None or not math.isfinite(quantity.value):
        return None
    return {"value": quantity.value, "unit": clean(quantity.unit)}


def _mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    tidy = _tidy(_plain(values))
    assert isinstance(tidy, dict)
    return tidy


def _tidy(value: Any) -> Any:
    """Clean strings; numbers that JSON has no word for (RFC 8259, 6) become text."""
    if isinstance(value, str):
        return clean(value, lines=True)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {clean(key): _tidy(item) for key, item in value.items()}
    return [_tidy(item) for item in value] if isinstance(value, list) else value


# Back


def loads(text: str | bytes) -> Report:
    """The inverse of `render`.  Raises ReportError: not JSON, no report, cut short, or of a newer netdoctor."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"not JSON, or cut short: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("netdoctor."):
        raise ReportError("not a netdoctor report: it has no schema")
    if schema != REPORT_SCHEMA:
        if schema.startswith(_PREFIX):
            raise ReportError(f"schema {clean(schema)!r}, this netdoctor reads {REPORT_SCHEMA}: use a newer netdoctor")
        raise ReportError(f"{clean(schema)!r} is not a report; this netdoctor reads {REPORT_SCHEMA}")
    try:
        return _report(document)
    except RecursionError:
        raise ReportError("nested too deeply") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(
            f"a report with something missing or misshapen: {type(error).__name__}: {clean(str(error))}"
        ) from None


def _report(document: dict[str, Any]) -> Report:
    volatile = _dict(document["volatile"])
    measured, cost = _dict(volatile.get("measured", {})), _dict(volatile.get("cost", {}))
    verdict = document["verdict"]
    partial = document["partial"]
    return Report(
        tool_version=_str(document["tool_version"]),
        identity=_dict(document["identity"]),
        vantage=_dict(document["vantage"]),
        profile=_str(document["profile"]),
        checks=tuple(_check_back(check, measured, cost) for check in document["checks"]),
        verdict=Verdict(_str(verdict["status"]), int(verdict["exit_code"]), _str(verdict["text"]), _strs(verdict["causes"])),
        runs=tuple(_dict(run) for run in document["runs"]),
        volatile={k: v for k, v in volatile.items() if k not in _OWN},
        partial=None if partial is None else _str(partial),
        inventory=_dict(document.get("inventory", {})),
        nodes=_dict(document.get("nodes", {})),
    )


def _check_back(check: dict[str, Any], measured: dict[str, Any], cost: dict[str, Any]) -> CheckResult:
    findings = tuple(_finding_back(f, measured, cost) for f in check["findings"])
    return CheckResult(_str(check["id"]), _str(check["title"]), _str(check["cause"]), findings)


def _finding_back(f: dict[str, Any], measured: dict[str, Any], cost: dict[str, Any]) -> Finding:
    fix, price = f["fix"], cost.get(_str(f["fingerprint"]))
    return Finding(
        status=Status(f["status"]),
        message=_str(f["message"]),
        subject=_str(f["subject"]),
        severity=None if f["severity"] is None else Severity(f["severity"]),
        cause=_opt(f["cause"]),
        expected=_opt(f["expected"]),
        evidence={k: _value(v) for k, v in _dict(f["evidence"]).items()},
        measured={k: _value(v) for k, v in _dict(measured.get(f["fingerprint"], {})).items()},
        how=_opt(f["how"]),
        why=_opt(f["why"]),
        notes=_strs(f["notes"]),
        fix=None if fix is None else Fix(_str(fix["summary"]), _strs(fix["commands"]), _strs(fix["persistent"])),
        cure=_opt(f["cure"]),
        cost=None if price is None else _cost_back(price),
        check=_str(f["check"]),
        waived=_opt(f["waived"]),
        blocking=bool(f["blocking"]),
    )


def _cost_back(price: dict[str, Any]) -> Cost:
    before, after = _value(price["before"]), _value(price["after"])
    if not isinstance(before, Quantity | None) or not isinstance(after, Quantity | None):
        raise TypeError("a cost without quantities")
    ratio = price["ratio"]
    return Cost(_str(price["summary"]), before, after, None if ratio is None else float(ratio), bool(price["significant"]))


def _value(value: Any) -> Any:
    """Quantities and unavailables, wherever they are."""
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"value", "unit"} and isinstance(value["value"], int | float) and isinstance(value["unit"], str):
        return Quantity(value["value"], value["unit"])
    if value.keys() == {"unavailable", "detail"} and all(isinstance(v, str) for v in value.values()):
        return Unavailable(kind_named(value["unavailable"]), value["detail"])
    return {key: _value(item) for key, item in value.items()}


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("an object is missing")
    return value


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return clean(value, lines=True)


def _opt(value: Any) -> str | None:
    return None if value is None else _str(value)


def _strs(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("a list is missing")
    return tuple(_str(item) for item in value)
