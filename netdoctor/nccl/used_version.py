"""Which NCCL the job uses: what a run loaded, else what its torch takes by the loader's rules."""

from __future__ import annotations

from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_version import Version, parse
from netdoctor.facts.runs import Baseline
from netdoctor.model import Kind, Unavailable


def used_nccl(libraries: Libraries, baseline: Baseline) -> Version | Unavailable:
    """The version that the job uses.  A torch that netdoctor installed for itself says nothing about the job."""
    run = baseline.nccl_run
    if run is not None and (found := parse(run.nccl_version)):
        return found
    python, torch = libraries.python, libraries.torch
    if isinstance(torch, Unavailable):
        return torch
    if isinstance(libraries.nccl, Unavailable):
        return libraries.nccl
    if not python or python.ours:
        return Unavailable(Kind.NOT_READ, "the job's own Python is not known")
    used = libraries.at(torch.nccl_path) if isinstance(torch.nccl_path, str) else None
    return used.version if used else Unavailable(Kind.NOT_READ, "which NCCL the job uses is not known")
