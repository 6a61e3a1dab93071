"""NCCL's path between a GPU and a NIC: its bandwidth and its type, as pure functions of what PCI shows.

Sources (NCCL): src/graph/xml.cc (ncclTopoGetXmlFromSys: which components of a PCI path count, and how fast their links are),
src/graph/topo.cc (ncclTopoAddPci, ncclTopoAddNet, ncclTopoGetInterCpuBw), src/graph/topo.h (the constants).
Bandwidths are GB/s, and NCCL's own figures: what its choices go by, not what a link carries.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from netdoctor.facts.nccl_version import Version
from netdoctor.facts.pci import CpuModel, CpuVendor, Pci, PciDevice, PciLink
from netdoctor.model import Kind, Unavailable, record
from netdoctor.nccl.gpudirect import FAR, distance, switches

_LANE: Final = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}  # topo.cc, kvDictPciGen: 100 Mb/s a lane by GT/s
_ANY_LANE: Final = 60  # its fallback
_ANY_WIDTH: Final = 16  # topo.cc, ncclTopoAddPci: where "speed was not indicated in /sys"
_UNSAID: Final = (Kind.UNSUPPORTED, Kind.ABSENT)  # a virtual machine's link: the kernel has nothing to say
_LOCAL: Final = 5000.0  # topo.h, LOC_BW
_NVML_LINK: Final[Version] = (2, 30, 3)  # xml.cc: a GPU's current link by NVML; before, the greatest speed by sysfs
_AMD_SINCE: Final[Version] = (2, 19, 1)  # topo.h, AMD_BW; before, two AMD sockets are as good as one
# As 2.32.3 has it (ncclTopoAddCpu and ncclTopoConnectCpus of the library; its source is not public yet): 19h (Milan, Genoa) and
# 1Ah (Turin); 2.30.7 has one figure for all.
_AMD_FAMILIES_SINCE: Final[Version] = (2, 32, 0)
_AMD_FAMILIES: Final = {0x19: 24.0, 0x1A: 32.0}
_SAPPHIRE_SINCE: Final[Version] = (2, 26, 2)  # topo.h, SRP_QPI_BW and ERP_QPI_BW
_ANY_NIC: Final = 10000 / 8000  # topo.cc, ncclTopoAddNet: "Some NICs define speed = -1"


class Bandwidth(NamedTuple):
    """What it is at least and at most; the same where all was read."""

    low: float
    high: float


UNKNOWN: Final = Bandwidth(0.0, _LOCAL)
LIMITLESS: Final = Bandwidth(_LOCAL, _LOCAL)


def narrowest(*parts: Bandwidth) -> Bandwidth:
    """Of links one after the other."""
    return Bandwidth(*map(min, zip(*parts, strict=True))) if parts else LIMITLESS


@record
class NetPath:
    """The way from a GPU to a NIC, without the GPU's own link and the one between CPUs: those it shares with other ways."""

    kind: str  # of `gpudirect.LEVELS`, or `gpudirect.FAR`
    rest: Bandwidth
    crosses: bool | None  # from one CPU to another; None: not known
    hops: int  # PCI components on it
    on_bus: bool = True  # False: the NIC has no place on PCI, as NCCL sees it


def nodes(device: PciDevice) -> tuple[str, ...]:
    """What a PCI path is in NCCL's graph: the device and the switches above it."""
    return (device.address, *switches(device))


def nic(gbps: float | Unavailable) -> Bandwidth:
    """Of a NIC by its ports' rate."""
    if isinstance(gbps, Unavailable):
        return UNKNOWN
    return Bandwidth(gbps / 8, gbps / 8) if gbps > 0 else Bandwidth(_ANY_NIC, _ANY_NIC)


def path(gpu: PciDevice, card: PciDevice, pci: Pci, *, c2c: bool, direct: bool) -> NetPath:
    """The way over PCI; not `direct`: through the GPU's CPU, as NCCL leads it without GPUDirect (paths.cc, addInterStep)."""
    mine, theirs = switches(gpu), switches(card)
    kind = distance(gpu, card, c2c)
    shared = next((one for one in mine if one in theirs), None) if direct else None
    if not direct and kind in ("PIX", "PXB"):
        kind = "P2C" if c2c else "PHB"
    below = mine if shared is None else mine[: mine.index(shared)]
    beyond = nodes(card) if shared is None else nodes(card)[: theirs.index(shared) + 1]
    above = _parents(gpu) | _parents(card)
    rest = narrowest(*(_link(address, above.get(address), pci) for address in (*below, *beyond)))
    return NetPath(kind, rest, None if kind == FAR else kind == "SYS", len(below) + len(beyond))


