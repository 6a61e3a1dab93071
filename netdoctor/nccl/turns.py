"""Which of the HCAs that a GPU reaches equally well its channels use: src/graph/topo.cc, ncclTopoGetLocalNet."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from netdoctor.facts.nccl_version import Version
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import Unavailable
from netdoctor.nccl import net_device, net_path
from netdoctor.nccl.gpudirect import rank
from netdoctor.nccl.hcas import GpuPlace, Reached
from netdoctor.nccl.integers import param

_ORDERED: Final[Version] = (2, 18, 6)  # xml.cc: "Keep PCI sub devices ordered by PCI Bus ID"
_MIRRORED: Final[Version] = (2, 19, 1)
_POLICY_SINCE: Final[Version] = (2, 28, 3)  # topo.cc, NCCL_NETDEVS_POLICY
_MAX: Final = re.compile(r"max:\s*\+?(\d{1,9})", re.IGNORECASE)  # atoi(3)
_FILLS_UP_TO: Final[Version] = (2, 21, 5)
_BY_SHARERS: Final[Version] = (2, 30, 3)
_NET_CHANNELS: Final = 2  # paths.cc, NCCL_NCHANNELS_PER_NET_PEER
_MANY: Final = 64  # channels that NCCL has at most (device.h, MAXCHANNELS)
# The search for a ring goes down a list of speeds (search.cc, speedArrayInter and its like): from one to the next of those
# that an HCA may have it is at most this factor, and among the ways that are as good as the speed found the nearest is taken.
_STEP: Final = 0.6


class Nccl(NamedTuple):
    """The NCCL that chooses, as far as its choice depends on it."""

    version: Version | Unavailable
    pxn: bool = True  # GPUs send by HCAs of others that NVLink connects to them (NCCL_PXN_DISABLE)
    policy: str | None = None  # NCCL_NETDEVS_POLICY

    @classmethod
    def told(cls, version: Version | Unavailable, setting: Callable[[str], str | None]) -> Nccl:
        """With the variables of the job."""
        return cls(version, param(setting("NCCL_PXN_DISABLE"), 0) == 0, setting("NCCL_NETDEVS_POLICY"))


def turns(
    gpu: GpuPlace,
    gpus: Sequence[GpuPlace],
    mine: Reached,
    theirs: Sequence[Reached],
    pci: Pci,
    nccl: Nccl,
) -> tuple[RdmaDevice, ...]:
    """Of the devices that a GPU reaches equally well those that its channels use; `theirs` are the other GPUs', in their order.

    The GPUs that share the devices start at different ones, by the number that NVML gives them, with its bits mirrored where
    the devices are a power of two; each takes its share of the rest as far as its own link carries them (src/graph/search.cc).
    The ring of a node with one GPU goes by the fewest hops of them (search.cc, ncclTopoCompareGraphs).
    """
    version = nccl.version
    early = not isinstance(version, Unavailable) and version < _ORDERED
    order = _as_read(gpus, mine.devices, pci) if early else sorted(mine.devices, key=lambda d: _place_in_tree(d, pci))
    if len(gpus) > 1 and not isinstance(version, Unavailable) and version < _MIRRORED:
        return _by_number(gpus.index(gpu), mine, theirs)
    sharers = _sharers(order[0], theirs)
    number = gpu.gpu.index if gpu.gpu is not None else gpu.ordinal if gpu.ordinal is not None else gpus.index(gpu)
    if not isinstance(version, Unavailable) and version >= _BY_SHARERS:
        number %= sharers
    power = len(order).bit_count() == 1 and (isinstance(version, Unavailable) or version >= _MIRRORED)
    start = _mirrored(number, len(order)) if power else number
    share = min(_share(len(order), sharers, nccl), _fitting(gpu, order[0], mine.devices, pci, version))
    turn = [order[(start + channel) % len(order)] for channel in range(len(order))]
    if len(gpus) == 1:
        turn.sort(key=lambda device: _hops(gpu, device, mine.kind, pci, version))
    return tuple(dict.fromkeys(turn[:share]))


def spreads(gpu: GpuPlace, mine: Reached, theirs: Sequence[Reached], pci: Pci, nccl: Nccl) -> bool:
    """Whether what goes between two ranks alone may take others than `turns` has: it goes by the GPU's whole share in turn,
    channel by channel (topo.cc, ncclTopoGetLocalNet), a ring by as many of it as the GPU's link carries."""
    if not mine.devices or (not isinstance(nccl.version, Unavailable) and nccl.version < _MIRRORED):
        return False
    first = min(mine.devices, key=lambda d: _place_in_tree(d, pci))
    return _share(len(mine.devices), _sharers(first, theirs), nccl) > _fitting(gpu, first, mine.devices, pci, nccl.version)


