"""Which RDMA devices the job will use: the ones nearest to its GPUs, or those that NCCL_IB_HCA selects.

Source: NCCL src/graph/topo.cc (ncclTopoGetLocal: the path of highest bandwidth, then the nearest), src/transport/net_ib/init.cc
(NCCL_IB_HCA; ports that are not ACTIVE or of another link layer than InfiniBand and Ethernet are passed over).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple

from netdoctor.facts.accelerator import others
from netdoctor.facts.base import asked_again
from netdoctor.facts.gpu import Gpu, Gpus, VisibleGpu
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import Kind, Unavailable, record
from netdoctor.nccl import net_device, net_path
from netdoctor.nccl.gpudirect import C2C_NAMES, FAR, distance, rank
from netdoctor.nccl.net_device import ports_read
from netdoctor.nccl.selector import Selector
from netdoctor.nccl.way import Way, best_of, values

active_ports: Final = net_device.active_ports  # asked of a device where all else of it is asked


@record
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

    @cached_property
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
        where: PciDevice | Unavailable
        if isinstance(pci.devices, Unavailable):
            where = pci.devices
        elif gpu is not None and isinstance(gpu.pci, str):
            where = pci.at(gpu.pci)
        else:
            where = Unavailable(Kind.NOT_READ, "NVML does not say where it sits")
        out.append(GpuPlace(f"GPU{seen.ordinal}", seen.ordinal, where, seen, gpu))
    return tuple(out)


def rate(device: RdmaDevice) -> float:
    return max((p.rate_gbps for p in active_ports(device) if isinstance(p.rate_gbps, float | int)), default=0.0)


def alike(one: RdmaDevice, other: RdmaDevice) -> bool:
    """Of one network as far as can be told: driver and link layer, and at least half the rate."""
    layers = [{p.link_layer for p in active_ports(d)} for d in (one, other)]
    as_fast = rate(one) >= rate(other) / 2 or not rates_read(one)
    return one.driver == other.driver and layers[0] == layers[1] and as_fast


def cards(devices: Iterable[RdmaDevice], pci: Pci) -> int:
    """How many physical functions these are: virtual ones are those of a card, as many as somebody wants; software is none."""
    own = set[str]()
    for one in devices:
        where = pci.at(one.pci) if isinstance(one.pci, str) else None
        if one.virtual_function is True:
            own.add((where.physical_function if where else None) or "")
        elif one.pci is not None:
            own.add(one.pci if isinstance(one.pci, str) else one.name)
    return len(own)


def selected(devices: Iterable[RdmaDevice], choice: Selector) -> tuple[RdmaDevice, ...]:
    """The devices of which NCCL_IB_HCA takes a port."""
    return tuple(d for d in devices if any(choice.takes(d.name, n) for n in _numbers(d)))


def _numbers(device: RdmaDevice) -> tuple[int, ...]:
    """Of its ports; where they could not be listed, those that it may have."""
    return (1, 2) if isinstance(device.ports, Unavailable) else tuple(p.number for p in device.ports)


class Reached(NamedTuple):
    """The HCAs that a GPU reaches best, by NCCL's rule."""

    kind: str  # their distance; "" where it cannot be told which they are
    devices: tuple[RdmaDevice, ...]
    certain: bool  # whether it is these and no others
    figures: Mapping[str, tuple[float, int]] = MappingProxyType({})  # bandwidth and rank of each way that is known for sure
    ordered: bool = True  # whether NCCL's order of them is known


# paths.cc: "P2C is only set when the NET is the closest to the GPU"; the others stay behind the host bridge.
_C2C_TO_THE_BEST: Final[Version] = (2, 29, 2)
_ANY_VERSION: Final = Unavailable(Kind.NOT_READ, "the version of NCCL is not known")
Direct = Callable[[RdmaDevice, str], bool]  # whether NCCL uses GPUDirect RDMA with this device at this distance


