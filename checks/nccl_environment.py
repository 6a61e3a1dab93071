"""Every variable that NCCL, torch and their plugins read does what it says with the NCCL that the job has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from netdoctor.api import (
    FROM_JOB,
    Environ,
    Finding,
    JobShape,
    Libraries,
    Rdma,
    Status,
    Unavailable,
    Vantage,
    check,
    nccl_environment,
    ok,
    unknown,
)

HOW = f"{FROM_JOB}; netdoctor env --file JOBSCRIPT judges a script"


@check(id="nccl.environment", title="Every NCCL variable is read and does what it says", cause="env_misuse")
def environment(environ: Environ, vantage: Vantage, libraries: Libraries, rdma: Rdma, job: JobShape) -> Iterator[Finding]:
    if isinstance(environ.variables, Unavailable):
        yield unknown(f"the environment could not be read: {environ.variables}", how=HOW)
        return
    hcas = rdma.names
    found = nccl_environment.judge_fact(
        environ,
        nccl_environment.job_version(libraries),
        plugin=_plugin(libraries),
        hcas=None if isinstance(hcas, Unavailable) else hcas,
        nodes=(job.nodes or None) if job.nodes_stated else None,
    )
    if not vantage.job_environment:  # of another environment only the node's own nccl.conf says something about the job
        found = [one for one in found if str(one.evidence.get("source", "")).startswith("/etc/nccl.conf")]
    if isinstance(hcas, Unavailable):
        found = [_unmatched(one, hcas) if one.subject == "NCCL_IB_HCA" else one for one in found]
    yield from (one for one in found if one.status is not Status.PASS)
    if not vantage.job_environment:
        yield unknown(f"{vantage.why_not}: the job's variables are not seen", how=HOW)
        return
    if isinstance(environ.nccl, Unavailable):  # said above
        return
    passed = [one for one in found if one.status is Status.PASS]
    notes = tuple(dict.fromkeys(f"{one.subject}: {note}" for one in passed for note in one.notes))
    names = sorted({one.subject for one in passed})
    if names:
        yield ok(f"{len(names)} variables are read as they are written", notes=notes, variables=names)
    elif not found:
        yield ok("no variable of NCCL, torch, Gloo, UCX or libfabric is set: the defaults hold")


def _unmatched(one: Finding, why: Unavailable) -> Finding:
    """NCCL_IB_HCA, as long as the devices that it chooses from are not known."""
    if one.status is not Status.PASS:
        return one
    return replace(one, status=Status.UNKNOWN, message=f"whether it selects a device could not be told: RDMA devices: {why}")


def _plugin(libraries: Libraries) -> str | None:
    """A network plugin that the loader finds by NCCL's default name or that carries its maker's."""
    paths = "\n".join(one.path.lower() for one in libraries.plugins or ())
    if re.search(r"[/._-]ofi[/._-]", paths):
        return "aws-ofi-nccl"
    return "gcp" if re.search(r"[/._-](fastrak|tcpxo?|gib)[/._-]", paths) else None
