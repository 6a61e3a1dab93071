"""What Linux tells of processes and of this boot: /proc/PID/stat (proc(5)) and boot_id (random(4)).

Self-contained: the keeper, which runs without netdoctor, gets this text put before its own.
"""

from __future__ import annotations

import os


def stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the state letter on; [] where the process is gone or hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii", "replace").split()  # the name before it may hold anything
    except OSError:
        return []


def state(pid: int) -> str:
    """Its state letter; "" where it is gone or hidden."""
    return next(iter(stat(pid)), "")


def parents() -> dict[int, int]:
    """The parent of every living process that is seen; the dead that nobody has collected yet are left out."""
    try:
        names = os.listdir("/proc")
    except OSError:  # not even the folder: no process is seen
        return {}
    seen = ((int(name), stat(name)) for name in names if name.isdecimal())
    return {pid: int(fields[1]) for pid, fields in seen if len(fields) > 1 and fields[0] not in ("Z", "X")}


def below(ancestor: int) -> set[int]:
    """Every living process that descends from `ancestor`; for one that adopts orphans (prctl(2)) none gets away."""
    above = parents()
    found: set[int] = set()
    more = {ancestor}
    while more:
        found |= more
        more = {pid for pid, parent in above.items() if parent in more} - found
    return found - {ancestor}


def boot_id() -> str:
    """The same for every process of this machine since it was started; "" where it is not told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64)
    except OSError:
        return ""
