"""Which interface NCCL itself takes: ncclGetUniqueId of a real libnccl, in a child process."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class NcclChoice:
    """What one libnccl answered."""

    library: str
    version: tuple[int, int, int]
    interface: str | None | Unavailable  # None: it found none ("no socket interface found")
    address: str | None | Unavailable
    code: int  # ncclResult_t of ncclGetUniqueId
    error: str  # its last error or WARN line
    log: tuple[str, ...]  # NCCL's lines
