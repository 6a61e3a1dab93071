"""All-reduces, and what nodes told each other."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from netdoctor.cluster.observations import Cluster, Nodes, Proof, Ready
from netdoctor.compare.clocks import Clock
from netdoctor.compare.traits import Family, Trait, Traits
from netdoctor.facts.runs import AllReduce, Baseline, CommonRun, Path, PathRun, RankResult, Run
from netdoctor.nccl.log.facts import Direction, LogFacts, Via
from tests.support.facts.software import LIBNCCL


def rank(number: int, **changes: Any) -> RankResult:
    near = frozenset(range(56)) | frozenset(range(112, 168))
    every = tuple(sorted(near if number < 4 else frozenset(range(224)) - near))
    base = RankResult(
        number, "done", exit=0, seconds={1 << 26: 0.001}, mapped=(LIBNCCL,), affinity=every, thread_affinity=every
    )
    return replace(base, **changes)


def run(count: int = 8, /, **changes: Any) -> Run:
    """A finished NCCL all-reduce with one rank per GPU."""
    base = Run(
        experiment=AllReduce("nccl", count, "cuda", gpus=tuple(range(count))),
        state="finished",
        verified=True,
        ranks=tuple(rank(i) for i in range(count)),
        busbw={1 << 26: 360.0},
        latency={1 << 12: 25e-6},
        log=log(),
        backends={"cuda": "nccl"},
        backends_nccl={"cuda": "nccl"},
        torch_version="2.9.1+cu129",
        nccl_version="2.27.5",
        cuda_available=True,
        mapped=(LIBNCCL,),
        system_cpu_per_gb=0.001,
    )
    return replace(base, **changes)


def gloo_run(**changes: Any) -> Run:
    """Two Gloo ranks on a machine without an accelerator."""
    return replace(
        run(2),
        **{
            "experiment": AllReduce("gloo", 2),
            "log": None,
            "backends": {"cpu": "gloo"},
            "backends_nccl": {},
            "torch_version": "2.13.0+cpu",
            "nccl_version": "",
            "cuda_available": False,
            "mapped": (),
            "ranks": tuple(rank(i, mapped=()) for i in range(2)),
            "busbw": {1 << 26: 1.4},
            **changes,
        },
    )


def log(**fields: Any) -> LogFacts:
    """A parsed NCCL log."""
    return LogFacts(**{"library": "NCCL", "nccl_version": "2.27.5", **fields})


def via(src: int = 0, dst: int = 1, direction: str = "send", gdrdma: bool = True, **changes: Any) -> Via:
    """``Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA``"""
    return replace(Via(src, dst, Direction(direction), "NET", "IB", 0, gdrdma), **changes)


def hca_run(gpu: int = 0, peer: int = 1, hca: str = "mlx5_0:1", gdrdma: bool = True, **changes: Any) -> Run:
    """The inter-node path through one HCA port: two ranks on two GPUs."""
    both = tuple(via(s, d, way, gdrdma) for s, d in ((0, 1), (1, 0)) for way in ("send", "receive"))
    experiment = AllReduce("nccl", 2, "cuda", path=Path.parse(f"inter-node {hca}"), gpus=(gpu, peer))
    fields = {"experiment": experiment, "log": log(net="IB", network="IB", vias=both)}
    return replace(run(2), **{**fields, **changes})


def baseline(one: Run | None = None, **changes: Any) -> Baseline:
    return replace(Baseline(one or run(), True), **changes)


def path_run(*runs: Run) -> PathRun:
    return PathRun(runs)


def common_run(one: Run, told: str = "", told_cause: str = "") -> CommonRun:
    """`one` as a run of several nodes."""
    return CommonRun(**{f.name: getattr(one, f.name) for f in fields(one)}, told=told, told_cause=told_cause)


TRAITS = Traits({Trait(Family.TORCH): "2.9"}, variables_read=True)


def cluster(count: int = 2, /, **changes: Any) -> Cluster:
    """As node 0 knows it: every node came, each reached the others, and they ran one all-reduce of a Gloo rank a node."""
    everybody = range(count)
    base = Cluster(
        Nodes(count, 0, "h0", 29400),
        {n: f"h{n}" for n in everybody},
        {n: f"10.0.0.{n}" for n in everybody},
        reach={a: {b: None for b in everybody if b != a} for a in everybody},
        ready={n: Ready(1, "gloo", traits=TRAITS, clock=Clock(0.0, 1e-4)) for n in everybody},
        proof=Proof.TOKEN,
        first_ranks={n: n for n in everybody},
        run=common_run(gloo_run(experiment=AllReduce("gloo", count), ranks=tuple(rank(n, mapped=()) for n in everybody))),
    )
    return replace(base, **changes)
