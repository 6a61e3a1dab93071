"""Which RDMA devices the job will use: the ones nearest to its GPUs, or those that NCCL_IB_HCA selects.

Source: NCCL src/graph/topo.cc (ncclTopoGetLocalNet: nearest path type, highest bandwidth), src/transport/net_ib/init.cc
(NCCL_IB_HCA; ports that are not ACTIVE or of another link layer than InfiniBand and Ethernet are passed over).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from netdoctor.facts.gpu import Gpu, Gpus, VisibleGpu
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import RdmaDevice, RdmaPort
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.gpudirect import C2C_NAMES, distance, rank
from netdoctor.nccl.selector import Selector


@dataclass(frozen=True)
class GpuPlace:
    """A GPU of the job and where it sits."""

    label: str  # "GPU0", by the job's ordinal where libcuda answered, else by PCI address
    ordinal: int | None
    device: PciDevice | Unavailable
    visible: VisibleGpu | None
    gpu: Gpu | None

    @property
    def name(self) -> str:
        for one in (self.visible, self.gpu):
            if one is not None and isinstance(one.name, str):
                return one.name
        return ""

    @property
    def c2c(self) -> bool:
        return any(word in self.name for word in C2C_NAMES)


def places(gpus: Gpus, pci: Pci) -> tuple[GpuPlace, ...] | Unavailable:
    """The job's GPUs (what libcuda shows it), else those of PCI.  () only where both were read and show none."""
    jobs = gpus.of_the_job
    if not jobs:
        if isinstance(pci.gpus, Unavailable):
            return pci.gpus
        if pci.unclassified:
            return Unavailable(Kind.NOT_READ, f"the class of {pci.unclassified[0]} on PCI: it may be a GPU")
        known = {gpu.pci: gpu for gpu in reversed(gpus.all or ())}
        return tuple(GpuPlace(f"GPU {d.address}", None, d, None, known.get(d.address)) for d in pci.gpus)
    out = []
    for seen, gpu in jobs:
        where: PciDevice | Unavailable = Unavailable(Kind.NOT_READ, "NVML does not say where it sits")
        if isinstance(pci.devices, Unavailable):
            where = pci.devices
        elif gpu is not None and isinstance(gpu.pci, str):
            where = pci.at(gpu.pci)
        out.append(GpuPlace(f"GPU{seen.ordinal}", seen.ordinal, where, seen, gpu))
    return tuple(out)


def active(port: RdmaPort) -> bool:
    """Whether NCCL's own IB transport would take this port."""
    return port.state == "ACTIVE" and port.link_layer in ("InfiniBand", "Ethernet")


def active_ports(device: RdmaDevice) -> tuple[RdmaPort, ...]:
    return tuple(p for p in device.ports or () if active(p))


def rate(device: RdmaDevice) -> float:
    return max((p.rate_gbps for p in active_ports(device) if isinstance(p.rate_gbps, float | int)), default=0.0)


def selected(devices: Iterable[RdmaDevice], choice: Selector) -> tuple[RdmaDevice, ...]:
    """The devices of which NCCL_IB_HCA takes a port."""
    return tuple(d for d in devices if any(choice.takes(d.name, n) for n in _numbers(d)))


def _numbers(device: RdmaDevice) -> tuple[int, ...]:
    """Of its ports; where they could not be listed, those that it may have."""
    return (1, 2) if isinstance(device.ports, Unavailable) else tuple(p.number for p in device.ports)


def nearest(gpu: GpuPlace, devices: Iterable[RdmaDevice], pci: Pci) -> tuple[str, tuple[RdmaDevice, ...]]:
    """(distance, the devices at that distance); ("", all of them) where it cannot be told.

    Among equals a device with an ACTIVE port wins over one without (the second port of a card), and one of at least half
    the highest rate over slower ones (a management port beside the fabric).
    """
    every = tuple(devices)
    if isinstance(pci.devices, Unavailable) or isinstance(gpu.device, Unavailable) or not gpu.device.placed:
        return "", every
    ranked: dict[str, list[RdmaDevice]] = {}
    lost = unplaced(every, pci)
    blind = False  # a device that goes through the CPU may be nearer than it seems: a NUMA node could not be read
    for device in every:
        where = pci.at(device.pci) if isinstance(device.pci, str) else None
        if where and where.placed:
            kind = distance(gpu.device, where, gpu.c2c)
            blind |= _through_cpu(kind) and any(isinstance(d.numa_node, Unavailable) for d in (gpu.device, where))
            ranked.setdefault(kind, []).append(device)
    if not ranked:
        return "", every
    kind = min(ranked, key=rank)
    if blind and _through_cpu(kind):
        return "", every
    if lost and kind != "PIX":
        return "", (*lost, *prefer(ranked[kind]))  # one whose place is not known may be nearer
    return kind, prefer(ranked[kind])


