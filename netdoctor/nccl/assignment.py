"""Which HCAs each GPU of a node uses: those that NCCL gives it where GPUDirect works, and those that it takes instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from netdoctor.facts.nccl_version import Version
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import Unavailable
from netdoctor.nccl import hcas
from netdoctor.nccl.gpudirect import rank


@dataclass(frozen=True)
class Assigned:
    """A GPU and its HCAs; () where it cannot be told which they are, and any would be a guess."""

    gpu: hcas.GpuPlace
    own: tuple[RdmaDevice, ...]
    kind: str  # their distance
    taken: tuple[RdmaDevice, ...]
    taken_kind: str

    @property
    def instead(self) -> tuple[RdmaDevice, ...]:
        """What is not its own and nevertheless used, and not through the CPU, where GPUDirect is a question."""
        others = tuple(device for device in self.taken if device not in self.own)
        return others if others and rank(self.taken_kind) < rank("PHB") else ()


def assigned(
    places: Sequence[hcas.GpuPlace],
    devices: tuple[RdmaDevice, ...],
    pci: Pci,
    version: Version | Unavailable,
    direct: Callable[[hcas.GpuPlace], hcas.Direct],
    *,
    by_place: bool,
) -> Iterator[Assigned]:
    """For each GPU in turn.  `direct`: whether NCCL would use GPUDirect, without which its way is another (src/graph/paths.cc).

    `by_place`: a file, or a plugin that makes one device of several, says which is whose, and the nearest is all that is known.
    """
    if by_place:
        ways = instead = [_nearest(gpu, devices, pci) for gpu in places]
    else:
        both = [hcas.used_both(gpu, devices, pci, version, direct(gpu)) for gpu in places]
        ways, instead = [first for first, _ in both], [real for _, real in both]
        if len(places) > 1:
            ways = [_by_nvlink(gpu, way, devices, pci) for gpu, way in zip(places, ways, strict=True)]
    others: list[str] = []
    unpaired = False  # GPUs share the devices that they reach equally well: where one is lost, so is the order of the others
    for gpu, way, real in zip(places, ways, instead, strict=True):
        if len(way.devices) > 1 and (unpaired or not way.certain):
            unpaired = True
            yield Assigned(gpu, (), way.kind, (), real.kind)
        elif by_place:
            one = min(way.devices, key=lambda d: others.count(d.name))
            others.append(one.name)
            yield Assigned(gpu, (one,), way.kind, (one,), way.kind)
        else:
            own = hcas.turns(gpu, places, way, ways, pci, version)
            taken = hcas.turns(gpu, places, real, instead, pci, version) if real.certain and not unpaired else own
            yield Assigned(gpu, own, way.kind, taken, real.kind)


def _by_nvlink(gpu: hcas.GpuPlace, way: hcas.Reached, devices: tuple[RdmaDevice, ...], pci: Pci) -> hcas.Reached:
    """What another GPU's HCA carries for one that NVLink connects to it (PXN) is that GPU's to judge: its own counts here."""
    through_cpu = way.certain and rank(way.kind) > rank("PXN")
    return _nearest(gpu, devices, pci) if through_cpu and gpu.gpu and any(gpu.gpu.nvlinks or ()) else way


def _nearest(gpu: hcas.GpuPlace, devices: tuple[RdmaDevice, ...], pci: Pci) -> hcas.Reached:
    kind, near = hcas.nearest(gpu, devices, pci)
    return hcas.Reached(kind, near, bool(kind) and all(map(hcas.rates_read, near)))
