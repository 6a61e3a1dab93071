"""/dev/shm holds the pool that NCCL's proxies take at start; netdoctor/nccl/shared_memory.py has the figures.

It is the container's own: 64 MiB in Docker and Podman where nothing is said.  Connections by SHM come on top, and only a run
shows them.  Each communicator of a rank has a pool of its own, unless it shares its parent's (ncclCommSplit, splitShare).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    CommonRun,
    Environ,
    Finding,
    Gpus,
    Intent,
    Kernel,
    Kind,
    Libraries,
    PathRun,
    Pci,
    Run,
    Unavailable,
    Vantage,
    Version,
    cause_of,
    check,
    fail,
    fix_container,
    hcas,
    job_torch,
    missing,
    nccl_param,
    ok,
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
RUN = "netdoctor preflight, with the all-reduce"
STOPS = "NCCL stops with 'Error while creating shared memory segment … No space left on device'"


@check(id="nccl.shared_memory", title="/dev/shm holds what NCCL's ranks take at start", cause=CAUSE)
def shared_memory(
    kernel: Kernel,
    libraries: Libraries,
    baseline: Baseline,
    path: PathRun,
    environ: Environ,
    job: Intent,
    gpus: Gpus,
    pci: Pci,
    vantage: Vantage,
) -> Iterator[Finding]:
    if hcas.no_accelerator(pci, gpus):
        yield skip("no accelerator: PCI was read and shows none, libcuda shows none; NCCL has nothing to do")
        return
    if not vantage.job_environment:
        yield unknown(f"/dev/shm is the container's own, and this is {vantage.elsewhere}", how=FROM_JOB)
        return
    run, torch, ranks = baseline.nccl_run, job_torch(libraries, pci, gpus), job.ranks_here
    if run is None and isinstance(torch, Finding):
        yield torch
        return
    version, nodes, size = used_nccl(libraries, baseline), job.count, kernel.shm_size
    refused = next((one for one in (run, *(path.runs or ())) if one and not one.finished and cause_of(one) == CAUSE), None)
    if refused is not None:
        text = "an all-reduce did not get its shared memory"
        yield fail(text, why=STOPS, how=LOOK, fix=fix_container(vantage, "shm"), ranks=refused.experiment.ranks)
    elif isinstance(nodes, Unavailable) or not ranks:
        why = missing(nodes, environ.launcher) or "no GPU is seen"
        yield unknown(f"how many ranks start here could not be told: {why}", how=RUN)
    elif isinstance(version, Unavailable):
        yield unknown(f"which NCCL the job uses could not be told: {version}", how=RUN)
    elif run is not None and run.finished and _as_the_job(run, version, ranks, job.communicators, nodes):
        yield ok(f"{run.experiment.ranks} ranks of NCCL {run.nccl_version} had their shared memory", ranks=ranks)
    elif isinstance(size, Unavailable):
        yield unknown(f"how much /dev/shm holds could not be told: {size}", how=LOOK)
    else:
        tried = missing(baseline.run) or (None if run else Unavailable(Kind.ABSENT, "no run of NCCL"))
        # Ranks of several nodes that did their sums had what they need, however many of them were here.
        spared = isinstance(run, CommonRun) and run.finished
        must = not spared and (nodes > 1 or _connects_at_start(version, environ))
        yield _by_the_figures(size, version, (ranks, job.communicators), must, missing(gpus.visible), tried, vantage)


def _connects_at_start(version: Version, environ: Environ) -> bool:
    """Whether every connection is made at init, with the pool.

    Since 2.22 each is made when a collective first needs it, where cuMem is on (init.cc, `runtimeConn`).  Two ranks by P2P then
    did without the pool in all of 2.23.4 to 2.32.3, four in some; by the network none did (tests/fakegpu, 128 KiB of /dev/shm).
    """
    said = (environ.get(name) for name in ("NCCL_RUNTIME_CONNECT", "NCCL_CUMEM_ENABLE"))
    return version < LAZY or any(isinstance(one, str) and nccl_param(one, 1, version) == 0 for one in said)


def _as_the_job(run: Run, version: Version, ranks: int, communicators: int, nodes: int) -> bool:
    """Whether the run took of /dev/shm what the job takes: as many ranks here, and as many pools for them."""
    alike = run.experiment.ranks >= ranks and communicators == 1 and not isinstance(run, CommonRun)
    return alike and (nodes == 1 or version < LAZY)


def _by_the_figures(
    size: int,
    version: Version,
    shape: tuple[int, int],
    must: bool,
    unseen: Unavailable | None,
    untried: Unavailable | None,
    vantage: Vantage,
) -> Finding:
    """`shape`: the ranks, and the communicators of each.  At least they share one pool a rank, at most each has its own."""
    ranks, communicators = shape
    (least, _), (_, most) = shm_pool(version, ranks), shm_pool(version, ranks * communicators)
    evidence: dict[str, Any] = {"size": size, "ranks": ranks, "nccl": version_text(version)}
    if communicators > 1:
        evidence["communicators"] = communicators
    text = f"/dev/shm has {size_text(size)}, and {ranks} rank{'s' if ranks > 1 else ''} of NCCL {version_text(version)} take"
    if least > size and unseen is not None:
        return unknown(
            f"{text} {size_text(least)} at start; how many GPUs the job sees could not be read: {unseen}", **evidence
        )
    if least > size and must:
        return fail(
            f"{text} {size_text(least)} at start",
            expected=f"at least {size_text(least)}",
            why=STOPS,
            fix=fix_container(vantage, "shm"),
            takes=least,
            **evidence,
        )
    if least > size:
        return unknown(f"{text} {size_text(least)} unless all of them reach each other by P2P", how=RUN, **evidence)
    if most is None or most > size:
        measured = f"{size_text(least)} or more" if least else "what was not measured"
        return unknown(f"{text} {measured} at start", how=RUN if communicators == 1 else LOOK, **evidence)
    if untried is not None:
        # The mount's size is no room: files of others, and of ranks that were killed, take of it.
        return unknown(f"{text} {size_text(most)} of what is free, which no all-reduce showed: {untried}", how=RUN, **evidence)
    return ok(f"{text} {size_text(most)} at start", takes=most, **evidence)
