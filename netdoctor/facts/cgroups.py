"""What the cgroups of this process, from its own to the highest that is seen, leave it: tasks, CPU time, CPUs, memory, RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.cpu import cpu_list
from netdoctor.host.base import Host, names, read, read_again, read_int
from netdoctor.model import Kind, Unavailable, missing, record


@record
class Cap:
    """One limit of one cgroup."""

    file: str  # that says so
    most: float  # tasks, cores, bytes, or handles of an RDMA device
    used: int | Unavailable = 0  # of tasks, those that are there now; of memory, the bytes that nobody gives back


@record
class Counted:
    """How often a cgroup met a limit since it was made."""

    times: int
    of_job: bool  # it was made for this job; else an earlier one may have met it


@record
class Cgroups(Fact):
    """The limits of CPU, memory, processes and RDMA that this process's cgroups set.

    () where every level that exists was read and none sets any.
    """

    pids: tuple[Cap | Unavailable, ...] | Unavailable
    cpu: tuple[Cap | Unavailable, ...] | Unavailable
    memory: tuple[Cap | Unavailable, ...] | Unavailable
    hidden: bool | Unavailable  # there are cgroups above that a namespace or a mount does not show
    rdma: tuple[Cap | Unavailable, ...] | Unavailable = ()  # of each level the device of which it gives the fewest handles
    killed: Counted | None | Unavailable = None  # processes that were ended for want of memory; None: not counted
    refused: Counted | None | Unavailable = None  # processes and threads that were not made, by pids.max


# Controller -> files of v2, of v1 (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/*.rst; sched/sched-bwc.rst).  Beyond
# memory.high nobody is ended: who allocates sleeps instead, up to two seconds each time (mm/memcontrol.c,
# mem_cgroup_handle_over_high).
_FILES: Final = {
    "pids": (("pids.max",), ("pids.max",)),
    "cpu": (("cpu.max",), ("cpu.cfs_quota_us",)),
    "cpuset": (("cpuset.cpus.effective",), ("cpuset.effective_cpus",)),
    "memory": (("memory.max", "memory.high"), ("memory.limit_in_bytes",)),
    "rdma": (("rdma.max",), ("rdma.max",)),
}
# What the kernel counts of each, of v2 and of v1, since Linux 4.13 (cgroup-v2.rst, memory.events: "killed by any kind of OOM
# killer"; pids.events; mm/memcontrol-v1.c, mem_cgroup_oom_control_read).
_COUNTS: Final = {
    "memory": (("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill")),
    "pids": (("pids.events", "max"), ("pids.events", "max")),
}
# That Slurm makes for a job (slurm.schedmd.com, "Cgroup v2 plugin"): /system.slice/slurmstepd.scope/job_X/step_Y/user/task_Z.
_OF_JOB: Final = re.compile(r".*slurm.*/job_\d+", re.ASCII)
# What nobody gives back while its process lives, of v2 and of v1 (Documentation/admin-guide/cgroup-v2.rst, memory.stat;
# cgroup-v1/memory.rst).
_OF_THE_KERNEL: Final = "kernel_stack|pagetables|sec_pagetables|percpu|sock|vmalloc|slab_unreclaimable"
_HELD: Final = re.compile(rf"^(?:anon|shmem|{_OF_THE_KERNEL}|total_rss|total_shmem) (\d{{1,20}})$", re.ASCII | re.MULTILINE)
_NO_LIMIT: Final = 1 << 60  # v1 shows PAGE_COUNTER_MAX, a little less than 2^63 (mm/page_counter.c)


def probe(host: Host) -> Cgroups:
    """Each controller for itself, by v1 where it is mounted so, else by v2."""
    own, mounts = read(host, "/proc/self/cgroup"), read(host, "/proc/self/mountinfo")
    for lost in (own, mounts):
        if isinstance(lost, Unavailable):
            return Cgroups.unread(no_evidence(lost))
    looks = {name: _Look(host, name, str(own), str(mounts)) for name in _FILES}
    found = {name: look.caps() for name, look in looks.items()}
    hidden = [look.hidden for name, look in looks.items() if name != "rdma"]
    unseen = missing(*hidden)
    return Cgroups(
        pids=found["pids"],
        cpu=(*found["cpu"], *found["cpuset"]),
        memory=found["memory"],
        hidden=any(hidden) if unseen is None else unseen,
        # Older kernels have no such controller, and nobody mounts it.
        rdma=found["rdma"] if looks["rdma"].mount or looks["rdma"].cut else (),
        killed=looks["memory"].counted(),
        refused=looks["pids"].counted(),
    )


@record
class Counter:
    """A count that the kernel keeps of a limit that was met."""

    file: str
    key: str  # of the line in it


@record
class Rose:
    """How often the kernel did so meanwhile, by the counter that rose the most."""

    times: int
    file: str


@record
class LimitsMet(Fact):
    """What the kernel refused, or ended, at the limits of the cgroups while the all-reduce ran."""

    # Nothing, where it is None, or nobody counts it.
    refused: Rose | None | Unavailable  # processes and threads that were not made, by pids.max
    killed: Rose | None | Unavailable  # processes that were ended for want of memory

    @property
    def why_not(self) -> Unavailable | None:
        """Why nothing was seen."""
        lost = missing(self.refused, self.killed)
        return replace(lost, detail="nobody looked") if lost is not None and lost.kind is Kind.NOT_READ else lost


class _Look:
    """One controller's hierarchy."""

    def __init__(self, host: Host, controller: str, own: str, mounts: str) -> None:
        self.host, self.controller = host, controller
        lines = [line.split(":", 2) for line in own.splitlines() if line.count(":") >= 2]
        by_v1 = next((path for _, names, path in lines if controller in names.split(",")), None)
        self.v2 = by_v1 is None
        self.path = by_v1 or next((path for number, names, path in lines if number == "0" and not names), None)
        every = _mounted(mounts, None if self.v2 else controller)
        # Each hierarchy that is mounted has a line (kernel/cgroup/cgroup.c, proc_cgroup_show): that of this one is lost.
        self.cut = by_v1 is None and bool(_mounted(mounts, controller) or (self.path is None and every))
        self.mount = every[0][1] if every else ""
        self.some = " - cgroup" in mounts  # of any controller
        self.levels = self._levels(every)
        self.hidden: bool | Unavailable = False
        if isinstance(self.levels, Unavailable):
            self.hidden = self.levels
        elif self.levels:
            top = names(host, self.levels[-1])
            # What only the highest of all lacks, or has (kernel/cgroup: CFTYPE_NOT_ON_ROOT, CFTYPE_ONLY_ON_ROOT).
            mark = "cgroup.events" if self.v2 else "release_agent"
            self.hidden = top if isinstance(top, Unavailable) else (mark in top) == self.v2

    def _levels(self, mounts: list[tuple[str, str]]) -> tuple[str, ...] | Unavailable:
        """Folders, this process's own first; () where no hierarchy has the controller.

        Of several mounts (a pod has the node's /sys beside its own) the one that shows most of what is above this process.
        """
        if self.cut:
            return Unavailable(Kind.MALFORMED, f"/proc/self/cgroup has no line of {self.controller}, which is mounted")
        if self.path is None:
            return ()
        if not mounts:
            which = f" with {self.controller}" if self.some else ""
            return Unavailable(Kind.NOT_READ, f"no cgroup file system{which} is mounted here")
        shown = [some for root, mount in mounts if (some := _below(self.path, root, mount))]
        return max(shown, key=len, default=Unavailable(Kind.NOT_READ, f"the cgroup {self.path} is not below {self.mount}"))

    def caps(self) -> tuple[Cap | Unavailable, ...]:
        if isinstance(self.levels, Unavailable):
            return (self.levels,)
        return tuple(cap for level in self.levels for cap in self._at(level))

    def _at(self, level: str) -> Iterator[Cap | Unavailable]:
        there = names(self.host, level)
        if isinstance(there, Unavailable):  # its mount is covered by another, or it ended
            yield Unavailable(Kind.NOT_READ, f"{level}: {there}")
            return
        for name in _FILES[self.controller][0 if self.v2 else 1]:
            if name in there and (got := _value(self.host, self.controller, level, name)) is not None:
                yield got

    def counters(self) -> Iterator[Counter]:
        """Of its own cgroup and those up to the job's; above them each level's own limit alone, for what meets the limit of
        one cgroup is counted in all above it (cgroup-v2.rst, pids.events.local, since Linux 6.11)."""
        levels = self.levels or ()
        file, key = _COUNTS[self.controller][0 if self.v2 else 1]
        own = max((n for n, level in enumerate(levels) if _OF_JOB.fullmatch(level)), default=0)
        for n, level in enumerate(levels):
            name = file if n <= own else f"{file}.local"
            if (n <= own or self.controller == "pids") and name in (names(self.host, level) or ()):
                yield Counter(f"{level}/{name}", key)

    def counted(self) -> Counted | None | Unavailable:
        """The most of its own cgroup and of those above it up to the job's: by v2 what is above counts for what is below."""
        levels = self.levels
        if isinstance(levels, Unavailable):
            return levels
        of_job = [n for n, level in enumerate(levels) if _OF_JOB.fullmatch(level)]
        file, key = _COUNTS[self.controller][0 if self.v2 else 1]
        told = list[int]()
        for level in levels[: of_job[-1] + 1 if of_job else 1]:
            there = names(self.host, level)
            if isinstance(there, Unavailable):
                return there
            text = read(self.host, f"{level}/{file}") if file in there else ""
            if isinstance(text, Unavailable):
                return text if of_job else None  # of another than the job's no claim is made
            told += [int(one) for one in re.findall(rf"^{key} (\d{{1,18}})$", text, re.ASCII | re.MULTILINE)]
        return Counted(max(told), bool(of_job)) if told else None


