"""Through what the ranks call NCCL: the job's torch where it has one, else a libnccl and the driver alone."""

from __future__ import annotations

from typing import Final

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.library_search import Linkage
from netdoctor.facts.nccl_choice import wanted, without_torch
from netdoctor.facts.runs import Caller, NcclFacts, Obstacle, Reason, TorchFacts
from netdoctor.model import Kind, Unavailable

NEEDS: Final = ("Libraries", "Gpus")


def no_torch(libraries: Libraries) -> bool:
    """Whether files say that the job has none: it has no Python, or one without the package."""
    python, torch = libraries.python, libraries.torch
    lost = python if isinstance(python, Unavailable) else torch
    return isinstance(lost, Unavailable) and lost.kind == Kind.ABSENT


def library(via: Caller | None, libraries: Libraries, gpus: Gpus) -> str | Reason | None:
    """The libnccl to use without torch, or why there is none; None: torch is used, or stays with what it says.

    `via` None: nobody said which, and the job has no torch.
    """
    if via is Caller.TORCH:
        return None
    found = wanted(libraries)
    if via is None:
        # A driver that is there and fails is told by the run; without a driver, or a GPU, there is nothing to run on.
        driver = not (isinstance(gpus.visible, Unavailable) and gpus.visible.kind == Kind.ABSENT) and gpus.visible != ()
        return found if isinstance(found, str) and driver else None
    if isinstance(found, Unavailable) and found.kind == Kind.ABSENT:  # a torch without NCCL
        found = without_torch(libraries)
    return found if isinstance(found, str) else Reason(Obstacle.NO_NCCL, f"--via nccl: {found.detail or found}")


def foreseen(libraries: Libraries, gpus: Gpus, library: str | None) -> TorchFacts | NcclFacts | Unavailable:
    """What torch, or the driver under that `library`, will answer, as far as files and libcuda tell before one is started."""
    seen, torch = gpus.visible, libraries.torch
    if isinstance(seen, Unavailable) and seen.kind != Kind.ABSENT:
        return Unavailable(seen.kind, f"how many GPUs the job sees could not be read: {seen}")
    number = 0 if isinstance(seen, Unavailable) else len(seen)
    if library:
        return NcclFacts(device_count=number)
    if isinstance(torch, Unavailable):
        return torch
    if isinstance(torch.cuda, Unavailable):
        return torch.cuda
    version = "" if isinstance(torch.version, Unavailable) else torch.version
    cuda, nccl = torch.cuda is not None, torch.nccl_linkage is not Linkage.NONE
    return TorchFacts(version, nccl_built=nccl, cuda_available=cuda and number > 0, device_count=number)