def used_both(
    gpu: GpuPlace, devices: Iterable[RdmaDevice], pci: Pci, version: Version | Unavailable, direct: Direct | None
) -> tuple[Reached, Reached]:
    """The devices whose path from this GPU has the highest bandwidth, among equals the nearest ones; none without ACTIVE port.

    First with GPUDirect on every way, then where `direct` says so: mostly the same.  All that could not be read is given every
    value that it may have, and what wins in none of them is left out.
    Source: NCCL src/graph/topo.cc, ncclTopoGetLocal (2.19.1 to 2.32; getLocalNetMask before).
    """
    devices = _live(tuple(devices))
    every = tuple(d for d in devices if d.pci is not None) or tuple(devices)
    nothing = Reached("", every, False)
    if isinstance(pci.devices, Unavailable) or isinstance(gpu.device, Unavailable) or not gpu.device.placed:
        return nothing, nothing
    at = gpu.device
    ways = [
        Way(one, net_device.bandwidth(one, every, version), net_device.path(at, one, pci, version, c2c=gpu.c2c, direct=True))
        for one in every
    ]
    if all(way.path is None for way in ways):
        return nothing, nothing
    first = _won(gpu, at, ways, pci, version)
    real = [_staged(at, way, pci, version, direct, c2c=gpu.c2c) for way in ways]
    same = all(one is other for one, other in zip(ways, real, strict=True))
    return first, first if same else _won(gpu, at, real, pci, version)


def _won(gpu: GpuPlace, at: PciDevice, ways: list[Way], pci: Pci, version: Version | Unavailable) -> Reached:
    own = net_path.LIMITLESS if gpu.c2c else net_path.gpu_link(at, pci, version)
    between = net_path.between_cpus(pci.cpu, version)
    steps = sorted({b for way in ways for b in way.bandwidth(net_path.LIMITLESS.low, between.high)})
    winners: list[Way] = []
    outcomes = set()
    for shared in values(own, steps):
        for link in values(between, steps):
            best = best_of([(way, way.bandwidth(shared, link)) for way in ways])
            outcomes.add(tuple(way.device.name for way in best))
            winners += [way for way in best if way not in winners]
    kinds = {way.path.kind if way.path else "" for way in winners}
    lost = [way for way in winners if way.path is None]
    found = (*lost, *(way for way in ways if way in winners and way not in lost))
    sure = len(outcomes) == 1 and len({way.bandwidth(own.high, between.high) for way in found}) == 1 and not lost
    kind = kinds.pop() if len(kinds) == 1 and not lost and FAR not in kinds else ""
    ordered = len(found) < 2 or all(way.path and way.path.on_bus for way in found)
    alike = isinstance(version, Unavailable) or version < _C2C_TO_THE_BEST
    figures = {
        way.device.name: (b.low, way.ranks[0] if alike or way in winners else way.beside)
        for way in ways
        if (b := way.exact(own, between)) is not None
    }
    return Reached(kind, tuple(way.device for way in found), sure and bool(kind), figures, ordered)


def _staged(at: PciDevice, way: Way, pci: Pci, version: Version | Unavailable, direct: Direct | None, *, c2c: bool) -> Way:
    """The way that is taken where GPUDirect is not used."""
    path = way.path
    if not path or direct is None or rank(path.kind) >= rank("PHB") or direct(way.device, path.kind):
        return way
    return Way(way.device, way.nic, net_device.path(at, way.device, pci, version, c2c=c2c, direct=False))


def used(
    gpu: GpuPlace, devices: Iterable[RdmaDevice], pci: Pci, version: Version | Unavailable, direct: Direct | None = None
) -> Reached:
    """The devices that NCCL chooses this GPU's from."""
    return used_both(gpu, devices, pci, version, direct)[1]


def _live(devices: tuple[RdmaDevice, ...]) -> tuple[RdmaDevice, ...]:
    """Those with an ACTIVE port and those that may have one; all where none has."""
    if not any(map(active_ports, devices)):
        return devices
    return tuple(filter(_may_be_live, devices))


def _may_be_live(device: RdmaDevice) -> bool:
    return bool(active_ports(device)) or not ports_read(device)


