"""Source: the device's own capability.  PCIe links against what both their ends can do, NVLinks by model, lanes of a port."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from netdoctor.expectation import bonds
from netdoctor.expectation.model import Comparison, Expectation, Part, Quantity, Source, Value
from netdoctor.expectation.parts import gpu_devices, gpu_name
from netdoctor.expectation.rails import best_rate, gigabits
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.net import Link, LinkModes, Net
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Run
from netdoctor.model import NODE, Fix, Kind, Unavailable, missing, record
from netdoctor.nccl.gpudirect import C2C_NAMES
from netdoctor.nccl.interfaces import leading_out

# Ports that a hypervisor makes up (QEMU, VMware, Hyper-V): what they say of a link is nobody's.
_EMULATED: Final = frozenset({0x1B36, 0x15AD, 0x1414})
_ON_CHIP: Final = (*C2C_NAMES, "GB10")  # their data goes by NVLink-C2C
_BUSY: Final = 50  # percent: a GPU that rests lowers its link's speed, and raises it within the first work

# NVLinks of a GPU by its name in NVML, where the board connects every one of them to a GPU or an NVSwitch.  Sources: NVIDIA's
# data sheets and architecture white papers (bandwidth in both directions by that of one link: 50 GB/s, of NVLink 5 100 GB/s).
NVLINKS: Final = (
    (r"(?:NVIDIA )?(?:H100 80GB HBM3|H100 64GB HBM2|H100 96GB HBM3|H200|H20|H20-3e)", 18, "NVLink 4, 900 GB/s"),
    (r"(?:NVIDIA )?H800", 8, "NVLink 4, 400 GB/s"),
    (r"(?:NVIDIA )?A100-SXM.*", 12, "NVLink 3, 600 GB/s"),
    (r"(?:NVIDIA )?A800-SXM.*", 8, "NVLink 3, 400 GB/s"),
    (r"(?:NVIDIA )?(?:B200|GB200|B300.*|GB300)", 18, "NVLink 5, 1.8 TB/s"),
)
_BOARD: Final = 8  # GPUs that only NVSwitches join; boards of four are wired in several ways, and of those siblings tell


# kernel-open/nvidia/nv-reg.h: "will not attempt to initialize or train NVLink connections for any GPUs".  One GPU alone needs
# it: its links have no other end, and their training would fail.
_OFF: Final = "the driver was told to leave NVLinks off, NVreg_NvLinkDisable=1"
_TURN_ON: Final = Fix(
    "let the driver train NVLinks: take NVreg_NvLinkDisable=1 away where its options are kept, and reboot",
    ("grep NvLinkDisable /proc/driver/nvidia/params", "modprobe -c | grep NVreg_NvLinkDisable", "cat /proc/cmdline"),
    (
        "grep -rl NVreg_NvLinkDisable /etc/modprobe.d   # then update-initramfs -u, or dracut -f",
        "driver.kernelModuleConfig   # of the GPU operator",
    ),
)


def nvlinks(pci: Pci, nvml: Gpus) -> Iterator[Expectation]:
    """NVLinks by the GPU's model, where the node has the board that connects them: an NVSwitch, or eight GPUs and a link."""
    devices = gpu_devices(pci)
    if isinstance(devices, Unavailable) or isinstance(nvml.all, Unavailable):
        return
    switched = bool(pci.nvswitches)
    some = any(any(gpu.nvlinks or ()) for gpu in nvml.all)
    off, mend = (f"; {_OFF}", _TURN_ON) if nvml.links_off is True else ("", None)
    if not switched and off and (bare := _bare(nvml)):
        # Who gives GPUs to a virtual machine without their NVSwitches means it so.
        should, why = bare
        yield Expectation(NODE, Quantity.NVLINKS, should, Source.DEVICE, f"{why}{off}", certain=False, mend=mend)
    if not switched and (len(devices) < _BOARD or not some):
        return
    for gpu in nvml.all:
        known = by_model(gpu)
        if known and isinstance(gpu.pci, str):
            down = ", ".join(str(number) for number, up in enumerate(gpu.nvlinks or ()) if not up)
            because = f"{gpu.name}: {known[1]}{off}" + (f"; down: {down}" if down and any(gpu.nvlinks or ()) else "")
            yield Expectation(gpu_name(gpu.pci), Quantity.NVLINKS, known[0], Source.DEVICE, because, mend=mend)


