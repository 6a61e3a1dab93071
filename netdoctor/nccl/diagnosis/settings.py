"""Settings: a network that is asked for and not there; peer-to-peer or shared memory switched off, ranks on the wrong CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.causes.cost import MIGHT, STOPS
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.log.facts import LogFacts
from netdoctor.nccl.log.wordings import Wording

_NO_START = "the job does not start"
_ASKED = Fix(
    "see what NCCL_NET asks for: install that plugin with all its libraries, or let NCCL choose",
    ("echo $NCCL_NET $NCCL_NET_PLUGIN $LD_LIBRARY_PATH", "ldd libnccl-net.so", "unset NCCL_NET   # on one node: sockets do"),
)
_ASKED_RDMA = Fix(
    "without RDMA adapters let NCCL choose; with them, map them where the job runs",
    ("unset NCCL_NET   # nothing else forbids sockets", "ls /sys/class/infiniband /dev/infiniband; ibv_devinfo"),
    ("docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1:-1 …", "resources.limits: {rdma/hca: 1}"),
)


def none_initialised(log: LogFacts) -> Iterator[Hypothesis]:
    """src/plugin/net.cc: no network is left; src/transport.cc: no transport between two ranks."""
    for e in log.above_info("net_none")[:1]:
        if Wording.NO_NET_AT_ALL.within(e.text):
            # Sockets are left out only where NCCL_NET names another network: ncclNetPluginAssignToComm, src/plugin/net.cc.
            asked = log.env.get("NCCL_NET", "")
            who = f"NCCL_NET={asked}" if asked else "NCCL_NET"
            if asked.upper().startswith("IB") or log.no_ib_device:
                text = f"{who} asks for RDMA and allows no sockets, and no RDMA device can be used here"
                yield Hypothesis(
                    "dev_infiniband_missing", Confidence.STRONG_PLUS, text, (e,), _ASKED_RDMA, why=_NO_START, loss=STOPS
                )
                return
            text = f"the network that {who} asks for cannot be used here, and it allows no other"
            yield Hypothesis("plugin_mismatch", Confidence.STRONG, text, (e,), _ASKED, why=_NO_START, loss=STOPS)
            text = "it may be RDMA, and no RDMA device be here"
            yield Hypothesis("dev_infiniband_missing", Confidence.OPEN, text, (e,), _ASKED_RDMA, why=_NO_START, loss=STOPS)
        elif not log.above_info("ofi_init", "plugin_load"):
            yield Hypothesis("plugin_mismatch", Confidence.QUIET_PLUS, "two ranks have no transport in common", (e,))


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


RULES = (none_initialised, switches, affinity)
