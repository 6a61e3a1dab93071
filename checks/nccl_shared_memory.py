"""/dev/shm holds the pool that NCCL's proxies take at start; netdoctor/nccl/shared_memory.py has the figures.

It is the container's own: 64 MiB in Docker and Podman where nothing is said.  Each communicator of a rank has a pool of its
own, unless it shares its parent's (ncclCommSplit, splitShare).  Connections by SHM come on top where GPUs are kept from P2P
(netdoctor/nccl/shm_connections.py); how many there are only a run shows.
What is free is tried: a child takes as many files of that size as the ranks would, and the job's own share (job.shm_bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    SHM_REFUSED,
    WITH_RUN,
    Baseline,
    CommonRun,
    Environ,
    Finding,
    Fix,
    GpuHealth,
    Gpus,
    Intent,
    Kernel,
    Libraries,
    PathRun,
    Pci,
    Rdma,
    Run,
    ShmProof,
    Status,
    Unavailable,
    Vantage,
    Version,
    cause_of,
    check,
    count,
    fail,
    fix_container,
    hcas,
    if_it_starts_more,
    job_torch,
    layers,
    missing,
    nccl_param,
    ok,
    record,
    shm_connections,
    shm_pool,
    size_text,
    skip,
    unknown,
    used_nccl,
    version_text,
)

LAZY = (2, 22, 3)  # its first release
CAUSE = "shm_disabled_or_small"
LOOK = "df -h /dev/shm"
STOPS = "NCCL stops with 'Error while creating shared memory segment … No space left on device'"
OWN_STOPS = (
    "a process that writes there ends by SIGBUS, or with 'No space left on device'"  # mm/shmem.c, by mmap or by write(2)
)


OCCUPIED = Fix(
    "remove what nobody holds any more (ranks that were killed leave theirs behind), or give /dev/shm more",
    ("df -h /dev/shm", "ls -l /dev/shm", "lsof +D /dev/shm", "rm /dev/shm/nccl-*   # where no job of NCCL runs"),
)

OTHERWISE = {
    "EDQUOT": Fix("lift this user's quota on /dev/shm", ("quota -v", "mount | grep /dev/shm")),
    "EFBIG": Fix("lift the limit of a file's size", ("ulimit -f unlimited",)),
    "EROFS": Fix("mount /dev/shm for writing", ("mount -o remount,rw /dev/shm",)),
    "EACCES": Fix(
        "open /dev/shm to the job's user",
        ("ls -ld /dev/shm", "chmod 1777 /dev/shm   # of a container: --mount type=tmpfs,destination=/dev/shm,tmpfs-mode=1777"),
    ),
}
INODES = Fix(
    "remove what nobody holds any more (processes that were killed leave theirs behind), or give /dev/shm more inodes",
    ("df -i /dev/shm", "ls /dev/shm | head", "lsof +D /dev/shm", "mount -o remount,nr_inodes=0 /dev/shm   # 0: no limit"),
)


@record
class Need:
    """What the ranks of this node take: at least they share one pool a rank, at most each communicator has its own."""

    version: Version | None  # None: no NCCL
    ranks: int
    communicators: int
    beside: int = 0  # what the job itself puts there
    connections: tuple[int, int] = (0, 0)  # by SHM, beside the pools, at least and at most

    @property
    def least(self) -> int:
        return self._pools(self.ranks)[0] + self.beside + self.connections[0]

    @property
    def most(self) -> int | None:
        return None if self.tried is None else self.tried + self.connections[1] * self.communicators

    @property
    def tried(self) -> int | None:
        """Of that what a child asks for: the pools, and what is beside them."""
        pools = self._pools(self.ranks * self.communicators)[1]
        return None if pools is None else pools + self.beside

    def _pools(self, number: int) -> tuple[int, int | None]:
        return shm_pool(self.version, number) if self.version else (0, 0)

    @property
    def text(self) -> str:
        if self.version is None:
            return "what the job itself puts there (job.shm_bytes) takes"
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''} of NCCL {version_text(self.version)}"
        ranks += " without P2P" if self.connections[0] else ", perhaps without P2P," if self.connections[1] else ""
        return f"{ranks} and job.shm_bytes take" if self.beside else f"{ranks} take"

    @property
    def stops(self) -> str:
        return STOPS if self.version else OWN_STOPS

    @property
    def evidence(self) -> dict[str, Any]:
        if self.version is None:
            return {"shm_bytes": self.beside}
        several = {"communicators": self.communicators} if self.communicators > 1 else {}
        return {"ranks": self.ranks, "nccl": version_text(self.version), **several}


@check(id="nccl.shared_memory", title="/dev/shm holds what NCCL's ranks take at start", cause=CAUSE)
def shared_memory(
    kernel: Kernel,
    libraries: Libraries,
    baseline: Baseline,
    path: PathRun,
    environ: Environ,
    proof: ShmProof,
    job: Intent,
    gpus: Gpus,
    state: GpuHealth,
    rdma: Rdma,
    pci: Pci,
    vantage: Vantage,
) -> Iterator[Finding]:
    if why := hcas.nothing_for_nccl(pci, gpus):
        yield _without_nccl(why, job, kernel, proof, vantage)
        return
    if not vantage.job_environment:
        yield _elsewhere(vantage)
        return
    run, ranks = baseline.nccl_run, job.ranks_most
    torch = job_torch(libraries, pci, gpus, run)
    if isinstance(torch, Finding) and run is None:
        yield torch
        return
    lost = layers.lost_runs(baseline.run, path.runs)
    version, nodes = used_nccl(libraries, baseline), job.count
    refused = next((one for one in (run, *(path.runs or ())) if one and not one.finished and cause_of(one) == CAUSE), None)
    if refused is not None:
        text = "an all-reduce did not get its shared memory"
        yield fail(text, why=STOPS, how=LOOK, fix=fix_container(vantage, "shm"), ranks=refused.experiment.ranks)
    elif isinstance(nodes, Unavailable) or not ranks:
        lost = missing(nodes, environ.launcher)
        why = "no GPU is seen" if lost is None else str(lost)
        yield unknown(f"how many ranks start here could not be told: {why}", how=WITH_RUN)
    elif isinstance(version, Unavailable):
        yield unknown(f"which NCCL the job uses could not be told: {version}", how=WITH_RUN)
    elif run is not None and run.finished and _as_the_job(run, version, ranks, job, nodes):
        yield ok(f"{count(run.experiment.ranks, 'rank')} of NCCL {run.nccl_version} had their shared memory", ranks=ranks)
    else:
        # Ranks of several nodes that did their sums had what they need, however many of them were here.
        spared = isinstance(run, CommonRun) and run.finished
        must = not spared and (nodes > 1 or _connects_at_start(version, environ))
        between = partial(shm_connections, version, environ=environ, gpus=gpus, state=state, rdma=rdma)
        need = Need(version, ranks, job.communicators, job.shm_bytes, between(_links(ranks, nodes)))
        must |= not spared and need.connections[0] > 0  # made with the pool, by the first collective at the latest
        found = _by_the_figures(need, kernel, must, missing(gpus.visible), vantage)
        if found.status is Status.FAIL and job.ranks_here and job.ranks_here < ranks:
            less = replace(need, ranks=job.ranks_here, connections=between(_links(job.ranks_here, nodes)))
            few = _by_the_figures(less, kernel, must, missing(gpus.visible), vantage)
            found = few if few.status is Status.FAIL else if_it_starts_more(found, job)
        else:
            found = _tried(found, need, proof, must, vantage)
            if found.status is Status.FAIL and "error" in found.evidence and (job.ranks_here or 0) < ranks:
                found = if_it_starts_more(found, job)
            elif found.status is Status.FAIL and "error" in found.evidence and not gpus.visible:
                found = unknown(
                    f"{found.message}; how many GPUs the job sees could not be read", how=WITH_RUN, **found.evidence
                )
        if found.status is Status.PASS and lost is not None:
            found = unknown(f"{found.message}; what the all-reduce showed could not be read: {lost}", how=WITH_RUN)
        yield found


def _elsewhere(vantage: Vantage) -> Finding:
    return unknown(f"/dev/shm is the container's own, not this one: {vantage.elsewhere}", how=FROM_JOB)


def _without_nccl(why: str, job: Intent, kernel: Kernel, proof: ShmProof, vantage: Vantage) -> Finding:
    """What the job itself puts there takes no GPU."""
    if not job.shm_bytes:
        return skip(f"{why}; NCCL has nothing to do")
    if not vantage.job_environment:
        return _elsewhere(vantage)
    own = Need(None, 0, 1, job.shm_bytes)
    return _tried(_by_the_figures(own, kernel, True, None, vantage), own, proof, True, vantage)


def _links(ranks: int, nodes: int) -> int:
    """Of a ring, those within this node: one leads to the next node where there are others."""
    return 0 if ranks < 2 else ranks - (nodes > 1)


def _connects_at_start(version: Version, environ: Environ) -> bool:
    """Whether every connection is made at init, with the pool.

    Since 2.22 each is made when a collective first needs it, where cuMem is on (init.cc, `runtimeConn`).  Two ranks by P2P then
    did without the pool in all of 2.23.4 to 2.32.3, four in some; by the network none did (tests/fakegpu, 128 KiB of /dev/shm).
    """
    said = (environ.get(name) for name in ("NCCL_RUNTIME_CONNECT", "NCCL_CUMEM_ENABLE"))
    return version < LAZY or any(isinstance(one, str) and nccl_param(one, 1, version) == 0 for one in said)


def _as_the_job(run: Run, version: Version, ranks: int, job: Intent, nodes: int) -> bool:
    """Whether the run took of /dev/shm what the job takes: as many ranks here, and as many pools for them."""
    alike = run.experiment.ranks >= ranks and job.communicators == 1 and not isinstance(run, CommonRun) and not job.shm_bytes
    return alike and ((nodes == 1 and not job.uncounted) or version < LAZY)


def _by_the_figures(need: Need, kernel: Kernel, must: bool, unseen: Unavailable | None, vantage: Vantage) -> Finding:
    """What the mount may hold, and what of it is free now: files of others, and of ranks that were killed, take of it."""
    size, free = kernel.shm_size, kernel.shm_free
    small = not isinstance(size, Unavailable) and need.least > size
    room = size if small else free
    said: dict[str, Any] = {"measured": {} if isinstance(free, Unavailable) else {"free": free}, **need.evidence}
    if not isinstance(size, Unavailable):
        said["size"] = size
    if isinstance(room, Unavailable):
        return unknown(f"how much of /dev/shm is free could not be told: {room}", how=LOOK, **said)
    least = f"{need.text} {size_text(need.least)} at start"
    text = f"/dev/shm has {size_text(room)}, and {least}" if small else f"{least}, and less than that of /dev/shm is free"
    if need.least > room and unseen is not None:
        return unknown(f"{text}; how many GPUs the job sees could not be read: {unseen}", **said)
    if need.least > room and (must or need.beside > room):
        fix = _larger(vantage, need) if small else OCCUPIED
        return fail(text, expected=f"at least {size_text(need.least)}", why=need.stops, fix=fix, takes=need.least, **said)
    if need.least > room:
        return unknown(f"{text}, unless all of them reach each other by P2P", how=WITH_RUN, **said)
    if need.most is None or need.most > room:
        measured = f"{size_text(need.least)} or more" if need.least else "what was not measured"
        how = WITH_RUN if need.communicators == 1 else LOOK
        return unknown(
            f"{need.text} {measured} at start, and whether so much of /dev/shm is free is not known", how=how, **said
        )
    return ok(f"{need.text} {size_text(need.most)} at start, and that much of /dev/shm is free", takes=need.most, **said)


def _tried(found: Finding, need: Need, proof: ShmProof, must: bool, vantage: Vantage) -> Finding:
    """What the child saw, where the figures say that there is room, or cannot tell; it makes no pass of an unknown."""
    if found.status is Status.FAIL or found.perhaps is not None:
        return found
    error, asked = proof.error, proof.size or 0
    lost = missing(error, proof.size)
    short = "" if proof.inodes else ", for no inode is left"
    whatever = error == "EROFS" or (error == "EACCES" and vantage.job_user is True) or short  # how much it asks for
    if proof.as_nccl and isinstance(error, str) and (whatever or (asked <= need.least and error != "EACCES")):
        words = f"a child that took what {need.text} of /dev/shm was refused: {SHM_REFUSED[error]} ({error}){short}"
        if not must and need.beside == 0:
            return unknown(f"{words}; ranks that all reach each other by P2P do without", how=WITH_RUN, **found.evidence)
        fix = INODES if short else _larger(vantage, need) if error == "ENOSPC" else OTHERWISE[error]
        why = need.stops.replace(SHM_REFUSED["ENOSPC"], SHM_REFUSED[error])
        return fail(words, expected=f"{size_text(asked)} of /dev/shm", why=why, fix=fix, error=error, **need.evidence)
    if found.status is not Status.PASS:
        return found
    if error == "" and asked >= (need.tried or 0):
        return replace(found, message=f"{found.message}: a child was given it")
    unshown = error or "it asked for less" if lost is None else lost
    return unknown(f"{found.message}; whether it is given no child showed: {unshown}", how=WITH_RUN, **found.evidence)


def _larger(vantage: Vantage, need: Need) -> Fix:
    """The mend names 8 GiB, which is enough for NCCL alone."""
    fix, size = fix_container(vantage, "shm"), 8 << 30
    while size < need.least:
        size *= 2
    now, last = (
        tuple(line.replace("8Gi", f"{size >> 30}Gi").replace("8g", f"{size >> 30}g") for line in lines)
        for lines in (fix.commands, fix.persistent)
    )
    return replace(fix, commands=now, persistent=last)
