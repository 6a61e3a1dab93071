"""The RDMA devices that are meant for a node's GPUs: who they are, what there is of each."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from netdoctor.expectation import bonds
from netdoctor.expectation.model import FEW, Part, Quantity, Value
from netdoctor.expectation.parts import gpu_devices, gpu_name, numa_beside_its_port
from netdoctor.facts import dcb
from netdoctor.facts.net import ELSEWHERE, Link, LinkModes, Net
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.facts.rdma_ports import UNNAMED, Gid, RdmaPort
from netdoctor.model import Kind, Unavailable, missing, record
from netdoctor.nccl import hcas
from netdoctor.nccl.gpudirect import distance, rank
from netdoctor.nccl.selector import Selector

SWITCH: Final = ("PIX", "PXB")  # distances through PCIe switches alone
PLENTY: Final = 3  # of two devices alike each may have a purpose of its own, and one may be left without a cable
WHOLE: Final = (2, 4, 8, 16)  # GPUs of a node as they are built
NONE: Final = "(none)"
FLAT: Final = 8  # GPUs of a node that shows no PCIe switches, where one rail less than GPUs is no design

_QOS: Final = {
    "pfc": Quantity.PFC,
    "dscp": Quantity.DSCP,
    "trust": Quantity.TRUST,
    "ets": Quantity.SHARES,
    "ecn": Quantity.ECN,
    "pause": Quantity.PAUSE,
    "buffers": Quantity.BUFFERS,
}

_Kind = tuple[object, ...]


@record
class Rails:
    """The RDMA devices that are meant for the GPUs, as far as it can be told which they are."""

    devices: tuple[RdmaDevice, ...]
    parts: tuple[Part, ...]  # one each
    boards: tuple[Part, ...]  # their firmware: its releases differ by who made the board (PSID), so those of one are alike
    near: tuple[Part, ...]  # how many of them each GPU has behind its own switch, and each of them GPUs
    gpus: int
    chosen: bool  # NCCL_IB_HCA selects them: how many there are is the job's own choice
    by_switch: bool  # each is behind a PCIe switch with a GPU; else told by kind and rate
    modes: Mapping[str, LinkModes]  # of the Ethernet interface of each, as far as its driver says
    seen: int  # RDMA devices of any kind: what there is where none is for the GPUs
    bonds: Mapping[str, bonds.Bond]  # RoCE over several ports, by the name of the device
    alone: tuple[Part, ...] = ()  # where none is a rail, the bonds of the devices that carry the data all the same

    @property
    def even(self) -> bool:
        """Whether they serve every GPU alike."""
        near = {part.has.get(Quantity.NEAREST) for part in self.near if Quantity.NEAREST in part.has}
        if self.by_switch:
            return len(near) == 1 and 0 not in near
        number = len(self.devices)
        return bool(self.gpus and number) and (number % self.gpus == 0 or self.gpus % number == 0)


def rails(pci: Pci, rdma: Rdma, net: Net, choice: Selector | None) -> Rails | Unavailable:
    """What the GPUs have behind their own PCIe switches; on a machine that shows none, the fastest kind.

    Storage and management have another link layer, model, rate or place.  Where anything that this rests on could not be
    read, Unavailable: with less evidence another device might seem to be one.
    """
    devices, gpus = rdma.devices, gpu_devices(pci)
    if isinstance(devices, Unavailable):
        return devices
    if isinstance(gpus, Unavailable):
        return gpus
    hardware = tuple(d for d in devices if d.pci is not None)
    if (lost := _unsure(hardware, gpus, pci)) is not None:
        return lost
    if choice is not None:
        hardware = hcas.selected(hardware, choice)
    functions_of = Counter(_slot(d) for d in hardware)
    kinds = {d.name: _kind(d, functions_of[_slot(d)], pci) for d in hardware}
    own = {gpu.address: _own(gpu, hardware, pci) for gpu in pci.gpus or ()}  # those of virtual machines have theirs, too
    if not any(own.values()):
        members, near = _fastest_kind(hardware, kinds), []
        if isinstance(members, Unavailable):
            return members
        functions = Counter(_function(d) for d in members)
        alike = {d.name for d in members if functions[_function(d)] >= PLENTY and len(members) >= len(gpus)}
    else:
        main = _main_kind(own.values(), kinds)
        if isinstance(main, Unavailable):
            return main
        meant = {gpu: [d for d in found if kinds[d.name] == main] or found for gpu, found in own.items()}
        usual = Counter(len(found) for found in meant.values()).most_common(1)[0][0]
        behind = [{d.name for d in found} for found in meant.values()]
        members = tuple(d for d in hardware if any(d.name in names for names in behind))
        # A GPU with more of them than the others has one for something else, and two that serve the same GPUs may have two
        # purposes: nothing says which.
        alike = {d.name for found in meant.values() if len(found) <= usual for d in found}
        if len({tuple(d.name in names for names in behind) for d in members}) < len(members) < PLENTY:
            alike = set()
        near = [Part(gpu_name(d.address), {Quantity.NEAREST: len(meant[d.address])}, "GPUs") for d in gpus]
        near += _without_gpu([d for d in hardware if kinds[d.name] == main], members, pci)
    once = {d.name for d in hcas.seen_once(members)}
    parts = [_rail(d, pci, net, len(once) if d.name in once else 0) for d in members]
    if any(port.mtu is None for d in members if (port := up(d))):  # where one is not told, nobody's is compared
        parts = [replace(part, has={**part.has, Quantity.PACKET: None}) for part in parts]
    parts = [part if part.name in alike else replace(part, like="") for part in parts]
    chosen, switched = choice is not None, any(own.values())
    alone = missing(*(d.board for d in members)) is None  # one that is not known may be of any
    firmware = tuple(_of_board(part, str(d.board) if alone else "") for d, part in zip(members, parts, strict=True))
    modes = {d.name: link.modes for d in members if isinstance(link := _link(d, net), Link) and link.modes}
    active = [d for d in hardware if up(d)]
    carriers = members or (active if chosen or len(active) == 1 else [])  # one of one NCCL takes, whatever it is for
    whole = {d.name: bond for d in carriers if (bond := bonds.of(_link(d, net), net))}
    near = [] if choice else near
    return Rails(
        *(members, tuple(parts), firmware, tuple(near), len(gpus), chosen, switched, modes, len(hardware), whole),
        () if members else tuple(Part(name, {Quantity.BOND: bond.carry}) for name, bond in whole.items()),
    )


_NO_PLACE: Final = Unavailable(Kind.NOT_READ, "its place on PCI")


def _unsure(devices: Iterable[RdmaDevice], gpus: Iterable[PciDevice], pci: Pci) -> Unavailable | None:
    """What of all that tells a rail from other devices could not be read."""
    for device in devices:
        where = pci.at(device.pci) if isinstance(device.pci, str) else device.pci
        if isinstance(where, Unavailable):
            return Unavailable(Kind.NOT_READ, f"where {device.name} sits: {where}")
        if isinstance(device.driver, Unavailable):
            return Unavailable(Kind.NOT_READ, f"the driver of {device.name}: {device.driver}")
        ports = device.ports
        if isinstance(ports, Unavailable):
            return Unavailable(Kind.NOT_READ, f"ports of {device.name}: {ports}")
        for port in ports:
            rate = port.rate_gbps if port.state == "ACTIVE" and not port.unnamed else None  # of these `_fastest` says
            lost = missing(port.state, port.link_layer, rate)
            if lost is not None:
                return Unavailable(Kind.NOT_READ, f"port {port.number} of {device.name}: {lost}")
        if where is not None and (lost := missing(where.numa_node, None if where.placed else _NO_PLACE)) is not None:
            return Unavailable(Kind.NOT_READ, f"where {device.name} sits: {lost}")
    for gpu in gpus:
        if (lost := missing(gpu.numa_node, None if gpu.placed else _NO_PLACE)) is not None:
            return Unavailable(Kind.NOT_READ, f"where GPU {gpu.address} sits: {lost}")
    return None


def _slot(device: RdmaDevice) -> str:
    return str(device.pci).rpartition(".")[0]


def _kind(device: RdmaDevice, functions: int, pci: Pci) -> _Kind:
    """What devices of one purpose share: model, driver, link layer, and whether the card shows a second function."""
    layers = sorted({str(p.link_layer) for p in device.ports or ()})
    return (_model(device, pci), device.driver, tuple(layers), functions)


def _function(device: RdmaDevice) -> str:
    return str(device.pci).rpartition(".")[2]


def _model(device: RdmaDevice, pci: Pci) -> str | None:
    where = pci.at(device.pci) if isinstance(device.pci, str) else None
    return f"{where.vendor:04x}:{where.device:04x}" if where else None


def _own(gpu: PciDevice, devices: Iterable[RdmaDevice], pci: Pci) -> list[RdmaDevice]:
    """The nearest devices of a GPU, if they share a PCIe switch with it, whatever their state."""
    placed = [(d, where) for d in devices if isinstance(d.pci, str) and (where := pci.at(d.pci))]
    kinds = [(distance(gpu, where), d) for d, where in placed]
    best = min((kind for kind, _ in kinds), key=rank, default="")
    return [d for kind, d in kinds if kind == best] if best in SWITCH else []


_Span = tuple[float, float]  # Gb/s at least and at most


def _main_kind(own: Iterable[Sequence[RdmaDevice]], kinds: Mapping[str, _Kind]) -> _Kind | Unavailable:
    """The kind that most GPUs have; of equally many the faster."""
    found = list(own)
    every = [{kinds[d.name] for d in some} for some in found]
    number = {kind: sum(kind in some for some in every) for some in every for kind in some}
    most = [kind for kind, n in number.items() if n == max(number.values())]
    spans = {kind: [_span(d) for some in found for d in some if kinds[d.name] == kind] for kind in most}
    return _fastest({kind: (max(low for low, _ in some), max(high for _, high in some)) for kind, some in spans.items()})


def _fastest_kind(devices: Iterable[RdmaDevice], kinds: Mapping[str, _Kind]) -> tuple[RdmaDevice, ...] | Unavailable:
    """Of several devices of one kind those that carry most together."""
    groups: dict[_Kind, list[RdmaDevice]] = {}
    for device in devices:
        groups.setdefault(kinds[device.name], []).append(device)
    several = {kind: some for kind, some in groups.items() if len(some) > 1}
    spans = {kind: [_span(d) for d in some] for kind, some in several.items()}
    largest = sorted(spans, key=lambda kind: -len(spans[kind]))
    best = _fastest({kind: (sum(low for low, _ in spans[kind]), sum(high for _, high in spans[kind])) for kind in largest})
    return best if isinstance(best, Unavailable) else tuple(several.get(best, ()))


def _fastest(kinds: Mapping[_Kind, _Span]) -> _Kind | Unavailable:
    """The first of those that none of the others may beat; () of none."""
    best = max(kinds, key=lambda kind: kinds[kind], default=())
    rivals = [kind for kind, (low, high) in kinds.items() if kind != best and low < high and high > kinds[best][0]]
    return UNNAMED if rivals else best


def _span(device: RdmaDevice) -> _Span:
    """Of its ports that are up; a rate for which the kernel has no name is above those that it names."""
    spans = [_port_span(p) for p in device.ports or () if p.state == "ACTIVE"]
    return max((low for low, _ in spans), default=0.0), max((high for _, high in spans), default=0.0)


def _port_span(port: RdmaPort) -> _Span:
    written = port.rate_gbps or 0.0
    return (written, math.inf) if port.unnamed else (written, written)


def best_rate(device: RdmaDevice) -> float | Unavailable:
    """Of its ports that are up, whatever their link layer (EFA has none that NCCL knows); 0: none is up."""
    port = up(device)
    return port.rate if port else 0.0


def up(device: RdmaDevice) -> RdmaPort | None:
    """Its fastest port that is up; one whose rate is not known may be it."""
    ports = [p for p in device.ports or () if p.state == "ACTIVE"]
    return max(ports, key=lambda p: math.inf if isinstance(p.rate, Unavailable) else p.rate, default=None)


def _without_gpu(alike: Sequence[RdmaDevice], members: Sequence[RdmaDevice], pci: Pci) -> list[Part]:
    """Rails whose GPU is gone from PCI: of the same kind, as deep behind switches as the others, and only a few."""
    depths = {_depth(d, pci) for d in members}
    names = {d.name for d in members}
    lonely = [d for d in alike if d.name not in names and _depth(d, pci) in depths]
    each, gpus = max(1, len(members) // max(1, len(pci.gpus or ()))), len(pci.gpus or ())
    whole = gpus + len(lonely) // each in WHOLE and gpus not in WHOLE
    if not lonely or len(depths) > 1 or len(lonely) > FEW * len(members) or not whole:
        return []
    near = [Part(d.name, {Quantity.GPUS_NEAR: 0}, "rails' GPUs") for d in lonely]
    return near + [Part(d.name, {Quantity.GPUS_NEAR: 1}, "rails' GPUs") for d in members]


def _depth(device: RdmaDevice, pci: Pci) -> int:
    where = pci.at(device.pci) if isinstance(device.pci, str) else None
    return len(where.path) if where else 0


def _rail(device: RdmaDevice, pci: Pci, net: Net, number: int) -> Part:
    """One rail among `number`.  Siblings are those of one function number: of dual-port cards often one port is cabled."""
    where = pci.at(device.pci) if isinstance(device.pci, str) else None
    port = up(device)
    has: dict[Quantity, Value | None | Unavailable] = {
        Quantity.PORTS: sum(p.state == "ACTIVE" for p in device.ports or ()) if number >= PLENTY else None,
        Quantity.DRIVER: device.driver,
        Quantity.FIRMWARE: device.board if isinstance(device.board, Unavailable) else device.firmware,
        Quantity.MODEL: _model(device, pci),
    }
    if where:
        has[Quantity.NUMA] = numa_beside_its_port(where, pci)
    if port is not None:
        has |= {
            Quantity.RATE: port.rate,
            Quantity.LANES: port.lanes if port.link_layer == "InfiniBand" else None,
            Quantity.LAYER: port.link_layer,
            Quantity.PKEY: port.pkey,
            Quantity.PACKET: port.mtu if port.link_layer == "InfiniBand" else None,  # of RoCE it follows from the interface's
            Quantity.GID_KINDS: _kinds(port),
            Quantity.FAMILIES: _families(port),
            **_of_interface(port, net),
        }
    if number < PLENTY:  # of two that differ nothing says which is wrong
        has.pop(Quantity.PREFIX, None)
    return Part(device.name, has, f"rails .{_function(device)}")


def _of_board(part: Part, board: str) -> Part:
    return Part(part.name, {Quantity.FIRMWARE: part.has[Quantity.FIRMWARE]}, f"{part.like} {board}" if part.like else "")


def _kinds(port: RdmaPort) -> Value | None | Unavailable:
    if port.link_layer != "Ethernet" or isinstance(port.gids, Unavailable):
        return port.gids if isinstance(port.gids, Unavailable) and port.link_layer == "Ethernet" else None
    kinds = [gid.kind for gid in port.gids]
    lost = missing(*kinds)
    return ", ".join(sorted({str(kind) for kind in kinds})) or NONE if lost is None else lost


def _families(port: RdmaPort) -> Value | None | Unavailable:
    """What its addresses are: IPv4-mapped GIDs, IPv6 ones; link-local ones are always there."""
    if port.link_layer != "Ethernet" or isinstance(port.gids, Unavailable):
        return port.gids if isinstance(port.gids, Unavailable) and port.link_layer == "Ethernet" else None
    found = {_family(gid) for gid in port.gids}
    return ", ".join(sorted(found - {""})) or NONE


def _family(gid: Gid) -> str:
    try:
        address = ipaddress.IPv6Address(gid.value)
    except ValueError:
        return ""
    return "IPv4" if address.ipv4_mapped else "" if address.is_link_local else "IPv6"


def _interface(port: RdmaPort, net: Net) -> Link | None | Unavailable:
    """Of a RoCE port; None: InfiniBand, or an interface of another network namespace."""
    if port.link_layer != "Ethernet" or port.gids == ():
        return None
    if isinstance(port.gids, Unavailable):
        return port.gids
    name = port.gids[0].netdev
    if isinstance(name, Unavailable):  # EINVAL is the kernel's word for "in another namespace" (gid_attrs/ndevs)
        return None if name.kind == Kind.FAILED else name
    return net.link(name)


def _link(device: RdmaDevice, net: Net) -> Link | None | Unavailable:
    port = up(device)
    return _interface(port, net) if port else None


def _of_interface(port: RdmaPort, net: Net) -> dict[Quantity, Value | None | Unavailable]:
    link = _interface(port, net)
    if not isinstance(link, Link):
        return {Quantity.MTU: link}
    state = "up" if link.up and link.running else "down"
    has: dict[Quantity, Value | None | Unavailable] = {
        Quantity.MTU: link.mtu,
        Quantity.INTERFACE: state,
        Quantity.PREFIX: _prefix(link),
        **{_QOS[name]: text for name, text in dcb.together(one.qos for one in net.cards(link)).items()},
    }
    if (bond := bonds.of(link, net)) is not None:
        has[Quantity.BOND] = bond.carry
    return {**has, Quantity.INTERFACE_SPEED: gigabits(link)}


def _prefix(link: Link) -> str | None:
    """Of its widest IPv4 network, from which the kernel makes the route to the rail's peers: an address of a service beside it
    (/32) makes none."""
    prefixes = [one.prefix for one in link.addresses if one.family == 4 and one.scope == "global"]
    return f"/{min(prefixes)}" if prefixes else None


def gigabits(link: Link) -> float | None | Unavailable:
    """Gb/s; None: the driver does not say, or it is another namespace's."""
    speed = link.speed_mbps
    silent = isinstance(speed, Unavailable) and (speed == ELSEWHERE or speed.kind in (Kind.UNSUPPORTED, Kind.FAILED))
    return None if silent else speed and speed / 1000