def unplaced(devices: Iterable[RdmaDevice], pci: Pci) -> tuple[RdmaDevice, ...]:
    """The hardware devices whose place on PCI is not known."""

    def known(address: str) -> bool:
        where = pci.at(address)
        return bool(where and where.placed)

    return tuple(d for d in devices if d.pci is not None and (isinstance(d.pci, Unavailable) or not known(d.pci)))


def _through_cpu(kind: str) -> bool:
    return rank(kind) >= rank("P2C")


def prefer(devices: list[RdmaDevice]) -> tuple[RdmaDevice, ...]:
    """Those with an ACTIVE port and at least half the best rate; what could not be read excludes nothing."""
    live = [d for d in devices if active_ports(d)]
    live = [d for d in devices if d in live or not _ports_read(d)] if live else devices
    best = max(rate(d) for d in live)
    return tuple(d for d in live if rate(d) >= best / 2 or not rates_read(d))


def _ports_read(device: RdmaDevice) -> bool:
    if isinstance(device.ports, Unavailable):
        return False
    return not any(isinstance(what, Unavailable) for p in device.ports for what in (p.state, p.link_layer))


def rates_read(device: RdmaDevice) -> bool:
    """Whether all is known that `prefer` goes by."""
    return _ports_read(device) and not any(isinstance(p.rate_gbps, Unavailable) for p in active_ports(device))


@dataclass(frozen=True)
class Subject:
    """An RDMA device that the job will use, and why it is thought so."""

    device: RdmaDevice
    why: str
    certain: bool  # False: what would tell the job's devices from others could not be read


def subjects(
    devices: tuple[RdmaDevice, ...], gpus: tuple[GpuPlace, ...] | Unavailable, pci: Pci, choice: Selector | None
) -> tuple[Subject, ...]:
    """The devices that NCCL_IB_HCA selects, else those nearest to the job's GPUs, else (no GPU) all that could carry it."""
    if choice is None:
        return _nearest_to_any(devices, gpus, pci)
    # A prefix or an exclusion also takes ports that nobody cabled; what is called by its name is meant.
    taken = selected(devices, choice)
    called = () if choice.exclude else {name for name, _ in choice.names}
    named = tuple(Subject(d, "NCCL_IB_HCA selects it", True) for d in taken if d.name in called)
    others = _nearest_to_any(taken, gpus, pci) if len(named) < len(taken) else ()
    return (*named, *(one for one in others if one.device.name not in called))


def _nearest_to_any(devices: tuple[RdmaDevice, ...], gpus: tuple[GpuPlace, ...] | Unavailable, pci: Pci) -> tuple[Subject, ...]:
    if isinstance(gpus, Unavailable):
        return tuple(Subject(d, f"the job's GPUs could not be read ({gpus})", False) for d in devices)
    if not gpus:
        return tuple(Subject(d, "no GPU to measure the distance from", True) for d in prefer(list(devices)))
    claims = [claim for gpu in gpus for claim in _claims(gpu, devices, pci)]
    if not isinstance(pci.devices, Unavailable):
        known = {claim.device for claim in claims}
        lost = (d for d in unplaced(devices, pci) if d.name not in known)
        claims += (_Claim(d.name, "one of the GPUs: its place on PCI is not known", False) for d in lost)
    return tuple(_subject(d, mine) for d in devices if (mine := [claim for claim in claims if claim.device == d.name]))


class _Claim(NamedTuple):
    """One GPU whose device this may be."""

    device: str
    gpu: str
    sure: bool


def _claims(gpu: GpuPlace, devices: tuple[RdmaDevice, ...], pci: Pci) -> Iterator[_Claim]:
    kind, near = nearest(gpu, devices, pci)
    live = tuple(d for d in devices if active_ports(d) or not _ports_read(d))
    if kind and _through_cpu(kind) and live and not set(near) & set(live):
        # NCCL passes over ports that are not ACTIVE; behind no common switch they may be another network's.
        yield from (_Claim(device.name, f"{gpu.label} ({kind})", False) for device in near)
        kind, near = nearest(gpu, live, pci)
    for device in near:
        sure = bool(kind) and (len(near) == 1 or rates_read(device))
        yield _Claim(device.name, f"{gpu.label} ({kind})" if kind else gpu.label, sure)


def _subject(device: RdmaDevice, claims: Sequence[_Claim]) -> Subject:
    certain = any(claim.sure for claim in claims)
    words = "nearest to " if certain else "perhaps the HCA of "
    return Subject(device, words + ", ".join(claim.gpu for claim in claims), certain)


def no_accelerator(pci: Pci, gpus: Gpus) -> bool:
    """Positive evidence that there is none: PCI was read and shows none, and libcuda shows none or is absent."""
    return pci.gpus == () and not pci.unclassified and pci.foreign_accelerators == () and gpus.none_visible
