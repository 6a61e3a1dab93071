"""The whole of it, on this machine: look, run, judge, report; snapshot there, diagnose here."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.live
NETDOCTOR = [sys.executable, "-m", "netdoctor"]
SECRET = "hunter2-Zq9x"
PLANTED = {"AWS_SECRET_ACCESS_KEY": SECRET, "NCCL_FOO_TOKEN": SECRET, "MASTER_ADDR_NOTE": f"http://me:{SECRET}@x/"}


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NETDOCTOR, *words], capture_output=True, text=True, timeout=180, check=False, **options)


@pytest.fixture(scope="module")
def torch() -> list[str]:
    """Options that name a Python with a torch; this one's, if it has one."""
    found = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip("no torch in this Python")
    return ["--python", sys.executable, "--quiet"]


def test_a_snapshot_gives_the_report_again_and_keeps_no_secret(torch: list[str], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "snapshot.json"
    environment = os.environ | PLANTED
    here = [*torch, "--vantage", "job"]  # for root as for a user: the view that names the machine
    taken = run("snapshot", "-o", str(file), *here, env=environment)
    assert taken.returncode == 0, taken.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    live = run("preflight", "--format", "json", *here, env=environment)
    again = run("diagnose", str(file), "--format", "json")
    assert again.returncode == live.returncode
    one, other = json.loads(live.stdout), json.loads(again.stdout)
    assert one.pop("volatile") and other.pop("volatile")
    assert one == other
    for text in (file.read_text(), live.stdout, live.stderr, again.stdout):
        assert SECRET not in text


def test_this_healthy_machine_has_no_fail_in_any_format(torch: list[str], tmp_path: pathlib.Path) -> None:
    out = tmp_path / "r.json"
    got = run("preflight", "-o", str(out), *torch)
    assert got.returncode in (0, 4), got.stdout
    report = json.loads(out.read_text())
    assert not [c["id"] for c in report["checks"] if c["status"] in ("fail", "error")]
    state = {c["id"]: c["status"] for c in report["checks"]}
    assert state["allreduce.run"] == "pass"
    (baseline, *_) = report["volatile"]["runs"]
    assert baseline["busbw_gb_s"] and report["runs"][0]["verified"] is True
    for check in report["checks"]:
        area, _, name = check["id"].partition(".")  # what passes, skips or lacks one thing is folded by area
        assert check["id"] in got.stdout or re.search(rf"\b{area}(?::| ) *(?:\w+, )*{name}\b", got.stdout)
    assert got.stdout.strip().splitlines()[-1] == report["verdict"]["text"]
    assert got.stderr == ""  # --quiet


def test_the_stable_part_is_equal_on_two_runs(torch: list[str]) -> None:
    one, other = (json.loads(run("preflight", "--format", "json", *torch).stdout) for _ in range(2))
    one.pop("volatile"), other.pop("volatile")
    assert one == other


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_still_reports(torch: list[str], number: signal.Signals, code: int, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "r.json"
    command = [*NETDOCTOR, "preflight", "-o", str(out), *(w for w in torch if w != "--quiet")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "looking at the node" in line:
                process.send_signal(number)
                break
        text, _ = process.communicate(timeout=60)
    assert process.returncode == code
    report = json.loads(out.read_text())
    assert number.name in report["partial"] and number.name in text
    assert report["verdict"]["status"] == "inconclusive"


def test_the_prolog_profile_runs_no_all_reduce(torch: list[str]) -> None:
    got = run("preflight", "--profile", "prolog", "--only", "allreduce.run", "--format", "json", *torch)
    report = json.loads(got.stdout)
    assert report["runs"] == [] and report["checks"][0]["status"] == "unknown"
    assert "profile prolog runs nothing" in got.stdout


def test_a_broken_plugin_is_not_healthy(torch: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.py").write_text("def (")
    got = run("preflight", "--checks-dir", str(tmp_path), "--no-allreduce", "--format", "json", *torch)
    verdict = json.loads(got.stdout)["verdict"]
    assert (got.returncode, verdict["status"]) == (4, "inconclusive")
    assert verdict["text"].startswith("inconclusive: the site's own checks did not all look: plugin.")


def test_one_line_is_short(torch: list[str]) -> None:
    got = run("preflight", "--brief", "--no-allreduce", *torch)
    assert len(got.stdout.strip().splitlines()) == 1 and len(got.stdout.strip()) <= 200


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["preflight", "--only", "net.socket_ifnam"], "did you mean net.socket_ifname"),
        (["preflight", "--format", "yaml"], "--format"),
        (["preflight", "--fail-on", "severe"], "fail"),
        (["preflight", "--profile", "strickt"], "profile"),
        (["preflight", "--config", "/nonexistent.yaml"], "/nonexistent.yaml"),
        (["preflight", "--checks-dir", "/nonexistent"], "/nonexistent"),
        (["diagnose", "/nonexistent.json"], "/nonexistent.json"),
        (["explain", "net.nothing"], "net.nothing"),
        (["preflight", "--nonsense"], "nonsense"),
    ],
)
def test_bad_usage_is_exit_2_and_one_line(words: list[str], says: str) -> None:
    got = run(*words)
    assert got.returncode == 2 and says in got.stderr and "Traceback" not in got.stderr
    assert got.stdout == ""


def test_options_are_variables_too(torch: list[str]) -> None:
    names = {
        "NETDOCTOR_FORMAT": "json",
        "NETDOCTOR_ONLY": "net.port_range",
        "NETDOCTOR_PROFILE": "audit",
        "NETDOCTOR_QUIET": "1",
    }
    got = run("preflight", env=os.environ | names)
    report = json.loads(got.stdout)
    assert report["profile"] == "audit" and [c["id"] for c in report["checks"]] == ["net.port_range"] and got.stderr == ""


def test_nagios_and_node_problem_detector_get_their_numbers(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("expected: {gpus: 64}\n")
    words = ["preflight", "--only", "hardware.site", "--config", str(config), "--quiet"]
    plain, nagios, npd = (run(*words, *more).returncode for more in ([], ["--exit-style", "nagios"], ["--exit-style", "npd"]))
    assert (plain, nagios, npd) == (3, 2, 1)
