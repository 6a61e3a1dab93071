"""What a rank locks of the host's memory for RDMA.  RLIMIT_MEMLOCK holds for each process by itself.

Sources: Linux drivers/infiniband/core/umem.c, ib_umem_get (pages of a registration count against the limit of the process that
registers, mm->pinned_vm; CAP_IPC_LOCK lifts it); memory of GPUs does not count (nvidia-peermem, DMA-BUF).  NCCL
src/transport/net.cc: a connection has a buffer of each protocol, on the host where GPUDirect does not work, and the one of LL
there always.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.model import Unavailable, count, missing, size_text
from netdoctor.nccl.integers import param

LEAST: Final = 64 << 20  # on 2 channels at least, to a few peers and in two directions: tens of MiB of buffers
_PLENTY: Final = 4 << 30  # of a job with one communicator: as much again for what it registers by itself
_SIMPLE: Final = 4 << 20  # DEFAULT_BUFFSIZE, src/init.cc
_OTHERS: Final = 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16  # LL128's and LL's (src/include/device.h)
_CONNECTIONS: Final = 6 * 32  # of ring and trees to other nodes, as `ports.descriptors` counts them
# Between all ranks the buffers are a pool each way: channels, NCCL_SHARED_STEPS, p2pChunkSize (sharedNetBuffersInit)
_POOLS: Final = 2 * 64 * 16 * (512 << 10)


class Locked(NamedTuple):
    """Of one rank of a job."""

    most: int  # bytes: staged, with all protocols, on all channels
    what: str  # that takes them
    plain: bool  # one communicator, and no all-to-all: as a run of netdoctor's

    @property
    def plenty(self) -> int:
        return max(_PLENTY, self.most)


def locked(intent: Intent, environ: Environ) -> Locked | Unavailable:
    """Of an intent that could not be read the figures are the least that a job takes."""
    given = environ.get("NCCL_BUFFSIZE")
    if (lost := missing(intent.nodes, given)) is not None:
        return lost
    simple, number = max(param(given, _SIMPLE), _SIMPLE), intent.communicators
    pools = _POOLS if intent.all_to_all else 0
    size = number * (_CONNECTIONS * (simple + _OTHERS) + pools)
    each = f"{_CONNECTIONS} buffers of {size_text(simple + _OTHERS)}{' and two pools for all-to-all' * bool(pools)}"
    what = f"NCCL locks at most {size_text(size)} a rank: {count(number, 'communicator')} of {each}"
    return Locked(size, what, number == 1 and not pools)
