"""What only several GPUs can show: the transports of one node, NVLS, bandwidth against the limits, every pair."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import pytest

from netdoctor.allreduce import limits, plan
from netdoctor.allreduce.runner import Session
from netdoctor.facts import gpu, pci, rdma
from netdoctor.facts.layers import MAX_RANKS
from netdoctor.facts.registry import there
from netdoctor.facts.runs import AllReduce, Baseline, Path, Run
from netdoctor.host.live import LiveHost
from netdoctor.model import Unavailable
from netdoctor.nccl.log.parser import parse_text
from netdoctor.snapshot.snapshot import with_logs
from tests.support.machines import gpus

pytestmark = [pytest.mark.live, pytest.mark.gpu]
COUNT = gpus.need(2)
Note = Callable[[str, object], None]
EVERY = tuple(range(min(COUNT, MAX_RANKS)))
BIG = 256 << 20
# NVLS sums in the switch, so the bus bandwidth of the ring's formula passes a ring's limit: 475 of 370 GB/s on 8 H200
# (https://github.com/NVIDIA/nccl-tests/issues/272).
WITH_NVLS = 1.35


def right(gpu_session: Session, experiment: AllReduce, record: Note) -> Run:
    run: Run = with_logs(Baseline(gpus.tried(gpu_session.run(experiment)), True)).run
    log = parse_text(run.log_text)
    record("transports", dict(log.transports))
    record("nvls", log.nvls)
    record("busbw_gb_s", {size: round(rate, 2) for size, rate in run.busbw.items()})
    assert (run.state, run.verified) == ("finished", True), (run.state, run.reason)
    return run


def kinds(run: Run) -> set[str]:
    return {via.transport for via in parse_text(run.log_text).vias}


def forced(*changes: tuple[str, str]) -> AllReduce:
    return AllReduce("nccl", len(EVERY), "cuda", (4096, BIG), (*changes, ("NCCL_NVLS_ENABLE", "0")), gpus=EVERY)


def test_the_default_path(gpu_session: Session, record_property: Note) -> None:
    run = right(gpu_session, AllReduce("nccl", len(EVERY), "cuda", plan.CUDA_SIZES, gpus=EVERY), record_property)
    assert kinds(run) and kinds(run) <= {"P2P", "SHM"}


def test_shm_forced(gpu_session: Session, record_property: Note) -> None:
    assert kinds(right(gpu_session, forced(("NCCL_P2P_DISABLE", "1")), record_property)) == {"SHM"}


def test_net_forced(gpu_session: Session, record_property: Note) -> None:
    experiment = AllReduce(
        "nccl", len(EVERY), "cuda", plan.PATH_SIZES, plan.NETWORK_ONLY, path=Path.parse("inter-node"), gpus=EVERY
    )
    assert kinds(right(gpu_session, experiment, record_property)) == {"NET"}


def test_nvls(gpu_session: Session, record_property: Note) -> None:
    run = right(gpu_session, AllReduce("nccl", len(EVERY), "cuda", (4096, BIG), gpus=EVERY), record_property)
    if parse_text(run.log_text).nvls is not True:
        pytest.skip("NCCL's log says that NVLS is not available on these GPUs")
    off = right(gpu_session, forced(), record_property)
    assert parse_text(off.log_text).nvls is not True
    record_property("with_nvls_over_without", round(run.busbw[BIG] / off.busbw[BIG], 3))


def test_busbw_is_below_the_limit_and_near_it(gpu_session: Session, record_property: Note) -> None:
    run = right(gpu_session, AllReduce("nccl", len(EVERY), "cuda", plan.CUDA_SIZES, gpus=EVERY), record_property)
    host = LiveHost()
    try:
        limit = limits.path_limit(run, gpu.probe(host), there("Pci", pci.probe(host)), rdma.probe(host))
    finally:
        host.close()
    if isinstance(limit, Unavailable):
        pytest.skip(f"no limit is known for this path: {limit}")
    rate = run.busbw[max(run.busbw)]
    record_property("limit_gb_s", round(limit.rate, 1))
    record_property("share", round(rate / limit.rate, 3))
    most = WITH_NVLS if parse_text(run.log_text).nvls else 1.05
    assert rate <= most * limit.rate
    _, report, _ = gpus.preflight("--only", "allreduce.run,allreduce.bandwidth", "--quiet")
    assert gpus.finding(report, "allreduce.bandwidth")["status"] != "fail"


def test_every_pair(gpu_session: Session, record_property: Note) -> None:
    """Each pair of GPUs by itself, as many as fit the time: those that do not are named."""
    end = time.monotonic() + min(90.0, float(os.environ.get("GPU_PROOF_SECONDS", "90")) / 2)
    measured, left = {}, []
    for pair in itertools.combinations(EVERY, 2):
        if time.monotonic() > end:
            left.append(pair)
            continue
        run = gpus.tried(gpu_session.run(AllReduce("nccl", 2, "cuda", (BIG,), gpus=pair)))
        assert (run.state, run.verified) == ("finished", True), (pair, run.reason)
        measured[f"{pair[0]}-{pair[1]}"] = f"{'+'.join(sorted(kinds(run)))} {run.busbw[BIG]:.1f} GB/s"
    record_property("pairs", measured)
    if left:
        record_property("not_measured", left)
        pytest.skip(f"{len(measured)} pairs measured, no time for {len(left)} more")