class Candidates:
    """RDMA devices, with what is the same for every GPU that looks for its own among them."""

    def __init__(self, devices: Iterable[RdmaDevice], pci: Pci) -> None:
        self.pci, self.devices = pci, tuple(devices)
        self.every = seen_once(self.devices)
        at = [(one, pci.at(one.pci)) for one in self.every if isinstance(one.pci, str)]
        self.placed = [(one, where) for one, where in at if where and where.placed]
        self.lost = unplaced(self.every, pci)

    @cached_property
    def live(self) -> Candidates:
        """Those with an ACTIVE port and those that may have one."""
        return Candidates(filter(_may_be_live, self.devices), self.pci)

    @cached_property
    def fastest(self) -> float:
        return max(map(rate, self.devices), default=0.0)

    def nearest(self, gpu: GpuPlace) -> tuple[str, tuple[RdmaDevice, ...]]:
        """(distance, the devices at it: those meant for this GPU); ("", all of them) where it cannot be told.

        NCCL may take a farther one that is faster: `used`.  Among equals a device with an ACTIVE port wins over one without
        (the second port of a card), and one of at least half the highest rate over slower ones (a management port beside the
        fabric).
        """
        if isinstance(self.pci.devices, Unavailable) or isinstance(gpu.device, Unavailable) or not gpu.device.placed:
            return "", self.every
        ranked: dict[str, list[RdmaDevice]] = {}
        blind = False  # a device that goes through the CPU may be nearer than it seems: a NUMA node could not be read
        for device, where in self.placed:
            kind = distance(gpu.device, where, gpu.c2c)
            unread = isinstance(gpu.device.numa_node, Unavailable) or isinstance(where.numa_node, Unavailable)
            blind |= unread and _through_cpu(kind)
            ranked.setdefault(kind, []).append(device)
        if not ranked:
            return "", self.every
        kind = min(ranked, key=rank)
        if blind and _through_cpu(kind):
            return "", self.every
        if self.lost and kind != "PIX":
            return "", (*self.lost, *prefer(ranked[kind]))  # one whose place is not known may be nearer
        return kind, prefer(ranked[kind])


def seen_once(devices: Iterable[RdmaDevice]) -> tuple[RdmaDevice, ...]:
    """Without functions that have no ACTIVE port where another function of the same port of the same card has.

    A Socket Direct card is one HCA with a function on each socket, and where the kernel makes one interface of them, the port
    is up on one alone (Documentation/networking/multi-pf-netdev.rst).
    """
    every = tuple(devices)
    return tuple(d for d in every if _may_be_live(d) or not any(map(active_ports, twins(d, every))))


def twins(device: RdmaDevice, devices: Iterable[RdmaDevice]) -> tuple[RdmaDevice, ...]:
    """The other functions of its port: of one sys_image_guid, on another slot, and as manieth there.

    So NCCL tells ports apart, and counts the bandwidth of such a port once: asic and port in src/graph/search.cc, which are
    sys_image_guid, and portNum + realPort of src/transport/net_ib/init.cc (functions of one bus are ports of one card).
    """
    slot = _slot(device)
    if not device.image or device.virtual_function is not False or slot is None:
        return ()
    every = tuple(devices)
    functions = [
        one for one in every if one.image == device.image and one.virtual_function is False and _slot(one) not in (None, slot)
    ]
    if not functions:  # nearly always: counting places is the dear part
        return ()
    own = _place_there(device, every)
    return tuple(one for one in functions if _place_there(one, every) == own)


def _slot(device: RdmaDevice) -> str | None:
    return device.pci.rpartition(":")[0] if isinstance(device.pci, str) else None


def _place_there(device: RdmaDevice, devices: Iterable[RdmaDevice]) -> int:
    return sum(_slot(one) == _slot(device) and str(one.pci) < str(device.pci) for one in devices)


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
    live = _live(tuple(devices))
    best = max(map(rate, live), default=0.0)
    return tuple(d for d in live if rate(d) >= best / 2 or not rates_read(d))


