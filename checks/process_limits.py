"""Limits of the process, its user and its cgroups, against what the job's ranks on this node need.

Two figures each: what every such job takes, so that less is a fault, and what it takes at most, so that more is enough.  What
lies between depends on what nobody knows here: a DataLoader's workers, the data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    STATE_RANKS,
    UNLIMITED,
    WITH_RUN,
    Baseline,
    Cap,
    Cgroups,
    Counted,
    Cpu,
    Environ,
    Finding,
    Fix,
    Gpus,
    Intent,
    Kernel,
    Kind,
    Libraries,
    LimitsMet,
    Net,
    Obstacle,
    Pci,
    Rdma,
    State,
    Status,
    Tasks,
    Unavailable,
    Vantage,
    check,
    cost,
    count,
    fail,
    fix_container,
    fix_sysctl,
    footprint,
    hcas,
    missing,
    nccl_ports,
    ok,
    rdma_handles,
    record,
    size_text,
    skip,
    tcp_window,
    unknown,
    used_nccl,
)

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY (cuda.h)
FILES_MOST = 256  # libraries and the driver's devices
# OpenMP and torch's intra-op pool take a thread a CPU; NCCL's socket helpers are 16 a connection at most (MAX_THREADS,
# src/transport/net_socket.cc), and some thirty are CUDA's, autograd's and the watchdogs'.
TASKS_MOST, MANY = 64, 4096  # as many CPUs as hardly any machine has, where they could not be counted
PIDS_MOST = 1 << 22  # include/linux/threads.h, PID_MAX_LIMIT; what systemd sets
FILES_OF_ALL = (1 << 63) - 1  # what systemd sets (src/core/main.c, bump_file_max_and_nr_open)
MANY_NODES = 16384  # as many as hardly any job has, where nobody counts them
CORES_LEAST = 1  # as cpu.numa_affinity: the main threads of the ranks would take turns
CORES_MOST = 2  # and one for ncclProxyProgress, which polls while anything is under way
# `import torch` holds 148 MB of its own (torch 2.13 without CUDA, Anonymous of smaps_rollup; with CUDA more): half of it.
MEMORY_LEAST = 64 << 20
MEMORY_MOST = 8 << 30  # 4 GiB of staging buffers (rdma.dev_infiniband), and as much for CUDA's context and torch
CORES = "a rank's main thread takes a core, and NCCL's proxy another while anything is under way"
MEMORY = "`import torch` alone holds 64 MiB and more; NCCL stages at most 4 GiB a rank, CUDA's context and torch take as much"
FULL = "where it is full, whoever opens one more is told `Too many open files in system`"
NO_SUCH = (Kind.ABSENT, Kind.NOT_READ, Kind.NOT_RECORDED, Kind.UNSUPPORTED)  # a kernel without it, or nobody looked
Caps = tuple[Cap | Unavailable, ...] | Unavailable
WORKERS = "what the workers of a DataLoader take is not counted"
MET = {
    "pids": ("the kernel refused processes or threads by pids.max (pids.events)", "let the job have more; cat pids.events"),
    "memory": (
        "the kernel ended processes for want of memory (oom_kill)",
        "give the job more, or find which took it: dmesg | grep -i oom; cat memory.events",
    ),
}
# Where nobody sees whose limit it was: the machine's memory has no limit of a cgroup, and a namespace hides cgroups.
UNSEEN = {
    "pids": Fix("let the job have more processes and threads: a pids.max above it is too low"),
    "memory": Fix("find what takes the memory", ("ps -eo rss,pid,user,args --sort=-rss | head", "dmesg | grep -i oom")),
}
OF_LIMITS = (Obstacle.MEMORY, Obstacle.IMPORT, Obstacle.LOST)  # as which a run is told whose ranks a limit kept from it
AS_MANY = f"{WITH_RUN}; or on the node"


@record
class Need:
    """What the ranks of this node take of one thing: certainly, and at most."""

    least: float
    most: float
    what: str = ""  # that takes it, in words


@record
class Here:
    ranks: int  # as many as there may be
    certain: int  # of these; a launcher's one task may be all, or start a rank for each GPU
    job: int  # ranks of the whole job, as many as there may be
    job_certain: int
    intent: Intent
    vantage: Vantage
    hard: Mapping[str, int]  # limits of this process

    @property
    def whoever(self) -> str:
        few = f"{self.certain} to {self.ranks} ranks (a launcher's one task here)"
        return _ranks(self.ranks) if self.certain == self.ranks else few

    def _hard(self, flag: str, cap: Cap, need: Need) -> str:
        """How far a process may raise its limit itself; "-": not so far that it would be enough; "": it is no such limit."""
        hard = self.hard.get(flag)
        if hard is None or hard == UNLIMITED:
            return "" if hard is None else "unlimited"
        return "-" if hard <= cap.most or hard < need.least else str(hard)

    def judged(self, subject: str, cap: Cap, need: Need, flag: str, what: str, mend: Fix | None = None) -> Finding:
        """One limit; `what` has a place for a figure."""
        used, name = cap.used or 0, cap.file.rpartition("/")[2]
        left, fix = cap.most - used, mend or fix_container(self.vantage, flag, file=cap.file, hard=self._hard(flag, cap, need))
        evidence: dict[str, Any] = {"limit": cap.most, "ranks": self.ranks, "least": need.least, "enough": need.most}
        said: dict[str, Any] = {"subject": subject, "measured": {"file": cap.file, "used": used}, **evidence}
        has = f"{name} leaves {what.format(_figure(subject, cap.most))}"
        each = "each of " if subject == "nofile" and self.ranks > 1 else ""  # a limit of the process
        if cap.most < need.least:
            cores = cost.less(cap.most, need.least, "cores that the main threads of these ranks need")
            text = f"{has}; {each}{_ranks(self.certain)} must have {_figure(subject, need.least)} at least"
            return fail(text, fix=fix, why=need.what, loss=cores if subject == "cpu" else None, **said)
        if isinstance(cap.used, Unavailable):
            return unknown(f"{has}, and how much of it is taken could not be read: {cap.used}", **said)
        if left < need.most:  # what is taken may be this very job's
            tight = left < need.least or cap.most >= need.most or 2 * used > cap.most
            taken = f", of which {_figure(subject, max(0, left))} {'is' if left == 1 else 'are'} left" if tight else ""
            verb = "takes" if each or self.whoever == _ranks(1) else "take"
            has = has.replace(" leaves ", " allows ", 1) if taken else has
            text = f"{has}{taken}; {each}{self.whoever} {verb} {_figure(subject, need.least)} to {_figure(subject, need.most)}"
            place = f"{fix.summary}: " if mend else ""
            more = f"more, to be sure: {place}{'; '.join((*fix.commands, *fix.persistent))}"
            return replace(unknown(text, how=more, **said), notes=(need.what,))
        notes = () if subject in ("cpu", "nofile") else (WORKERS,)
        return ok(f"{has}; {each}{_ranks(self.ranks)} can do with {_figure(subject, need.most)}", notes=notes, **said)


def _ranks(number: int) -> str:
    return f"{number} ranks" if number > 1 else "one rank"


def _figure(subject: str, value: float) -> str:
    return size_text(int(value)) if subject == "memory" else f"{value:g}" if subject == "cpu" else str(int(value))


@check(id="process.limits", title="Limits of process, user and cgroup leave the ranks what they need", cause="process_limits")
def limits(
    kernel: Kernel,
    tasks: Tasks,
    cgroups: Cgroups,
    cpu: Cpu,
    environ: Environ,
    intent: Intent,
    gpus: Gpus,
    net: Net,
    pci: Pci,
    rdma: Rdma,
    libraries: Libraries,
    baseline: Baseline,
    meanwhile: LimitsMet,
    vantage: Vantage,
) -> Iterator[Finding]:
    why = hcas.nothing_for_nccl(pci, gpus)
    if why and not intent.ranks_here:
        yield skip(f"{why}, and nothing says that ranks start here")
        return
    if not vantage.job_user:
        yield unknown(f"limits are the job's own, not these: {vantage.elsewhere}", how=FROM_JOB)
        return
    yield from _address_space(kernel.limit("as"), gpus, baseline)
    nodes = intent.count
    if isinstance(nodes, Unavailable) or not intent.ranks_here or not intent.ranks_most:
        lost = missing(nodes, environ.launcher)
        why = "no GPU is seen" if lost is None else str(lost)
        yield unknown(f"how many ranks start here could not be told: {why}", how=STATE_RANKS)
        return
    # A container a rank shows one GPU: its limits are that rank's.
    shown = len(gpus.visible or ()) or intent.ranks_most
    certain, ranks = (intent.ranks_per_node or min(count, shown) for count in (intent.ranks_here, intent.ranks_most))
    at_most = MANY_NODES if intent.uncounted else nodes
    here = Here(ranks, certain, intent.ranks_most * at_most, intent.ranks_here * nodes, intent, vantage, kernel.hard)
    opened = 0 if why or not vantage.job_environment else footprint.hcas_opened(rdma, net, environ, libraries)
    nccl = Unavailable(Kind.NOT_READ, why) if why else used_nccl(libraries, baseline)
    each = footprint.least(environ, nccl, opened, ranks=0 if why else here.job_certain, cuda=bool(gpus.visible))
    yield _files(kernel.limit("nofile"), tcp_window.sockets(net, environ) if at_most > 1 else 0, each, here)
    cpus = len(cpu.online or range(MANY))
    threads = Need(
        each.threads * certain,
        ranks * (TASKS_MOST + cpus),
        f"{each.what}; at most {TASKS_MOST} threads of NCCL, CUDA and autograd and {cpus} of OpenMP, one a CPU",
    )
    ran = not isinstance(baseline.run, Unavailable) and baseline.run.finished and baseline.run.experiment.ranks >= ranks
    yield _nproc(kernel, tasks, threads, here, ran)
    # Where nobody counted the CPUs, what they may take at most is no reason to doubt the machine.
    yield from _of_machine(kernel, threads if cpu.online else replace(threads, most=threads.least), here)
    yield from _files_of_all(kernel.open_files, Need(each.files * certain, (each.files + FILES_MOST) * ranks, FULL), here)
    for subject, caps, need, what in (
        ("pids", cgroups.pids, threads, "{} processes and threads"),
        ("cpu", _below(cgroups.cpu, cpu), Need(CORES_LEAST * certain, CORES_MOST * ranks, CORES), "{} cores"),
        ("memory", cgroups.memory, Need(MEMORY_LEAST * certain, MEMORY_MOST * ranks, MEMORY), "{}"),
    ):
        found = _tightest(subject, caps, need, what, here)
        found = found if ran else _unless_hidden(found, subject, cgroups.hidden)
        found = _as_met(found, subject, {"pids": cgroups.refused, "memory": cgroups.killed}.get(subject))
        found = _short_of_memory(found, kernel, need, here) if subject == "memory" else found
        yield _as_met_by_the_run(found, subject, meanwhile, baseline, here)
    yield from rdma_handles.judge(cgroups.rdma, certain, ranks, intent)


def _files(limit: int | Unavailable, sockets: int, own: footprint.Least, here: Here) -> Finding:
    """RLIMIT_NOFILE, the soft one: NCCL lifts it in the process of rank 0 alone (src/bootstrap.cc, setFilesLimit)."""
    if isinstance(limit, Unavailable):
        return unknown(f"the limit of open files could not be read: {limit}", subject="nofile")
    peers = here.job - 1
    # Gloo connects each pair of ranks (gloo/rendezvous/context.cc, connectFullMesh); by its own choice of a lazy one, later.
    gloo = peers * here.intent.gloo_groups
    by_gloo = (here.job_certain - 1) * here.intent.gloo_groups if here.intent.by_gloo else 0
    least = max(own.files + by_gloo, own.polled)
    of_nccl = nccl_ports.descriptors(here.ranks, sockets, peers if here.intent.all_to_all else 0)
    most = FILES_MOST + of_nccl * here.intent.communicators + gloo + here.job  # TCPStore: one a rank, at rank 0
    what = (
        f"a process of this job, at most: {FILES_MOST} for libraries and devices, {of_nccl * here.intent.communicators} for "
        f"{count(here.intent.communicators, 'communicator')} of NCCL, {gloo} for Gloo, {here.job} for the store"
        f"{f'; how many nodes it has nobody says: at most {MANY_NODES}' if here.intent.uncounted else ''}"
    )
    if limit == UNLIMITED:
        return ok("open files are not limited", subject="nofile", ranks=here.ranks)
    if own.files + by_gloo <= limit < own.polled:
        what = f"NCCL's proxy polls {own.polled} places at once, which the kernel refuses below that limit (poll(2), EINVAL)"
    return here.judged("nofile", Cap("ulimit -n", limit), Need(least, most, what), "nofile", "{} descriptors a process")


def _address_space(limit: int | Unavailable, gpus: Gpus, baseline: Baseline) -> Iterator[Finding]:
    """RLIMIT_AS, which no job with GPUs should have: CUDA reserves addresses for all memory of host and GPUs (CUDA C++
    Programming Guide, Unified Virtual Address Space), and says that it is out of memory where it may not."""
    if isinstance(limit, Unavailable) or limit == UNLIMITED or not (gpus.all or gpus.visible):
        return
    run = baseline.run
    has, how = f"ulimit -v leaves {size_text(limit)} of addresses", "ulimit -v unlimited, in the job"
    if gpus.refused == OUT_OF_MEMORY:
        fix = Fix("take the limit of addresses away", ("ulimit -v unlimited",), ("Slurm: VSizeFactor=0 in slurm.conf",))
        why = "CUDA reserves addresses for all memory of host and GPUs at once, however little of it is used"
        text = f"{has}, and cuInit ends with CUDA_ERROR_OUT_OF_MEMORY (2)"
        yield fail(text, subject="addresses", loss=cost.STOPS, expected="unlimited", why=why, fix=fix, limit=limit)
    elif isinstance(run, Unavailable) or not run.finished or not run.experiment.gpus:
        yield unknown(f"{has}: CUDA reserves some for all memory of host and GPUs", subject="addresses", how=how, limit=limit)


def _nproc(kernel: Kernel, tasks: Tasks, need: Need, here: Here, ran: bool) -> Finding:
    """RLIMIT_NPROC counts threads of the user on the whole machine, and does not hold with some rights (kernel/fork.c)."""
    limit, vantage = kernel.limit("nproc"), here.vantage
    if isinstance(limit, Unavailable):
        return unknown(f"the limit of processes could not be read: {limit}", subject="nproc")
    if not Tasks.limited(kernel, vantage):
        text = "are not limited" if limit == UNLIMITED else "are limited, which does not hold for root"
        return ok(f"processes of the user {text}", subject="nproc", ranks=here.ranks)
    used = tasks.of_user if tasks.of_user is not None else Unavailable(Kind.NOT_READ, "nobody counted them")
    what = "{} processes and threads for all that the user runs on this machine"
    found = here.judged("nproc", Cap("ulimit -u", limit, used), need, "nproc", what)
    # What a PID namespace or hidepid hides of his is no more than all users' together.
    bounded = isinstance(kernel.threads, int) and limit - kernel.threads >= need.most
    if found.status is not Status.PASS or ran or bounded or (vantage.initial_pids and tasks.hidden is False):
        return found
    where = "that /proc hides (hidepid)" if vantage.initial_pids else "in other PID namespaces (containers)"
    text = f"{found.message}; what the user runs {where} counts as well, and is not seen from here"
    return replace(unknown(text, subject="nproc", how=AS_MANY, **found.evidence), measured=found.measured)


def _of_machine(kernel: Kernel, need: Need, here: Here) -> Iterator[Finding]:
    """What holds for all users, root too: a thread takes a PID (kernel/pid.c, alloc_pid), and threads are counted
    (kernel/fork.c, copy_process).  A kernel that has no such file has no such limit."""
    for name in ("kernel.pid_max", "kernel.threads-max"):
        limit = kernel.sysctl_ints(name)
        if isinstance(limit, Unavailable):
            if limit.kind not in NO_SUCH:
                yield unknown(f"the limit of threads of the whole machine could not be read: {limit}", subject=name)
            continue
        # Since Linux 6.14 each PID namespace has a pid_max of its own; all threads of the machine are no fewer than its.
        used = max(kernel.threads or 0, kernel.threads_seen)
        enough = min(1 << (used + int(need.most)).bit_length() + 1, PIDS_MOST)
        cap, fix = Cap(name, limit[0], used), fix_sysctl(here.vantage, name, str(max(enough, PIDS_MOST >> 7)))
        found = here.judged(name, cap, need, "", "{} processes and threads for all users", fix)
        if found.status is not Status.PASS:
            yield found


def _files_of_all(files: tuple[int, int] | Unavailable, need: Need, here: Here) -> Iterator[Finding]:
    """The kernel's table of open files, which holds for all but who may go above it (fs/file_table.c, alloc_empty_file)."""
    free = here.vantage.root_is_root and "CAP_SYS_ADMIN" in (here.vantage.capabilities or ())
    if free or (isinstance(files, Unavailable) and files.kind in NO_SUCH):
        return
    if isinstance(files, Unavailable):
        return (yield unknown(f"how many files are open on the machine could not be read: {files}", subject="fs.file-max"))
    fix = fix_sysctl(here.vantage, "fs.file-max", str(FILES_OF_ALL))
    found = here.judged("fs.file-max", Cap("fs.file-max", files[1], files[0]), need, "", "{} open files for all users", fix)
    if found.status is not Status.PASS:
        yield found