def counters(host: Host, controller: str) -> tuple[Counter, ...]:
    """What counts how often the limits of this process's cgroups were met; () where nothing does, or could be read."""
    own, mounts = read(host, "/proc/self/cgroup"), read(host, "/proc/self/mountinfo")
    if isinstance(own, Unavailable) or isinstance(mounts, Unavailable):
        return ()
    return tuple(_Look(host, controller, own, mounts).counters())


def begin(host: Host) -> None:
    """Before the run; `probe_met` looks again when it has ended."""
    for controller in ("pids", "memory"):
        for one in counters(host, controller):
            read(host, one.file)


def probe_met(host: Host) -> LimitsMet:
    return LimitsMet(*(_most(host, controller) for controller in ("pids", "memory")))


def _most(host: Host, controller: str) -> Rose | None | Unavailable:
    told = list(_rises(host, counters(host, controller)))
    risen = [one for one in told if one and one.times > 0]
    return max(risen, key=lambda one: one.times) if risen else missing(*told)


def _rises(host: Host, counted: tuple[Counter, ...]) -> Iterator[Rose | Unavailable]:
    for one in counted:
        before, after = (_count(text, one) for text in (read(host, one.file), read_again(host, one.file)))
        lost = missing(before, after)
        yield Rose((after or 0) - (before or 0), one.file) if lost is None else lost


