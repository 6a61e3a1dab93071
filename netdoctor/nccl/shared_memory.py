"""What NCCL takes of /dev/shm: the proxy's pool, one file a rank, in full at the first connection and with P2P, too.

Measured on the unmodified libraries (NCCL src/proxy.cc, ncclProxyPoolInit and its successors): bytes a rank.  SHM connections
without cuMem host memory come on top.
"""

from __future__ import annotations

from typing import Final

from netdoctor.facts.nccl_version import Version

_POOL: Final[tuple[tuple[Version, int], ...]] = (
    ((2, 18, 3), 4_194_660),
    ((2, 21, 5), 7_340_388),
    ((2, 25, 1), 31_850_884),
    ((2, 27, 5), 33_030_532),
    ((2, 30, 7), 34_210_180),
    ((2, 32, 3), 68_420_268),
)


def pool_bytes(version: Version, ranks: int) -> tuple[int, int | None]:
    """What `ranks` ranks take: at least what the nearest older version does, at most the nearest newer; None: nothing newer."""
    least = next((size for since, size in reversed(_POOL) if version >= since), 0)
    most = next((size for since, size in _POOL if version <= since), None)
    return ranks * least, None if most is None or version < _POOL[0][0] else ranks * most
