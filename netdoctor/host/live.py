"""The machine itself as a host: files and folders in this process, native libraries in helper programs."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from netdoctor.host.base import Answer, unavailable
from netdoctor.host.children import HelperPool
from netdoctor.model import Json, Kind, Unavailable
from netdoctor.process import far

MAX_FILE: Final = 4 << 20
WORKING: Final = "/proc/self/cwd"  # leads to where nobody knows before it is followed
BLOCK: Final = bytes(4096)
# What open(2) says of O_TMPFILE where the file system has it not: most of the net's, overlayfs before Linux 6.3.
_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
# What a file system says of every call that is damaged, shut down, or without its server or program.
_LOST: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.ESHUTDOWN, errno.ESTALE, errno.ENOTCONN})
# What keeps this user from coming to a folder, whoever makes it.
_CLOSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR})


class LiveHost:
    """This machine, or a mounted root of the same kernel (`root`)."""

    # What below a root is this process's or this network namespace's own, whatever is mounted there.
    foreign: tuple[str, ...] = ("/proc/self", "/proc/thread-self", "/proc/sys/net", "/proc/net")

    def __init__(self, root: str | None = None, config: Mapping[str, Any] | None = None, *, trust: bool = False) -> None:
        self._root = os.path.abspath(root) if root and os.path.abspath(root) != "/" else None
        self._config = dict(config or {})
        self._pool = HelperPool(trust=trust)

    def ask(self, question: str) -> Answer:
        scheme, _, rest = question.partition(":")
        if scheme == "config":
            return dict(self._config)
        if scheme == "ask":
            return Unavailable(Kind.ANOTHER_ROOT) if self._root else self._pool.answer(question)
        if scheme == "env":
            return Unavailable(Kind.ANOTHER_ROOT) if self._root else _environment()
        if scheme not in _IN_PROCESS or not rest.startswith("/"):
            return Unavailable(Kind.MALFORMED, f"no such question: {question}")
        if self._root and (scheme in ("trusted", "room") or rest.startswith(self.foreign)):
            return Unavailable(Kind.ANOTHER_ROOT)
        try:
            path = "" if self._root or rest == WORKING else rest.rpartition(":")[0] if scheme == "open" else rest
            return far.call(_IN_PROCESS[scheme], rest, self._root, path=path, writes=scheme in ("room", "open"))
        except far.HungError as error:
            return Unavailable(Kind.TIMED_OUT, str(error.strerror))
        except OSError as error:
            return unavailable(error)
        except ValueError as error:  # a NUL byte in a path
            return Unavailable(Kind.MALFORMED, str(error))

    def prefetch(self, questions: Iterable[str]) -> None:
        if not self._root:
            self._pool.start(q for q in questions if q.startswith("ask:"))

    def finish(self, question: str) -> None:
        """Tell the helper of a question that looks on until it is told to end that now is the time."""
        self._pool.finish(question)

    def close(self) -> None:
        """End every helper that still runs."""
        self._pool.close()
        far.close()


def _environment() -> Json:
    return {_text(name): _text(value) for name, value in os.environ.items()}


def _text(text: str) -> str:
    """Bytes that are not UTF-8 (surrogates in Python) written out, as in files: JSON, XML and URLs take no surrogates."""
    return text if text.isascii() else os.fsencode(text).decode("utf-8", "backslashreplace")


def _open(path: str, flags: int, root: str | None) -> int:
    """Open `path`; with `root` inside it and nowhere else (openat2, RESOLVE_IN_ROOT)."""
    if root is None:
        return os.open(path, flags | os.O_CLOEXEC)
    from netdoctor.host.rooted import open_in_root

    return open_in_root(root, path, flags | os.O_CLOEXEC)


def _file(path: str, root: str | None) -> Answer:
    known = os.fsencode(far.mountinfo()) if root is None and path == far.MOUNTINFO else b""
    data = known or _content(path, root)
    if len(data) > MAX_FILE:
        return Unavailable(Kind.MALFORMED, f"larger than {MAX_FILE >> 20} MiB")
    return data.decode("utf-8", "backslashreplace")


def _content(path: str, root: str | None) -> bytes:
    fd = _open(path, os.O_RDONLY | os.O_NONBLOCK, root)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        data = bytearray()
        while len(data) <= MAX_FILE and (block := os.read(fd, 1 << 16)):
            data += block
    finally:
        os.close(fd)
    return bytes(data)


def _trusted(path: str, _root: str | None) -> Answer:
    """A file that nobody but root and this user could have written, on all the way to it."""
    from netdoctor.host.trust import ROOT, open_trusted

    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    fd, reason = open_trusted(path, ROOT | {os.geteuid()})
    if fd is None:
        return Unavailable(Kind.REFUSED, reason or "")
    with open(fd, "rb") as stream:
        data = stream.read(MAX_FILE + 1)
    return data.decode("utf-8", "backslashreplace") if len(data) <= MAX_FILE else Unavailable(Kind.MALFORMED, "too large")


def _dir(path: str, root: str | None) -> Answer:
    if root is None:
        return sorted(map(_text, os.listdir(path)))
    fd = _open(path, os.O_RDONLY | os.O_DIRECTORY, root)
    try:
        return sorted(map(_text, os.listdir(fd)))
    finally:
        os.close(fd)


def _link(path: str, root: str | None) -> Answer:
    if root is None:
        return _text(os.readlink(path))
    fd = _open(path, os.O_PATH | os.O_NOFOLLOW, root)
    try:
        return os.readlink(b"", dir_fd=fd).decode("utf-8", "backslashreplace")
    finally:
        os.close(fd)


def _stat(path: str, root: str | None) -> Answer:
    if root is None:
        got = os.stat(path)
    else:
        fd = _open(path, os.O_PATH, root)
        try:
            got = os.fstat(fd)
        finally:
            os.close(fd)
    kind = next((n for n, test in _TYPES if test(got.st_mode)), "other")
    return {
        "mode": stat.S_IMODE(got.st_mode),
        "uid": got.st_uid,
        "gid": got.st_gid,
        "type": kind,
        "major": os.major(got.st_rdev),
        "minor": os.minor(got.st_rdev),
        "dev": got.st_dev,
    }


_TYPES: Final[tuple[tuple[str, Callable[[int], bool]], ...]] = (
    ("file", stat.S_ISREG),
    ("dir", stat.S_ISDIR),
    ("char", stat.S_ISCHR),
    ("block", stat.S_ISBLK),
    ("socket", stat.S_ISSOCK),
    ("fifo", stat.S_ISFIFO),
)


def _statvfs(path: str, root: str | None) -> Answer:
    if root is None:
        got = os.statvfs(path)
    else:
        fd = _open(path, os.O_RDONLY | os.O_NONBLOCK, root)
        try:
            got = os.fstatvfs(fd)
        finally:
            os.close(fd)
    return {"size": got.f_blocks * got.f_frsize, "free": got.f_bavail * got.f_frsize}


def _room(path: str, _root: str | None) -> Answer:
    """Whether a file can be made in a folder and hold a block, by one without a name (O_TMPFILE): it is never seen by others,
    and gone when it is closed.  Where the file system has none, its flags and this user's rights tell ("tried" is false)."""
    try:
        got = os.statvfs(path)
    except OSError as error:
        if error.errno not in _LOST | _CLOSED:
            raise
        return {"errno": error.errno, "name": errno.errorcode[error.errno], "tried": True, "size": 0, "free": 0}
    told = {"size": got.f_blocks * got.f_frsize, "free": got.f_bavail * got.f_frsize}
    try:
        fd = os.open(path, os.O_TMPFILE | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            number, left = 0, memoryview(BLOCK)
            while left:  # of a short write the next one says why: no space, or the limit of the process (write(2), EFBIG)
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
    except OSError as error:
        number = error.errno or 0
    tried = number not in _NO_TMPFILE
    if not tried:
        full = got.f_blocks > 0 and not got.f_bavail
        allowed = os.access(path, os.W_OK | os.X_OK, effective_ids=True)
        number = errno.EROFS if got.f_flag & os.ST_RDONLY else 0 if allowed else errno.EACCES
        number = errno.ENOSPC if full and not number else number
    return {"errno": number, "name": errno.errorcode.get(number, ""), "tried": tried, **told}


def _try_open(rest: str, root: str | None) -> Answer:
    path, _, mode = rest.rpartition(":")
    flags = os.O_RDWR if mode == "rw" else os.O_RDONLY
    try:
        os.close(_open(path, flags | os.O_NONBLOCK, root))
    except OSError as error:
        return {"errno": error.errno or 0, "name": errno.errorcode.get(error.errno or 0, "?")}
    return {"errno": 0, "name": ""}


_IN_PROCESS: Final[dict[str, Callable[[str, str | None], Answer]]] = {
    "file": _file,
    "again": _file,
    "trusted": _trusted,
    "dir": _dir,
    "link": _link,
    "stat": _stat,
    "statvfs": _statvfs,
    "room": _room,
    "open": _try_open,
}
