"""Writing a file of ours where the user said: whole or not at all, and nothing else touched.

Onto a regular path: a new file beside it (O_EXCL|O_NOFOLLOW), synced, renamed over it.  In place: a mount point (rename says
EBUSY; a pod's /dev/termination-log is one), a device, a pipe, or a file in a directory that takes no new files.
Links are followed only where nobody but this user (or root) could have put them: more strictly than proc(5),
fs.protected_symlinks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Final

from netdoctor.process.paths import walk

REPORT_MODE: Final = 0o644
SNAPSHOT_MODE: Final = 0o600  # addresses, host names and settings of the site
METRICS_MODE: Final = 0o644  # whatever the umask: another user's node_exporter reads them
# Where a new file beside the target is not possible but the target itself may be.
_NO_NEW_FILE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class OutputError(Exception):
    """The file could not be written; what was there before is still there."""


def write(path: str, text: str | bytes, *, mode: int = REPORT_MODE, exact: bool = False) -> str:
    """Write `text` (as UTF-8) and return how: "renamed", "in place" or "stream".  Raises OutputError.

    `mode` is a new file's, less the umask where it is not `exact`.  A file written in place keeps its own, so a mode without
    read permission for others (a snapshot) is refused where the file in place grants it.
    """
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    try:
        stream = descriptor(path)
        if stream is not None:
            _write_all(stream, data)
            return "stream"
        with _resolved(path) as (folder, name):
            return _write(folder, name, data, mode, exact=exact)
    except (OSError, ValueError) as error:
        raise OutputError(unwritten(path, error)) from None


def obstacle(path: str) -> str:
    """Why `write` could not write there, as far as can be told without making anything; "": nothing is in the way."""
    if descriptor(path) is not None:
        return ""
    try:
        with _resolved(path) as (folder, name):
            _ask(folder, name)
    except (OSError, ValueError) as error:
        return unwritten(path, error)
    return ""


def unwritten(path: str, error: OSError | ValueError) -> str:
    """Before and after a look in the same words: `deliver` says them once."""
    return f"{path}: cannot be written: {_why(error)}"


def _ask(folder: int, name: str) -> None:
    """Raises what keeps a new file out of the folder, and this one from being written in place."""
    with contextlib.suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if not stat.S_ISREG(there.st_mode) or os.access(name, os.W_OK, dir_fd=folder, effective_ids=True):
            return
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
        read_only = os.fstatvfs(folder).f_flag & os.ST_RDONLY  # of access(2)'s errno Python keeps nothing
        code = errno.EROFS if read_only else errno.EACCES
        raise OSError(code, os.strerror(code))


def _why(error: OSError | ValueError) -> str:
    """In the kernel's words, or ours: refused here, or a NUL byte in the path."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENXIO:  # of open(2) with O_NONBLOCK, where nothing but pipes and character devices is opened so
        return "a pipe that nobody reads, or a device that is not there (ENXIO)"
    return f"{os.strerror(number)} ({errno.errorcode.get(number, '?')})" if number else str(error)


def descriptor(path: str) -> int | None:
    """The descriptor that /dev/stdout and its like name: opening them again would truncate a redirected file."""
    named = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}.get(path)
    if named is not None:
        return named
    for prefix in ("/dev/fd/", "/proc/self/fd/"):
        number = path.removeprefix(prefix)
        if number != path and number.isascii() and number.isdigit():
            return int(number)
    return None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _resolved(path: str) -> Iterator[tuple[int, str]]:
    """(descriptor of the directory, last name), every link on the way, and a link in the last place, judged and followed."""

    def judge(folder: int, name: str, link: os.stat_result | None) -> None:
        if link is not None and (reason := _foreign(folder, link)):
            raise ValueError(f"{name} is a symbolic link {reason}")

    with walk(path, judge) as (folder, name):
        if not name or path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        yield folder, name


def _foreign(folder: int, link: os.stat_result) -> str | None:
    """Who else could have put a link there.  As fs.protected_symlinks whose it is: nobody makes a link of another's.  But who
    may write to its folder can move an old one there.
    """
    own = {0, os.geteuid()}
    if link.st_uid not in own:
        return f"of uid {link.st_uid}"
    facts = os.fstat(folder)
    if facts.st_uid not in own:
        return f"in a folder that belongs to uid {facts.st_uid}"
    return "in a folder that others may write to" if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def _write(folder: int, name: str, data: bytes, mode: int, *, exact: bool) -> str:
    try:
        there: os.stat_result | None = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        there = None
    if there is not None and not stat.S_ISREG(there.st_mode):
        return _to_device(folder, name, there, data)
    try:
        temporary, fd = _new_beside(folder, name, mode)
    except OSError as error:
        if there is None or error.errno not in _NO_NEW_FILE:
            raise
        return _in_place(folder, name, there, data, mode)
    try:
        with open(fd, "wb", buffering=0) as stream:
            _write_all(fd, data)
            if exact:
                os.fchmod(fd, mode)
            os.fsync(stream.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        temporary = ""
        return "renamed"
    except OSError as error:
        if there is None or error.errno != errno.EBUSY:
            raise
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
    return _in_place(folder, name, there, data, mode)


def _new_beside(folder: int, name: str, mode: int) -> tuple[str, int]:
    temporary = f".{name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return temporary, os.open(temporary, flags, mode, dir_fd=folder)


def _to_device(folder: int, name: str, there: os.stat_result, data: bytes) -> str:
    """A character device (/dev/null, a terminal) or a pipe that somebody reads."""
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory")
    if not stat.S_ISCHR(there.st_mode) and not stat.S_ISFIFO(there.st_mode):
        raise ValueError("neither a file nor a pipe nor a character device")
    # As fs.protected_fifos, which asks only of those who would create it: the reader of another's pipe gets what we write.
    if stat.S_ISFIFO(there.st_mode) and there.st_uid not in {0, os.geteuid()}:
        raise ValueError(f"a pipe of uid {there.st_uid}")
    # O_NONBLOCK: a pipe without a reader is ENXIO instead of a wait for ever (fifo(7)).
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.set_blocking(fd, True)
        _write_all(fd, data)
    finally:
        os.close(fd)
    return "in place"


def _in_place(folder: int, name: str, there: os.stat_result, data: bytes, mode: int) -> str:
    """Over the content of a file.  Room for all of it is taken first, so that a full disk leaves the old content as it was."""
    fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or (facts.st_dev, facts.st_ino) != (there.st_dev, there.st_ino):
            raise ValueError("it changed while it was looked at")
        if facts.st_nlink > 1 and facts.st_uid != os.geteuid():
            raise ValueError("another name leads to the same file, which is not yours")
        if facts.st_mode & 0o044 & ~mode:
            raise ValueError(f"others may read it (mode {stat.S_IMODE(facts.st_mode):o}, wanted {mode:o})")
        if data:
            try:
                os.posix_fallocate(fd, 0, len(data))
            except OSError as error:
                if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                    os.ftruncate(fd, facts.st_size)
                    raise
        _write_all(fd, data)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
    return "in place"
