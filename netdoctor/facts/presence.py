"""What there is at all on a machine: what a profile requires depends on it."""

from __future__ import annotations

from netdoctor.facts import registry
from netdoctor.facts.accelerator import accelerator
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.pci import Pci
from netdoctor.facts.registry import Facts
from netdoctor.facts.runs import Obstacle, Run
from netdoctor.model import Kind, Unavailable
from netdoctor.policy import Seen


def seen(facts: Facts) -> Seen:
    """From the facts by name; None where it could not be told."""
    pci = registry.of(facts, "Pci")
    gpu, library = _gpu(pci, registry.of(facts, "Gpus")), _library(registry.of(facts, "Libraries"))
    return Seen(gpu, library, _on_pci(pci.rdma, pci), _run_lost(registry.of(facts, "Baseline").run))


def _run_lost(run: Run | Unavailable) -> bool:
    """Not where the caller wanted none (REFUSED), nor where nothing is there that could run one (ABSENT)."""
    if isinstance(run, Unavailable):
        return run.kind not in (Kind.REFUSED, Kind.ABSENT)
    return run.obstacle is Obstacle.REFUSED


def _any(some: tuple[object, ...] | Unavailable) -> bool | None:
    return None if isinstance(some, Unavailable) else bool(some)


def _on_pci(some: tuple[object, ...] | Unavailable, pci: Pci) -> bool | None:
    """A function of which the class could not be read may be one of these."""
    return None if some == () and pci.unclassified else _any(some)


def _gpu(pci: Pci, gpus: Gpus) -> bool | None:
    there = accelerator(pci, gpus)
    return None if isinstance(there, Unavailable) else not there.none


def _library(libraries: Libraries) -> bool | None:
    """What an all-reduce of the job goes by: its torch (netdoctor's own is none), or a libnccl that it could load."""
    for part in (libraries.python, libraries.torch):
        if isinstance(part, Unavailable):
            torch = False if part.kind == Kind.ABSENT else None
            break
    else:
        torch = bool(libraries.python and not libraries.python.ours)
    every = _any(libraries.nccl)
    if torch or every:
        return True
    return None if None in (torch, every) or libraries.incomplete else False
