"""The fleet's report as JSON, schema netdoctor.fleet/1 (netdoctor/schemas/fleet-1.json).  The contract for programs."""

from __future__ import annotations

import json
from typing import Any, Final

from netdoctor.fleet.extract import LETTER
from netdoctor.fleet.nodes import MISSING, Node
from netdoctor.fleet.outliers import METRICS, Distribution
from netdoctor.fleet.report import FLEET_SCHEMA, Fleet
from netdoctor.model import plain

STATUS: Final = {letter: status for status, letter in LETTER.items()}


def render(fleet: Fleet) -> str:
    """JSON text, one node a line so that two reports can be compared line by line."""
    doc = document(fleet)
    nodes = doc.pop("nodes")
    head = json.dumps(doc, indent=1, ensure_ascii=False)
    lines = ",\n  ".join(json.dumps(node, ensure_ascii=False) for node in nodes)
    return f'{head[:-2]},\n "nodes": [\n  {lines}\n ]\n}}\n' if nodes else f'{head[:-2]},\n "nodes": []\n}}\n'


def document(fleet: Fleet) -> dict[str, Any]:
    """The report as data."""
    from netdoctor import __version__

    return {
        "schema": FLEET_SCHEMA,
        "tool_version": __version__,
        "status": fleet.status,
        "exit_code": fleet.exit_code,
        "text": fleet.text,
        "accounting": fleet.accounting,
        "files": {"looked_at": fleet.files, "reports": fleet.reports, "bytes": fleet.bytes, "expected_nodes": fleet.expected},
        "problems": [
            {"file": p.file, "kind": p.kind, "detail": p.detail, "node": p.name if p.counts else None} for p in fleet.problems
        ],
        "notes": fleet.notes,
        "groups": [{"name": g.name, "nodes": len(g.members)} for g in fleet.groups],
        "across": [
            {
                "check": finding.check,
                "status": finding.status.value,
                "severity": finding.severity.value if finding.severity else None,
                "cause": finding.cause,
                "subject": finding.subject,
                "message": finding.message,
                "how": finding.how,
                "nodes": list(blamed),
                "evidence": plain(finding.evidence),
                "fingerprint": finding.fingerprint,
            }
            for finding, blamed in fleet.faults
        ],
        "drift": [
            {
                "group": fleet.groups[row.group].name,
                "trait": row.trait,
                "title": row.title,
                "cause": row.cause,
                "severity": row.severity.value,
                "majority": row.majority,
                "agreeing": row.agreeing,
                "unknown": row.unknown,
                "values": [{"value": value, "nodes": nodes} for value, nodes in row.values],
            }
            for row in fleet.drift
        ],
        "distributions": [_distribution(fleet, dist) for dist in fleet.distributions],
        "checks": list(fleet.checks),
        "nodes": [_node(fleet, node) for node in fleet.nodes],
    }


def _round(value: float) -> float:
    """Four significant digits: no figure here is better than that."""
    return float(f"{value:.4g}")


def _distribution(fleet: Fleet, dist: Distribution) -> dict[str, Any]:
    metric = METRICS[dist.metric]
    return {
        "group": fleet.groups[dist.group].name,
        "metric": dist.metric,
        "what": dist.what,
        "unit": metric.unit,
        "nodes": len(dist.values),
        "missing": dist.missing,
        "judged": dist.judged,
        "median": _round(dist.median * metric.scale),
        "mad": _round(dist.mad * metric.scale),
        "best": _round(dist.best * metric.scale),
        "outliers": [
            {
                "node": o.node,
                "value": _round(o.value * metric.scale),
                "of_median": _round(o.of_median),
                "of_best": _round(o.of_best),
                "sigmas": _round(o.sigmas),
            }
            for o in dist.outliers
        ],
    }


def _node(fleet: Fleet, node: Node) -> dict[str, Any]:
    run = node.run
    out: dict[str, Any] = {"name": node.name, "state": node.state}
    if node.expected is not None:
        out["expected"] = node.expected
    if node.group is not None:
        out["group"] = fleet.groups[node.group].name
    if node.state == MISSING:
        out["cause"] = "missing_node"
    if node.reasons:
        out["reasons"] = node.reasons
    if node.notes:
        out["notes"] = node.notes
    if run is not None:
        out["file"] = run.file
        out["older_files"] = [r.file for r in node.older]
        out["verdict"] = run.verdict
        out["checks"] = {name: STATUS[letter] for name, letter in zip(run.checks, run.statuses, strict=True)}
        if run.items:
            out["findings"] = [
                {
                    "check": i.check,
                    "subject": i.subject,
                    "status": i.status,
                    "severity": i.severity or None,
                    "cause": i.cause or None,
                    "message": i.message,
                    **({"waived": True} if i.waived else {}),
                }
                for i in run.items
            ]
        if run.omitted:
            out["findings_left_out"] = run.omitted
        if run.metrics:
            out["metrics"] = {name: _round(value) for name, value in run.metrics.items()}
    return out
