"""rdma.gpudirect on EFA, whose plugin names no device in NCCL's log: what a connection of a GPU proves there."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import AllReduce, Path, PathRun
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.log.facts import NetDevice
from tests.support import facts as f

EFAS = f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(8)))
MIXED = f.rdma(devices=(*(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(7)), f.hca(7)))


def run(send: bool = True, receive: bool = True, detail: str = "Libfabric", **log: Any) -> PathRun:
    """Two ranks on GPUs 0 and 1, as the plan has it where NCCL's own InfiniBand transport does not carry the data."""
    vias = [f.via(s, 1 - s, way, yes, detail=detail) for s in (0, 1) for way, yes in (("send", send), ("receive", receive))]
    experiment = AllReduce("nccl", 2, "cuda", path=Path.parse("inter-node"), gpus=(0, 1))
    return f.path_run(f.hca_run(experiment=experiment, log=f.log(network=detail, vias=tuple(vias), **log)))


def found(changes: dict[type, object]) -> list[Finding]:
    return f.judge(gpudirect_rdma, f.machine({Rdma: EFAS, PathRun: run(), **changes}))


def test_gpus_that_the_run_used_are_proven_and_no_others() -> None:
    assert [one.status for one in found({})] == [Status.PASS] * 2 + [Status.UNKNOWN] * 6


@pytest.mark.parametrize(
    "changes",
    [
        {Rdma: MIXED},  # it may have been the other device
        {PathRun: run(devices=(NetDevice("mlx5_0", 1, "IB"),))},  # the log names devices, and this one is not among them
        {PathRun: run(detail="IB")},
        {PathRun: run(detail="Socket")},
        {PathRun: f.path_run()},
    ],
)
def test_nothing_is_proven_where_another_device_may_carry_data(changes: dict[type, object]) -> None:
    assert found(changes)[0].status is Status.UNKNOWN


STAGED = run(False, False)


def test_staged_on_a_gpu_of_gpudirect_instances() -> None:
    assert [one.status for one in found({PathRun: STAGED})] == [Status.FAIL] * 2 + [Status.UNKNOWN] * 6


@pytest.mark.parametrize(
    "changes",
    [
        {Environ: f.environ({"NCCL_NET_GDR_LEVEL": "LOC"})},
        {Environ: f.environ({"NCCL_NET_GDR_READ": "0"})},
        {Environ: f.environ(nccl=Unavailable("denied"))},
        {Gpus: f.gpus(1, all=(f.gpu(0),))},  # p5.4xlarge: one H100, an EFA, no GPUDirect RDMA
    ],
)
def test_staged_is_no_fault_where_something_else_may_decide(changes: dict[type, object]) -> None:
    assert found({PathRun: STAGED, **changes})[0].status is Status.UNKNOWN
