"""Whether this machine has an accelerator at all, on positive evidence."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.model import Kind, Unavailable


@dataclass(frozen=True)
class Accelerator:
    """What there is.  `nvidia` is what netdoctor judges; `foreign` what it does not."""

    nvidia: str = ""  # "8 NVIDIA GPUs on PCI"; "" none
    visible: bool = False  # NVML or libcuda shows NVIDIA GPUs here: the job can be meant to use them
    hidden: bool = False  # libcuda answered, and shows the job none
    foreign: tuple[str, ...] = ()

    @property
    def none(self) -> bool:
        return not self.nvidia and not self.foreign


def accelerator(pci: Pci | Unavailable, gpus: Gpus | Unavailable) -> Accelerator | Unavailable:
    """What PCI, NVML and libcuda show together; Unavailable where "none" cannot be said for sure."""
    known = 0 if isinstance(gpus, Unavailable) or isinstance(gpus.all, Unavailable) else len(gpus.all)
    seen = 0 if isinstance(gpus, Unavailable) or isinstance(gpus.visible, Unavailable) else len(gpus.visible)
    hidden = not isinstance(gpus, Unavailable) and gpus.visible == ()
    on_pci = 0 if isinstance(pci, Unavailable) else len(pci.gpus)
    foreign = (
        () if isinstance(pci, Unavailable) or isinstance(pci.foreign_accelerators, Unavailable) else pci.foreign_accelerators
    )
    if known or seen or on_pci:
        count, source = (seen, "libcuda") if seen else (known, "NVML") if known else (on_pci, "PCI")
        text = f"{count} NVIDIA GPU{'s' if count > 1 else ''} ({source})"
        return Accelerator(text, bool(known or seen), hidden, foreign)
    if foreign:
        return Accelerator(foreign=foreign)
    if isinstance(pci, Unavailable):
        return Unavailable(Kind.NOT_READ, f"PCI: {pci}")
    if isinstance(pci.foreign_accelerators, Unavailable):
        return Unavailable(Kind.NOT_READ, f"accelerators: {pci.foreign_accelerators}")
    if pci.unread:
        return Unavailable(Kind.NOT_READ, f"the class of {pci.unread[0]} on PCI")
    # Where there is no GPU, NVML is absent, or it answers zero.  A library that is there and fails is no such answer.
    nvml = gpus if isinstance(gpus, Unavailable) else gpus.all
    if isinstance(nvml, Unavailable) and nvml.kind != Kind.ABSENT:
        return Unavailable(Kind.NOT_READ, f"NVML: {nvml}")
    return Accelerator()
