"""Faults on a real GPU: each verdict right, and nothing left on the GPU.  Needs an NVIDIA GPU and a CUDA build of torch."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.allreduce.cause import out_of_memory
from netdoctor.allreduce.runner import Session
from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.facts.job import Expected
from netdoctor.facts.runs import AllReduce, Baseline, Run
from netdoctor.model import Finding, Status
from tests.support.facts import judge
from tests.support.machines import gpus

pytestmark = [pytest.mark.live, pytest.mark.gpu]
gpus.need()
Note = Callable[[str, object], None]
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def before() -> dict[int, tuple[Any, Any]]:
    """The GPUs before the first fault."""
    return gpus.state()


@pytest.fixture(scope="module")
def faulty() -> Iterator[Session]:
    with gpus.faulty() as made:
        yield made


@pytest.fixture(scope="module")
def plain() -> Iterator[Session]:
    with gpus.session() as made:
        assert made.facts()  # torch is imported before anything takes the GPU's memory
        yield made


HIDDEN = {"empty": "", "number": "99", "uuid": "GPU-00000000-0000-0000-0000-000000000000"}


@pytest.fixture(scope="module")
def hidden() -> dict[str, tuple[int, dict[str, Any], str]]:
    """Preflights of jobs that see no GPU; none of them uses one, so all at once."""

    def look(value: str) -> tuple[int, dict[str, Any], str]:
        return gpus.preflight("--only", "allreduce.run,torch.backend", "--quiet", CUDA_VISIBLE_DEVICES=value)

    with ThreadPoolExecutor(len(HIDDEN)) as pool:
        return dict(zip(HIDDEN, pool.map(look, HIDDEN.values()), strict=True))


def planted(fault: str, rank: int = 1) -> AllReduce:
    """Two ranks, one of them with a fault (tests/fakes/faulty_torch)."""
    experiment = gpus.two_ranks()
    own = experiment.rank_env or ((),) * experiment.ranks
    return replace(
        experiment,
        sizes=(4096, gpus.MIB),
        rank_env=tuple((*more, ("TORCH_FAULT", fault)) if number == rank else more for number, more in enumerate(own)),
    )


def verdict(run: Run) -> Finding:
    return judge(allreduce_run, {Baseline: Baseline(run, True), Expected: Expected()})[0]


@pytest.mark.parametrize("phase", ["init", "timed"])
def test_a_killed_rank_is_named(faulty: Session, before: dict[int, Any], phase: str, record_property: Note) -> None:
    run = gpus.tried(faulty.run(planted(f"{phase}:kill")))
    record_property("reason", run.reason)
    record_property("seconds", round(run.seconds, 1))
    assert (run.state, run.blamed, run.abandoned) == ("failed", (1,), ()), (run.state, run.reason)
    assert "ended by SIGKILL" in run.reason and f"phase {phase}" in run.reason
    assert verdict(run).status is Status.FAIL
    assert gpus.as_before(before) == ""


def test_a_stopped_rank_is_a_hang(before: dict[int, Any], record_property: Note) -> None:
    with gpus.faulty() as made:
        made._limits["timed"] = made._limits["first"] = 6.0
        run = gpus.tried(made.run(planted("timed:stop")))
    record_property("reason", run.reason)
    record_property("seconds", round(run.seconds, 1))
    assert (run.state, run.blamed, run.abandoned) == ("hung", (1,), ()), (run.state, run.reason)
    # Two ranks on one GPU may wait for each other's time slice, so there it is no fail.
    shared = len(set(run.experiment.gpus)) == 1
    assert verdict(run).status is (Status.UNKNOWN if shared else Status.FAIL)
    assert gpus.as_before(before) == ""


def test_a_rank_that_raises_is_named(faulty: Session, before: dict[int, Any]) -> None:
    run = gpus.tried(faulty.run(planted("timed:raise")))
    assert (run.state, run.blamed) == ("failed", (1,)), (run.state, run.reason)
    assert "planted failure" in run.reason and "file.cpp" not in run.reason
    assert gpus.as_before(before) == ""


@pytest.mark.parametrize("left", [64 * gpus.MIB, 3072 * gpus.MIB], ids=["context", "buffers"])
def test_out_of_memory_is_not_the_nodes_fault(plain: Session, before: dict[int, Any], left: int, record_property: Note) -> None:
    # "context": no room for a CUDA context.  "buffers": room for it, none for the buffers of the all-reduce.
    sizes = (4096, 4 << 30) if left > 1 << 30 else (4096,)
    with gpus.hog(leave=left) as free:
        run = gpus.tried(plain.run(replace(gpus.ONE, sizes=sizes)))
    record_property("free_mib", free // gpus.MIB)
    record_property("error", run.ranks[0].error if run.ranks else run.reason)
    assert run.state == "failed" and out_of_memory(run), (run.state, run.reason)
    assert verdict(run).status is Status.UNKNOWN
    assert gpus.as_before(before) == ""


def test_a_busy_gpu_is_left_alone(before: dict[int, Any], record_property: Note) -> None:
    with gpus.hog(take=512 * gpus.MIB):
        code, report, _ = gpus.preflight("--only", "allreduce.run,torch.backend", "--quiet")
    found = gpus.finding(report, "allreduce.run")
    record_property("message", found["message"])
    record_property("exit", code)
    assert found["status"] == "unknown" and "in use" in found["message"]
    assert code == 4
    assert gpus.as_before(before) == ""


@pytest.mark.parametrize("name", ["empty"])
def test_an_empty_cuda_visible_devices(hidden: dict[str, Any], name: str, record_property: Note) -> None:
    _sees_no_gpu(hidden[name], record_property)


@pytest.mark.parametrize("name", ["number", "uuid"])
def test_a_wrong_cuda_visible_devices(hidden: dict[str, Any], name: str, record_property: Note) -> None:
    _sees_no_gpu(hidden[name], record_property)


def _sees_no_gpu(told: tuple[int, dict[str, Any], str], record_property: Note) -> None:
    code, report, _ = told
    run, backend = (gpus.finding(report, name) for name in ("allreduce.run", "torch.backend"))
    record_property("exit", code)
    record_property("allreduce.run", f"{run['status']}: {run['message']}")
    record_property("torch.backend", f"{backend['status']}: {backend['message']}")
    assert run["status"] in ("unknown", "fail") and backend["status"] in ("unknown", "fail")
    assert code in (3, 4)


def test_another_libnccl_by_preload(plain: Session, record_property: Note) -> None:
    usual = gpus.tried(plain.run(gpus.ONE))
    assert usual.finished, usual.reason
    if not usual.mapped:
        pytest.skip("NCCL is linked into torch: no file to copy")
    folder = ROOT / "build" / "gpu-proof" / "preload"
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "libnccl.so.2"
    try:
        shutil.copyfile(usual.mapped[0], copy)
        copy.chmod(0o755)
        run = plain.run(replace(gpus.ONE, env=(("LD_PRELOAD", str(copy)),), fresh_import=True))
        assert run.finished, run.reason
        assert str(copy) in run.mapped
        _, report, _ = gpus.preflight("--only", "nccl.version,allreduce.run", "--quiet", LD_PRELOAD=str(copy))
    finally:
        shutil.rmtree(folder)
    found = gpus.finding(report, "nccl.version", "loaded")
    record_property("mapped", len(run.mapped))
    record_property("nccl.version", f"{found['status']}: {found['message']}; {found['notes']}".replace(str(ROOT), "…"))
    assert str(copy) in json.dumps(found)


def test_an_interrupted_preflight_leaves_nothing(before: dict[int, Any], record_property: Note) -> None:
    command = [*gpus.NETDOCTOR, "preflight", "--vantage", "job", "--python", gpus.python(), "--format", "json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=dict(os.environ), **pipes) as process:  # type: ignore[call-overload]
        watchdog = threading.Timer(90.0, process.kill)
        watchdog.start()
        try:
            for line in process.stderr:
                if "all-reduce" in line:
                    break
            end = time.monotonic() + 30.0
            while gpus.differing(before, gpus.state()) == "" and process.poll() is None and time.monotonic() < end:
                pass  # each look at NVML takes a while by itself
            caught = process.poll() is None
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate()
        finally:
            watchdog.cancel()
            process.kill()
    record_property("exit", process.returncode)
    if not caught:
        pytest.skip("the preflight was done before a rank was seen on the GPU")
    assert process.returncode == 143, err[-1000:]
    assert json.loads(out)["partial"]
    assert gpus.as_before(before) == ""


def test_nothing_is_left_on_the_gpu(before: dict[int, Any], record_property: Note) -> None:
    differs = gpus.as_before(before)
    record_property("before", before)
    record_property("after", gpus.state())
    assert differs == ""
