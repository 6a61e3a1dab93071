"""A real Prometheus scrapes `preflight --serve` and takes the alert rules."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.machines.fetch import PROMETHEUS, ROOT
from tools import monitoring

PROGRAM = shutil.which("prometheus") or shutil.which("prometheus", path=str(PROMETHEUS / "usr/bin"))
pytestmark = [pytest.mark.live, pytest.mark.skipif(PROGRAM is None, reason="no prometheus: make parts")]


def asked(port: int, path: str) -> Any:
    """The answer once there is one."""
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
                data = json.load(answer)["data"]
            if data.get("result", data.get("groups")):
                return data
        except urllib.error.URLError:
            pass
        assert time.monotonic() < end, f"no answer to {path}"
        time.sleep(0.5)


def test_it_is_scraped_and_its_rules_are_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    command = [sys.executable, "-m", "netdoctor", "preflight", "--serve", "127.0.0.1:0", "--no-allreduce", "--profile", "audit"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            target = said.partition("metrics on ")[2].partition(",")[0]
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(monitoring.FOLDER / "alerts.yaml")],
                "scrape_configs": [{"job_name": "netdoctor", "static_configs": [{"targets": [target]}]}],
            }
            (tmp_path / "p.yaml").write_text(yaml.safe_dump(config))
            flags = [
                f"--config.file={tmp_path}/p.yaml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            with subprocess.Popen([str(PROGRAM), *flags], stderr=subprocess.DEVNULL, cwd=tmp_path) as prometheus:
                try:
                    rows = asked(port, "query?query=netdoctor_verdict")["result"]
                    verdict = {row["metric"]["status"]: row["value"][1] for row in rows}
                    assert sorted(verdict.values()) == ["0", "0", "1"] and set(verdict) == {
                        "healthy",
                        "unhealthy",
                        "inconclusive",
                    }
                    groups = asked(port, "rules")["groups"]
                    rules = [rule for group in groups for rule in group["rules"]]
                    assert len(rules) == sum(len(group["rules"]) for group in monitoring.alerts()["groups"])
                    for panel in monitoring.dashboard()["panels"]:  # each is a question that it understands
                        query = urllib.parse.quote(panel["targets"][0]["expr"].replace("$node", ".*"))
                        with urllib.request.urlopen(
                            f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=10
                        ) as answer:
                            assert json.load(answer)["status"] == "success"
                finally:
                    prometheus.terminate()
        finally:
            server.terminate()
