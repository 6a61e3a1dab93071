"""Facts as parts: the GPUs of a node, what there is of each, and who is whose sibling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeGuard

from netdoctor.expectation.model import FEW, Part, Quantity, Value
from netdoctor.facts.accelerator import named
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.model import Kind, Unavailable, missing

# Drivers that take a device away on purpose: for a virtual machine, or for a screen.
GIVEN_AWAY: Final = frozenset({"vfio-pci", "pci-stub", "nvgrace-gpu-vfio-pci", "nouveau"})
GIB: Final = 1 << 30
# Cards (by their name in NVML) whose NVLinks are bridges between two of them: who built the node chose which have one.
_BRIDGED: Final = re.compile(r"(?i)pcie|\bNVL\b|\bA40\b|RTX|\bA[456][05]00\b|\bA30\b|\bA800 40GB Active|Quadro|TITAN")
_CHIP: Final = re.compile(r"(?:NVIDIA |Tesla )*([ABHLTV]\d+)\b")  # data-centre cards alone: workstations are mixed at will
_SPARED: Final = 4  # cards, of which one is another


def gpu_name(address: str) -> str:
    """The subject of what is said of a GPU: by its place, which every layer knows."""
    return f"GPU {address}"


def gpu_devices(pci: Pci) -> tuple[PciDevice, ...] | Unavailable:
    """The NVIDIA GPUs that this machine itself uses; Unavailable also where a function may be one."""
    if isinstance(pci.gpus, Unavailable):
        return pci.gpus
    if pci.unclassified:
        return Unavailable(Kind.NOT_READ, f"the class of {pci.unclassified[0]} on PCI: it may be a GPU")
    if (lost := missing(*(d.driver for d in pci.gpus))) is not None:
        return lost
    return tuple(d for d in pci.gpus if d.driver not in GIVEN_AWAY and d.physical_function is None)


def gpus(pci: Pci, nvml: Gpus) -> tuple[Part, ...] | Unavailable:
    """The GPUs as PCI and NVML know them.  Siblings have one PCI device id, or NVLinks: only one board has them."""
    devices = gpu_devices(pci)
    if isinstance(devices, Unavailable):
        return devices
    if devices and isinstance(nvml.all, Unavailable):
        return Unavailable(Kind.NOT_READ, named("NVML", nvml.all))
    known = {gpu.pci: gpu for gpu in reversed(nvml.all or ()) if isinstance(gpu.pci, str)}
    placeless = missing(*(gpu.pci for gpu in nvml.all or ()))
    every = tuple(_gpu(device, known.get(device.address, placeless), pci) for device in devices)
    # Who has NVLinks is one board, but for bridges: where that is not known of one, nobody's siblings are.
    if unlinked(nvml) is not None:
        return tuple(replace(part, like="") for part in every)
    if any(gpu.nvlinks and bridged(gpu) for gpu in nvml.all or ()):
        every = tuple(replace(part, like=f"GPUs {d.device:04x}") for part, d in zip(every, devices, strict=True))
        every = tuple(_built_so(part, [one for one in every if one.like == part.like]) for part in every)
    return tuple(_replaced(part, every) for part in every)


def half_bridged(nvml: Gpus) -> Unavailable | None:
    """As many cards of one model without an NVLink bridge as makes pairs, beside others with one: were they never bought, or
    not put back?  Of a quarter at most the siblings say it, and of an odd number one can have none.
    """
    every = [gpu for gpu in nvml.all or () if isinstance(gpu.nvlinks, tuple) and bridged(gpu) and gpu.mig is not True]
    for model in dict.fromkeys(gpu.name for gpu in every):
        like = [gpu for gpu in every if gpu.name == model]
        bare = [gpu for gpu in like if not any(gpu.nvlinks or ())]
        if bare and len(bare) < len(like) and len(bare) % 2 == 0 and len(bare) > FEW * len(like):
            where = ", ".join(str(gpu.pci) for gpu in bare)
            text = f"{len(bare)} of {len(like)} {model} have no NVLink bridge ({where}), the others have one"
            return Unavailable(Kind.NOT_READ, text)
    return None


def bridged(gpu: Gpu) -> bool:
    """Whether its NVLinks, if it has any, go to one other card."""
    return isinstance(gpu.name, str) and _BRIDGED.search(gpu.name) is not None


def apart(pci: Pci, nvml: Gpus) -> Unavailable | None:
    """A GPU that NVML shows and PCI does not: what holds for the others was not seen of it."""
    shown = {d.address for d in pci.gpus or ()}
    strange = next((gpu.pci for gpu in nvml.all or () if isinstance(gpu.pci, str) and gpu.pci not in shown), None)
    return Unavailable(Kind.NOT_READ, f"GPU {strange}: NVML shows it, PCI does not") if strange and shown else None


def _unnamed(place: str | Unavailable) -> TypeGuard[Unavailable]:
    return isinstance(place, Unavailable) and place.kind not in (Kind.ABSENT, Kind.DENIED)


def _built_so(part: Part, like: Sequence[Part]) -> Part:
    """A card without a bridge may never have had one: an odd number of them always, and more than a few."""
    bare = sum(one.has.get(Quantity.NVLINKS) == 0 for one in like)
    if part.has.get(Quantity.NVLINKS) != 0 or (bare % 2 == 0 and bare <= FEW * len(like)):
        return part
    return replace(part, has={**part.has, Quantity.NVLINKS: None})


def _replaced(part: Part, every: Sequence[Part]) -> Part:
    """One card of a family among three and more alike is a spare of another variant: their sibling.  More were bought so."""
    family = _family(part)
    same = [one for one in every if family and _family(one) == family]
    like, number = Counter(one.like for one in same).most_common(1)[0] if same else (part.like, 0)
    return replace(part, like=like) if len(same) - number == 1 and len(same) >= _SPARED else part


def _family(part: Part) -> str:
    """``A100`` of NVIDIA A100-PCIE-40GB."""
    found = _CHIP.match(str(part.has.get(Quantity.MODEL)))
    return found[1] if found else ""


def unlinked(nvml: Gpus) -> Unavailable | None:
    """Why it is not known of some GPU whether it has NVLinks, of which kind, or which it is; one that NVML lost, or keeps for
    another job, has no say.
    """
    if (which := next((gpu.pci for gpu in nvml.all or () if _unnamed(gpu.pci)), None)) is not None:
        return which
    return missing(
        *(one for gpu in nvml.all or () if gpu.pci != gpu.nvlinks for one in (gpu.nvlinks, gpu.nvlinks and gpu.name))
    )


def _gpu(device: PciDevice, gpu: Gpu | Unavailable | None, pci: Pci) -> Part:
    """None: NVML does not show it here; Unavailable: NVML does not say which it is.  A lost one is hardware.accelerator's."""
    has: dict[Quantity, Value | None | Unavailable] = {Quantity.NUMA: numa_beside_its_port(device, pci)}
    if device.placed and not device.path:  # a virtual machine: no port tells what the link can do, but others have such links
        width = device.link if isinstance(device.link, Unavailable) else device.link.width
        has[Quantity.WIDTH] = None if isinstance(width, Unavailable) and width.kind == Kind.UNSUPPORTED else width
    linked = False
    if isinstance(gpu, Gpu):
        links, memory = gpu.nvlinks, gpu.memory_total
        linked = bool(links)
        up = links if isinstance(links, Unavailable) else sum(links)
        if not isinstance(links, Unavailable) and not all(links) and isinstance(gpu.mig, Unavailable):
            up = gpu.mig  # in MIG mode they rest
        has |= {
            Quantity.MODEL: gpu.name,
            Quantity.CAPABILITY: _dotted(gpu.capability),
            Quantity.NVLINKS: None if gpu.mig is True else up,
            Quantity.MEMORY: memory if isinstance(memory, Unavailable) else memory / GIB,
        }
    elif gpu is not None and gpu.kind != Kind.ABSENT:
        has[Quantity.MODEL] = gpu
    return Part(gpu_name(device.address), has, "GPUs with NVLink" if linked else f"GPUs {device.device:04x}")


def _dotted(pair: tuple[int, int] | Unavailable) -> str | Unavailable:
    return pair if isinstance(pair, Unavailable) else f"{pair[0]}.{pair[1]}"


def numa_beside_its_port(device: PciDevice, pci: Pci) -> Value | None | Unavailable:
    """Whether the firmware gives it the node of the root port above it; on a virtual machine without ports, whether any."""
    if not device.placed:
        return Unavailable(Kind.NOT_READ, "its place on PCI is not known")
    port = pci.at(device.path[0]) if device.path else None
    if not port:
        told = device.numa_node
        return told if isinstance(told, Unavailable) else "told by the firmware" if told >= 0 else "not told by the firmware"
    if (lost := missing(device.numa_node, port.numa_node)) is not None:
        return lost
    return "that of its root port" if device.numa_node == port.numa_node else "another than its root port's"
