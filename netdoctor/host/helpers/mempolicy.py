"""The memory policy that a child inherits (numactl --membind): get_mempolicy(2).  {"mode": "bind", "nodes": [0]}"""

from __future__ import annotations

import ctypes
import os

# asm/unistd.h: x86_64 has its own table, the others share asm-generic.
NUMBERS = {"x86_64": 239, "aarch64": 236, "riscv64": 236, "ppc64le": 260, "s390x": 269}
MODES = ("default", "preferred", "bind", "interleave", "local", "preferred many", "weighted interleave")  # mempolicy.h
BITS = 1 << 12  # more than MAX_NUMNODES of any configuration, and below the limit of a page


def answer(parameters: dict[str, str]) -> object:
    number = NUMBERS.get(os.uname().machine)
    if number is None:
        return {"unavailable": "unsupported", "detail": f"get_mempolicy on {os.uname().machine}"}
    mode = ctypes.c_int(0)
    words = (ctypes.c_ulong * (BITS // 64))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, ctypes.byref(mode), words, ctypes.c_ulong(BITS), None, ctypes.c_ulong(0)) != 0:
        code = ctypes.get_errno()
        kind = "denied" if code in (1, 13) else "unsupported" if code == 38 else "failed"
        return {"unavailable": kind, "detail": os.strerror(code)}
    kind_of = mode.value & 0xFF  # the flags MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES lie above
    nodes = [64 * i + bit for i, word in enumerate(words) if word for bit in range(64) if word >> bit & 1]
    return {"mode": MODES[kind_of] if kind_of < len(MODES) else str(kind_of), "nodes": nodes}