def _bare(nvml: Gpus) -> tuple[int, str] | None:
    """What the model of several GPUs here has of NVLinks, of which none is up; in MIG mode they rest."""
    linked = [(gpu, known) for gpu in nvml.all or () if gpu.mig is not True and (known := by_model(gpu))]
    if len(linked) < 2 or any(any(gpu.nvlinks or ()) for gpu, _ in linked):
        return None
    gpu, (number, why) = linked[0]
    return number, f"{gpu.name}: {why}"


def nvlinks_unread(pci: Pci, nvml: Gpus) -> Unavailable | None:
    """No NVLink of several GPUs is up, no NVSwitch is seen, and whether the driver was told so could not be read."""
    if pci.nvswitches or _bare(nvml) is None or not isinstance(nvml.links_off, Unavailable):
        return None
    return Unavailable(Kind.NOT_READ, f"whether the driver was told to leave NVLinks off: {nvml.links_off}")


def by_model(gpu: Gpu) -> tuple[int, str] | None:
    """How many NVLinks a GPU of this model has, and what says so."""
    if not isinstance(gpu.name, str):
        return None
    return next(((number, why) for name, number, why in NVLINKS if re.fullmatch(name, gpu.name)), None)


# The least that a port of a device does on InfiniBand, in Gb/s, by PCI id (the PCI ID repository): the slowest card that is
# sold with it.  What an Ethernet port can do does not follow from the device.
INFINIBAND: Final = {
    "15b3:1017": (100, "ConnectX-5: EDR"),
    "15b3:1019": (100, "ConnectX-5 Ex: EDR"),
    "15b3:101b": (100, "ConnectX-6: HDR100 or HDR"),
    "15b3:1021": (200, "ConnectX-7: NDR200 or NDR"),
    "15b3:1023": (400, "ConnectX-8: NDR or XDR"),
    "15b3:a2dc": (200, "BlueField-3: NDR200 or NDR"),
}
_LANES: Final = 2  # InfiniBand cables have four lanes, split ones two


def ports(rails: Iterable[Part]) -> Iterator[Expectation]:
    """What ports of RDMA devices can do by themselves: lanes and rate, on InfiniBand."""
    for part in rails:
        if part.has.get(Quantity.LAYER) == "InfiniBand":
            because = "an InfiniBand link has four lanes, a split one two"
            yield Expectation(part.name, Quantity.LANES, _LANES, Source.DEVICE, because)
            known = INFINIBAND.get(str(part.has.get(Quantity.MODEL)))
            if known:
                yield Expectation(part.name, Quantity.RATE, known[0], Source.DEVICE, f"at least, {known[1]}")


def interfaces(parts: Iterable[Part], modes: Mapping[str, LinkModes]) -> Iterator[Expectation]:
    """What Ethernet interfaces could do: the most that both ends offer each other.

    Where the other ends say nothing and none does what its own hardware could, their switches may be slower by design.
    """
    told = [(part.name, float(now), modes[part.name]) for part in parts if part.name in modes and (now := _speed(part))]
    for name, _, mode in told:
        if mode.agreed:
            because = "both ends offer it (ethtool)"
            yield Expectation(name, Quantity.INTERFACE_SPEED, mode.agreed / 1000, Source.DEVICE, because)
    silent = [(now, mode.supported / 1000) for _, now, mode in told if not mode.agreed and mode.supported]
    if silent and all(now < most for now, most in silent):
        most = max(most for _, most in silent)
        yield Expectation(NODE, Quantity.INTERFACE_SPEED, most, Source.DEVICE, "its own modes (ethtool)", certain=False)


