"""The node's own kernel, memory and file systems let a job start, go on and write.

A fault is what holds now: a task that was blocked and goes on, a file system that was mounted again, memory that was corrected
are history.  A root that is read-only by design is no fault: only what a job must write is tried, by this user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from netdoctor.api import (
    CLOSED,
    FROM_JOB,
    LOOK_AT_LOG,
    WHOLE_LOG,
    Finding,
    Fix,
    KernelLog,
    Kind,
    Loss,
    Pci,
    Room,
    System,
    SystemEvent,
    Trouble,
    Unavailable,
    Vantage,
    check,
    cost,
    expectation,
    fail,
    fix_container,
    missing,
    neighbours,
    ok,
    unknown,
)

KERNEL, MEMORY, TEMPORARY, LOG, TASKS, FILES = "kernel", "memory", "temporary files", "kernel log", "tasks", "file systems"
SIZE = "file size"
STORAGE = "node_storage"
# Documentation/admin-guide/tainted-kernels.rst: what says of modules where they come from, and what warns, is no fault.
TAINTS = {
    7: "it died once (an oops or BUG); what the process that met it held stays held",
    5: "it found a page of memory in a state that it cannot be in",
    4: "the processor reported an uncorrected hardware error (machine check)",
}
STUCK = 60  # seconds: the watchdog says every 20 that a CPU is still stuck (kernel/watchdog.c, 2 * watchdog_thresh)
REBOOT = Fix("drain the node, keep its log and reboot it; replace what shows the error again", ("dmesg -T", "journalctl -k -b"))
THAW = Fix(
    f"see what they wait for; thaw a file system that was frozen (fsfreeze); else {REBOOT.summary}",
    ("fsfreeze -u MOUNTPOINT", *REBOOT.commands),
)
REPAIR = Fix("drain the node; look for errors of the disk, check its file system and mount it again", ("dmesg -T", "findmnt"))
REPLACE = Fix("save what is on the disk and replace it", ("smartctl -a /dev/DISK", "nvme smart-log /dev/DISK", "dmesg -T"))
GIVE = "give it a folder that it may write: a tmpfs on /tmp, or TMPDIR"
CONNECTIONS = Fix(
    "give the kernel more room for connections that it tracks (netfilter), or have it not track the job's",
    (
        "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max",
        "sysctl -w net.netfilter.nf_conntrack_max=$((2 * $(sysctl -n net.netfilter.nf_conntrack_max)))",
        "conntrack -L | head   # whose they are",
    ),
)
PLACES = {"/": "/.x   # as root", "HOME": "$HOME/x; findmnt -T $HOME"}
SPACE = Fix("make room there, or name another folder (TMPDIR)", ("df -h", "df -i", "quota"))


@check(id="node.system", title="The node's kernel, memory and file systems let a job run", cause="node_error")
def node_system(system: System, log: KernelLog, pci: Pci, vantage: Vantage) -> Iterator[Finding]:
    place = expectation.place(vantage)
    yield from _kernel(system)
    yield from _memory(system)
    yield from _folders(system, vantage)
    dead = list(_dead(system, log))
    yield from dead
    silent = list(_silent(system, log))
    yield from silent
    yield from _log(system, log, pci, place, bool(dead or silent))


def _kernel(system: System) -> Iterator[Finding]:
    bits = system.tainted
    if isinstance(bits, Unavailable):
        yield unknown(
            f"what the kernel met since boot could not be read: {bits}", subject=KERNEL, how="cat /proc/sys/kernel/tainted"
        )
        return
    met = [words for bit, words in TAINTS.items() if bits >> bit & 1]
    if met:
        yield fail(
            f"the kernel calls itself tainted: {'; '.join(met)}", subject=KERNEL, loss=cost.SOMETIMES, fix=REBOOT, tainted=bits
        )
    else:
        yield ok("the kernel met no error of its own since boot", subject=KERNEL)


def _memory(system: System) -> Iterator[Finding]:
    """EDAC counts from boot on; where no driver of it is loaded nobody counts, and nothing is said."""
    counts = system.memory_errors
    if isinstance(counts, Unavailable):
        if counts.kind not in (Kind.ABSENT, Kind.UNSUPPORTED):
            yield unknown(f"uncorrected errors of memory could not be read: {counts}", subject=MEMORY)
        return
    bad = {name: count for name, count in counts.items() if not isinstance(count, Unavailable) and count}
    lost = missing(*counts.values())
    if bad:
        yield fail(
            f"uncorrected errors of memory since boot ({', '.join(bad)})",
            subject=MEMORY,
            loss=cost.SOMETIMES,
            measured=dict(bad),
            fix=Fix("drain the node and replace the module that is named", ("ras-mc-ctl --errors", "dmesg | grep -i edac")),
        )
    elif lost is not None:
        yield unknown(f"uncorrected errors of memory could not be read: {lost}", subject=MEMORY)
    elif counts:
        notes = [f"corrected since boot: {', '.join(system.corrected)}"] * bool(system.corrected)
        yield ok("no uncorrected error of memory since boot", subject=MEMORY, measured=system.corrected, notes=notes)


def _folders(system: System, vantage: Vantage) -> Iterator[Finding]:
    """Python's tempfile, and by it torchrun and a DataLoader's workers, take the first folder that can be written: TMPDIR,
    /tmp, /var/tmp, the working folder (Lib/tempfile.py, _get_default_tempdir); without any they end at once."""
    tried, broken, good = system.tried, system.broken(vantage.euid == 0), system.good(vantage.euid == 0)
    lost = missing(*(room for room in tried.values() if not (isinstance(room, Unavailable) and room.kind is Kind.ABSENT)))
    none = not good and lost is None and vantage.job_environment
    spared = system.spared(vantage.euid == 0) if vantage.job_environment else {}
    broken = {name: one for name, one in broken.items() if name not in spared}
    limited = any(room and room.limited for room in system.rooms.values())
    if limited and vantage.job_user:
        fix = fix_container(vantage, "fsize")
        why = "what writes a file ends with: File too large (EFBIG), or by the signal SIGXFSZ"
        yield fail(Room.LIMITED, subject=SIZE, cause="process_limits", loss=cost.STOPS, fix=fix, why=why)
    for name, silent in system.rooms.items():  # HOME on a server that is gone: what a job reads and caches there hangs
        if name not in tried and isinstance(silent, Unavailable) and silent.kind is not Kind.ABSENT:
            yield unknown(f"whether {name} takes a file was not seen: {silent}", subject=name, how=f"touch {PLACES[name]}")
    for name, (room, words) in broken.items():
        mend = SPACE if room.full else REPAIR
        yield fail(f"{name} {words}", subject=name, cause=STORAGE, loss=cost.SOMETIMES, fix=mend)
    if limited and not good:
        pass  # whether anything else keeps files from being made is seen without that limit
    elif none:
        said = ", ".join(
            f"{name} {broken[name][1] if name in broken else (room and room.error) or 'is not there'}"
            for name, room in tried.items()
        )
        why = "Python's tempfile, and by it torchrun and a DataLoader, end with: No usable temporary directory found"
        text = f"no temporary file can be made: {said}"
        if broken.keys() & tried.keys():
            yield fail(text, subject=TEMPORARY, cause=STORAGE, loss=cost.STOPS, fix=SPACE, why=why)
        else:  # so it was given, and a job that makes none starts
            yield unknown(f"{text}; a job that makes none can do without", subject=TEMPORARY, why=why, how=GIVE)
    elif lost is not None:
        yield unknown(f"whether temporary files can be made was not seen: {lost}", subject=TEMPORARY, how="touch /tmp/x")
    elif not vantage.job_environment:
        yield unknown(f"where the job writes is its own: {vantage.elsewhere}", subject=TEMPORARY, how=FROM_JOB)
    elif not broken:
        yield ok(f"files can be written: {', '.join(good)}", subject=TEMPORARY, notes=_not_taken(tried, good, spared))


def _not_taken(tried: Mapping[str, Room | Unavailable], good: list[str], spared: Mapping[str, str]) -> list[str]:
    """Where Python goes on to the next folder, mktemp(1) ends: a TMPDIR that another node or the container's host has."""
    room = tried.get("TMPDIR")
    if room is None or "TMPDIR" in good:
        return [f"{name} {words}: what does not ask for TMPDIR still writes there" for name, words in spared.items()]
    why = "is not there" if isinstance(room, Unavailable) else CLOSED.get(room.error, room.error)
    return [f"the folder that TMPDIR names {why}: Python takes {good[0]}, mktemp(1) takes no other and ends"]


