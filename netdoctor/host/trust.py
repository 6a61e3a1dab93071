"""Whether a file can be changed by nobody but root: what root may load or run."""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import Final

from netdoctor.process import far
from netdoctor.process.paths import Judge, walk

_ACL_USER, _ACL_GROUP, _ACL_MASK = 0x02, 0x08, 0x10  # include/uapi/linux/posix_acl.h
_WRITE: Final = 2


def trusted(path: str) -> str | None:
    """None where root alone can change `path` and the way to it; else the reason, for people.

    Walks from "/" component by component, each opened without following links relative to the one before.  Every folder, link
    and the file itself must belong to uid 0 and be writable by nobody else: no write bit for group or others (sticky folders
    included: everybody may create there), no write entry of a POSIX ACL.  Links are followed by the same rule.  A file system
    that another user's daemon serves (FUSE) says what that user likes.  Never raises.
    """
    try:
        return far.call(_reason, path, path=path)
    except OSError as error:
        return error.strerror


def of_others(value: str) -> str | None:
    """Why root must not follow the paths in a variable's value; None: it names none, or such as root alone can change.

    The dynamic loader expands $LIB, $ORIGIN and $PLATFORM itself (ld.so(8)), and what is not there yet can be put there.
    """
    for part in filter(None, re.split(r"[\s:;,=^]", value)):
        if "$" in part or ("/" in part and not part.startswith("/")):
            return f"{part} may lead anywhere"
        if part.startswith("/") and (reason := trusted(part) or foreign_library(part)):
            return f"{part}: {reason}"
    return None


def foreign_library(folder: str) -> str | None:
    """Why no library may be loaded from a folder that itself is root's; None also of a file.  Never raises."""
    try:
        return far.call(_foreign_library, folder, path=folder)
    except OSError as error:
        return error.strerror


def _foreign_library(folder: str) -> str | None:
    if not os.path.isdir(folder):
        return None
    with os.scandir(folder) as entries:
        for one in entries:
            if ".so" not in one.name and one.name != "glibc-hwcaps":  # the loader looks in there too
                continue
            link = os.readlink(one.path) if one.is_symlink() else ""  # one of a name in here is looked at by that name
            plain = "/" not in link and roots_alone(one.stat(follow_symlinks=False), link=bool(link))
            if not plain and (reason := _others_or_absent(one.path)):
                return f"{one.name}: {reason}"
    return None


def roots_alone(facts: os.stat_result, *, link: bool = False) -> bool:
    """Whether the bits say that root alone can change it.  An access list shows in them (acl(5)); a link has none."""
    return facts.st_uid == 0 and (link or not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _reason(path: str) -> str | None:
    try:
        fd, reason = open_trusted(path)
    except ValueError:
        return "its name holds a NUL byte"
    if fd is not None:
        os.close(fd)
    return reason


ROOT: Final = frozenset({0})


def trusted_by(path: str, owners: frozenset[int]) -> str | None:
    """The same of what these users alone can change."""
    fd, reason = open_trusted(path, owners)
    if fd is not None:
        os.close(fd)
    return reason


class _RefusedError(Exception):
    """A component that somebody else can change; the text is for people."""


def open_trusted(path: str, owners: frozenset[int] = ROOT) -> tuple[int | None, str | None]:
    """(a read-only descriptor, None) of a file or folder that is `trusted`, or (None, reason).

    `owners` are the uids that everything on the way may belong to: for a user's own files root and the user.
    """
    try:
        return _opened(path, owners), None
    except _RefusedError as refused:
        return None, str(refused)
    except OSError as error:
        return None, f"{error.filename}: {error.strerror}"


def may_lead_to_others(path: str) -> str | None:
    """Why somebody else can put something there, now or later; None: it is root's alone, or only root can make it."""
    try:
        return far.call(_others_or_absent, path, path=path)
    except OSError as error:
        return error.strerror


def _others_or_absent(path: str) -> str | None:
    try:
        os.close(_opened(path, ROOT))
    except FileNotFoundError:
        return None  # the way as far as it goes has been judged
    except (_RefusedError, OSError) as error:
        return str(error)
    return None


def _opened(path: str, owners: frozenset[int]) -> int:
    if not path.startswith("/"):
        raise _RefusedError("not an absolute path")

    def judge(fd: int, name: str, link: os.stat_result | None) -> None:
        if link is None and (reason := _changeable(fd, owners)):
            raise _RefusedError(f"{name} {reason}")
        if link is not None and link.st_uid not in owners:
            raise _RefusedError(f"the link {name} belongs to uid {link.st_uid}")

    with walk(path, judge, os.O_RDONLY) as (folder, name):
        return _open(folder, name, judge)


def _open(folder: int, name: str, judge: Judge) -> int:
    """What the way leads to, judged by its descriptor."""
    if name:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):  # a device is not even opened
            raise _RefusedError(f"{name} is neither a file nor a folder")
    fd = os.open(name or ".", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        judge(fd, name, None)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _changeable(fd: int, owners: frozenset[int]) -> str | None:
    """Who besides `owners` can change what `fd` is; None: nobody."""
    facts = os.fstat(fd)
    if facts.st_uid not in owners:
        return f"belongs to uid {facts.st_uid}"
    if writer := _acl_writer(fd):
        return f"is writable by {writer} (POSIX ACL)"
    if facts.st_mode & stat.S_IWOTH:
        return "is writable by everybody"
    if facts.st_mode & stat.S_IWGRP:
        return f"is writable by group {facts.st_gid}"
    return _served_by_others(fd, facts.st_dev, owners)


_kernels: Final[set[int]] = set()  # devices whose owners and modes the kernel itself keeps


def _served_by_others(fd: int, device: int, owners: frozenset[int]) -> str | None:
    """Whose daemon says who owns what: of FUSE, who mounted it (fs/fuse/inode.c, fuse_show_options: user_id)."""
    if device in _kernels:
        return None
    mount, options = far.mount_of(fd) or (None, "")
    user = re.search(r"\buser_id=(\d+)", options) if mount and mount.kind.startswith("fuse") else None
    if mount and user and int(user[1]) not in owners:
        return f"is on a file system ({mount.kind}) of uid {user[1]}"
    _kernels.add(device)
    return None


def _acl_writer(fd: int) -> str | None:
    """A named user or group with effective write permission (acl(5): entry and mask)."""
    try:
        data = os.getxattr(fd, "system.posix_acl_access")
    except OSError:  # ENODATA, ENOTSUP: the mode bits say it all
        return None
    entries = list(struct.iter_unpack("<HHI", data[4:])) if len(data) % 8 == 4 else []
    mask = next((perm for tag, perm, _ in entries if tag == _ACL_MASK), 7)
    for tag, perm, who in entries:
        if tag in (_ACL_USER, _ACL_GROUP) and perm & mask & _WRITE and (tag, who) != (_ACL_USER, 0):
            return f"{'uid' if tag == _ACL_USER else 'gid'} {who}"
    return None
