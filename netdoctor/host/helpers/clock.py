"""The time, and the kernel's own word on it: adjtimex(2), which only reads with no mode set and needs no privilege for that.

Answer: {"now": seconds} and, where the kernel answers, {"state": its result (TIME_OK 0 … TIME_ERROR 5), "status": STA_* bits,
"maxerror", "esterror": microseconds}, else why not as "status"
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

# asm/unistd.h: x86_64 has its own table, the others share asm-generic.  Not by libc: glibc's adjtimex asks clock_adjtime since
# 2.31, which seccomp profiles of containers keep for CAP_SYS_TIME (moby, profiles/seccomp/default.json).
NUMBERS = {"x86_64": 159, "aarch64": 171, "riscv64": 171, "ppc64le": 124, "s390x": 124}
SIZE = 208  # of struct timex (linux/timex.h) where a long has 8 bytes
STATUS = "=24xqqi"  # modes, offset and freq; maxerror, esterror, status; this machine's byte order


def answer(parameters: dict[str, str]) -> object:
    return {"now": int(time.time()), **kernels_word()}


def kernels_word() -> dict[str, object]:
    number = NUMBERS.get(os.uname().machine)
    if number is None or ctypes.sizeof(ctypes.c_long) != 8:
        return {"status": {"unavailable": "unsupported", "detail": f"adjtimex on {os.uname().machine}"}}
    timex = ctypes.create_string_buffer(SIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.syscall(number, timex)
    if state < 0:
        code = ctypes.get_errno()
        kind = "denied" if code in (1, 13) else "unsupported" if code == 38 else "failed"
        return {"status": {"unavailable": kind, "detail": f"adjtimex: {os.strerror(code)}"}}
    most, estimated, status = struct.unpack_from(STATUS, timex)
    return {"state": state, "status": status, "maxerror": most, "esterror": estimated}
