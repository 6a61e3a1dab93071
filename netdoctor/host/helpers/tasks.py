"""How many processes and threads this user has, as far as /proc shows them: RLIMIT_NPROC counts them by the real user id
(kernel/fork.c).  Another PID namespace hides processes of his, and hidepid those that may not be traced.  {"threads": 412}
"""

from __future__ import annotations

import os

SIZE = 4096  # a status file is less than half of it


def answer(parameters: dict[str, str]) -> object:
    own = os.getuid()
    return {"threads": sum(threads(f"/proc/{name}/status", own) for name in os.listdir("/proc") if name.isdecimal())}


def threads(path: str, user: int) -> int:
    """Of one process; none where it is another user's or has ended."""
    try:
        with open(path, "rb") as file:
            lines = file.read(SIZE).splitlines()
    except OSError:
        return 0
    told = {name: value.split() for name, _, value in (line.partition(b":") for line in lines) if name in (b"Uid", b"Threads")}
    if told.get(b"Uid", ())[:1] != [b"%d" % user]:
        return 0
    return int(told[b"Threads"][0])
