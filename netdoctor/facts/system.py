"""What of a node stops jobs beside GPUs and network: its kernel, its memory, and file systems that are full or dead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Final

from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.job import section
from netdoctor.facts.kernel_log import KernelLog, Trouble
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, link, mapping, matching, names, read, read_int, value
from netdoctor.model import Kind, Unavailable, record

MEMORY: Final = "/sys/devices/system/edac/mc"  # Documentation/ABI/testing/sysfs-devices-edac
SHARED: Final = ("/tmp", "/var/tmp")  # where Python's tempfile looks when no variable names a folder
ROOT: Final = "/"
OWN: Final = {"TMPDIR": "TMPDIR", "HOME": "HOME"}
WORKING: Final = "the working folder"
_CWD: Final = "/proc/self/cwd"


# What a job that may write there meets all the same; EACCES and EROFS of one folder are a site's choice.
BROKEN: Final = {
    "ENOSPC": "is full",
    "EDQUOT": "is full: this user's quota is used up",
    "EIO": "does not take data any more (input/output error)",
    "ESHUTDOWN": "was shut down",
    "EUCLEAN": "is damaged",
    "ESTALE": "is one that its server no longer has",
    "ENOTCONN": "has nothing behind it: the program behind its mount ended (FUSE)",
}
# Bytes are left, and a file could not be made or grow: statfs(2) counts both, and a project's quota says ENOSPC, too (xfs).
NO_INODE: Final = "takes no file, though bytes are left: no inode is, or a quota is used up"
LEFT: Final = 1 << 20  # bytes; more than the trial takes, and than what a file system keeps for itself when it is full
# What keeps a job from writing where it is said to write.
CLOSED: Final = {
    "EROFS": "is for reading only",
    "EACCES": "is closed to this user",
    "EPERM": "is closed to this user",
    "ENOTDIR": "is no folder",
    "ELOOP": "leads in a circle of links",
}
DIED: Final = 1 << 7  # TAINT_DIE
_FULL: Final = frozenset({"", "ENOSPC", "EDQUOT", "EACCES"})


@record
class Room:
    """Whether a file can be made in a folder and written."""

    error: str  # "ENOSPC", "EROFS", …; "": it can
    tried: bool  # by an unnamed file; else by the flags and rights of the folder
    size: int  # bytes of the file system; 0 where it does not say
    free: int  # that a user may take
    LIMITED: ClassVar[str] = "files of this process may not be as large as 4 KiB (ulimit -f), whatever room there is"

    def broken(self, root: bool) -> str:
        """What ails it, in words; "": nothing.  Root may take what a file system keeps back for it; its users may not."""
        if self.error == "ENOSPC" and self.free >= LEFT:
            return NO_INODE
        full = root and not self.error and self.size > 0 and not self.free
        return BROKEN["ENOSPC"] if full else BROKEN.get(self.error, "")

    @property
    def limited(self) -> bool:
        """By the process that tried (RLIMIT_FSIZE), which says nothing of the folder."""
        return self.error == "EFBIG"

    @property
    def full(self) -> bool:
        """Of a broken one: more room would mend it."""
        return self.error in _FULL


@record
class Mounted:
    """A block device, and where this mount namespace has it."""

    device: str  # as the kernel's log names it: "nvme0n1p3", "dm-0"
    points: tuple[str, ...]
    dead: bool  # its options say so (ext4 since Linux 6.15: emergency_ro, shutdown)


@record
class System(Fact):
    """The state of the node's kernel, memory and file systems."""

    tainted: int | Unavailable  # bits of Documentation/admin-guide/tainted-kernels.rst
    uptime: float | Unavailable  # seconds
    memory_errors: Mapping[str, int | Unavailable] | Unavailable  # uncorrected ones since boot, by memory controller
    rooms: Mapping[str, Room | Unavailable]  # by name: a folder of all users, a variable, `WORKING`
    mounts: tuple[Mounted, ...] | Unavailable
    stuck: tuple[str, ...] | Unavailable  # "NAME:PID" of tasks that the log calls blocked, and that still are
    paths: Mapping[str, Room | Unavailable] | Unavailable = field(default_factory=dict)  # that the job writes (job.paths)
    corrected: Mapping[str, int] = field(default_factory=dict)  # errors of memory that were corrected, by controller
    servers: Mapping[str, tuple[str, ...]] | Unavailable = field(default_factory=dict)  # of NFS, and where each is mounted

    @property
    def tried(self) -> dict[str, Room | Unavailable]:
        """Where Python's tempfile looks for a folder, in its order."""
        return {name: self.rooms[name] for name in ("TMPDIR", *SHARED, WORKING) if name in self.rooms}

    def broken(self, root: bool) -> dict[str, tuple[Room, str]]:
        """Folders that are broken, and by what, in words.  Of `/`, where a user may not write, the file system says whether it
        is full; one for reading only (EROFS) has no room by design."""
        found = {name: (room, words) for name, room in self.rooms.items() if room and (words := room.broken(root))}
        top = self.rooms.get(ROOT)
        if top and top.error == "EACCES" and top.size > 0 and not top.free:
            found[ROOT] = top, BROKEN["ENOSPC"]
        return found

    def spared(self, root: bool) -> dict[str, str]:
        """Of the folders of all users those without room, in words, where TMPDIR names one that has it: what asks gets that."""
        full = {name: words for name, (room, words) in self.broken(root).items() if name in SHARED and room.full}
        return full if "TMPDIR" in self.good(root) else {}

    def good(self, root: bool) -> list[str]:
        """Of `tried` those that take a file."""
        return [name for name, room in self.tried.items() if room and not room.error and not room.broken(root)]

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        why = no_evidence(why)  # of a folder or a counter that it is absent says something
        return {**super()._unread(why), "rooms": dict.fromkeys((ROOT, *SHARED, WORKING), why), "corrected": {}}


