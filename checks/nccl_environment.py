"""Every variable that NCCL, torch and their plugins read does what it says with the NCCL that the job has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from netdoctor.api import (
    FROM_JOB,
    Environ,
    Finding,
    Gpus,
    Intent,
    Kind,
    Libraries,
    Net,
    Pci,
    Rdma,
    Status,
    Unavailable,
    Vantage,
    check,
    cost,
    nccl_environment,
    ok,
    unknown,
    without_p2p,
)

HOW = f"{FROM_JOB}; netdoctor env --file JOBSCRIPT judges a script"


@check(id="nccl.environment", title=nccl_environment.TITLE, cause="env_misuse")
def environment(
    environ: Environ, vantage: Vantage, libraries: Libraries, net: Net, rdma: Rdma, job: Intent, gpus: Gpus, pci: Pci
) -> Iterator[Finding]:
    if isinstance(environ.variables, Unavailable):
        yield unknown(f"the environment could not be read: {environ.variables}", how=HOW)
        return
    if not vantage.job_environment:  # of another environment only the node's own nccl.conf says something about the job
        environ = environ.of_the_node
    known = nccl_environment.known_of(libraries, net, rdma, job)
    if not vantage.job_network:
        known = replace(known, links=Unavailable(Kind.NOT_READ, vantage.network_elsewhere))
    found = nccl_environment.judge_job(environ, known, job)
    yield from (_weighed(one, gpus, pci, job) for one in found if one.status is not Status.PASS)
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
        yield ok(nccl_environment.NOTHING_SET)


def _weighed(found: Finding, gpus: Gpus, pci: Pci, job: Intent) -> Finding:
    """What a variable switches off, by what this node has of it and what the job needs."""
    rule = found.evidence.get("rule") if found.status is Status.FAIL else None
    between = {"ib-off": cost.sockets, "gdr-off": cost.staged}.get(str(rule))
    loss = without_p2p(gpus, pci) if rule == "p2p-off" else between() if between and job.others else None
    return found if loss is None else cost.weighed(found, loss)
