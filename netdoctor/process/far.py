"""Paths that may never answer: what is asked of them is asked in a child that can be killed.

Behind a hard NFS mount whose server is gone, or a FUSE daemon that stands still, a call on a path waits for ever, and no
handler of a signal runs meanwhile: only SIGKILL ends it (fs/fuse of Linux, request_wait_answer; net/sunrpc, TASK_KILLABLE).
Sick nodes hang exactly so.  Where every mount is the kernel's own or on a local disk nothing is forked to read; to write, a
child is asked always, for a local disk that is frozen or gone answers no writer, not even to SIGKILL (fsfreeze(8); multipath's
queue_if_no_path).  Such a child is left behind, and holds nothing that a reader of our output would wait for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from netdoctor.process.streams import readable

T = TypeVar("T")

LIMIT: Final = 5.0  # seconds that a path may take to answer; a healthy server answers within milliseconds
# File systems that ask nobody outside of the kernel and this machine's disks (fs/ of Linux; zfs is OpenZFS').
_NAMES: Final = (
    "bcachefs bdev binderfs binfmt_misc bpf btrfs cgroup cgroup2 configfs cramfs debugfs devpts devtmpfs efivarfs "
    "erofs exfat ext2 ext3 ext4 f2fs fusectl hugetlbfs iso9660 jfs mqueue msdos nsfs ntfs3 overlay proc pstore "
    "ramfs reiserfs resctrl romfs rootfs rpc_pipefs securityfs selinuxfs squashfs sysfs tmpfs tracefs udf vfat xfs "
    "zfs"
)
LOCAL: Final = frozenset(_NAMES.split())
MOUNTINFO: Final = "/proc/self/mountinfo"
_KERNELS: Final = ("/proc", "/sys", "/dev")
_PLACE: Final = 4096  # bytes of a path: PATH_MAX
_HOPS: Final = 40  # links that a path may lead through: MAXSYMLINKS
_HEAD: Final = struct.Struct("=I")
_PR_SET_PDEATHSIG: Final = 1


class Mount(NamedTuple):
    """One line of MOUNTINFO."""

    point: str
    kind: str
    source: str


class HungError(OSError):
    """A path did not answer."""

    def __init__(self, path: str, mount: Mount | None, limit: float) -> None:
        where = "" if mount is None else f" ({mount.kind} of {mount.source} on {mount.point})"
        super().__init__(errno.ETIMEDOUT, f"{path or 'a path'}{where} did not answer within {limit:g} s")
        self.path, self.mount, self.limit = path, mount, limit

    def __reduce__(self) -> tuple[type[HungError], tuple[str, Mount | None, float]]:
        """It crosses a pipe."""
        return HungError, (self.path, self.mount, self.limit)


@functools.cache
def mountinfo() -> str:
    """What MOUNTINFO says, read once: a process looks once.  "" where it cannot be read; no UTF-8 as surrogates."""
    return _read(MOUNTINFO)


def mounts(text: str) -> tuple[Mount, ...]:
    """The mounts of this process, in their order (proc_pid_mountinfo(5)); names keep their escapes for what is no blank."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, rest = before.split(), after.split()
        if dash and len(words) > 4 and rest:
            found.append(Mount(words[4].replace(r"\040", " "), rest[0], rest[1] if len(rest) > 1 else ""))
    return tuple(found)


def mount_of(fd: int) -> tuple[Mount, str] | None:
    """The mount that an open file is on, and its file system's own options; None where /proc does not tell."""
    head, _, number = _read(f"/proc/self/fdinfo/{fd}").partition("mnt_id:")  # proc_pid_fdinfo(5)
    begin = f"{number.split()[0]} " if head and number.split() else "none"
    every = (line for text in (mountinfo, functools.partial(_read, MOUNTINFO)) for line in text().splitlines())  # or a new one
    line = next((line for line in every if line.startswith(begin)), "")
    return next(((mount, line.split()[-1]) for mount in mounts(line)), None)


def _of_the_kernel(mount: Mount) -> bool:
    """What autofs mounts when it is looked at may be a server's; systemd's binfmt_misc is not."""
    return mount.kind == "autofs" and below(mount.point, "/proc")


