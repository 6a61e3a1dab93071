"""Becoming the job's user: the whole process, before anything of that user is read, loaded or run, and without a way back."""

from __future__ import annotations

import os


class UserError(ValueError):
    """No such user, or the kernel refused."""


def become(name: str) -> None:
    """Be `name` (a login name or a uid): its groups, gid and uid, and PR_SET_NO_NEW_PRIVS.  Raises UserError."""
    import pwd

    from netdoctor.process.become import become_user

    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        raise UserError(f"no such user: {name}") from None
    if entry.pw_uid == 0:
        return
    try:
        become_user(entry.pw_uid, entry.pw_gid, os.getgrouplist(entry.pw_name, entry.pw_gid))
    except OSError as error:
        raise UserError(f"cannot become {name}: {error.strerror}") from None
    if missing := _unreadable():
        raise UserError(f"{missing} is not readable by {name}: install netdoctor and its Python where that user may read them")
    os.environ.update({"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name})


def _unreadable() -> str | None:
    """What of the running Python this process may no longer read: a root-only virtual environment, a Python below /root."""
    import sys

    needed = (sys.executable, os.__file__, os.path.dirname(os.path.abspath(__file__)))
    return next((path for path in needed if path and not os.access(path, os.R_OK)), None)
