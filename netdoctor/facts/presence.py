"""What there is at all on a machine: what a profile requires depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netdoctor.model import Kind, Unavailable
from netdoctor.policy import Seen


def seen(facts: Mapping[str, Any]) -> Seen:
    """From the facts by name; None where it could not be told."""
    missing = Unavailable(Kind.NOT_READ)
    pci = facts.get("Pci", missing)
    return Seen(_gpu(pci, facts.get("Gpus", missing)), _torch(facts.get("Libraries", missing)), _rdma(pci))


def _gpu(pci: Any, gpus: Any) -> bool | None:
    if not isinstance(gpus, Unavailable) and not isinstance(gpus.all, Unavailable) and gpus.all:
        return True
    if isinstance(pci, Unavailable) or isinstance(pci.gpus, Unavailable):
        return None
    if pci.gpus:
        return True
    return None if isinstance(pci.foreign_accelerators, Unavailable) else bool(pci.foreign_accelerators)


def _torch(libraries: Any) -> bool | None:
    """A torch of the job's: netdoctor's own is none."""
    if isinstance(libraries, Unavailable):
        return None
    for part in (libraries.python, libraries.torch):
        if isinstance(part, Unavailable):
            return False if part.kind == Kind.ABSENT else None
    return not libraries.python.ours


def _rdma(pci: Any) -> bool | None:
    return None if isinstance(pci, Unavailable) or isinstance(pci.rdma, Unavailable) else bool(pci.rdma)
