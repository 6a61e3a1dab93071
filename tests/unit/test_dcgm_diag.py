"""DCGM's own diagnostic, on request: what dcgmi prints, what becomes of it, and where it does not run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netdoctor.checks.gpu_dcgm import gpu_dcgm
from netdoctor.facts import dcgm
from netdoctor.facts.dcgm import Dcgm, Diagnosed, DiagResult, Outcome
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.host.helpers import dcgm_diag as asks_diag
from netdoctor.model import Finding, Kind, Status, Unavailable, unavailable_in
from tests.support import facts as f

QUESTION = "ask:dcgm?program=%2Fusr%2Fbin%2Fdcgmi"


def program(folder: Path, name: str, text: str) -> str:
    """A program of that name; the folder."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(folder)


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


# As dcgmi diag -r 2 -j prints it: version 3 (HelperJsonAddResult of 3.0) and 4.
DIAG_3 = """{"DCGM GPU Diagnostic": {"test_categories": [
  {"category": "Deployment", "tests": [{"name": "Blacklist", "results": [{"status": "Pass"}]}]},
  {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [{"gpu_ids": "0", "status": "Pass"},
    {"gpu_ids": "1", "status": "Fail", "warnings": "Memory error on GPU 1"}]}]},
  {"category": "Stress", "tests": [{"name": "SM Stress", "results": [{"gpu_ids": "0", "status": "Skip"}]}]}]}}"""
DIAG_4 = """{"DCGM Diagnostic": {"test_categories": [
  {"category": "Deployment", "tests": [{"name": "software", "results": [
     {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"},
     {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 1, "status": "Fail",
      "warnings": [{"error_id": 29, "warning": "GPU 1 has a pending page retirement"}]}],
     "test_summary": {"status": "Fail"}}]},
  {"category": "Integration", "tests": [{"name": "pcie", "test_summary": {"status": "Skip", "info": ["no"]}}]}]},
 "metadata": {"version": "4.2.3"}}"""
GOOD_4 = DIAG_4.replace("Fail", "Pass")
ASKED = "ask:dcgm_diag?level=2&program=%2Fusr%2Fbin%2Fdcgmi&seconds=900"


def diagnosed(folder: Path, text: str, seconds: str = "900") -> Any:
    path = f"{program(folder, 'dcgmi', text)}/dcgmi"
    return asks_diag.answer({"program": path, "level": "2", "seconds": seconds})


def facts_of(told: Any, gpus: Gpus | None = None, where: Vantage | None = None, job: Environ | None = None) -> Dcgm:
    lost = unavailable_in(told)
    answers = {
        "stat:/usr/bin/dcgmi": {},
        QUESTION: {"watching": False},
        "config:": {"dcgm_diag": 2},
        ASKED: told if lost is None else lost,
    }
    found = dcgm.probe(ReplayHost(answers), gpus or f.gpus(), where or f.outside(), job or f.environ())
    assert isinstance(found, Dcgm)
    return found


def results(found: Dcgm) -> tuple[DiagResult, ...] | Unavailable:
    assert isinstance(found.diagnosed, Diagnosed) and found.diagnosed.level == 2
    return found.diagnosed.results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            DIAG_3,
            (
                DiagResult("Blacklist", "", Outcome.PASS, ""),
                DiagResult("GPU Memory", "GPU 0", Outcome.PASS, ""),
                DiagResult("GPU Memory", "GPU 1", Outcome.FAIL, "Memory error on GPU 1"),
                DiagResult("SM Stress", "GPU 0", Outcome.SKIP, ""),
            ),
        ),
        (
            DIAG_4,
            (
                DiagResult("software", "GPU 0", Outcome.PASS, ""),
                DiagResult("software", "GPU 1", Outcome.FAIL, "GPU 1 has a pending page retirement"),
                DiagResult("pcie", "", Outcome.SKIP, ""),
            ),
        ),
    ],
)
def test_what_its_diagnostic_says(text: str, expected: tuple[DiagResult, ...], tmp_path: Path) -> None:
    told = diagnosed(
        tmp_path,
        f"""[ "$*" = "diag -r 2 -j" ] && cat << 'X'
{text}
X""",
    )
    assert results(facts_of(told)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("exec sleep 9", Kind.TIMED_OUT, "0.3 s"),
        ("trap 'exit 0' TERM; sleep 9 & wait", Kind.TIMED_OUT, "0.3 s"),
        ("kill -9 $$", Kind.FAILED, "SIGKILL"),
        ("echo 'Error: Unable to connect to host engine.'; exit 1", Kind.FAILED, "host engine"),
        ("""echo '{"DCGM Diagnostic": {"runtime_error": "homogeneous group of GPUs"}}'""", Kind.FAILED, "homogeneous"),
        ("echo '{}'", Kind.MALFORMED, "KeyError"),
        ("""echo '{"DCGM Diagnostic": {"test_categories": []}}'""", Kind.MALFORMED, "names no test"),
        (f"echo '{GOOD_4.replace('Skip', 'Odd')}'", Kind.MALFORMED, "'Odd'"),
        (f"echo '{GOOD_4}'; exit 3", Kind.FAILED, "ended with 3"),  # whatever it means, it is no good end
    ],
)
def test_what_its_diagnostic_does_not_say(text: str, kind: Kind, words: str, tmp_path: Path) -> None:
    lost = results(facts_of(diagnosed(tmp_path, text, "0.3" if "sleep" in text else "900")))
    assert isinstance(lost, Unavailable)
    assert (lost.kind, words in lost.detail) == (kind, True)


