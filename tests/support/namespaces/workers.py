"""Live tests in several processes at once (`pytest -n`): each has a lock of its own, as if it were alone on the machine.

Their ranks are few and wait most of the time; what they must not share is netdoctor's lock of the node, which one of them at a
time would have.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from typing import Final

_NEW_NAMESPACE: Final = 0x00020000  # CLONE_NEWNS of <linux/sched.h>
_RECURSIVE, _SLAVE = 0x4000, 1 << 19  # MS_REC, MS_SLAVE of <linux/mount.h>
LOCKS: Final = "/run/netdoctor"
SCRATCH: Final = "/run/netdoctor-scratch"  # of root alone, in memory: a machine is some thousand files, /run may be a slow disk


def apart() -> None:
    """Give this process, and all that it starts, its own folder of locks, and one in memory.

    What others mount later on this machine is still seen here (MS_SLAVE), and nothing of here elsewhere.
    """
    if os.geteuid() != 0:
        os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="netdoctor-run-")
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for folder in (LOCKS, SCRATCH):
        os.makedirs(folder, mode=0o755, exist_ok=True)
    steps = (
        lambda: libc.unshare(_NEW_NAMESPACE),
        lambda: libc.mount(None, b"/", None, _RECURSIVE | _SLAVE, None),
        lambda: libc.mount(b"locks", LOCKS.encode(), b"tmpfs", 0, b"mode=755"),
        lambda: libc.mount(b"scratch", SCRATCH.encode(), b"tmpfs", 0, b"mode=755"),
    )
    for step in steps:
        if step():
            number = ctypes.get_errno()
            raise OSError(number, f"no folders of its own for this process: {os.strerror(number)}")


def scratch() -> str:
    """Where root makes what root alone may change: in memory, in one of several processes."""
    return SCRATCH if os.path.ismount(SCRATCH) else "/run"
