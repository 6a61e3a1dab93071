"""torch.backend: who carries CUDA tensors, and when that cannot be told."""

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.allreduce_bandwidth import allreduce_bandwidth
from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.checks.torch_backend import torch_backend
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.library_search import JobPython
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import Baseline, PathRun, Run, TorchFacts
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Status, Unavailable
from tests.support.facts import baseline, gloo_run, gpus, judge, libraries, machine, only, outside, pci, run, torch

NONE = Unavailable("absent")
CPU_ONLY = {"backends": {"cpu": "gloo"}, "backends_nccl": {}, "cuda_available": False}
OURS = JobPython("/x/.venv/bin/python", "VIRTUAL_ENV", True)
GIVEN = JobPython("/x/bin/python", "--python", False, True)


@pytest.mark.parametrize(
    ("facts", "status", "cause"),
    [
        ({}, Status.PASS, None),
        # what carries CUDA tensors
        ({Baseline: baseline(run(backends={"cpu": "gloo", "cuda": "gloo"}))}, Status.FAIL, None),
        ({Baseline: baseline(run(backends_nccl={"cuda": "ucc"}))}, Status.FAIL, None),
        ({Baseline: baseline(run(backends={"cuda": "ProcessGroupFoo (nccl)"}))}, Status.UNKNOWN, None),
        ({Baseline: baseline(run(backends_nccl={"cuda": "ProcessGroupFoo (nccl)"}))}, Status.UNKNOWN, None),
        ({Baseline: baseline(run(backends={"cpu": "gloo"}))}, Status.UNKNOWN, None),
        ({Baseline: baseline(run(backends={}))}, Status.UNKNOWN, None),
        ({Baseline: baseline(run(torch=TorchFacts(nccl_built=False)))}, Status.FAIL, None),
        # CUDA cannot be used
        ({Baseline: baseline(run(**CPU_ONLY))}, Status.FAIL, "cuda_driver_mismatch"),
        ({Baseline: baseline(run(cuda_available=None))}, Status.UNKNOWN, None),
        ({Baseline: Unavailable("refused")}, Status.UNKNOWN, None),
        # a CPU build
        ({Libraries: libraries(torch=torch(version="2.13.0+cpu", cuda=None))}, Status.FAIL, None),
        ({Libraries: libraries(torch=torch(cuda=None)), Baseline: Unavailable("refused")}, Status.FAIL, None),
        ({Libraries: libraries(torch=torch(cuda=NONE))}, Status.PASS, None),
        # whose torch
        ({Libraries: libraries(python=OURS, torch=torch(cuda=None))}, Status.UNKNOWN, None),
        ({Libraries: libraries(torch=NONE)}, Status.UNKNOWN, None),
        ({Libraries: libraries(python=NONE)}, Status.UNKNOWN, None),
        ({Libraries: NONE}, Status.UNKNOWN, None),
        ({Vantage: outside()}, Status.UNKNOWN, None),
        ({Vantage: outside(), Libraries: libraries(torch=torch(cuda=None))}, Status.UNKNOWN, None),
        ({Vantage: outside(), Libraries: libraries(python=GIVEN)}, Status.PASS, None),
        # accelerators
        ({Pci: pci(0, 0), Gpus: gpus(0, all=NONE, visible=NONE)}, Status.SKIP, None),
        ({Pci: pci(0, 0), Gpus: gpus(0)}, Status.SKIP, None),
        ({Pci: Unavailable("denied"), Gpus: gpus(0, all=NONE, visible=NONE)}, Status.UNKNOWN, None),
        ({Pci: pci(0, 0), Gpus: gpus(0, all=Unavailable("crashed"), visible=NONE)}, Status.UNKNOWN, None),
        ({Pci: pci(0, 0, unclassified=("0000:01:00.0",)), Gpus: gpus(0, all=NONE, visible=NONE)}, Status.UNKNOWN, None),
        ({Pci: pci(0, 0, foreign_accelerators=("AMD (0000:c1:00.0)",)), Gpus: gpus(0, all=NONE)}, Status.SKIP, None),
        ({Pci: pci(0, 0, foreign_accelerators=NONE), Gpus: gpus(0, all=NONE)}, Status.UNKNOWN, None),
        ({Gpus: gpus(visible=())}, Status.UNKNOWN, None),  # hidden by CUDA_VISIBLE_DEVICES
        ({Gpus: gpus(0, all=NONE, visible=NONE)}, Status.UNKNOWN, None),  # a container without GPUs on a node with them
        ({Gpus: gpus(visible=NONE), Baseline: baseline(run(**CPU_ONLY))}, Status.FAIL, "cuda_driver_mismatch"),
    ],
)
def test_table(facts: dict[type, object], status: Status, cause: str | None) -> None:
    found = only(judge(torch_backend, machine() | facts))
    assert (found.status, found.cause) == (status, cause), found


