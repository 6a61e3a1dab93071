"""Becoming the job's user: the whole process, before anything of that user is read, loaded or run, and without a way back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from typing import Final

WAIT: Final = 5.0  # seconds for a path to answer, as in process/far.py


class UserError(ValueError):
    """No such user, or the kernel refused."""


def only_by_name() -> bool:
    """Whether this root is an ordinary user: that of a user namespace in which no id but its own is mapped.

    Rootless containers are such (`unshare -Ur`, enroot, apptainer --fakeroot without subuids): whatever runs here is that user
    and has what that user may do, as outside (user_namespaces(7); capabilities count for inodes whose ids are mapped).
    """
    try:
        with open("/proc/self/uid_map", "rb") as file:
            words = file.read().split()
    except OSError:
        return False
    return len(words) == 3 and words[0] == b"0" and words[1] != b"0" and words[2] == b"1"


def is_me(name: str) -> bool:
    """Whether that login name or uid is this process's user."""
    import pwd

    if name.isdecimal():
        return int(name) == os.geteuid()
    try:
        return pwd.getpwnam(name).pw_uid == os.geteuid()
    except KeyError:
        return False


def become(name: str) -> None:
    """Be `name` (a login name or a uid): its groups, gid and uid, and PR_SET_NO_NEW_PRIVS.  Raises UserError."""
    import pwd

    from netdoctor.process import far
    from netdoctor.process.become import become_user

    far.close()  # the child that looks at paths was forked as who we were
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

    own = getattr(globals().get("__loader__"), "archive", "")  # netdoctor.pyz: there is no folder inside of a file
    needed = (sys.executable, os.__file__, own or os.path.dirname(os.path.abspath(__file__)))
    return next((path for path in needed if path and not os.access(path, os.R_OK)), None)


def lacking(uid: int, gid: int, groups: Iterable[int], paths: Sequence[tuple[str, int]]) -> str | None:
    """What of `paths` (each with a mode of access(2)) that user may not use; None: it may use all.

    A child that becomes the user asks, so that the answer is the kernel's.
    """
    from netdoctor.process.become import become_user
    from netdoctor.process.streams import readable

    back, to = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become_user(uid, gid, groups)
            refused = next((path for path, mode in paths if not os.access(path, mode)), None)
            os.write(to, b"+" if refused is None else f"{refused} is closed to others".encode("utf-8", "replace")[:512])
        except OSError as error:
            os.write(to, f"becoming another user: {error.strerror}".encode())
        finally:
            os._exit(0)
    os.close(to)
    try:
        answered = readable(back, WAIT)
        said = os.read(back, 512) if answered else b""
    finally:
        os.close(back)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0 if answered else os.WNOHANG)  # one that hangs in a file system is left behind
    return None if said == b"+" else said.decode("utf-8", "replace") or "what it needs did not answer in time"
