"""Becoming another user for good.  Self-contained: programs that run without netdoctor get this text put before theirs."""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False  # typing itself costs 8 ms of a child
if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_NO_NEW_PRIVS = 38  # prctl(2)


def become_user(uid: int, gid: int, groups: Iterable[int]) -> None:
    """Take groups, gid and uid, and give up the way back through set-user-ID programs.  Raises OSError."""
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