def probe(host: Host, log: KernelLog, vantage: Vantage) -> System:
    """The folders of the job are asked only where its environment is seen."""
    job = section(host, "job")
    paths = job if isinstance(job, Unavailable) else {str(one): _room(host, str(one)) for one in job.get("paths") or ()}
    errors = _memory_errors(host, "ue_count")
    return System(
        read_int(host, "/proc/sys/kernel/tainted"),
        _uptime(host),
        errors,
        _rooms(host, vantage),
        _mounts(host),
        _stuck(host, log, vantage),
        paths,
        {name: count for name, count in (_memory_errors(host, "ce_count") or {}).items() if count} if errors else {},
        _servers(host),
    )


def _uptime(host: Host) -> float | Unavailable:
    found = matching(host, "/proc/uptime", r"(\d{1,12}(?:\.\d{1,3})?) ")
    return found if isinstance(found, Unavailable) else float(found[1])


def _memory_errors(host: Host, which: str) -> dict[str, int | Unavailable] | Unavailable:
    found = names(host, MEMORY)
    if isinstance(found, Unavailable):
        return found
    return {name: read_int(host, f"{MEMORY}/{name}/{which}") for name in found if re.fullmatch(r"mc\d{1,4}", name, re.ASCII)}


def _rooms(host: Host, vantage: Vantage) -> dict[str, Room | Unavailable]:
    asked = {name: name for name in (ROOT, *SHARED)}
    if vantage.job_environment:
        variables = mapping(host, "env:")
        named = {} if isinstance(variables, Unavailable) else variables
        asked |= {name: str(named[name]) for name in OWN if str(named.get(name, "")).startswith("/")} | {WORKING: _CWD}
    return {name: _room(host, path) for name, path in asked.items()}


def _room(host: Host, path: str) -> Room | Unavailable:
    got = mapping(host, f"room:{path}")
    if isinstance(got, Unavailable):
        return got
    number, name = value(got.get("errno"), int, f"room of {path}"), value(got.get("name"), str, f"room of {path}")
    size, free = value(got.get("size"), int, f"room of {path}"), value(got.get("free"), int, f"room of {path}")
    for one in (number, name, size, free):
        if isinstance(one, Unavailable):
            return one
    return Room((str(name) or f"errno {number}") if number else "", got.get("tried") is True, int(size or 0), int(free or 0))


