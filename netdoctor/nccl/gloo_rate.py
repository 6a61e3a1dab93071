"""What Gloo's all-reduce reached on one node, against a socket of the same host beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from netdoctor.causes import cost
from netdoctor.facts.runs import Control, Run
from netdoctor.model import Finding, Quantity, Status

# Gloo's all-reduce reaches 0.5 to 1.7 times the rate of one socket (two ranks on two cores, busy and idle), with buffers of
# 4 KiB a twentieth.
FAR: Final = 8
# Others' share of the CPUs' time from which a low rate may be theirs: who is busy during the run need not be during the control
# behind it (`expectation.past`: 20 times slower within a minute).  Measured on two CPUs: 0.0 idle, 0.5 beside 4 to 16 loops,
# which is all that the scheduler gives one session beside another (sched(7), autogroup).
BUSY: Final = 0.2


def judge(run: Run, control: Control | None, enough: int) -> Finding | None:
    """Gloo on this node alone goes by its loopback: far below what a socket with buffers of its own carried beside the run.

    `enough`: the size in bytes from which the path decides, not latency.
    """
    if control is None or not run.finished or not run.busbw or len(control.wide) < len(control.plain) or not control.wide:
        return None
    rate, carries = run.busbw[max(run.busbw)], min(control.wide) / 1e9
    if max(run.busbw) < enough or rate * FAR >= carries:
        return None
    narrow = control.narrowed is not None
    if not narrow and (control.others is None or control.others >= BUSY):
        took = "an unknown share" if control.others is None else f"{control.others:.0%}"
        return Finding(
            Status.UNKNOWN,
            f"bus bandwidth is far below what a socket of this host carries; others took {took} of the CPUs' time meanwhile",
            measured={"busbw": Quantity(rate, "GB/s"), "socket": Quantity(carries, "GB/s")},
            how="top: who uses these CPUs; then once more",
        )
    return Finding(
        Status.FAIL,
        "bus bandwidth is far below what a socket of this host carries"
        + (", and so are sockets with the kernel's own buffers" if narrow else ""),
        cause="tcp_tuning" if narrow else "low_bandwidth",
        loss=replace(cost.less(rate, carries, "GB/s"), measured=True),
        expected="at least an eighth of it",
        measured={"busbw": Quantity(rate, "GB/s"), "socket": Quantity(carries, "GB/s")},
        how="sysctl net.ipv4.tcp_rmem net.ipv4.tcp_wmem; who else uses these CPUs (top); the CPU mask and quota of the job",
    )
