"""Whether a file can be changed by nobody but root: what root may load or run."""

from __future__ import annotations

import os
import stat
import struct
from typing import Final

_ACL_USER, _ACL_GROUP, _ACL_MASK = 0x02, 0x08, 0x10  # include/uapi/linux/posix_acl.h
_WRITE: Final = 2
_MAX_LINKS: Final = 40  # the kernel's own limit (path_resolution(7))


def trusted(path: str) -> str | None:
    """None where root alone can change `path` and the way to it; else the reason, for people.

    Walks from "/" component by component, each opened without following links relative to the one before.  Every folder, link
    and the file itself must belong to uid 0 and be writable by nobody else: no write bit for group or others (sticky folders
    included: everybody may create there), no write entry of a POSIX ACL.  Links are followed by the same rule.  Never raises.
    """
    try:
        fd, reason = open_trusted(path)
    except ValueError:
        return "its name holds a NUL byte"
    if fd is not None:
        os.close(fd)
    return reason


ROOT: Final = frozenset({0})


def open_trusted(path: str, owners: frozenset[int] = ROOT) -> tuple[int | None, str | None]:
    """(a read-only descriptor, None) of a file or folder that is `trusted`, or (None, reason).

    `owners` are the uids that everything on the way may belong to: for a user's own files root and the user.
    """
    if not path.startswith("/"):
        return None, "not an absolute path"
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    parents: list[int] = []  # the folders above `here`, for ".."
    todo = [p for p in reversed(path.split("/")) if p not in ("", ".")]
    seen = "/"
    links = 0
    try:
        if reason := _changeable(here, owners):
            return None, f"/ {reason}"
        while todo:
            part = todo.pop()
            if part == "..":
                if parents:
                    os.close(here)
                    here = parents.pop()
                continue
            seen = part
            facts = os.stat(part, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(facts.st_mode):
                links += 1
                if facts.st_uid not in owners:
                    return None, f"the link {part} belongs to uid {facts.st_uid}"
                if links > _MAX_LINKS:
                    return None, "too many links"
                target = os.readlink(part, dir_fd=here)
                if target.startswith("/"):
                    while parents:
                        os.close(here)
                        here = parents.pop()
                todo += [p for p in reversed(target.split("/")) if p not in ("", ".")]
                continue
            if not stat.S_ISDIR(facts.st_mode) and not stat.S_ISREG(facts.st_mode):
                return None, f"{part} is neither a file nor a folder"
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_DIRECTORY if todo else 0)
            inside = os.open(part, flags, dir_fd=here)
            parents.append(here)
            here = inside
            if reason := _changeable(here, owners):
                return None, f"{part} {reason}"
        fd, here = here, -1
        return fd, None
    except OSError as error:
        return None, f"{seen}: {os.strerror(error.errno or 0)}"
    finally:
        for one in [*parents, here]:
            if one >= 0:
                os.close(one)


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