def _speed(part: Part) -> float | None:
    """Gb/s of its interface."""
    now = part.has.get(Quantity.INTERFACE_SPEED)
    return now if isinstance(now, int | float) else None


@record
class Wire:
    """One PCIe link: a root or switch port, and the function at its lower end."""

    port: PciDevice
    lower: PciDevice
    below: tuple[str, ...]  # the devices of the job that use it


def wires(pci: Pci, ends: Iterable[tuple[str, PciDevice]]) -> tuple[Wire, ...]:
    """The links from these devices (name and function) up to the root, each once.

    A root port and a switch's lower ports have the link below them, a switch's upper port and a device the one above: from a
    device upwards each two functions are one link, and the next two another.
    """
    found: dict[str, tuple[PciDevice, PciDevice, list[str]]] = {}
    for name, device in ends:
        chain = (*device.path, device.address)
        for at in range(len(chain) - 1, 0, -2):
            lower, port = pci.at(chain[at]), pci.at(chain[at - 1])
            if not lower or not port:
                break
            found.setdefault(lower.address, (port, lower, []))[2].append(name)
    return tuple(Wire(port, lower, tuple(below)) for port, lower, below in found.values())


def links(
    pci: Pci, nvml: Gpus, rdma: Rdma, net: Net, run: Run | Unavailable, sockets: tuple[Link, ...] | None | Unavailable = None
) -> Comparison:
    """The PCIe links above GPUs and RDMA devices and, where sockets carry the data, Ethernet: what both their ends can do.

    `sockets` are the interfaces that carry it beside RDMA devices that do not; without such devices it is all that lead out.
    """
    gpus = gpu_devices(pci) or ()
    known = {gpu.pci: gpu for gpu in nvml.all or () if isinstance(gpu.pci, str)}
    worked = {rank.gpu: rank.link_speed for rank in (run.ranks if run else ()) if rank.link_speed}
    # A GPU that no rank ran on is not the job's, where others told: nothing is said of its rest.
    silent = "no rank told of its link after work" if run else "no all-reduce woke it"
    asleep = None if worked else Unavailable(Kind.NOT_READ, f"it rests, and {silent}")
    ends = [(gpu_name(d.address), d) for d in gpus]
    ends += [(d.name, where) for d in rdma.devices or () if isinstance(d.pci, str) and (where := pci.at(d.pci))]
    names = {device.address: name for name, device in ends}
    parts: list[Part] = []
    expected: list[Expectation] = []
    lost = [(name, Unavailable(Kind.NOT_READ, "its place on PCI is not known")) for name, device in ends if not device.placed]
    lost += [(d.name, d.pci) for d in rdma.devices or () if isinstance(d.pci, Unavailable)]
    of_gpus = {gpu_name(d.address) for d in gpus}
    across: set[str] = set()
    for name, why in lost:
        parts.append(Part(name, {Quantity.WIDTH: why}))
        expected.append(Expectation(name, Quantity.WIDTH, "", Source.DEVICE, _OWN))
    rates: dict[str, list[float | None | Unavailable]] = {}
    for one in rdma.devices or ():
        if isinstance(one.pci, str):
            rates.setdefault(_slot(one.pci), []).append(best_rate(one))
    for wire in wires(pci, ends):
        port, lower = wire.port.link, wire.lower.link
        if wire.port.vendor in _EMULATED or any(
            isinstance(e, Unavailable) and e.kind == Kind.UNSUPPORTED for e in (port, lower)
        ):
            continue  # a virtual machine: nobody tells
        has: dict[Quantity, Value | None | Unavailable]
        if isinstance(port, Unavailable) or isinstance(lower, Unavailable):
            has, width, speed = {Quantity.WIDTH: missing(port, lower)}, 0, 0.0
        else:
            width, speed = min(port.max_width, lower.max_width), min(port.max_speed, lower.max_speed)
            now = PciLink(min(port.speed, lower.speed), min(port.width, lower.width), speed, width)
            has = {Quantity.WIDTH: now.width, Quantity.SPEED: now.speed}
            if wire.lower.is_gpu:
                has |= _excused(known.get(wire.lower.address), now, worked.get(wire.lower.address, asleep))
        name = names.get(wire.lower.address, wire.lower.address)
        because = f"{_OWN}; it carries {', '.join(dict.fromkeys(wire.below))}"
        parts.append(Part(name, has))
        if of_gpus.isdisjoint(wire.below):
            across.add(name)
        lanes, rate = _enough(has, rates.get(_slot(wire.lower.address), []))
        expected.append(Expectation(name, Quantity.WIDTH, width, Source.DEVICE, because, lanes))
        expected.append(Expectation(name, Quantity.SPEED, speed, Source.DEVICE, because, rate))
    if rdma.devices == () or sockets:
        every = net.links if rdma.devices == () else [cable for link in sockets or () for cable in net.cables(link)]
        own = [link for link in every or () if link.kind is None and link.up and link.running and link.modes]
        by_sockets = [Part(link.name, {Quantity.INTERFACE_SPEED: gigabits(link)}) for link in own]
        parts += by_sockets
        across |= {part.name for part in by_sockets}
        offered = interfaces(by_sockets, {link.name: link.modes for link in own if link.modes})
        expected += [one for one in offered if one.certain]  # whose switches are slower is nobody's fault
        out = leading_out(net) if rdma.devices == () else [link.name for link in sockets or ()]
        whole = {name: bond for name in out if (bond := bonds.of(net.link(name), net))}
        parts += [Part(name, {Quantity.BOND: bond.carry}) for name, bond in whole.items()]
        expected += [bond.expectation(name) for name, bond in whole.items()]
        across |= whole.keys()
    unread = missing(gpu_devices(pci), rdma.devices, net.links if rdma.devices == () else sockets)
    return Comparison(tuple(parts), tuple(expected), unread, frozenset(across))


