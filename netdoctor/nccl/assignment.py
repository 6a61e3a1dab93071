"""Which HCAs each GPU of a node uses: those that NCCL gives it where GPUDirect works, and those that it takes instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import Unavailable, record
from netdoctor.nccl import hcas
from netdoctor.nccl.gpudirect import rank
from netdoctor.nccl.turns import Nccl, by_unknown_rule, ring_takes_others, spreads, turns


@record
class Assigned:
    """A GPU and its HCAs; () where it cannot be told which they are, and any would be a guess."""

    gpu: hcas.GpuPlace
    own: tuple[RdmaDevice, ...]
    kind: str  # their distance
    taken: tuple[RdmaDevice, ...]  # () as well where another GPU may send for it, or a ring go by a nearer one
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
    nccl: Nccl,
    direct: Callable[[hcas.GpuPlace], hcas.Direct],
    *,
    by_place: bool,
) -> Iterator[Assigned]:
    """For each GPU in turn.  `direct`: whether NCCL would use GPUDirect, without which its way is another (src/graph/paths.cc).

    `by_place`: a file, or a plugin that makes one device of several, says which is whose, and the nearest is all that is known.
    """
    if by_place:
        among = hcas.candidates(devices, pci)
        ways = instead = [_nearest(gpu, among) for gpu in places]
    else:
        both = [hcas.used_both(gpu, devices, pci, nccl.version, direct(gpu)) for gpu in places]
        ways, instead = [first for first, _ in both], [real for _, real in both]
        if len(places) > 1:
            ways = [_by_nvlink(gpu, way, devices, pci) for gpu, way in zip(places, ways, strict=True)]
    others: list[str] = []
    unpaired = False  # GPUs share the devices that they reach equally well: where one is lost, so is the order of the others
    for gpu, way, real in zip(places, ways, instead, strict=True):
        if len(way.devices) > 1 and (unpaired or not way.certain or (len(places) > 1 and not way.ordered)):
            unpaired = True
            yield Assigned(gpu, (), way.kind, (), real.kind)
        elif by_place:
            one = min(way.devices, key=lambda d: others.count(d.name))
            others.append(one.name)
            yield Assigned(gpu, (one,), way.kind, (one,), way.kind)
        else:
            own = turns(gpu, places, way, ways, pci, nccl)
            taken = turns(gpu, places, real, instead, pci, nccl)
            if len(places) == 1:
                lost = ring_takes_others(real, taken, nccl.version)
            else:
                lost = unpaired or not real.ordered or spreads(gpu, real, instead, pci, nccl)
            lost |= not real.certain or by_unknown_rule(real, nccl.version) or (nccl.pxn and _relayed(gpu, real, instead))
            yield Assigned(gpu, own, way.kind, () if lost else taken, real.kind)


def _by_nvlink(gpu: hcas.GpuPlace, way: hcas.Reached, devices: tuple[RdmaDevice, ...], pci: Pci) -> hcas.Reached:
    """What another GPU's HCA carries for one that NVLink connects to it (PXN) is that GPU's to judge: its own counts here."""
    through_cpu = way.certain and rank(way.kind) > rank("PXN")
    if not (through_cpu and gpu.gpu and any(gpu.gpu.nvlinks or ())):
        return way
    return _nearest(gpu, hcas.candidates(devices, pci))._replace(figures=way.figures)


def _relayed(gpu: hcas.GpuPlace, way: hcas.Reached, every: Sequence[hcas.Reached]) -> bool:
    """Whether another GPU, over NVLink, may reach an HCA better than this one reaches its own (src/graph/paths.cc, PXN)."""
    if gpu.gpu and not any(gpu.gpu.nvlinks or ()) and not isinstance(gpu.gpu.nvlinks, Unavailable):
        return False
    near = [bandwidth for one in every if one is not way for bandwidth, kind in one.figures.values() if kind <= rank("PXB")]
    if not near or not way.kind or rank(way.kind) > rank("PXB"):
        return bool(near)
    mine = way.figures.get(way.devices[0].name)
    return mine is None or max(near) > mine[0]


def _nearest(gpu: hcas.GpuPlace, among: hcas.Candidates) -> hcas.Reached:
    kind, near = among.nearest(gpu)
    return hcas.Reached(kind, near, bool(kind) and all(map(hcas.rates_read, near)))