def _mounts(host: Host) -> tuple[Mounted, ...] | Unavailable:
    """Of block devices, by the kernel's names (proc_pid_mountinfo(5)): a file system's own options are the last field."""
    text = read(host, "/proc/self/mountinfo")
    if isinstance(text, Unavailable):
        return text
    points: dict[str, list[str]] = {}
    dead = set()
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, rest = before.split(), after.split()
        if not dash or len(words) < 5 or len(rest) < 3 or not rest[1].startswith("/dev/"):
            continue
        named = (
            link(host, f"/sys/dev/block/{words[2]}") if rest[1].startswith(("/dev/mapper/", "/dev/root", "/dev/disk/")) else ""
        )
        device = named.rpartition("/")[2] if isinstance(named, str) and named else rest[1].rpartition("/")[2]
        points.setdefault(device, []).append(words[4].replace(r"\040", " "))
        if {"emergency_ro", "shutdown"} & set(rest[2].split(",")):
            dead.add(device)
    return tuple(Mounted(device, tuple(some), device in dead) for device, some in points.items())


def _servers(host: Host) -> dict[str, tuple[str, ...]] | Unavailable:
    """Of this mount namespace: "SERVER:/PATH", brackets around an address of IPv6 (nfs(5))."""
    text = read(host, "/proc/self/mountinfo")
    if isinstance(text, Unavailable):
        return text
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, rest = before.split(), after.split()
        if dash and len(words) > 4 and len(rest) > 1 and rest[0] in ("nfs", "nfs4"):
            server = rest[1].partition(":/")[0].strip("[]")
            found[server] = (*found.get(server, ()), words[4].replace(r"\040", " "))
    return found


def _silent(host: Host) -> float | None:
    """Second of the log since when the kernel would have said again that a task is blocked; None: it may say no more.

    It does so each time it looks, a timeout apart at most, until kernel.hung_task_warnings has counted down to 0
    (check_hung_task, kernel/hung_task.c).  The log's clock is not steered by NTP, which adds up to 500 ppm to that of
    /proc/uptime (MAXFREQ, include/linux/timex.h).
    """
    left, timeout = (read_int(host, f"/proc/sys/kernel/hung_task_{name}") for name in ("warnings", "timeout_secs"))
    uptime, tainted = _uptime(host), read_int(host, "/proc/sys/kernel/tainted")
    if isinstance(uptime, Unavailable) or isinstance(tainted, Unavailable) or tainted & DIED:  # nor after an oops
        return None
    if not left or not timeout:
        return None
    return uptime * (1 - 500e-6) - 3 * timeout


def _stuck(host: Host, log: KernelLog, vantage: Vantage) -> tuple[str, ...] | Unavailable:
    """A task that was blocked for minutes and has gone on since is well: /proc says what it does now, and a log that does not
    say it again that it went on."""
    if isinstance(log.system, Unavailable):
        return log.system
    hung = [event for event in log.system if event.what is Trouble.HUNG]
    if hung and (since := _silent(host)) is not None:
        hung = [event for event in hung if event.second >= since]
    if hung and not vantage.initial_pids:
        return Unavailable(Kind.NOT_READ, "the log's numbers are not those of this PID namespace")
    found = []
    for event in hung:
        one = event.name
        name, _, pid = one.rpartition(":")
        got = matching(host, f"/proc/{pid}/stat", r"\d+ \((.{0,64})\) (\w)")  # proc_pid_stat(5)
        # The kernel's own workers change their names as they work (wq_worker_comm).
        same = not isinstance(got, Unavailable) and (got[1] == name or name.startswith("kworker/"))
        if isinstance(got, Unavailable):
            if got.kind is not Kind.ABSENT:
                return got
        elif same and got[2] == "D":
            found.append(one)
    return tuple(found)