def _dead(system: System, log: KernelLog) -> Iterator[Finding]:
    """A file system that the kernel gave up, and that is mounted still: /proc/self/mountinfo may say "rw" of it."""
    if isinstance(system.mounts, Unavailable):
        yield unknown(f"what is mounted could not be read: {system.mounts}", subject=FILES)
        return
    gone = {event.name for event in log.system or () if event.what is Trouble.DEAD}
    torn = [event.name for event in log.system or () if event.what is Trouble.MEDIUM]
    for one in system.mounts:
        if one.dead or one.device in gone:
            points = ", ".join(sorted(one.points)[:3])
            loss: Loss = cost.STOPS if "/" in one.points else cost.SOMETIMES
            text = f"the kernel shut down the file system of {one.device} after an error; it is mounted on {points}"
            yield fail(text, subject=f"{FILES}: {one.device}", cause=STORAGE, loss=loss, fix=REPAIR)
        elif any(re.fullmatch(rf"{re.escape(disk)}(p?\d+)?", one.device) for disk in torn):  # of RAID, the others have the data
            text = f"a sector under {one.device} could not be read since boot (medium error): a job that needs it gets EIO"
            yield fail(text, subject=f"{FILES}: {one.device}", cause=STORAGE, loss=cost.SOMETIMES, fix=REPLACE)


