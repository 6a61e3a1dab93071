"""What of a fleet stands in its JSON beside the findings (netdoctor/schemas/fleet-1.json)."""

from __future__ import annotations

from typing import Any, Final

from netdoctor.fleet.extract import LETTER
from netdoctor.fleet.nodes import Item, Node, NodeState
from netdoctor.fleet.outliers import METRICS, Distribution
from netdoctor.fleet.report import Fleet

STATUS: Final = {letter: status for status, letter in LETTER.items()}


def document(fleet: Fleet) -> dict[str, Any]:
    """Every string of other machines was cleaned when it was read."""
    return {
        "accounting": fleet.accounting,
        "files": {"looked_at": fleet.files, "reports": fleet.reports, "bytes": fleet.bytes, "expected_nodes": fleet.expected},
        "problems": [
            {"file": p.file, "kind": p.kind, "detail": p.detail, "node": p.name if p.counts else None} for p in fleet.problems
        ],
        "notes": fleet.notes,
        "groups": [{"name": g.name, "nodes": len(g.members)} for g in fleet.groups],
        "drift": [
            {
                "group": fleet.groups[row.group].name,
                "trait": str(row.trait),
                "title": row.title,
                "cause": row.family.cause,
                "severity": row.loss.severity.value,
                "majority": row.majority,
                "agreeing": row.agreeing,
                "unknown": row.sides.unknown,
                "values": [{"value": value, "nodes": nodes} for value, nodes in row.values],
            }
            for row in fleet.drift
        ],
        "distributions": [_distribution(fleet, dist) for dist in fleet.distributions],
        "node_checks": list(fleet.node_checks),
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
    """A member with nothing in it is left out, but for the older files and the checks of a node that has a report."""
    out: dict[str, Any] = {
        "name": node.name,
        "state": node.state,
        "expected": node.expected,
        "group": None if node.group is None else fleet.groups[node.group].name,
        "cause": "missing_node" if node.state == NodeState.MISSING else None,
        "reasons": node.reasons or None,
        "notes": node.notes or None,
    }
    if (run := node.run) is not None:
        out |= {
            "file": run.file,
            "older_files": [r.file for r in node.older],
            "verdict": run.verdict,
            "checks": {name: STATUS[letter] for name, letter in zip(run.checks, run.statuses, strict=True)},
            "excerpts": [_excerpt(item) for item in run.items] or None,
            "excerpts_left_out": run.omitted or None,
            "metrics": {str(figure): _round(value) for figure, value in run.metrics.items()} or None,
        }
    return {key: value for key, value in out.items() if value is not None}


def _excerpt(item: Item) -> dict[str, Any]:
    out = {name: getattr(item, name) for name in ("check", "subject", "status", "severity", "cause", "message")}
    empty = {name: None for name in ("severity", "cause") if not out[name]}
    return out | empty | ({"waived": True} if item.waived else {})