def above(gpu: PciDevice, pci: Pci) -> Bandwidth:
    """Of the links between a GPU's own and its CPU."""
    parents = _parents(gpu)
    return narrowest(*(_link(address, parents.get(address), pci) for address in switches(gpu)))


def gpu_link(gpu: PciDevice, pci: Pci, version: Version | Unavailable) -> Bandwidth:
    """Of a GPU's own link.

    Since 2.30 it is what NVML says of now.  Lanes that are missing are missing; a slow link is an idle GPU's, which is at full
    speed when NCCL asks.  One that could not be read is taken to be no narrower than its NIC's.
    """
    if isinstance(gpu.link, Unavailable) and gpu.link.kind not in _UNSAID:
        return LIMITLESS
    most = _link(gpu.address, _parents(gpu).get(gpu.address), pci)
    if isinstance(version, Unavailable) or version < _NVML_LINK or isinstance(gpu.link, Unavailable):
        return most
    now = gpu.link.width * _LANE.get(gpu.link.max_speed, _ANY_LANE) / 80
    return narrowest(most, Bandwidth(now, now))


def between_cpus(cpu: CpuModel | Unavailable, version: Version | Unavailable) -> Bandwidth:
    """Of the link between sockets, by the processor (topo.cc, ncclTopoGetInterCpuBw)."""
    if isinstance(cpu, Unavailable):
        return Bandwidth(6.0, _LOCAL if isinstance(version, Unavailable) or version < _AMD_SINCE else 40.0)
    if isinstance(version, Unavailable):
        every = [_between(cpu, since) for since in ((0, 0, 0), _AMD_SINCE, _SAPPHIRE_SINCE, _AMD_FAMILIES_SINCE)]
        return Bandwidth(min(every), max(every))
    return Bandwidth(*[_between(cpu, version)] * 2)


def _between(cpu: CpuModel, version: Version) -> float:
    if cpu.vendor is CpuVendor.ARM:
        return 6.0
    if cpu.vendor is CpuVendor.AMD:
        if version < _AMD_SINCE:
            return _LOCAL
        return _AMD_FAMILIES.get(cpu.family, 16.0) if version >= _AMD_FAMILIES_SINCE else 16.0
    if cpu.vendor is CpuVendor.ZHAOXIN:
        return 9.0 if (cpu.family, cpu.model) == (7, 0x5B) else 6.0
    if cpu.vendor is not CpuVendor.INTEL:
        return _LOCAL
    if cpu.family != 6 or cpu.model < 0x55:
        return 6.0  # Broadwell
    if version < _SAPPHIRE_SINCE or cpu.model < 0x8F:
        return 10.0  # Skylake
    return 22.0 if cpu.model < 0xCF else 40.0  # Sapphire Rapids, Emerald Rapids


def _parents(device: PciDevice) -> dict[str, str]:
    """The component above each of a device's path."""
    steps = (device.address, *reversed(device.path))
    return dict(pairwise(steps))


def _link(address: str, above: str | None, pci: Pci) -> Bandwidth:
    """Of the link above a component: the lesser of what its two ends can do."""
    ends = [pci.at(end) for end in (address, above) if end is not None]
    return _of_ends(tuple(end.link for end in ends if not isinstance(end, Unavailable)))  # the root complex is no device


@lru_cache(maxsize=256)  # the links of a machine are of few kinds, and each is asked for once a GPU and HCA
def _of_ends(listed: tuple[PciLink | Unavailable, ...]) -> Bandwidth:
    if not listed:
        return LIMITLESS
    if any(isinstance(link, Unavailable) and link.kind not in _UNSAID for link in listed):
        return UNKNOWN
    links = [link for link in listed if not isinstance(link, Unavailable)]
    speeds, widths = [link.max_speed for link in links], [link.max_width for link in links]
    most = min(widths, default=_ANY_WIDTH) * _LANE.get(min(speeds, default=0.0), _ANY_LANE) / 80
    return Bandwidth(most, most)
