"""What NCCL makes of an RDMA device: which ports it takes, how fast that is, and where it sits in NCCL's graph.

Sources (NCCL): src/transport/net_ib/init.cc (ncclIbGetPciPath, ports and their merging; net_ib.cc before 2.28),
src/graph/xml.cc (ncclTopoFillNet).
"""

from __future__ import annotations

from typing import Final

from netdoctor.facts.nccl_version import Version
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.rdma_ports import RdmaPort
from netdoctor.model import Kind, Unavailable, missing
from netdoctor.nccl import gpudirect, net_path

# ncclIbFindMatchingDev: both ports of a card are one device with the sum of their rates; since 2.22.3 only where all devices
# have as many ("Detected a mix of single and multiple-port NICs"), since 2.25.1 always (topo.cc, ncclTopoAutoMerge).
_MERGED_SINCE: Final[Version] = (2, 20, 3)
_MIX_SINCE: Final[Version] = (2, 22, 3)
_VIRTUAL_SINCE: Final[Version] = (2, 25, 1)
PLANES_SINCE: Final[Version] = (2, 31, 0)  # 2.32.3, which has no public source yet, refuses a device with two ACTIVE ports
# ncclIbGetPciPath from 2.24.3 up to 2.26.6: each function sits where it is.
_BY_ITSELF: Final[tuple[Version, Version]] = ((2, 24, 3), (2, 27, 3))


def active(port: RdmaPort) -> bool:
    """Whether NCCL's own IB transport would take this port."""
    return port.state == "ACTIVE" and port.link_layer in ("InfiniBand", "Ethernet")


def active_ports(device: RdmaDevice) -> tuple[RdmaPort, ...]:
    return tuple(p for p in device.ports or () if active(p))


def ports_read(device: RdmaDevice) -> bool:
    if isinstance(device.ports, Unavailable):
        return False
    return not any(isinstance(what, Unavailable) for p in device.ports for what in (p.state, p.link_layer))


def merged(device: RdmaDevice, every: tuple[RdmaDevice, ...], version: Version | Unavailable) -> bool | None:
    """Whether its ACTIVE ports are one device to NCCL; None where that is not known."""
    if len(active_ports(device)) < 2:
        return False
    if isinstance(version, Unavailable) or version >= PLANES_SINCE:
        return None
    if _MIX_SINCE <= version < _VIRTUAL_SINCE:
        return len({len(active_ports(one)) for one in every if active_ports(one)}) == 1
    return version >= _MERGED_SINCE


def bandwidth(device: RdmaDevice, every: tuple[RdmaDevice, ...], version: Version | Unavailable) -> net_path.Bandwidth:
    """Of its ports that NCCL takes."""
    if not ports_read(device):
        return net_path.UNKNOWN
    rates = [port.rate_gbps for port in active_ports(device)]
    if missing(*rates) is not None:
        return net_path.UNKNOWN
    read = [one for one in rates if not isinstance(one, Unavailable)]
    one, all_of_them = net_path.narrowest(*map(net_path.nic, read)) if read else net_path.nic(0.0), net_path.nic(sum(read))
    one_device = merged(device, every, version)
    if one_device:
        return all_of_them
    most = all_of_them if one_device is None else net_path.nic(max(read, default=0.0))
    return net_path.Bandwidth(one.low, most.high)  # its ports have one name, and so one place in NCCL's graph


def place(device: RdmaDevice, pci: Pci) -> PciDevice | None:
    """Its function on PCI, as far as its place is known."""
    where = pci.at(device.pci) if isinstance(device.pci, str) else None
    return where if where and where.placed else None


def card(address: str, version: Version | Unavailable) -> str:
    """The function that a device counts as: mostly that at slot and function 0 of its bus (NCCL_IB_MERGE_VFS)."""
    by_itself = not isinstance(version, Unavailable) and _BY_ITSELF[0] <= version < _BY_ITSELF[1]
    return address if by_itself else address[:-4] + "00.0"


def path(
    gpu: PciDevice, device: RdmaDevice, pci: Pci, version: Version | Unavailable, *, c2c: bool, direct: bool
) -> net_path.NetPath | None:
    """NCCL's way from a GPU to a device; None: where it sits is not known.

    A virtual function whose card is not there, a guest's, has no place for most versions: it hangs on a CPU, and no link of PCI
    is narrow for it ("is not a PCI device").
    """
    where = place(device, pci)
    if where is None:
        return None
    counts_as = card(where.address, version)
    first = where if counts_as == where.address else pci.at(counts_as)
    if first and first.placed:
        return net_path.path(gpu, first, pci, c2c=c2c, direct=direct)
    if isinstance(version, Unavailable) or (isinstance(first, Unavailable) and first.kind is not Kind.ABSENT):
        return None
    own = net_path.path(gpu, where, pci, c2c=c2c, direct=False)
    # On a root bus what is at slot 0 may be a host bridge, which no check asks about; elsewhere it would be the card.
    low = net_path.LIMITLESS.low if where.path else own.rest.low
    nodes = {one.numa_node for one in pci.gpus or ()}
    one_cpu = len(nodes) == 1 and not any(isinstance(node, Unavailable) for node in nodes)
    kind = (
        ("P2C" if c2c else "PHB") if one_cpu else gpudirect.FAR
    )  # "Attaching to first CPU": that of the rank's own GPU, or of another
    rest = net_path.narrowest(net_path.above(gpu, pci), net_path.Bandwidth(low, net_path.LIMITLESS.high))
    return net_path.NetPath(kind, rest, False if one_cpu else None, len(gpudirect.switches(gpu)) + 1, on_bus=False)
