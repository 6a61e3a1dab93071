"""Versions of NCCL: what a library, a log, a report or a person says, as three numbers."""

from __future__ import annotations

import re
from typing import Final

Version = tuple[int, int, int]

# From here on NCCL picks the GID by itself (src/transport/net_ib.cc, NCCL_IB_GID_INDEX defaults to -1); before it took index 0.
AUTOMATIC_GID: Final[Version] = (2, 21, 5)

# torch adds a suffix as a fourth part (torch.cuda.nccl.version), NCCL's banner and Debian's package one after "+" or "-".
_SPELLED: Final = re.compile(r"v?(\d{1,2})\.(\d{1,3})(?:\.(\d{1,3})(?:\D.*)?|[-+].*)?", re.ASCII | re.DOTALL)


def parse(version: str) -> Version | None:
    """``2.27``, ``2.27.5``, ``v2.27.5-1``, ``2.27.5+cuda12.9`` or NCCL's own number (22705, 2804)."""
    version = version.strip()
    if match := _SPELLED.fullmatch(version):
        return int(match[1]), int(match[2]), int(match[3] or 0)
    if re.fullmatch(r"\d{4,5}", version, re.ASCII):  # nccl.h: X.Y.Z is X*1000+Y*100+Z up to 2.8, then X*10000+Y*100+Z
        number = int(version)
        scale = 1000 if number < 10000 else 10000
        return number // scale, number % scale // 100, number % 100
    return None


def text(version: Version) -> str:
    return ".".join(map(str, version))