def _silent(system: System, log: KernelLog) -> Iterator[Finding]:
    """The kernel says once of a request that its server does not answer, and once that it does; a server that was unmounted by
    force and mounted again has no such end (net/sunrpc/clnt.c)."""
    names = [event.name for event in log.system or () if event.what is Trouble.SILENT]
    if not names:
        return
    if isinstance(system.servers, Unavailable):
        yield unknown(f"which NFS servers are mounted could not be read: {system.servers}", subject=FILES)
        return
    for name in (one for one in names if one in system.servers):
        points = ", ".join(sorted(system.servers[name])[:3])
        found = fail(
            f"the NFS server {name} did not answer, by the kernel's last word of it: what waits for {points} hangs",
            subject=f"{FILES}: {name}",
            cause=STORAGE,
            loss=cost.SOMETIMES,
            fix=Fix("see whether the server and the way to it are up", ("nfsstat -m", f"showmount -e {name}")),
        )
        text = f"{found.message}; whether it answers again was not said"
        how = f"timeout 5 stat {points.partition(', ')[0]}"
        yield replace(unknown(text, subject=found.subject, how=how), perhaps=found)


def _log(system: System, log: KernelLog, pci: Pci, place: str, found: bool) -> Iterator[Finding]:
    """What the kernel said since boot, and what of it still holds."""
    if isinstance(log.system, Unavailable):
        yield unknown(f"what the kernel said since boot could not be read: {log.system}", subject=LOG, how=LOOK_AT_LOG)
        return
    wrong = [*_stuck(system), *_lockups(system, log.system), *_unrecovered(log.system, pci)]
    for subject, text in wrong:
        mend = THAW if subject == TASKS else REBOOT
        stacks = " ".join(f"/proc/{name.rpartition(':')[2]}/stack" for name in (system.stuck or ())[:3])
        first = (f"grep . {stacks}   # as root",) if subject == TASKS else ()
        yield fail(text, subject=subject, loss=cost.SOMETIMES, fix=Fix(f"{place}{mend.summary}", (*first, *mend.commands)))
    dropped = list(_dropped(system, log.system))
    yield from dropped
    past = {event.what for event in log.system} - {Trouble.NEIGHBOURS, Trouble.SILENT}  # of which others tell
    needs = {
        Trouble.HUNG: system.stuck,
        **dict.fromkeys((Trouble.LOCKUP, Trouble.CONNECTIONS), system.uptime),
        Trouble.UNRECOVERED: pci.devices,
        Trouble.SICK: pci.devices,
        **dict.fromkeys((Trouble.DEAD, Trouble.MEDIUM), system.mounts),
    }
    lost = missing(*(needs[what] for what in needs if what in past))
    timed = {Trouble.LOCKUP, Trouble.CONNECTIONS} & past
    if timed and system.uptime and any(event.second > system.uptime + STUCK for event in log.system):
        shorter = Unavailable(Kind.NOT_READ, "/proc/uptime is shorter than the log: a container's (lxcfs)")
        lost = missing(lost, shorter)
    if lost is not None:
        yield unknown(f"whether what the kernel said of errors still holds was not seen: {lost}", subject=LOG, how=LOOK_AT_LOG)
    elif log.begun is not True:
        yield unknown("the kernel's log no longer reaches back to the boot", subject=LOG, how=WHOLE_LOG)
    elif not wrong and not dropped and not found:
        notes = (f"since boot, and over: {', '.join(sorted(map(str, past)))}",) if past else ()
        yield ok(f"nothing that the kernel said since boot is still open, by {log.source}", subject=LOG, notes=notes)


