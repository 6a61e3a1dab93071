"""Alert rules, dashboard and `preflight --serve`: made from explain, right about real metrics, and never an old verdict."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import parser
from typer.testing import CliRunner

from netdoctor.cli import main, serve
from netdoctor.plugins import load
from netdoctor.report import formats
from tests.support.facts.reports import EVERY
from tests.support.machines.fetch import PROMETHEUS, ROOT
from tools import monitoring, reference

PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=str(PROMETHEUS / "usr/bin"))
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: make parts")
ALERTS = yaml.safe_load((monitoring.FOLDER / "alerts.yaml").read_text())
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]


def promtool(*words: str) -> str:
    done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", monitoring.files())
def test_the_files_are_what_the_program_makes(name: str) -> None:
    assert (monitoring.FOLDER / name).read_text(encoding="utf-8") == monitoring.files()[name], "python -m tools.monitoring"


def test_every_check_has_an_alert_whose_runbook_is_there() -> None:
    """The text that `explain` prints, and its place in the documentation as mkdocs makes anchors."""
    anchors = {re.sub(r"[^\w-]", "", title) for title in re.findall(r"(?m)^## (.*)$", reference.pages()["checks.md"])}
    named = {rule["annotations"]["runbook"].split()[-1] for rule in RULES if "runbook_url" in rule["annotations"]}
    assert named == {spec.id for spec in load(None, site=False).specs}
    linked = {found[1] for rule in RULES if (found := re.search(r"#(\S+?){{", rule["annotations"].get("runbook_url", "")))}
    assert linked <= anchors and len(linked) == len(named)


def told(name: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = parser.text_string_to_metric_families(formats.render(EVERY[name], "prometheus"))
    return {sample.name: [(s.labels, s.value) for s in f.samples] for f in families for sample in f.samples}


def test_rules_and_panels_ask_for_metrics_that_there_are() -> None:
    there = {*told("unhealthy"), *told("healthy"), "netdoctor_look_failed"}
    text = "".join([*(rule["expr"] for rule in RULES), *(row[2] for row in monitoring.PANELS)])
    asked = {name for name in re.findall(r"netdoctor_[a-z_]+", text) if not name.startswith("netdoctor_fleet_")}
    assert asked <= there


@needs_promtool
def test_prometheus_takes_rules_and_panels(tmp_path: Path) -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", str(monitoring.FOLDER / "alerts.yaml"))
    panels = json.loads((monitoring.FOLDER / "dashboard.json").read_text())["panels"]
    expressions = [panel["targets"][0]["expr"].replace("$node", ".*") for panel in panels]
    rows = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rows}]}))
    promtool("check", "rules", str(tmp_path / "panels.yaml"))


@needs_promtool
@pytest.mark.parametrize(
    ("name", "fires"), [("unhealthy", True), ("healthy", False), ("waived", False), ("inconclusive", False)]
)
def test_a_real_report_s_metrics_fire_what_they_should(name: str, fires: bool, tmp_path: Path) -> None:
    """Prometheus's own evaluation of the rules, on the metrics of a report."""
    series = []
    for metric, rows in told(name).items():
        for labels, value in rows:
            if metric != "netdoctor_look_timestamp_seconds":
                named = ",".join(f'{key}="{text}"' for key, text in {"instance": "gpu01", **labels}.items())
                series.append({"series": f"{metric}{{{named}}}", "values": f"{value}x60"})
    failed = [(labels["check"], labels) for labels, value in told(name).get("netdoctor_fails", ()) if value]
    assert bool(failed) == fires
    wanted = []
    for rule in RULES:
        check = rule["annotations"].get("runbook", "").split()[-1:]
        expected = []
        for _, labels in [row for row in failed if [row[0]] == check and "runbook_url" in rule["annotations"]]:
            notes = {k: v.replace("{{ $labels.instance }}", "gpu01") for k, v in rule["annotations"].items()}
            notes["summary"] = notes["summary"].replace("{{ $labels.cause }}", labels["cause"])
            found = re.search(r"reference/\S+?#\w+", rule["annotations"]["runbook_url"])
            assert found is not None
            notes["runbook_url"] = f"https://docs.example/{found[0]}"
            expected.append({"exp_labels": {"instance": "gpu01", **labels}, "exp_annotations": notes})
        if "runbook_url" in rule["annotations"]:
            wanted.append({"eval_time": "45m", "alertname": rule["alert"], "exp_alerts": expected})
    test = {
        "rule_files": [str(monitoring.FOLDER / "alerts.yaml")],
        "tests": [
            {
                "interval": "1m",
                "external_labels": {"netdoctor_docs": "https://docs.example"},
                "input_series": series,
                "alert_rule_test": wanted,
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", str(tmp_path / "test.yaml"))


def test_a_look_without_a_report_leaves_no_old_verdict() -> None:
    last = serve.Last()
    assert {family.name for family in last.collect()} == {"netdoctor_looks"}
    last.take(formats.render(EVERY["healthy"], "prometheus"))
    names = {family.name for family in last.collect()}
    assert {"netdoctor_verdict", "netdoctor_look_failed"} <= names
    for nothing in (None, "", "no metrics {"):
        last.take(nothing)
        left = {family.name: family.samples[0].value for family in last.collect()}
        assert left.pop("netdoctor_look_failed") == 1.0 and set(left) == {"netdoctor_looks"}


@pytest.mark.slow
def test_what_gives_no_report_is_none() -> None:
    assert serve.look([sys.executable, "-c", "raise SystemExit(2)"]) == (None, 2)
    assert serve.look(["/no/such/program"]) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_a_server_ends_when_it_is_told_to(first: bool) -> None:
    """Also as process 1 of a container, which the kernel ends by no signal that it does not handle."""
    line = [sys.executable, "-m", "netdoctor", "preflight", "--serve", "127.0.0.1:0", "--profile", "audit", "--no-allreduce"]
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if first and (os.geteuid() != 0 or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode):
        pytest.skip("no process-id namespace may be made here")
    with subprocess.Popen([*(alone if first else ()), *line], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None and "metrics on" in process.stderr.readline()
            doctor = process.pid
            if first:
                doctor = int(Path(f"/proc/{doctor}/task/{doctor}/children").read_text().split()[0])
            os.kill(doctor, signal.SIGTERM)
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["preflight", "--serve", "9469", "--profile", "audit"], ["preflight", "--profile", "audit"]),
        (["preflight", "--profile=audit", "--serve=:9469", "--every=60", "-q"], ["preflight", "--profile=audit", "-q"]),
        (["preflight", "--every", "60", "--serve", "h:1"], ["preflight"]),
    ],
)
def test_a_look_has_the_options_of_the_server(words: list[str], kept: list[str]) -> None:
    assert serve.own_words(words) == kept


@pytest.mark.parametrize(
    "arguments",
    [
        ("--serve", "x"),
        ("--serve", "1:99999"),
        ("--serve", "0", "--every", "1"),
        ("--serve", "0", "-o", "x"),
        ("--serve", "0", "-f", "json"),
    ],
)
def test_usage(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main.app, ["preflight", *arguments])
    assert done.exit_code == 2 and "--serve" in done.stderr
