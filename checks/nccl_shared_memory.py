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
    JobShape,
    Kernel,
    Kind,
    Libraries,
    PathRun,
    Pci,
    Run,
    Status,
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
    ok,
    shm_pool,
    size_text,
    skip,
    unknown,
    used_nccl,
    version_text,
)

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
    job: JobShape,
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
    run, torch, ranks = baseline.nccl_run, job_torch(libraries, pci, gpus), job.ranks_here(environ, gpus)
    if run is None and isinstance(torch, Finding):
        yield torch
        return
    version = used_nccl(libraries, baseline)
    if (why := missing(job.nodes, environ.launcher)) is not None or not ranks:
        yield unknown(f"how many ranks start here could not be told: {why or 'no GPU is seen'}", how=RUN)
    elif run is not None and (shown := _by_the_runs(run, path.runs or (), ranks, job.communicators, vantage)):
        yield shown
    elif isinstance(version, Unavailable):
        yield unknown(f"which NCCL the job uses could not be told: {version}", how=RUN)
    elif isinstance(kernel.shm_size, Unavailable):
        yield unknown(f"how much /dev/shm holds could not be told: {kernel.shm_size}", how=LOOK)
    else:
        found = _by_the_figures(kernel.shm_size, version, (ranks, job.communicators), missing(gpus.visible), vantage)
        lost = missing(baseline.run)  # where nobody asked for one, there is no evidence to lose
        if found.status is Status.PASS and lost is not None and lost.kind != Kind.REFUSED:
            found = unknown(f"{found.message}; what the all-reduce showed is not known: {lost}", how=RUN, **found.evidence)
        yield found


def _by_the_runs(run: Run, paths: tuple[Run, ...], ranks: int, communicators: int, vantage: Vantage) -> Finding | None:
    """What the all-reduces showed; None: nothing, as where they had fewer ranks or communicators, or other nodes' among them.

    Ranks that reach each other by P2P alone may do without the proxy's pool, which the network needs.
    """
    refused = next((one for one in (run, *paths) if not one.finished and cause_of(one) == CAUSE), None)
    if refused is not None:
        text = "an all-reduce did not get its shared memory"
        return fail(text, why=STOPS, how=LOOK, fix=fix_container(vantage, "shm"), ranks=refused.experiment.ranks)
    if run.finished and run.experiment.ranks >= ranks and communicators == 1 and not isinstance(run, CommonRun):
        return ok(f"{run.experiment.ranks} ranks of NCCL {run.nccl_version} had their shared memory", ranks=ranks)
    return None


def _by_the_figures(
    size: int, version: Version, shape: tuple[int, int], unseen: Unavailable | None, vantage: Vantage
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
    if least > size:
        return fail(
            f"{text} {size_text(least)} at start",
            expected=f"at least {size_text(least)}",
            why=STOPS,
            fix=fix_container(vantage, "shm"),
            takes=least,
            **evidence,
        )
    if most is None or most > size:
        measured = f"{size_text(least)} or more" if least else "what was not measured"
        return unknown(f"{text} {measured} at start", how=RUN if communicators == 1 else LOOK, **evidence)
    return ok(f"{text} {size_text(most)} at start", takes=most, **evidence)
