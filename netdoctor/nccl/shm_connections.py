"""What connections by SHM take of /dev/shm, beside the proxies' pool (shared_memory.py), where GPUs have no P2P.

Each receiver has a file with the buffers of all protocols (NCCL src/transport/shm.cc, shmRecvSetup: SHM_LOCALITY is the
receiver's side).  Measured on 2.21.5 and 2.29.7 with NCCL_MAX_NCHANNELS=1: a ring of two ranks has two files of 9,637,888
bytes, one of four has four, and trees have others.
"""

from __future__ import annotations

from typing import Final

from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import GpuHealth
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Kind, Unavailable, missing
from netdoctor.nccl.integers import param

# Simple's buffer is 4 MiB, 1 MiB on ARM (src/init.cc, computeBuffSizes); LL128's and LL's, and a page, are the same everywhere.
LEAST: Final = 6_492_160
_MOST: Final = 9_641_984
_EACH: Final = 4 * 32  # at most, a rank: a ring's and three of a tree's (src/include/device.h), in MAXCHANNELS channels
# Since then NCCL may take host memory of cuMem instead; from 2.24 on it does by default where driver and NUMA let it.
_CUMEM: Final = (2, 23, 4)
_BUFFERS: Final = ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_SHM_USE_CUDA_MEMCPY")

_SWITCHES: Final = (
    *("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE", "NCCL_NET_DISABLE_INTRA", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE"),
)


def bytes_of(version: Version, links: int, environ: Environ, gpus: Gpus, state: GpuHealth, rdma: Rdma) -> tuple[int, int]:
    """At least and at most; `links`: of a ring, within this node."""
    off, said = _no_p2p(gpus, state), {name: environ.get(name) for name in (*_BUFFERS, *_SWITCHES)}

    def switch(name: str) -> int | None:
        text = said[name]
        return param(text, -2, version) if isinstance(text, str) else None

    if links < 1 or switch("NCCL_SHM_DISABLE") == 1 or (off is False and switch("NCCL_P2P_DISABLE") != 1):
        return 0, 0
    # By an HCA that is nearer than the other GPU NCCL may go even within the node (src/graph/paths.cc, ncclTopoCheckNet).
    by_files = version < _CUMEM or 0 in (switch("NCCL_CUMEM_HOST_ENABLE"), switch("NCCL_CUMEM_ENABLE"))
    known = missing(*said.values()) is None and not any(said[name] for name in _BUFFERS)
    certain = by_files and known and (off is True or switch("NCCL_P2P_DISABLE") == 1)
    certain = certain and (rdma.devices == () or switch("NCCL_NET_DISABLE_INTRA") == 1)
    return links * LEAST * certain, (links + 1) * _EACH * _MOST


def _no_p2p(gpus: Gpus, state: GpuHealth) -> bool | Unavailable:
    """True: NVML allows it to no pair of the job's GPUs, whom NCCL asks (src/graph/paths.cc, ncclTopoCheckP2p); False: to each.

    GPUs with NVLinks have it, or NCCL ends (`gpu.fabric`).
    """
    pairs = gpus.of_the_job
    if isinstance(pairs, Unavailable):
        return pairs
    if all(gpu is not None and any(gpu.nvlinks or ()) for _, gpu in pairs):
        return False
    if isinstance(state.pairs, Unavailable):
        return state.pairs
    numbers = {gpu.index for _, gpu in pairs if gpu is not None}
    between = [pair for pair in state.pairs if {pair.one, pair.other} <= numbers]
    if (lost := missing(*(x for pair in between for x in (pair.read, pair.write)))) is not None:
        return lost
    if len(numbers) < len(pairs) or len(between) < len(numbers) * (len(numbers) - 1) // 2:
        return Unavailable(Kind.NOT_READ, "NVML did not tell of each pair of GPUs")
    refused = [bool(pair.read or pair.write) for pair in between]
    if any(refused) != all(refused):
        return Unavailable(Kind.UNSUPPORTED, "some GPUs reach each other by P2P, and some do not")
    return bool(refused) and all(refused)
