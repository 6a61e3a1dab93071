"""Bytes of /dev/shm that the ranks of a node take, counted on a file system of their own while their communicator lives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from netdoctor.api import shm_pool
from netdoctor.nccl.shm_connections import LEAST
from tests.fakegpu import namespace
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import Draw, Row
from tests.fakegpu.differential.world import World

SIZE: Final = 4 << 30
# Without P2P, by files, and as few of them as can be; buffers have the sizes that NCCL gives them.
APART: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_NET_DISABLE_INTRA": "1",
    "NCCL_MAX_NCHANNELS": "1",
    "NCCL_WORK_FIFO_BYTES": "262144",
}
SMALL_FILES: Final = 64 * 4096  # beside each pool there are files of a page or some


def compare(draw: Draw, world: World) -> Iterator[Row]:
    """The pool.  What SHM connections take on top of it is as many channels as NCCL chooses: `at least` is what is said."""
    count = min(draw.random.choice((1, 2, 2, 4)), len(world.machine.gpus))
    apart = draw.random.random() < 0.5
    taken, shared = ranks.in_child(lambda: measure(draw, world, count, APART if apart else {}))
    least, most = shm_pool(draw.version, count)
    least += count * LEAST if apart and count > 1 else 0
    fits = least <= taken and (shared or most is None or taken <= most + count * SMALL_FILES)
    yield Row(
        f"{count} ranks of {world.machine.name}: {least} to {most}{' and SHM' if shared else ''}, seen {taken}", True, fits
    )


def measure(draw: Draw, world: World, count: int, apart: Mapping[str, str]) -> tuple[int, bool]:
    """Bytes, and whether there were SHM connections."""
    namespace.own_memory(SIZE)
    found: list[int] = []

    def look() -> None:
        room = os.statvfs("/dev/shm")
        found.append((room.f_blocks - room.f_bfree) * room.f_frsize)

    env = {"NCCL_RUNTIME_CONNECT": "0", **(apart or ranks.SMALL)}
    done = world.ranks(draw, [ranks.Process(env, device) for device in range(count)], look=look)
    if not found:
        raise RuntimeError(done.failure)
    return found[0], any(done.said(r"via SHM", n) for n in range(count))
