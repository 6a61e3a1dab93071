"""``netdoctor run -- CMD``: one doctor a node, then the job with its environment, stdout and exit code."""

from __future__ import annotations

import json
import os
import pathlib
import select
import shlex
import signal
import subprocess
import sys
import uuid

import pytest

from netdoctor.cli import run

pytestmark = pytest.mark.live
NETDOCTOR = [sys.executable, "-m", "netdoctor"]
SHOW = [sys.executable, "-c", "import json, os, sys; print(json.dumps(dict(os.environ))); sys.exit(7)"]


def start(options: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [*NETDOCTOR, "run", "--quiet", "--python", sys.executable, *options, "--", *SHOW]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_job_gets_its_environment_stdout_and_exit_code() -> None:
    environment = os.environ | {"NCCL_DEBUG_FILE": "/nonexistent/x", "SOME_THING": "1"}
    job = start(["--brief"], environment)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 7, err
    got = json.loads(out)
    assert {k: v for k, v in got.items() if k not in ("LC_CTYPE", "_")} == {
        k: v for k, v in environment.items() if k not in ("LC_CTYPE", "_")
    }
    assert any(line.startswith(("healthy: ", "nothing failed ")) for line in err.splitlines()), err


def test_the_gate_keeps_the_job_from_starting(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("expected: {gpus: 8}\n")
    job = start(["--gate", "--fail-on", "info", "--config", str(config)], dict(os.environ))
    out, err = job.communicate(timeout=120)
    assert job.returncode in (3, 4), err
    assert out == "" and "not started" in err


def test_one_doctor_for_all_ranks_of_a_node(tmp_path: pathlib.Path) -> None:
    """As srun or torchrun start them: the others wait for local rank 0 and get its verdict."""
    run_id = uuid.uuid4().hex
    ranks = []
    for rank in (2, 1, 0):
        variables = {"RANK": rank, "WORLD_SIZE": 3, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 3, "TORCHELASTIC_RUN_ID": run_id}
        ranks.append(start(["-o", str(tmp_path / f"{rank}.json")], os.environ | {k: str(v) for k, v in variables.items()}))
    for job in ranks:
        out, err = job.communicate(timeout=180)
        assert job.returncode == 7, err
        assert json.loads(out)["TORCHELASTIC_RUN_ID"] == run_id
    assert [p.name for p in tmp_path.iterdir()] == ["0.json"]


def test_ranks_see_that_their_doctor_died(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Killed while it looks, as by the out-of-memory killer: the others do not wait a quarter of an hour."""
    monkeypatch.setenv("SLURM_JOB_ID", f"dies{os.getpid()}")
    monkeypatch.setattr(run, "COME", 60.0)
    monkeypatch.setattr(run.signals, "restore", lambda: None)
    child = os.fork()
    if child == 0:
        with run.waited_for(1) as door:
            select.select([door], [], [])  # until the other rank waits
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        assert run.ask_doctor(quiet=False) == 4
        assert "ended without a verdict" in capfd.readouterr().err
    finally:
        os.waitpid(child, 0)


def test_who_reads_the_output_waits_for_no_other_rank() -> None:
    """A rank that never asks: the child that would tell it holds no pipe (COME is longer than this waits)."""
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
    }
    assert run.COME > 60
    job = start(["--brief"], os.environ | variables)
    job.communicate(timeout=60)
    assert job.returncode == 7


def test_no_such_command() -> None:
    done = subprocess.run(
        [*NETDOCTOR, "run", "--", "/nonexistent/program"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 127 and "/nonexistent/program" in done.stderr


def gated(folder: pathlib.Path, *command: str) -> tuple[int, str, dict[str, list[str]]]:
    """Exit code, stderr, and the statuses of each check, of a gate that asks for no network."""
    (folder / "c.yaml").write_text("job: {nodes: 1}\n")
    report = folder / "report.json"
    line = [*NETDOCTOR, "run", "--gate", "--quiet", "--config", str(folder / "c.yaml"), "-o", str(report), "--", *command]
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    checks = json.loads(report.read_text())["checks"]
    return done.returncode, done.stderr, {c["id"]: [f["status"] for f in c["findings"]] for c in checks}


def test_what_wrappers_set_is_judged(tmp_path: pathlib.Path) -> None:
    """A variable that NCCL does not know, set by env alone."""
    cpu = str(min(os.sched_getaffinity(0)))
    wrapped = (
        "env",
        "NCCL_PROTOO=LL",
        "taskset",
        "-c",
        cpu,
        sys.executable,
        "-c",
        "import os; print(os.environ['NCCL_PROTOO'])",
    )
    _, err, checks = gated(tmp_path, *wrapped)
    assert checks["job.command"] == ["pass"] and "fail" in checks["nccl.environment"], err
    _, err, checks = gated(tmp_path, *wrapped[2:])
    assert "fail" not in checks["nccl.environment"], err


def test_a_gate_does_not_vouch_for_what_it_cannot_see(tmp_path: pathlib.Path) -> None:
    code, err, checks = gated(tmp_path, "bash", "-c", f"{shlex.quote(sys.executable)} -c 'print(1)'")
    assert code == 4 and checks["job.command"] == ["unknown"] and "job.command" in err


def test_a_shadow_of_torch_stops_the_job(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "train.py").write_text("print('started')\n")
    code, err, checks = gated(tmp_path, sys.executable, "train.py")
    assert code == 3 and "fail" in checks["job.command"] and "not started" in err
