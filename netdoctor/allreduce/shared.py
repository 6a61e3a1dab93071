"""Memory that this process, the ranks and NCCL share."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Final

MAX_LOG: Final = 4 << 20  # bytes kept of NCCL's log, all ranks together


def memory(held: ExitStack, name: str, content: bytes = b"") -> int:
    """A file in memory, closed with `held`.  Raises OSError."""
    number = os.memfd_create(f"netdoctor-{name}")
    held.callback(os.close, number)
    os.write(number, content)
    return number


def shared_memory(pid: int) -> set[str]:
    """Segments of NCCL that a rank has mapped and that still have a name (NCCL unlinks them when all have attached)."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            paths = {line.rstrip("\n").partition("/dev/shm/nccl-")[2] for line in maps if "/dev/shm/nccl-" in line}
    except OSError:
        return set()
    return {f"/dev/shm/nccl-{rest}" for rest in paths if rest and "/" not in rest and not rest.endswith(" (deleted)")}


def read_logs(descriptors: list[int]) -> str:
    """NCCL's logs, rank after rank, bounded."""
    share = MAX_LOG // max(1, len(descriptors))
    parts = [os.pread(d, share, 0) for d in descriptors]
    return "".join(p.decode("utf-8", "backslashreplace") + ("" if p.endswith(b"\n") else "\n") for p in parts if p)
