"""What NCCL takes of /dev/shm: the proxy's pool, one file a rank, in full at the first connection and with P2P, too.

Measured on the unmodified libraries (NCCL src/proxy.cc, ncclProxyPoolInit and its successors): bytes a rank, in whole
pages (python -m tests.fakegpu.differential --area shm).  SHM connections without cuMem host memory come on top.
"""

from __future__ import annotations

from typing import Final

from netdoctor.facts.nccl_version import Version

_POOL: Final[tuple[tuple[Version, int], ...]] = (
    ((2, 18, 3), 4_198_400),
    ((2, 20, 5), 5_771_264),
    ((2, 21, 5), 7_344_128),
    ((2, 23, 4), 10_489_856),
    ((2, 25, 1), 31_854_592),
    ((2, 27, 5), 33_034_240),
    ((2, 28, 9), 34_213_888),
    ((2, 30, 7), 34_213_888),
    ((2, 32, 3), 68_423_680),
)


def pool_bytes(version: Version, ranks: int) -> tuple[int, int | None]:
    """What `ranks` ranks take: at least what the nearest older version does, at most the nearest newer; None: nothing newer."""
    least = next((size for since, size in reversed(_POOL) if version >= since), 0)
    most = next((size for since, size in _POOL if version <= since), None)
    return ranks * least, None if most is None or version < _POOL[0][0] else ranks * most