def _count(text: str | Unavailable, one: Counter) -> int | Unavailable:
    if isinstance(text, Unavailable):
        return text
    found = re.search(rf"^{one.key} (\d{{1,18}})$", text, re.ASCII | re.MULTILINE)
    return int(found[1]) if found else Unavailable(Kind.MALFORMED, f"{one.file} has no {one.key}")


def _mounted(mounts: str, controller: str | None) -> list[tuple[str, str]]:
    """Root and place of each mount (proc_pid_mountinfo(5)), that which was mounted last first."""
    found = []
    for line in reversed(mounts.splitlines()):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) > 4 and len(kind) > 2:
            wanted = kind[0] == "cgroup2" if controller is None else kind[0] == "cgroup" and controller in kind[2].split(",")
            if wanted:
                found.append((fields[3], fields[4]))
    return found


def _below(path: str, root: str, mount: str) -> tuple[str, ...]:
    """Folders from that of a cgroup up to its mount; () where the mount does not show it."""
    below = f"{path.rstrip('/')}/".removeprefix("/" if root == "/" else f"{root}/")
    if "/../" in f"/{below}" or below.startswith("/"):
        return ()
    steps = [step for step in below.split("/") if step]
    return tuple("/".join((mount, *steps[:depth])) for depth in range(len(steps), -1, -1))


def _value(host: Host, controller: str, level: str, name: str) -> Cap | None | Unavailable:
    """None: it sets no limit."""
    file = f"{level}/{name}"
    text = read(host, file)
    if isinstance(text, Unavailable):
        return text
    if controller == "cpuset":
        cpus = cpu_list(text, file)
        return cpus if isinstance(cpus, Unavailable) else Cap(file, len(cpus)) if cpus else None
    if controller == "rdma":  # cgroup-v2.rst, RDMA: a line a device, "mlx5_0 hca_handle=2 hca_object=max"
        handles = [int(one) for one in re.findall(r"\bhca_handle=(\d{1,10})\b", text, re.ASCII)]
        return Cap(file, min(handles)) if handles else None
    if not re.fullmatch(r"(?:max|-1|\d{1,20})(?: \d{1,20})?", text, re.ASCII):
        return Unavailable(Kind.MALFORMED if text else Kind.EMPTY, f"{file}: {text[:40]!r}")
    first, _, period = text.partition(" ")
    if first in ("max", "-1") or int(first) >= _NO_LIMIT:
        return None
    if controller == "cpu":
        told = period or read(host, f"{level}/cpu.cfs_period_us")
        if isinstance(told, Unavailable):
            return told
        return Cap(file, int(first) / int(told)) if told.isdecimal() and int(told) else Unavailable(Kind.MALFORMED, file)
    if controller == "pids":
        return Cap(file, int(first), read_int(host, f"{level}/pids.current"))
    return Cap(file, int(first), _held(host, f"{level}/memory.stat"))


def _held(host: Host, file: str) -> int | Unavailable:
    """What files hold is given back when it is wanted, and so is no use."""
    text = read(host, file)
    if isinstance(text, Unavailable):
        return text
    found = _HELD.findall(text)
    return sum(map(int, found)) if found else Unavailable(Kind.MALFORMED if text else Kind.EMPTY, file)
