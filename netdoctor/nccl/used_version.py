"""Which NCCL the job uses: what a run loaded, else what its torch takes by the loader's rules."""

from __future__ import annotations

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.libraries import Libraries, NcclLibrary
from netdoctor.facts.library_search import GIVE_PYTHON, Linkage, Torch
from netdoctor.facts.nccl_choice import brought
from netdoctor.facts.nccl_version import Version, parse
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import WITH_RUN, Baseline, Caller, Run
from netdoctor.facts.vantage import FROM_JOB, Vantage
from netdoctor.model import Finding, Kind, Status, Unavailable
from netdoctor.nccl.hcas import no_accelerator


def used_nccl(libraries: Libraries, baseline: Baseline) -> Version | Unavailable:
    """The version that the job uses.  A torch that netdoctor installed for itself says nothing about the job."""
    run = baseline.nccl_run
    if run is not None and (found := parse(run.nccl_version)):
        return found
    python, torch = libraries.python, libraries.torch
    if isinstance(torch, Unavailable):
        own = _of_no_torch(libraries)
        return own.version if own is not None else torch
    if isinstance(libraries.nccl, Unavailable):
        return libraries.nccl
    if not python or python.ours:
        return Unavailable(Kind.NOT_READ, "the job's own Python is not known")
    used = libraries.at(torch.nccl_path) if isinstance(torch.nccl_path, str) else None
    return used.version if used else Unavailable(Kind.NOT_READ, "which NCCL the job uses is not known")


def _of_no_torch(libraries: Libraries) -> NcclLibrary | None:
    """The libnccl of a job that has no torch (JAX, nccl-tests), where its Python or its environment brings one; what the node
    has besides may be anybody's."""
    python, torch = libraries.python, libraries.torch
    if not python or python.ours or not isinstance(torch, Unavailable) or torch.kind is not Kind.ABSENT:
        return None
    path = brought(libraries)
    return libraries.at(path) if path else None


def seen_loaded(finding: Finding, vantage: Vantage, baseline: Baseline) -> Finding:
    """What is said of a library of the job's, as far as it was seen: nothing passes or skips from outside the job's
    environment, whose LD_LIBRARY_PATH may lead to others, and nothing passes by the loader's rules alone, for a run may show
    another.

    Nor is a library missing that only the loader's path of somebody else does not lead to.
    """
    searched = finding.status is Status.FAIL and "lacks" in finding.evidence
    if finding.status not in (Status.PASS, Status.SKIP) and not searched:
        return finding
    if not vantage.job_environment:
        return Finding(Status.UNKNOWN, f"{finding.message}, {vantage.why_not}", finding.subject, how=FROM_JOB)
    lost = _unshown(baseline)
    if lost is None or searched or finding.status is Status.SKIP:
        return finding
    text = f"{finding.message}; no run showed it: {lost}"
    return Finding(Status.UNKNOWN, text, finding.subject, notes=finding.notes, how=WITH_RUN)


def _unshown(baseline: Baseline) -> Unavailable | None:
    """Why no run shows what is loaded: one that did not end well before a rank mapped libnccl shows as little as none."""
    run = baseline.run
    if isinstance(run, Unavailable):
        return run
    if run.finished or run.mapped or any(rank.mapped for rank in run.ranks):
        return None
    return Unavailable(Kind.NOT_READ, run.reason or f"the run is {run.state}")


def job_torch(libraries: Libraries, pci: Pci, gpus: Gpus, run: Run | None) -> Torch | NcclLibrary | Finding:
    """The job's torch, the libnccl of a job without one, or why there is no NCCL of its to judge."""
    if no_accelerator(pci, gpus):
        text = "no accelerator: PCI was read and shows none, libcuda shows none; NCCL has nothing to do"
        return Finding(Status.SKIP, text)
    python, torch = libraries.python, libraries.torch
    if python and python.ours:
        return Finding(Status.UNKNOWN, "this is netdoctor's own torch, not the job's", how=GIVE_PYTHON)
    if isinstance(torch, Unavailable) and (run is None or run.via is Caller.NCCL) and (own := _of_no_torch(libraries)):
        return own
    if isinstance(torch, Unavailable):
        where = f" of {python.path} ({python.why})" if python else ""
        return Finding(Status.UNKNOWN, f"the job's torch{where} could not be read: {torch}", how=GIVE_PYTHON)
    if isinstance(torch.version, str) and "rocm" in torch.version:
        return Finding(Status.UNKNOWN, f"torch {torch.version} uses RCCL, which netdoctor does not judge")
    if torch.cuda is None and torch.nccl_linkage == Linkage.NONE:
        text = f"torch {torch.version} is a CPU build without NCCL"
        return Finding(Status.SKIP, text, evidence={"path": torch.path})
    return torch


def loader_rules_say(mapped: tuple[str, ...], libraries: Libraries, torch: Torch) -> str | None:
    """Which file the loader's rules lead to, where a run mapped another."""
    if not isinstance(torch.nccl_path, str):
        return None
    expected = libraries.at(torch.nccl_path)
    names = {torch.nccl_path} | ({expected.path, expected.real_path} if expected else set())
    return None if names & set(mapped) else f"by the loader's rules it would be {torch.nccl_path} ({torch.nccl_why})"
