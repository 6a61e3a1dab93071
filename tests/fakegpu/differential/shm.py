"""Bytes of /dev/shm that the ranks of a node take, counted on a file system of their own while their communicator lives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from netdoctor.api import shm_pool
from tests.fakegpu import namespace
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import Draw, Row
from tests.fakegpu.differential.world import World

SIZE: Final = 4 << 30
SMALL_FILES: Final = 64 * 4096  # beside each pool there are files of a page or some


def compare(draw: Draw, world: World) -> Iterator[Row]:
    """The pool.  What SHM connections take on top of it is as many channels as NCCL chooses: `at least` is what is said."""
    count = min(draw.random.choice((1, 2, 2, 4)), len(world.machine.gpus))
    taken, shared = ranks.in_child(lambda: measure(draw, world, count))
    least, most = shm_pool(draw.version, count)
    fits = least <= taken and (shared or most is None or taken <= most + count * SMALL_FILES)
    yield Row(
        f"{count} ranks of {world.machine.name}: {least} to {most}{' and SHM' if shared else ''}, seen {taken}", True, fits
    )


def measure(draw: Draw, world: World, count: int) -> tuple[int, bool]:
    """Bytes, and whether there were SHM connections."""
    namespace.own_memory(SIZE)
    found: list[int] = []

    def look() -> None:
        room = os.statvfs("/dev/shm")
        found.append((room.f_blocks - room.f_bfree) * room.f_frsize)

    env = {"NCCL_RUNTIME_CONNECT": "0", **ranks.SMALL}
    done = world.ranks(draw, [ranks.Process(env, device) for device in range(count)], look=look)
    if not found:
        raise RuntimeError(done.failure)
    return found[0], any(done.said(r"via SHM", n) for n in range(count))