@pytest.mark.slow
def test_who_kills_the_child_ends_the_diagnostic(tmp_path: Path) -> None:
    """It is told to end, and has the time to stop what the daemon runs."""
    stops = f"trap 'echo > {tmp_path}/told; exit 1' TERM; echo > {tmp_path}/runs; sleep 60 & wait"
    path = program(tmp_path, "dcgmi", stops)
    code = f"import sys; sys.path.insert(0, {str(Path.cwd())!r}); from netdoctor.host.helpers import dcgm_diag as d; "
    code += f"d.answer({{'program': '{path}/dcgmi', 'level': '2', 'seconds': '60'}})"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    wait_for((tmp_path / "runs").exists)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    wait_for((tmp_path / "told").exists)


@pytest.mark.parametrize(
    ("gpus", "where", "job", "words"),
    [
        (f.gpus(2, all=(f.gpu(0), f.gpu(1, processes=1))), None, None, "is in use"),
        (f.gpus(1, all=(f.gpu(0, memory_used=1 << 30),)), None, None, "is in use"),
        (f.gpus(1, all=(f.gpu(0, processes=Unavailable("timed out")),)), None, None, "could not be read"),
        (f.gpus(all=Unavailable("failed")), None, None, "could not be read"),
        (None, f.pod(), None, "share"),
        (None, None, f.environ(launcher=Launcher("torchrun", 0, 8, 0, 8)), "a rank"),
        (None, None, replace(f.environ(), launcher=Unavailable("failed")), "a rank"),  # or may be one
    ],
)
def test_it_never_runs_beside_another_job(gpus: Any, where: Any, job: Any, words: str) -> None:
    lost = results(facts_of({"results": [["t", "GPU 0", "Pass", ""]]}, gpus, where, job))
    assert isinstance(lost, Unavailable)
    assert (lost.kind, words in lost.detail) == (Kind.REFUSED, True)


@pytest.mark.parametrize("rows", [None, [], [["t"]], [["t", "", "Pass", 3]], "x", [["t", "", "", ""]]])
def test_rubbish_of_its_diagnostic_is_no_pass(rows: Any) -> None:
    assert isinstance(results(facts_of({"results": rows})), Unavailable)


@pytest.mark.parametrize("more", [{"results": [["t", "GPU 1", "Fail", ""], ["t", "GPU 0", "Odd", ""]]}, {"left_out": 3}])
def test_a_fail_is_told_though_another_test_is_not_understood(more: dict[str, Any]) -> None:
    assert results(facts_of({"results": [["t", "GPU 1", "Fail", ""]], **more})) == (DiagResult("t", "GPU 1", Outcome.FAIL, ""),)
    assert isinstance(results(facts_of({"results": [["t", "GPU 1", "Pass", ""]], "left_out": 3})), Unavailable)


def said(*rows: tuple[str, str, str]) -> dict[str, Finding]:
    made = facts_of({"results": [[test, entity, status, "words"] for test, entity, status in rows]})
    return {one.subject: one for one in f.judge(gpu_dcgm, f.machine({Dcgm: made, Vantage: f.outside()}))}


def test_what_is_made_of_it() -> None:
    good = said(("memory", "GPU 0", "Pass"), ("pcie", "", "Skip"))["DCGM's diagnostic"]
    assert (good.status, good.notes) == (Status.PASS, ("skipped: pcie",))
    found = said(("memory", "GPU 0", "Pass"), ("memory", "GPU 1", "Fail"), ("pcie", "", "Fail"))
    assert found["DCGM's diagnostic: GPU 1"].message == "dcgmi diag -r 2 fails GPU 1: memory (words)"
    assert {found[f"DCGM's diagnostic: {one}"].status for one in ("GPU 1", "node")} == {Status.FAIL}
    assert "DCGM's diagnostic" not in found
    assert said(("memory", "GPU 0", "Warn"), ("pcie", "", "Pass"))["DCGM's diagnostic"].status is Status.UNKNOWN
    assert said(("memory", "GPU 0", "Skip"))["DCGM's diagnostic"].status is Status.UNKNOWN
