"""Becoming another user for good.  Self-contained: programs that run without netdoctor get this text put before theirs."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False  # typing itself costs 8 ms of a child
if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 38, 47, 2  # of prctl, Linux
CAP_IPC_LOCK = 14  # capabilities(7)
CAPABILITY_VERSION = 0x20080522  # capget(2): two words of 32 bits each for effective, permitted, inheritable


def become_user(uid: int, gid: int, groups: Iterable[int], *, locks: bool = False) -> None:
    """Take groups, gid and uid, and give up the way back through set-user-ID programs.  Raises OSError.

    `locks`: keep the right to lock memory, if it is there; RDMA pins its buffers, and no other right is kept.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if locks:
        libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if locks:
        header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
        libc.capget(header, sets)
        one = sets[1] & 1 << CAP_IPC_LOCK
        if libc.capset(header, (ctypes.c_uint32 * 6)(one, one, one, 0, 0, 0)) != 0:
            raise OSError(ctypes.get_errno(), "giving up root's rights was refused")
        if one:
            libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_IPC_LOCK, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
