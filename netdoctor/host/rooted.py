"""Opening files inside a mounted root and nowhere else: openat2(2) with RESOLVE_IN_ROOT."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Final

_OPENAT2: Final = 437  # the same on every architecture (include/uapi/asm-generic/unistd.h)
_RESOLVE_NO_MAGICLINKS: Final = 0x02  # include/uapi/linux/openat2.h
_RESOLVE_IN_ROOT: Final = 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _root(root: str) -> int:
    """A descriptor of the root folder, kept for the life of the process."""
    return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@functools.cache
def _syscall() -> ctypes._NamedFuncPointer:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_OpenHow), ctypes.c_size_t)
    return call


def open_in_root(root: str, path: str, flags: int) -> int:
    """A descriptor of `path` with `root` as "/": absolute links and ".." stay inside, magic links of /proc are refused.

    Raises OSError like os.open (ENOSYS before Linux 5.6) and ValueError for a NUL byte in `path`.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("embedded null byte")
    how = _OpenHow(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    for _ in range(8):  # EAGAIN: a rename or mount elsewhere raced with ".." (openat2(2))
        fd = int(_syscall()(_OPENAT2, _root(root), name, ctypes.byref(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)