def by_unknown_rule(mine: Reached, version: Version | Unavailable) -> bool:
    """2.32.3 takes another than the versions before of HCAs that one GPU reaches alike and whose rates differ."""
    rates = {net_device.bandwidth(one, mine.devices, version) for one in mine.devices}
    return not isinstance(version, Unavailable) and version >= net_device.PLANES_SINCE and len(rates) > 1


def ring_takes_others(mine: Reached, taken: Sequence[RdmaDevice], version: Version | Unavailable) -> bool:
    """Whether the ring of a GPU that is alone may take other HCAs than these: a nearer one, and before 2.21 one as fast.

    Up to 2.20.5 ncclTopoCompute divides by ngpus - 1 (search.cc, totalBw), and the search fills the GPU's link.
    """
    if not mine.devices or not (best := mine.figures.get(mine.devices[0].name)):
        return False
    fills = isinstance(version, Unavailable) or version < _FILLS_UP_TO
    own = {device.name for device in taken}
    others = [figure for name, figure in mine.figures.items() if name not in own]
    return any(
        (place < best[1] and best[0] * _STEP <= bandwidth < best[0]) or (fills and bandwidth == best[0])
        for bandwidth, place in others
    )


def _by_number(at: int, mine: Reached, theirs: Sequence[Reached]) -> tuple[RdmaDevice, ...]:
    """Before 2.19.1: GPUs that reach the same devices best take them by number, in turn, and once more for a second channel."""
    same = [n for n, way in enumerate(theirs) if way.devices == mine.devices]
    place, count = same.index(at), len(mine.devices)
    return tuple(dict.fromkeys(mine.devices[(place + channel * len(same)) % count] for channel in range(_NET_CHANNELS)))


def _sharers(first: RdmaDevice, theirs: Sequence[Reached]) -> int:
    """How many GPUs the device reaches best, as NCCL counts: not those that reach it best of all."""
    known = [way.figures.get(first.name) for way in theirs]
    figures = [one for one in known if one is not None]
    if len(figures) < len(known):
        return max(1, sum(any(d.name == first.name for d in way.devices) for way in theirs))
    best = min((-bandwidth, place) for bandwidth, place in figures)
    return sum((-bandwidth, place) == best for bandwidth, place in figures)


def _share(devices: int, sharers: int, nccl: Nccl) -> int:
    """How many of the devices one GPU uses (topo.cc, ncclTopoGetNetDevsPolicy and ncclTopoGetLocalNet)."""
    usual, policy, version = -(-devices // sharers), nccl.policy, nccl.version
    if not policy or isinstance(version, Unavailable) or version < _POLICY_SINCE:
        return usual
    if policy.lower() == "all":
        return devices
    most = _MAX.match(policy)
    return min(int(most[1]), devices) if most and int(most[1]) > 0 else usual


def _hops(gpu: GpuPlace, device: RdmaDevice, kind: str, pci: Pci, version: Version | Unavailable) -> int:
    if isinstance(gpu.device, Unavailable):
        return 0
    way = net_device.path(gpu.device, device, pci, version, c2c=gpu.c2c, direct=not kind or rank(kind) < rank("PHB"))
    return way.hops if way else 0


def _as_read(gpus: Sequence[GpuPlace], devices: Sequence[RdmaDevice], pci: Pci) -> list[RdmaDevice]:
    """Before 2.18.6: as components come up, above one GPU after the other, then above the HCAs."""
    cards = [one for one in (*(gpu.device for gpu in gpus), *(net_device.place(d, pci) for d in devices)) if one and one.placed]
    paths = [(f"node {card.numa_node}", *reversed(net_path.nodes(card))) for card in cards]
    read = {name: number for number, name in enumerate(dict.fromkeys(name for path in paths for name in path))}
    at = {path[-1]: [read[name] for name in path] for path in paths}
    return sorted(devices, key=lambda d: at.get(str(d.pci), [len(read)]))


def _fitting(gpu: GpuPlace, device: RdmaDevice, every: tuple[RdmaDevice, ...], pci: Pci, version: Version | Unavailable) -> int:
    """How many devices of this rate a GPU's link carries at once."""
    if isinstance(gpu.device, Unavailable) or gpu.c2c:
        return _MANY
    wide, each = net_path.gpu_link(gpu.device, pci, version), net_device.bandwidth(device, every, version)
    return max(1, int(wide.high // max(each.low, 1.0)))


def _mirrored(number: int, power: int) -> int:
    bits = power.bit_length() - 1
    return sum(1 << (bits - 1 - bit) for bit in range(bits) if number >> bit & 1)


def _place_in_tree(device: RdmaDevice, pci: Pci) -> tuple[object, ...]:
    """In NCCL's order: by CPU, then by PCI address at each switch (xml.cc: "Keep PCI sub devices ordered by PCI Bus ID")."""
    where = pci.at(device.pci) if isinstance(device.pci, str) else None
    if not where:
        return (1, 0, (), device.name)
    numa = where.numa_node if isinstance(where.numa_node, int) else -1
    return (0, numa, tuple(reversed(net_path.nodes(where))), device.name)
