"""Real NCCL all-reduces: needs an NVIDIA GPU and a CUDA build of torch in this Python."""

import os
from dataclasses import replace

import pytest

from netdoctor.allreduce import plan
from netdoctor.allreduce.runner import Session
from netdoctor.facts.intent import Intent
from netdoctor.facts.runs import AllReduce, TorchFacts
from netdoctor.nccl.log.parser import parse_text
from tests.support.machines import gpus

pytestmark = [pytest.mark.live, pytest.mark.gpu]


COUNT = gpus.need()


def test_torch_tells_nccl(gpu_session: Session) -> None:
    facts = gpu_session.facts()
    assert isinstance(facts, TorchFacts)
    assert facts.cuda_available
    assert facts.device_count == COUNT
    assert facts.nccl
    assert facts.backends["cuda"] == "nccl"
    assert facts.backends_nccl["cuda"] == "nccl"


def test_the_baseline_finishes_and_its_data_is_right(gpu_session: Session) -> None:
    run = gpu_session.run(plan.first_experiment(gpu_session.facts(), Intent()))
    assert (run.state, run.verified) == ("finished", True), run
    assert run.mapped or run.nccl_version  # no file is mapped where NCCL is linked into torch
    log = parse_text(run.log_text)
    assert log.nccl_version
    assert log.vias, run.log_text
    assert log.comms_complete == run.experiment.ranks


def test_the_path_between_nodes_is_net(gpu_session: Session) -> None:
    (experiment,) = plan.path_experiments(COUNT, {})
    run = gpu_session.run(experiment)
    assert (run.state, run.verified) == ("finished", True), run
    assert {via.transport for via in parse_text(run.log_text).vias} == {"NET"}


def test_two_ranks_on_one_gpu_are_refused_by_nccl_and_named(gpu_session: Session) -> None:
    run = gpu_session.run(AllReduce("nccl", 2, "cuda", (4096,), gpus=(0, 0)))
    assert run.state == "failed"
    assert run.blamed


def test_events_and_a_bare_loop_agree(gpu_session: Session) -> None:
    """Timed by events (fast path) and one by one (slow path): the same order of magnitude."""
    if COUNT < 2:
        pytest.skip("needs two GPUs")
    first = plan.first_experiment(gpu_session.facts(), Intent())
    fast = gpu_session.run(replace(first, sizes=(1 << 26,)))
    assert 1 < fast.busbw[1 << 26] < 2000


def test_cuda_is_not_touched_before_the_fork(gpu_session: Session) -> None:
    assert gpu_session._worker is not None
    with open(f"/proc/{gpu_session._worker.zygote}/maps") as maps:
        assert "/dev/nvidia" not in maps.read()
    assert not [
        fd
        for fd in os.listdir(f"/proc/{gpu_session._worker.zygote}/fd")
        if os.readlink(f"/proc/{gpu_session._worker.zygote}/fd/{fd}").startswith("/dev/nvidia")
    ]