def below(path: str, folder: str) -> bool:
    """Whether a path is the folder or in it, by its letters."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


class Far:
    """The child, and what is known of the mounts."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._hung: list[Mount] = []
        self._child: tuple[int, int, int] | None = None  # pid, its requests, its answers
        self._parent = 0  # whose child it is: a fork of ours (process/apart.py) has one of its own
        self._place = mmap.mmap(-1, _PLACE)
        self._mounts = mounts(mountinfo())
        self._risky = [m for m in self._mounts if m.kind not in LOCAL and not _of_the_kernel(m)]
        self._everywhere = any(below(m.point, root) for m in self._risky for root in _KERNELS)

    def call(
        self, work: Callable[..., T], *arguments: Any, path: str = "", limit: float | None = None, writes: bool = False
    ) -> T:
        """What ``work(*arguments)`` returns or raises; `path` is what it will touch, "" where that is not known.

        Raises HungError where it did not answer within `limit` seconds (LIMIT).  `work` and what it gives must be importable
        by name (pickle).  `writes`: it writes at `path`.
        """
        kernels = not self._everywhere and path and any(below(path, root) for root in _KERNELS)
        if kernels or not (self._risky or (writes and path)):
            return work(*arguments)
        import pickle

        if (writes and path) or self._parent != os.getpid():
            self.close()  # a fresh one has our working directory, mask and limits as they are now
        if not self._risky and not self._there():
            return work(*arguments)
        self._place[:] = bytes(_PLACE)
        answered, got = self._asked(pickle.dumps((work, arguments, path, self._hung)), limit or self._limit)
        if answered:
            return got  # type: ignore[no-any-return]
        raise got

    def _there(self) -> bool:
        """Whether there is a child, or one could be made: our own shortage (EAGAIN, EMFILE) keeps no report from a disk."""
        try:
            self._child = self._child or self._begin()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            pid, *ends = child
            for fd in ends:
                os.close(fd)
            if self._parent != os.getpid():
                return
            os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + 1.0
            while time.monotonic() < until and os.waitpid(pid, os.WNOHANG) == (0, 0):
                time.sleep(0.002)  # killed: gone at once, unless it stands in the kernel, where it is left behind

    def _asked(self, request: bytes, limit: float) -> tuple[bool, Any]:
        import pickle

        try:
            if self._child is None:
                self._child = self._begin()
            _, to, back = self._child
            until = time.monotonic() + limit
            _send(to, request)
            size = _HEAD.unpack(_receive(back, _HEAD.size, until))[0]
            answered, got = pickle.loads(_receive(back, size, until))  # noqa: S301 - from a fork of this process
        except _GoneError:
            self.close()
            return False, OSError(errno.ECHILD, "the process that looked has died")
        except _SilentError:
            self.close()
            return False, self._silent(limit)
        except BaseException:  # also a signal: the next answer would be this one's
            self.close()
            raise
        return answered, got

    def _silent(self, limit: float) -> HungError:
        place = self._place[:].rstrip(b"\0").decode("utf-8", "surrogateescape")
        inside = [m for m in self._mounts if below(place, m.point)]
        mount = max(inside, key=lambda m: len(m.point), default=None)
        if mount in self._risky and mount not in self._hung:
            self._hung.append(mount)
        return HungError(place, mount, limit)

    def _begin(self) -> tuple[int, int, int]:
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            parent, pid = os.getpid(), os.fork()
        except OSError:
            for end in ends:
                os.close(end)
            raise
        requests, answers = ends[:2], ends[2:]
        if pid == 0:
            self._serve(parent, requests[0], answers[1])
        self._parent = parent
        os.close(requests[0])
        os.close(answers[1])
        return pid, requests[1], answers[0]

    def _serve(self, parent: int, requests: int, answers: int) -> None:
        """In the child; does not return."""
        import pickle

        try:
            os.setsid()
            with contextlib.suppress(OSError):
                null = os.open("/dev/null", os.O_RDWR)
                for fd in {0, 1, 2} - {requests, answers}:
                    os.dup2(null, fd)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _keep_only({0, 1, 2, requests, answers})
            while os.getppid() == parent:
                size = _HEAD.unpack(_receive(requests, _HEAD.size))[0]
                work, arguments, path, hung = pickle.loads(_receive(requests, size))  # noqa: S301 - as above
                _send(answers, self._answer(work, arguments, path, hung))
        finally:
            os._exit(0)

    def _answer(self, work: Callable[..., Any], arguments: Any, path: str, hung: list[Mount]) -> bytes:
        import pickle

        try:
            if path:
                self._walk(path, hung)
            reply = True, work(*arguments)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            reply = False, error
        try:
            return pickle.dumps(reply)
        except Exception as error:  # noqa: BLE001 - an exception of a kind that cannot be sent
            return pickle.dumps((False, OSError(str(error))))

    def _walk(self, path: str, hung: list[Mount]) -> None:
        """Note each step of the way before it is gone, links followed: the last one noted is where it hangs."""
        todo, at = path.split("/"), ""
        for _ in range(_HOPS * 64):
            if not todo:
                return
            name = todo.pop(0)
            if name in ("", "."):
                continue
            at = at.rpartition("/")[0] if name == ".." else f"{at}/{name}"
            data = os.fsencode(at or "/")[:_PLACE]
            self._place[:] = data.ljust(_PLACE, b"\0")
            if (mount := next((m for m in hung if below(at, m.point)), None)) is not None:
                raise HungError(at, mount, self._limit)
            try:
                target = os.readlink(at or "/")
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EACCES):  # no link
                    continue
                return  # whatever it is, `work` meets it too
            todo = target.split("/") + todo
            at = "" if target.startswith("/") else at.rpartition("/")[0]


class _SilentError(Exception):
    """Nothing came in time."""


class _GoneError(Exception):
    """The other end is closed."""


def _keep_only(kept: set[int]) -> None:
    """Close every other descriptor: a connection or a lock of ours would live on in the child, and the sampler of the ranks'
    connections (cluster/tcp_stats.py) would take ours for one of theirs."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                with contextlib.suppress(OSError):  # the listing's own, closed by now
                    os.close(int(name))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _send(fd: int, data: bytes) -> None:
    view = memoryview(_HEAD.pack(len(data)) + data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        raise _GoneError from None


def _receive(fd: int, size: int, until: float | None = None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if until is not None and not readable(fd, until - time.monotonic()):
            raise _SilentError
        block = os.read(fd, min(size - len(data), 1 << 20))
        if not block:
            raise _GoneError
        data += block
    return bytes(data)


_here: list[Far] = []


def here() -> Far:
    """This process's own."""
    if not _here:
        _here.append(Far())
    return _here[0]


def call(work: Callable[..., T], *arguments: Any, path: str = "", limit: float | None = None, writes: bool = False) -> T:
    """`Far.call` of this process."""
    return here().call(work, *arguments, path=path, limit=limit, writes=writes)


def close() -> None:
    """End the child of this process, if there is one."""
    while _here:
        _here.pop().close()