def _short_of_memory(found: Finding, kernel: Kernel, need: Need, here: Here) -> Finding:
    """What the machine has left, where that is less than the ranks certainly take: others may give back what they hold."""
    memory = kernel.memory
    if isinstance(memory, Unavailable) and memory.kind not in NO_SUCH and found.status is Status.PASS:
        return unknown(f"how much memory the machine has left could not be read: {memory}", subject="memory")
    if found.status is Status.FAIL or isinstance(memory, Unavailable) or memory.available >= need.least:
        return found
    least = size_text(int(need.least))
    said: dict[str, Any] = {"subject": "memory", "ranks": here.ranks, "least": need.least}
    measured = {"available": memory.available, "total": memory.total, "huge": memory.huge}
    held, look = "", "ps -eo rss,pid,user,args --sort=-rss | head"
    if memory.available + memory.huge >= need.least:
        held = f": HugePages hold {size_text(memory.huge)} for nobody else"
        look = "grep -i huge /proc/meminfo; sysctl vm.nr_hugepages=NUMBER gives back those that nobody needs"
    if memory.others < need.least:
        text = f"the machine has not the {least} of memory that {_ranks(here.certain)} must have at least{held}"
        return fail(text, how=look, measured=measured, why=need.what, **said)
    text = f"the machine has less memory left than the {least} that {here.whoever} take at least{held}"
    return replace(unknown(text, how=look, measured=measured, **said), notes=found.notes)


