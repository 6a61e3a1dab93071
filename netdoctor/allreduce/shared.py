"""Memory that this process, the ranks and NCCL share."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack, suppress
from typing import Final

from netdoctor.process import proc

MAX_LOG: Final = 4 << 20  # bytes kept of NCCL's log, all ranks together


def memory(held: ExitStack, name: str, content: bytes = b"") -> int:
    """A file in memory, closed with `held`.  Raises OSError."""
    number = os.memfd_create(f"netdoctor-{name}")
    held.callback(os.close, number)
    os.write(number, content)
    return number


def shared_memory(pid: int, owner: int) -> set[str]:
    """Segments of NCCL that a rank has mapped, that still have a name (NCCL unlinks them when all have attached), and that
    belong to `owner`: a rank may map what is another's, or something of that name in a mount namespace of its own."""
    try:
        with open(f"/proc/{pid}/maps") as maps:
            names = {line.rstrip("\n").partition("/dev/shm/nccl-")[2] for line in maps if "/dev/shm/nccl-" in line}
    except OSError:
        return set()
    paths = {f"/dev/shm/nccl-{rest}" for rest in names if rest and "/" not in rest and not rest.endswith(" (deleted)")}
    return {path for path in paths if _owner(path) == owner}


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return None


def read_logs(descriptors: list[int]) -> str:
    """NCCL's logs, rank after rank, bounded."""
    share = MAX_LOG // max(1, len(descriptors))
    parts = [os.pread(d, share, 0) for d in descriptors]
    return "".join(p.decode("utf-8", "backslashreplace") + ("" if p.endswith(b"\n") else "\n") for p in parts if p)


_SPARE: Final = 32  # threads of a rank: NCCL's and torch's are some 20


def crowded(uid: int, ranks: int) -> str:
    """Whether a user is so near its limit of processes, which counts threads, that a rank may have got none; "": it is not.

    Not every library says that it could not start a thread: Gloo then waits for ever.
    """
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft == resource.RLIM_INFINITY or uid == 0:  # which does not bound root (kernel/fork.c)
        return ""
    count = 0
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == uid:
                count += int(proc.stat(name)[17])  # num_threads, proc_pid_stat(5)
    return (
        f"uid {uid} has {count} of the {soft} processes and threads that it may have" if count + _SPARE * ranks > soft else ""
    )
