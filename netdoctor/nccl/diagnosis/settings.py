"""Settings that cost speed and break nothing: peer-to-peer or shared memory switched off, ranks on the wrong CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.causes.cost import MIGHT
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.log.facts import LogFacts


def switches(log: LogFacts) -> Iterator[Hypothesis]:
    """Peer-to-peer or shared memory switched off by a variable while several ranks share a node."""
    if log.nranks == 1 or (log.ranks and log.nodes and log.nranks == log.nodes):
        return
    staged = [t for t in log.transports if t.startswith("SHM")]
    if log.env.get("NCCL_P2P_DISABLE") == "1" and (staged or not log.transports) and not log.workstation:
        yield Hypothesis(
            "p2p_disabled",
            Confidence.QUIET,
            "NCCL_P2P_DISABLE=1: GPUs of a node exchange data through host memory",
            shown=("NCCL_P2P_DISABLE set to 1", *staged[:2]),
            fix=Fix("remove the variable; if jobs hang without it, look for ACS and the IOMMU", ("unset NCCL_P2P_DISABLE",)),
        )
    if log.env.get("NCCL_SHM_DISABLE") == "1" and any(t.startswith("NET") for t in log.transports) and log.many_nodes is False:
        yield Hypothesis(
            "shm_disabled_or_small",
            Confidence.QUIET,
            "NCCL_SHM_DISABLE=1: ranks of one node talk over the network",
            shown=("NCCL_SHM_DISABLE set to 1",),
            fix=Fix("remove the variable and enlarge /dev/shm instead", ("unset NCCL_SHM_DISABLE",)),
            loss=MIGHT,
        )


def _bits(mask: str) -> int:
    return (
        sum(int(p, 16).bit_count() for p in mask.split(",") if re.fullmatch(r"[0-9a-f]{1,16}", p))
        if re.fullmatch(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*", mask)
        else 0
    )


def affinity(log: LogFacts) -> Iterator[Hypothesis]:
    """src/graph/topo.cc, ncclTopoGetCpuAffinity: the GPU's CPUs against those that the process may use."""
    fix = Fix(
        "bind each rank to the NUMA node of its GPU",
        ("srun --gpus-per-task=1 --gpu-bind=closest --cpu-bind=cores …", "numactl --cpunodebind=<node> --membind=<node> …"),
    )
    clash = [(p, g, c) for p in log.ranks for g, c in p.cpu_conflict.items()]
    if clash:
        p, gpu, (mine, theirs) = clash[0]
        yield Hypothesis(
            "numa_affinity",
            Confidence.QUIET,
            f"GPU {gpu} of {p.host or 'this host'} belongs to CPUs {mine}, the process may only use {theirs}",
            shown=(f"Affinity for GPU {gpu} is empty",),
            fix=fix,
            subject=p.host or None,
        )
    squeezed: dict[tuple[str, str], set[int]] = {}
    for p in log.ranks:
        for gpu, mask in p.affinity.items():
            if _bits(mask) == 1:
                squeezed.setdefault((p.host, mask), set()).add(gpu)
    for (host, mask), gpus in squeezed.items():
        if len(gpus) > 1:
            yield Hypothesis(
                "numa_affinity",
                Confidence.QUIET_MINUS,
                f"{len(gpus)} ranks of {host or 'one host'} share one CPU (mask {mask})",
                shown=(f"Setting affinity for GPU {min(gpus)} to {mask}",),
                fix=fix,
                subject=host or None,
            )
            return


RULES = (switches, affinity)