def rates_read(device: RdmaDevice) -> bool:
    """Whether all is known that `prefer` goes by."""
    return ports_read(device) and not any(isinstance(p.rate_gbps, Unavailable) for p in active_ports(device))


@record
class Subject:
    """An RDMA device that the job will use, and why it is thought so."""

    device: RdmaDevice
    why: str
    certain: bool  # False: what would tell the job's devices from others could not be read
    gpus: frozenset[str] = frozenset()  # labels of those that it is nearest to


@asked_again
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


@asked_again
def candidates(devices: tuple[RdmaDevice, ...], pci: Pci) -> Candidates:
    """These devices, for each GPU to look for its own."""
    return Candidates(devices, pci)


def _nearest_to_any(devices: tuple[RdmaDevice, ...], gpus: tuple[GpuPlace, ...] | Unavailable, pci: Pci) -> tuple[Subject, ...]:
    if isinstance(gpus, Unavailable):
        return tuple(Subject(d, f"the job's GPUs could not be read ({gpus})", False) for d in devices)
    if not gpus:
        return tuple(Subject(d, "no GPU to measure the distance from", True) for d in prefer(list(devices)))
    among = candidates(devices, pci)
    claims = [claim for gpu in gpus for claim in _claims(gpu, among)]
    if not isinstance(pci.devices, Unavailable):
        known = {claim.device for claim in claims}
        lost = (d for d in unplaced(devices, pci) if d.name not in known)
        claims += (_Claim(d.name, "one of the GPUs: its place on PCI is not known", False) for d in lost)
    return tuple(_subject(d, mine) for d in devices if (mine := [claim for claim in claims if claim.device == d.name]))


class _Claim(NamedTuple):
    """One GPU whose device this may be."""

    device: str
    gpu: str  # with its distance, for people
    sure: bool
    label: str = ""


def _claims(gpu: GpuPlace, among: Candidates) -> Iterator[_Claim]:
    kind, near = among.nearest(gpu)
    if kind and _through_cpu(kind) and not any(map(_may_be_live, near)) and among.live.devices:
        # NCCL passes over ports that are not ACTIVE; behind no common switch they may be another network's.
        yield from (_Claim(device.name, f"{gpu.label} ({kind})", False, gpu.label) for device in near)
        kind, near = among.live.nearest(gpu)
    for device in near:
        sure = bool(kind) and (len(near) == 1 or rates_read(device))
        yield _Claim(device.name, f"{gpu.label} ({kind})" if kind else gpu.label, sure, gpu.label)
    most = max(map(rate, near), default=0.0)
    if kind and among.fastest > most and any(map(_may_be_live, near)):
        faster = used(gpu, among.devices, among.pci, _ANY_VERSION)
        words = f"{gpu.label} ({faster.kind}, faster)"
        yield from (_Claim(d.name, words, True, gpu.label) for d in faster.devices if faster.certain and rate(d) > most)


def _subject(device: RdmaDevice, claims: Sequence[_Claim]) -> Subject:
    certain = any(claim.sure for claim in claims)
    words = "nearest to " if certain else "perhaps the HCA of "
    return Subject(
        device, words + ", ".join(claim.gpu for claim in claims), certain, frozenset(claim.label for claim in claims)
    )


def nothing_for_nccl(pci: Pci, gpus: Gpus) -> str:
    """Why NCCL has nothing to do here: no accelerator, or only such as hardware.accelerator says are not judged; "": it may."""
    if no_accelerator(pci, gpus):
        return "no accelerator: PCI was read and shows none, libcuda shows none"
    alone = pci.gpus == () and not pci.unclassified and pci.foreign_accelerators and gpus.none_visible and not pci.by_wsl
    return f"no NVIDIA GPU: {others(pci.foreign_accelerators or ())} alone, which NCCL does not use" if alone else ""


def no_accelerator(pci: Pci, gpus: Gpus) -> bool:
    """Positive evidence that there is none: PCI was read and shows none, and libcuda shows none or is absent."""
    return pci.gpus == () and not pci.unclassified and pci.foreign_accelerators == () and gpus.none_visible