def _slot(address: str) -> str:
    return address.rpartition(".")[0]


def _enough(
    has: Mapping[Quantity, Value | None | Unavailable], rates: Sequence[float | None | Unavailable]
) -> tuple[float | None, float | None]:
    """Lanes, and GT/s, that the ports of an RDMA card need; None where something else is below, or it is not known."""
    width, speed = has.get(Quantity.WIDTH), has.get(Quantity.SPEED)
    if isinstance(width, str | Unavailable) or isinstance(speed, str | Unavailable) or not width or not speed:
        return None, None
    if missing(*rates) is not None or not any(rates):
        return None, None
    one = sum(rate or 0.0 for rate in rates) / _CODED  # a lane carries a bit a transfer, but for the code
    return one / speed, one / width


_CODED: Final = 128 / 130  # PCIe 3 and newer (PCI Express Base Specification, 4.2.2)
_OWN: Final = "both ends are capable of it"
_NOT_SHOWN: Final = Unavailable(Kind.NOT_READ, "NVML does not show this GPU")


def _excused(gpu: Gpu | None, now: PciLink, worked: float | None | Unavailable) -> dict[Quantity, Value | None | Unavailable]:
    """A GPU that rests lowers its link's speed: what the all-reduce saw of it counts, if there was one.  One that shares memory
    with its CPU needs no PCIe link.  Neither is known of a GPU that NVML does not show."""
    name = gpu.name if gpu else _NOT_SHOWN
    busy = gpu.utilization if gpu else _NOT_SHOWN
    if isinstance(name, str) and any(word in name for word in _ON_CHIP):
        return {Quantity.WIDTH: None, Quantity.SPEED: None}
    out: dict[Quantity, Value | None | Unavailable] = {}
    if now.width < now.max_width and isinstance(name, Unavailable):
        out[Quantity.WIDTH] = name
    if now.speed < now.max_speed and (isinstance(busy, Unavailable) or busy < _BUSY):
        silent = busy if isinstance(busy, Unavailable) else worked
        out[Quantity.SPEED] = max(now.speed, worked) if worked else silent
    return out
