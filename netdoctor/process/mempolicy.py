"""The memory policy that a process gives its children: get_mempolicy(2), set_mempolicy(2).

Self-contained: programs that run without netdoctor get this text put before theirs.
"""

from __future__ import annotations

import ctypes
import os

# asm/unistd.h: x86_64 has its own table, the others share asm-generic (set, get).
MEMPOLICY_CALLS = {
    "x86_64": (238, 239),
    "aarch64": (237, 236),
    "riscv64": (237, 236),
    "ppc64le": (261, 260),
    "s390x": (270, 269),
}
MEMPOLICY_BITS = 1 << 12  # more than MAX_NUMNODES of any configuration, and below the limit of a page


def memory_policy() -> tuple[int, list[int]]:
    """The mode with its flags, and the words of the mask; (0, []) where the kernel has none to tell."""
    mode = ctypes.c_int(0)
    words = (ctypes.c_ulong * (MEMPOLICY_BITS // 64))()
    calls = MEMPOLICY_CALLS.get(os.uname().machine)
    if calls is None:
        return 0, []
    size = ctypes.c_ulong(MEMPOLICY_BITS)
    if ctypes.CDLL(None).syscall(calls[1], ctypes.byref(mode), words, size, None, ctypes.c_ulong(0)) != 0:
        return 0, []
    return mode.value, list(words) if any(words) else []


def set_memory_policy(mode: int, mask: list[int] | tuple[int, ...]) -> None:
    """Nothing where the kernel has no such call: then it told of none, either."""
    calls = MEMPOLICY_CALLS.get(os.uname().machine)
    if calls is None:
        return
    words = (ctypes.c_ulong * len(mask))(*mask) if mask else None
    ctypes.CDLL(None).syscall(calls[0], mode, words, ctypes.c_ulong(64 * len(mask) if mask else 0))
