"""A whole preflight of a job without torch on the machine that is not there: facts, all-reduces, checks, verdict.

The driver is a fake: what NCCL decides is real, how long it takes means nothing.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakegpu import build, doctor, machine, namespace
from tests.support.machines import ways

pytestmark = [
    pytest.mark.live,
    pytest.mark.nccl,
    pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-"),
]


@pytest.fixture(scope="module")
def job() -> Iterator[pathlib.Path]:
    """A Python without torch, whose packages have NCCL's wheel, as JAX's have."""
    with doctor.job(ways.real().parts[-5]) as python:
        library = next(python.parents[1].glob("lib/*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
        real = library.resolve()
        library.unlink()
        shutil.copyfile(real, library)  # a test changes who may write it
        yield python


def preflight(
    job: pathlib.Path | None, *options: str, variables: dict[str, str] | None = None, **changes: Any
) -> dict[str, Any]:
    one = machine.read("one-gpu").on_one_node().with_changes(changes)
    return doctor.preflight(one, job, doctor.Around(env=variables or {}, options=options)).data


def found(report: dict[str, Any], id: str, subject: str = "") -> dict[str, Any]:
    (check,) = (one for one in report["checks"] if one["id"] == id)
    return next(one for one in check["findings"] if one["subject"] == (subject or one["subject"]))


def test_a_job_without_torch_is_proven_by_its_own_nccl(job: pathlib.Path) -> None:
    report = preflight(job)
    fails = [(c["id"], f["message"]) for c in report["checks"] for f in c["findings"] if f["status"] == "fail"]
    assert not [one for one in fails if "memlock" not in one[1]]
    run = found(report, "allreduce.run")
    assert run["status"] == "pass" and " without torch, 2 ranks on one GPU" in run["message"], run
    assert report["runs"][0]["via"] == "nccl" and report["runs"][0]["nccl"]
    assert f"from {job.parents[1]}/lib/" in found(report, "nccl.version", "loaded")["message"]
    assert found(report, "torch.backend")["status"] == "unknown"


@pytest.mark.parametrize(
    ("fault", "phase", "text"),
    [
        ("cuDevicePrimaryCtxRetain 1+ 2", "device", "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        ("cuStreamCreate 1+ 719", "device", "cuStreamCreate: CUDA_ERROR_LAUNCH_FAILED"),
        (
            "kernel 1 719",
            "first",
            "ncclAllReduce: ncclUnhandledCudaError: .*unspecified launch failure|cuStreamQuery: CUDA_ERROR_LAUNCH",
        ),
    ],
)
def test_what_the_driver_refuses_has_a_phase_and_a_reason(job: pathlib.Path, fault: str, phase: str, text: str) -> None:
    report = preflight(job, "--only", "allreduce.run", faults=[fault])
    (run, *_) = report["volatile"]["runs"]
    assert re.search(f"in phase {phase}: ({text})", run["reason"]), run["reason"]
    assert found(report, "allreduce.run")["status"] in ("fail", "unknown")


def test_a_driver_that_fails_is_told_in_its_words(job: pathlib.Path) -> None:
    report = preflight(job, "--only", "allreduce.run", faults=["cuInit 1+ 802"])
    run = found(report, "allreduce.run")
    assert (run["status"], run["cause"]) == ("fail", "fabric_manager")
    assert "cuInit: CUDA_ERROR_SYSTEM_NOT_READY" in run["message"], run


def test_torch_alone_says_what_it_said_before(job: pathlib.Path) -> None:
    run = found(preflight(job, "--only", "allreduce.run", "--via", "torch"), "allreduce.run")
    assert run["status"] == "unknown" and "No module named 'torch'" in run["message"]


def test_a_job_without_any_python_has_its_libnccl(job: pathlib.Path) -> None:
    """A C++ program: only the loader tells."""
    folder = next(job.parents[1].glob("lib/*/site-packages/nvidia/nccl/lib"))
    variables = {"PATH": "/nonexistent", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    paths = os.pathsep.join((*map(str, build.libraries()), str(folder)))
    run = found(preflight(None, "--only", "allreduce.run", variables={**variables, "LD_LIBRARY_PATH": paths}), "allreduce.run")
    assert run["status"] == "pass" and " without torch" in run["message"], run
    run = found(preflight(None, "--only", "allreduce.run", variables=variables), "allreduce.run")
    assert run["status"] == "unknown" and "no --python, VIRTUAL_ENV" in run["message"], run
