"""Alert rules for Prometheus and a dashboard for Grafana, made from what `netdoctor explain` says of each check.

``python -m tools.monitoring`` writes them to netdoctor/deploy/prometheus, which `netdoctor deploy prometheus` hands out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from netdoctor.causes import CAUSES
from netdoctor.plugins import load

FOLDER: Final = Path(__file__).resolve().parents[1] / "netdoctor/deploy/prometheus"
STALE: Final = 3600  # seconds: six looks of the DaemonSet
# The site's copy of the documentation (make docs), where its Prometheus is told of it by an external label.
LINK: Final = "{{{{ with $externalLabels.netdoctor_docs }}}}{{{{ . }}}}/reference/{page}.html#{anchor}{{{{ end }}}}"

HEAD: Final = """\
# Made by python -m tools.monitoring from what netdoctor explain says.  rule_files: [alerts.yaml]; the metrics come from
# `netdoctor preflight --serve 9469`, or from node_exporter's textfile collector (`-o DIR/netdoctor.prom`).
# runbook_url is set where Prometheus knows your copy of the documentation: global: {external_labels: {netdoctor_docs: https://…}}.
"""


def _alert(name: str, expr: str, wait: str, severity: str | None, summary: str, **more: str) -> dict[str, Any]:
    labels = {"labels": {"severity": severity}} if severity else {}
    return {
        "alert": name,
        "expr": expr,
        "for": wait,
        **labels,
        "annotations": {"summary": f"{{{{ $labels.instance }}}}: {summary}", **more},
    }


def alerts() -> dict[str, Any]:
    """A rule a check, and four that say that netdoctor itself does not tell."""
    age = f"time() - netdoctor_look_timestamp_seconds > {STALE}"
    own = [
        _alert("NetdoctorStale", age, "5m", "warning", "netdoctor has not looked for an hour"),
        _alert("NetdoctorLookFailed", "netdoctor_look_failed == 1", "30m", "warning", "a look of netdoctor gave no report"),
        _alert(
            "NetdoctorLookPartial", "netdoctor_look_whole == 0", "30m", "warning", "a look of netdoctor did not come to its end"
        ),
        _alert(
            "NetdoctorCheckBroken",
            'max by (instance, check) (netdoctor_check{status="error"}) == 1',
            "30m",
            "warning",
            "the check {{ $labels.check }} is broken",
            runbook="netdoctor explain {{ $labels.check }}",
        ),
    ]
    each = []
    for spec in sorted(load(None, site=False).specs, key=lambda spec: spec.id):
        costs = sorted({cause.costs for cause in CAUSES.values() if spec.id in cause.look})
        each.append(
            _alert(
                "Netdoctor" + "".join(word.capitalize() for word in re.split(r"[._]", spec.id)),
                f'max by (instance, check, cause, severity) (netdoctor_fails{{check="{spec.id}"}}) > 0',
                "10m",
                None,
                f"{spec.id} fails ({{{{ $labels.cause }}}}); on a healthy node: {spec.title}",
                **({"description": "; ".join(costs[:3])} if costs else {}),
                runbook=f"netdoctor explain {spec.id}",
                # As mkdocs makes anchors: without what is no word.
                runbook_url=LINK.format(page="checks", anchor=re.sub(r"[^\w-]", "", spec.id)),
            )
        )
    fleet = [
        _alert(
            "NetdoctorFleetNodesNotGood",
            'sum without (state) (netdoctor_fleet_nodes{state=~"bad|missing|flaky"}) > 0',
            "10m",
            "warning",
            "{{ $value }} nodes of the fleet are bad, flaky or missing",
        )
    ]
    return {"groups": [{"name": "netdoctor", "rules": [*own, *each]}, {"name": "netdoctor-fleet", "rules": fleet}]}


NODES: Final = 'instance=~"$node"'
PANELS: Final = (
    # title, kind, expression, legend, unit, width, height
    ("Nodes by verdict", "stat", "sum by (status) (netdoctor_verdict)", "{{status}}", "short", 12, 5),
    ("Oldest look", "stat", f"max(time() - netdoctor_look_timestamp_seconds{{{NODES}}})", "", "s", 6, 5),
    ("Looks without a report", "stat", f"sum(netdoctor_look_failed{{{NODES}}})", "", "short", 6, 5),
    ("What fails", "table", f"max by (instance, check, cause, severity) (netdoctor_fails{{{NODES}}}) > 0", "", "short", 24, 9),
    (
        "Verdict",
        "state-timeline",
        " + on (instance) ".join(
            (f'2 * netdoctor_verdict{{{NODES}, status="unhealthy"}}', f'netdoctor_verdict{{{NODES}, status="inconclusive"}}')
        ),
        "{{instance}}",
        "short",
        24,
        8,
    ),
    (
        "Share of its bandwidth that a job would have",
        "timeseries",
        f"netdoctor_bandwidth_share{{{NODES}}}",
        "{{instance}}",
        "percentunit",
        12,
        8,
    ),
    (
        "Bus bandwidth of the all-reduce",
        "timeseries",
        f"netdoctor_busbw_bytes_per_second{{{NODES}}}",
        "{{instance}} {{path}}",
        "Bps",
        12,
        8,
    ),
    ("Nodes of the fleet by state", "timeseries", 'netdoctor_fleet_nodes{state!="given"}', "{{state}}", "short", 12, 8),
    ("Nodes that differ from their kind", "table", "netdoctor_fleet_drift_nodes > 0", "", "short", 12, 8),
)


def dashboard() -> dict[str, Any]:
    """For Grafana 9 and later; the data source is asked for when it is imported."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    words = {
        "0": {"text": "healthy", "color": "green"},
        "1": {"text": "inconclusive", "color": "yellow"},
        "2": {"text": "unhealthy", "color": "red"},
    }
    panels, x, y, tallest = [], 0, 0, 0
    for number, (title, kind, expr, legend, unit, width, height) in enumerate(PANELS, 1):
        if x + width > 24:
            x, y, tallest = 0, y + tallest, 0
        mapping = {"mappings": [{"type": "value", "options": words}]} if kind == "state-timeline" else {}
        target = {"refId": "A", "datasource": source, "expr": expr, "legendFormat": legend}
        panels.append(
            {
                "id": number,
                "type": kind,
                "title": title,
                "datasource": source,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "targets": [target | ({"instant": True, "format": "table"} if kind == "table" else {})],
                "fieldConfig": {"defaults": {"unit": unit, **mapping}, "overrides": []},
                "options": {},
            }
        )
        x, tallest = x + width, max(tallest, height)
    chosen = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    nodes = {"name": "node", "type": "query", "datasource": source, "query": "label_values(netdoctor_verdict, instance)"}
    more = {"includeAll": True, "multi": True, "allValue": ".*", "refresh": 2}
    return {
        "uid": "netdoctor",
        "title": "netdoctor",
        "tags": ["gpu", "nccl"],
        "schemaVersion": 38,
        "refresh": "5m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [chosen, nodes | more]},
        "panels": panels,
    }


def files() -> dict[str, str]:
    return {
        "alerts.yaml": HEAD + yaml.safe_dump(alerts(), sort_keys=False, allow_unicode=True, width=2000),
        "dashboard.json": json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n",
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