def test_torchs_own_words_are_shown() -> None:
    said = TorchFacts(cuda_warning="UserWarning: CUDA initialization: driver too old")
    found = only(judge(torch_backend, machine() | {Baseline: baseline(run(**CPU_ONLY, torch=said))}))
    assert found.measured == {"torch_says": said.cuda_warning}


def test_a_torch_without_cpu_backend_passes_with_a_note() -> None:
    assert only(judge(torch_backend, machine())).notes
    both = {"cpu": "gloo", "cuda": "nccl"}
    assert not only(judge(torch_backend, machine() | {Baseline: baseline(run(backends=both))})).notes


def test_a_gloo_run_of_an_unasked_cuda_torch_is_unknown() -> None:
    given = replace(gloo_run(), cuda_available=None)
    assert only(judge(torch_backend, machine() | {Baseline: baseline(given)})).status is Status.UNKNOWN


FAILED = TorchFacts(backends_error="RuntimeError: no FileStore", backends_nccl_error="RuntimeError: no NCCL")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            run(cuda_available=None, torch=TorchFacts(error="ImportError: libcudart"), reason="gone"),
            "use CUDA: ImportError: libcudart",
        ),
        (run(cuda_available=None, reason="the rank program ended"), "use CUDA: the rank program ended"),
        (run(cuda_available=None), "use CUDA: it did not answer"),
        # asked without a backend
        (run(backends={}, torch=FAILED), "passes no backend is not known: RuntimeError: no FileStore"),
        (run(backends={"cpu": "gloo"}), "passes no backend is not known: no backend for CUDA tensors"),
        (run(backends={}), "passes no backend is not known: it did not answer"),
        # asked with "nccl"
        (run(backends_nccl={}, torch=FAILED), 'passes "nccl" is not known: RuntimeError: no NCCL'),
        (run(backends_nccl={}), 'passes "nccl" is not known: it did not answer'),
    ],
)
def test_why_it_is_not_known(given: Run, words: str) -> None:
    found = only(judge(torch_backend, machine() | {Baseline: baseline(given)}))
    assert found.status is Status.UNKNOWN and found.message.endswith(words), found.message


@pytest.mark.parametrize("check", [torch_backend, allreduce_run, allreduce_bandwidth])
def test_a_run_on_this_node_is_what_is_missing(check: Any) -> None:
    """``netdoctor allreduce`` waits for other nodes; preflight is the command that makes this run."""
    (found,) = judge(check, machine() | {Baseline: Unavailable("no budget"), PathRun: Unavailable("no budget")})
    assert (found.status, found.how) == (Status.UNKNOWN, "netdoctor preflight, with the all-reduce")


@pytest.mark.parametrize(("why", "words"), [("seen as root", "seen as root: "), ("", "seen outside the job: ")])
def test_whose_python_it_is(why: str, words: str) -> None:
    found = only(judge(torch_backend, machine() | {Vantage: outside(why_not=why)}))
    assert found.message == f"{words}/opt/venv/bin/python3 need not be the job's Python"


@pytest.mark.parametrize(
    ("answers", "tried"),
    [
        ({"backends": {"cuda": "gloo"}}, "gloo"),
        ({"backends": {"cuda": "ucc"}}, None),
        ({"backends_nccl": {"cuda": "gloo"}}, None),
    ],
)
def test_nccl_by_its_name_is_tried_against_gloo(answers: dict[str, Any], tried: str | None) -> None:
    (found,) = judge(torch_backend, machine({Baseline: baseline(run(**answers))}))
    assert found.status is Status.FAIL
    cure = found.cure
    assert (cure and (cure.change.backend, cure.baseline.backend)) == (("nccl", tried) if tried else None)