def _stuck(system: System) -> Iterator[tuple[str, str]]:
    if system.stuck:
        tasks = sorted({name.rpartition(":")[0].partition("/")[0] for name in system.stuck})
        yield TASKS, f"the kernel called tasks blocked for minutes, and they still are (state D): {', '.join(tasks[:3])}"


def _lockups(system: System, events: Iterable[SystemEvent]) -> Iterator[tuple[str, str]]:
    for event in events:
        if event.what is Trouble.LOCKUP and system.uptime and abs(system.uptime - event.second) < STUCK:
            yield f"CPU {event.name}", f"CPU {event.name} is stuck in the kernel (soft lockup)"


def _dropped(system: System, events: Iterable[SystemEvent]) -> Iterator[Finding]:
    """The kernel says it while it drops, some times in five seconds at most; what it dropped hours ago may be mended."""
    for event in events:
        if event.what is Trouble.CONNECTIONS and system.uptime and neighbours.lately(event.second, system.uptime):
            yield fail(
                "the kernel said within the last hour that its table of connections (nf_conntrack) is full, and drops packets",
                subject="connections",
                cause="firewall_connect",
                loss=cost.SOMETIMES,
                why="the first packet of a new connection is lost, now and then: ranks hang in connect",
                measured={"times": event.times},
                fix=CONNECTIONS,
            )


def _unrecovered(events: Iterable[SystemEvent], pci: Pci) -> Iterator[tuple[str, str]]:
    """Of GPUs and RDMA devices, and of the ports above them: what else is on PCI is no job's."""
    every = [*(pci.gpus or ()), *(device for device in pci.devices or () if device.rdma)]
    words = {
        Trouble.UNRECOVERED: "did not recover from an uncorrected error of its PCIe link (AER)",
        Trouble.SICK: "has a firmware that failed, and did not recover (mlx5, health)",
    }
    for event in events:
        own = [one for one in every if event.name in (one.address, *one.path)]
        if event.what in words and own:
            yield f"PCI {own[0].address}", f"{own[0].address} {words[event.what]}"
