"""How much of the CPUs' time others took while something of ours ran: /proc/stat (proc_stat(5)) before and after."""

from __future__ import annotations

import os

from netdoctor.process import proc

IDLE = (3, 4)  # idle, iowait
TIMES = 8  # user to steal; guest is counted in user
TAKEN = slice(11, 15)  # of a process: utime, stime, and those of its children that it collected


def machine() -> tuple[float, float] | None:
    """(seconds that the CPUs worked, that there were) since boot, with those a hypervisor kept (steal); None: not told."""
    try:
        with open("/proc/stat", encoding="ascii", errors="replace") as file:
            name, *fields = file.readline().split()
        ticks = [int(one) for one in fields[:TIMES]]
    except (OSError, ValueError):
        return None
    if name != "cpu" or len(ticks) < TIMES:
        return None
    second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - sum(ticks[n] for n in IDLE)) / second, sum(ticks) / second


def own() -> float:
    """Seconds of this process and of all that it started, of those that ended too.  What is hidden counts as another's."""
    ticks = (int(one) for pid in proc.below(os.getpid()) for one in proc.stat(pid)[TAKEN])
    return sum(os.times()[:4]) + sum(ticks) / os.sysconf("SC_CLK_TCK")


class Meter:
    """Begins where it is made."""

    def __init__(self) -> None:
        self._begin, self._own = machine(), own()

    def others(self) -> float | None:
        """The share of all CPUs' time since then that went to others than this process and its children; None: not known."""
        now = machine()
        if self._begin is None or now is None or now[1] <= self._begin[1]:
            return None
        worked = now[0] - self._begin[0] - (own() - self._own)
        return min(max(worked / (now[1] - self._begin[1]), 0.0), 1.0)