def _as_met_by_the_run(found: Finding, subject: str, meanwhile: LimitsMet, baseline: Baseline, here: Here) -> Finding:
    """Of a run that did not finish it is the cause; of one that did, others of the same cgroup may have met it."""
    rose = {"pids": meanwhile.refused, "memory": meanwhile.killed}.get(subject)
    run = baseline.run
    met = not isinstance(run, Unavailable) and (run.state is not State.NOT_STARTED or run.obstacle in OF_LIMITS)
    if not rose or not met:
        return found
    text, how = f"while the all-reduce ran {MET[subject][0]}", f"cat {rose.file}"
    measured = {**found.measured, "met_by_the_run": rose.times}
    said: dict[str, Any] = {**found.evidence, "subject": subject}
    if found.status is Status.FAIL:
        return replace(found, notes=(*found.notes, text), measured=measured)
    if run and run.finished:
        return replace(unknown(f"{text}; it finished all the same", how=how, **said), notes=found.notes, measured=measured)
    file = str(found.measured.get("file", ""))
    fix = fix_container(here.vantage, subject, file=file) if file else UNSEEN[subject]
    return replace(fail(text, fix=fix, how=how, **said), notes=found.notes, measured=measured)


def _below(caps: Caps, cpu: Cpu) -> Caps:
    """Those that leave less than the machine has."""
    if isinstance(cpu.online, Unavailable):
        return cpu.online
    have = len(cpu.online)
    return tuple(one for one in caps if not one or one.most < have) if not isinstance(caps, Unavailable) else caps


