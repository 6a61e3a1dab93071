"""Real GPUs for the tests marked ``gpu``: which there are, a torch that can use them, and whether anything stays on them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from netdoctor.allreduce import plan
from netdoctor.allreduce.runner import Session
from netdoctor.facts.intent import Intent
from netdoctor.facts.runs import AllReduce, Run, TorchFacts
from netdoctor.host.live import LiveHost

FAKES: Final = pathlib.Path(__file__).parents[2] / "fakes"
NETDOCTOR: Final = (sys.executable, "-m", "netdoctor")
# The product waits for slow clusters; a test on one node need not (a first context takes 5 s, an init below 5 s).
LIMITS: Final = {"device": 40.0, "init": 25.0, "first": 20.0, "timed": 20.0, "verify": 20.0}
MIB: Final = 1 << 20
# A CUDA context takes 100 MiB at the least: what is below a sixth of that is none (drivers keep a few MiB of their own).
SAME: Final = 16 * MIB
ONE: Final = AllReduce("nccl", 1, "cuda", (4096, MIB), gpus=(0,))


def python() -> str:
    """The Python whose torch is tested: NETDOCTOR_TORCH_PYTHON, or the one that runs the tests."""
    return os.environ.get("NETDOCTOR_TORCH_PYTHON") or sys.executable


@functools.cache
def devices() -> tuple[int, str]:
    """CUDA devices that this torch can use, and why there are none; asked in a child: this process stays free of CUDA."""
    if python() == sys.executable and importlib.util.find_spec("torch") is None:
        return 0, "no torch in this Python"
    program = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.__version__)"
    try:
        done = subprocess.run([python(), "-c", program], capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, f"torch was not asked: {error}"
    words = done.stdout.split()
    if done.returncode or len(words) < 2:
        return 0, f"no torch that can be imported in {os.path.basename(python())}"
    count = int(words[-2])
    return count, "" if count else f"torch {words[-1]} can use no CUDA device here"


def need(count: int = 1) -> int:
    """Skip where fewer GPUs are there; how many there are."""
    have, why = devices()
    if have < count:
        pytest.skip(why or f"needs {count} GPUs, this machine has {have}", allow_module_level=True)
    return have


@contextlib.contextmanager
def session(environment: Mapping[str, str] | None = None, **options: Any) -> Iterator[Session]:
    """A session of the product in that Python."""
    made = Session(python(), dict(os.environ if environment is None else environment), limits={**LIMITS, **options}, lock=False)
    made.start()
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def faulty() -> Iterator[Session]:
    """A session whose torch is the real one with faults (tests/fakes/faulty_torch), in a folder that root alone can change."""
    with tempfile.TemporaryDirectory(dir="/run" if os.geteuid() == 0 else None) as made:
        os.chmod(made, 0o755)
        shutil.copytree(FAKES / "faulty_torch", made, dirs_exist_ok=True)
        for path in (pathlib.Path(made), *pathlib.Path(made).rglob("*")):
            path.chmod(0o755)
        before = os.pathsep.join(filter(None, (made, os.environ.get("PYTHONPATH"))))
        with session({**os.environ, "PYTHONPATH": before}) as one:
            yield one


def tried(run: Run) -> Run:
    """The run; skips where it did not begin (refused, no torch, no time): then nothing was shown, and nothing refuted."""
    if run.state == "not started":
        pytest.skip(f"the all-reduce did not start: {run.reason}")
    return run


def shared_gpu() -> AllReduce:
    """The plan's experiment for a machine with one GPU: two ranks on it, as two hosts."""
    return plan.first_experiment(TorchFacts(cuda_available=True, nccl_built=True, device_count=1), Intent())


def two_ranks() -> AllReduce:
    """Two ranks as the plan would run them here: a GPU each, or both on the only one."""
    count = min(2, devices()[0])
    return plan.first_experiment(TorchFacts(cuda_available=True, nccl_built=True, device_count=count), Intent())


def nvml() -> list[dict[str, Any]] | str:
    """NVML's devices now, or why it does not tell."""
    host = LiveHost()
    try:
        told = host.ask("ask:nvml")
    finally:
        host.close()
    if not isinstance(told, dict) or not isinstance(told["devices"], list):
        return f"NVML does not tell what is on the GPUs: {told}"
    return [one for one in told["devices"] if isinstance(one, dict)]


def state() -> dict[int, tuple[Any, Any]]:
    """{GPU: (processes, bytes used)} by NVML; the reason where it does not tell."""
    told = nvml()
    if isinstance(told, str):
        pytest.skip(told)
    return {one["index"]: (one.get("processes"), one.get("memory_used")) for one in told}


def as_before(before: Mapping[int, tuple[Any, Any]], seconds: float = 15.0) -> str:
    """Wait until the GPUs are as before: "" then, else what differs.  The driver needs a moment after a process was killed."""
    end = time.monotonic() + seconds
    while True:
        differs = differing(before, state())
        if not differs or time.monotonic() > end:
            return differs
        time.sleep(0.25)


def differing(before: Mapping[int, tuple[Any, Any]], now: Mapping[int, tuple[Any, Any]]) -> str:
    """What is on the GPUs now that was not before; memory that somebody else freed is no difference."""
    out = []
    for index, (processes, used) in before.items():
        processes_now, used_now = now.get(index, (None, None))
        if processes_now != processes:
            out.append(f"GPU {index}: {processes} processes before, {processes_now} now")
        if not isinstance(used, int) or not isinstance(used_now, int):
            if used != used_now:
                out.append(f"GPU {index}: memory {used} before, {used_now} now")
        elif used_now > used + SAME:
            out.append(f"GPU {index}: {(used_now - used) // MIB} MiB more than before")
    return "; ".join(out)


def settle(seconds: float = 5.0) -> None:
    """Wait until NVML's utilisation, which looks back up to a second, no longer shows what ran before."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        told = nvml()
        if isinstance(told, str) or not any(one.get("utilization") for one in told):
            return


def preflight(*options: str, seconds: float = 120.0, **variables: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and stderr of a preflight as the job would run it."""
    settle()
    command = [*NETDOCTOR, "preflight", "--vantage", "job", "--python", python(), "--format", "json", *options]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert "Traceback" not in done.stderr + done.stdout, done.stderr[-2000:]
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout), done.stderr


def finding(report: Mapping[str, Any], check: str, subject: str = "node") -> dict[str, Any]:
    """One finding of a report."""
    found = [f for c in report["checks"] if c["id"] == check for f in c["findings"] if f["subject"] == subject]
    assert found, f"{check} says nothing about {subject}"
    return dict(found[0])


HOG: Final = """
import sys, torch
leave, take = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(0)
torch.zeros(1, device="cuda")
free = lambda: torch.cuda.mem_get_info()[0]
kept = [torch.empty(take, dtype=torch.uint8, device="cuda")]
for chunk in (1 << 30, 1 << 26, 1 << 24):
    while not take and free() >= leave + chunk:
        try:
            kept.append(torch.empty(chunk, dtype=torch.uint8, device="cuda"))
        except RuntimeError:
            break
print(free(), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def hog(*, leave: int = 0, take: int = 0) -> Iterator[int]:
    """Another process that takes GPU 0's memory: all but `leave` bytes, or `take` bytes; gives what is free then."""
    command = [python(), "-c", HOG, str(leave), str(take)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip().isdigit(), "the process that takes the memory did not start"
            yield int(line)
        finally:
            process.kill()
