"""Whether this machine has an accelerator at all, on positive evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.model import Kind, Unavailable, record


@record
class Accelerator:
    """What there is.  `nvidia` is what netdoctor judges; `foreign` what it does not."""

    nvidia: str = ""  # "8 NVIDIA GPUs on PCI"; "" none
    visible: bool = False  # NVML or libcuda shows NVIDIA GPUs here: the job can be meant to use them
    hidden: bool = False  # libcuda answered, and shows the job none
    foreign: tuple[str, ...] = ()

    @property
    def others(self) -> str:
        """What netdoctor does not judge, in a few words."""
        return others(self.foreign)

    @property
    def none(self) -> bool:
        return not self.nvidia and not self.foreign


def named(whose: str, why: Unavailable) -> str:
    """A reason with who gave it, once: libraries begin their errors with their own name."""
    return str(why) if str(why).startswith(whose) else f"{whose}: {why}"


def others(foreign: Iterable[str]) -> str:
    """ "8 × AMD Instinct MI300X" of what `Pci.foreign_accelerators` lists; device nodes count where PCI shows nothing."""
    every = tuple(foreign)
    shown = [one for one in every if not one.startswith("/dev/")] or every
    counted = Counter(re.sub(r" \([0-9a-f:.]+\)\Z|(?<=\D)\d+\Z", "", one) for one in shown)
    return ", ".join(f"{n} × {what}" if n > 1 else what for what, n in counted.items())


def accelerator(pci: Pci, gpus: Gpus) -> Accelerator | Unavailable:
    """What PCI, NVML and libcuda show together; Unavailable where "none" cannot be said for sure."""
    known, seen, on_pci = (len(some or ()) for some in (gpus.all, gpus.visible, pci.gpus))
    foreign = pci.foreign_accelerators or ()
    if known or seen or on_pci:
        count, source = (seen, "libcuda") if seen else (known, "NVML") if known else (on_pci, "PCI")
        text = f"{count} NVIDIA GPU{'s' if count > 1 else ''} ({source})"
        return Accelerator(text, bool(known or seen), gpus.visible == (), foreign)
    if foreign:
        return Accelerator(foreign=foreign)
    if isinstance(pci.devices, Unavailable):
        return Unavailable(Kind.NOT_READ, f"PCI: {pci.devices}")
    if isinstance(pci.foreign_accelerators, Unavailable):
        return Unavailable(Kind.NOT_READ, f"accelerators: {pci.foreign_accelerators}")
    if pci.unclassified:
        return Unavailable(Kind.NOT_READ, f"the class of {pci.unclassified[0]} on PCI is not known")
    # Where there is no GPU, NVML is absent, or it answers zero.  A library that is there and fails is no such answer.
    if isinstance(gpus.all, Unavailable) and gpus.all.kind != Kind.ABSENT:
        return Unavailable(Kind.NOT_READ, named("NVML", gpus.all))
    return Accelerator()