def _tightest(subject: str, caps: Caps, need: Need, what: str, here: Here) -> Finding:
    """The tightest of the cgroups that are seen."""
    known = [one for one in caps or () if one]
    # Too low for the ranks whatever else is in it comes first: what others hold of a wider one they may give back.
    tight = min(known, key=lambda cap: (cap.most >= need.least, cap.most - (cap.used or 0)), default=None)
    found = here.judged(subject, tight, need, subject, what) if tight is not None else None
    lost = missing(caps, *(caps or ()), *(cap.used for cap in known if cap is not tight))  # of these any may be the tighter
    if found is not None and found.status is Status.FAIL:
        return found
    if lost is not None:
        return unknown(f"limits of the cgroup could not be read: {lost}", subject=subject)
    return found or ok("no cgroup limits it", subject=subject, ranks=here.ranks)


def _unless_hidden(found: Finding, subject: str, hidden: bool | Unavailable) -> Finding:
    """A cgroup that a namespace hides may be tighter; a run of as many ranks shows what it gives."""
    if found.status is not Status.PASS or hidden is False:
        return found
    why = hidden if isinstance(hidden, Unavailable) else "a namespace or a mount hides them"
    return unknown(f"cgroups above this one may limit it, and are not seen: {why}", subject=subject, how=AS_MANY)


def _as_met(found: Finding, subject: str, met: Counted | None | Unavailable) -> Finding:
    """What was met before is evidence that the job takes more than is counted here.  A cgroup that outlives jobs (a session, a
    container to work in) may have met it in an earlier one."""
    words, how = MET.get(subject, ("", ""))
    if isinstance(met, Unavailable) and found.status is Status.PASS:
        text = f"whether this job met its limit before could not be read: {met}"
        return unknown(text, subject=subject, how=how, **found.evidence)
    if isinstance(met, Unavailable) or met is None or not met.times:
        return found
    measured = {**found.measured, "met": met.times}
    if met.of_job and found.status is Status.PASS:
        text = f"{found.message}; yet since this job began {words}"
        return replace(unknown(text, subject=subject, how=how, **found.evidence), notes=found.notes, measured=measured)
    whose = "since this job began" if met.of_job else "since this cgroup was made, by this job or an earlier one,"
    return replace(found, notes=(*found.notes, f"{whose} {words}"), measured=measured)
