"""What the path of an all-reduce should carry, where that is known for sure: by what the node ought to have, never by what a
degraded link says of itself.

NCCL's own model (src/graph/topo.h, "per NVLink" and PCIe): GB/s in one direction after protocol overhead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import MIGHT, less
from netdoctor.expectation.device import nvlinks
from netdoctor.expectation.parts import bridged, gpu_name
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.pci import Pci, PciLink
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.facts.rdma_ports import RdmaPort
from netdoctor.facts.runs import Path, Run, Way
from netdoctor.model import Kind, Loss, Unavailable, record
from netdoctor.nccl.log.facts import SOCKET, LogFacts
from netdoctor.nccl.transport import log_of, network_family

# GB/s of one NVLink by compute capability (src/graph/topo.h: SM60_NVLINK_BW … SM100_NVLINK_BW).
NVLINK: Final = {(6, 0): 18.0, (7, 0): 20.0, (8, 0): 20.0, (8, 6): 12.0, (9, 0): 20.6, (10, 0): 40.1, (10, 3): 40.1}
SWITCHED: Final = 8  # as many GPUs are joined by NVSwitch; boards of four (HGX A100 and H100 4-GPU, GH200) by a mesh
# Share of the raw PCIe rate that NCCL counts on: width × speed / 80 in GB/s (src/graph/topo.cc: Gen5 x16 is 48 instead of 63).
_PCIE: Final = {2.5: 1.5, 5.0: 3.0, 8.0: 6.0, 16.0: 12.0, 32.0: 24.0, 64.0: 48.0}  # GB/s of 8 lanes


@record
class Limit:
    """Bus bandwidth in GB/s that the path cannot pass, and why."""

    rate: float
    why: str
    nvlink: bool = False


def path_limit(run: Run, gpus: Gpus, pci: Pci, rdma: Rdma) -> Limit | Unavailable:
    """The limit of the path that the run's log shows.

    Unavailable: no rule says what such a path carries (UNSUPPORTED), or what it goes by could not be read.
    """
    experiment = run.experiment
    if len(set(experiment.gpus)) < len(experiment.gpus):
        return Unavailable(Kind.UNSUPPORTED, "the ranks share one GPU and take turns")
    log = log_of(run)
    kinds = {via.transport for via in log.vias} if log is not None else set()
    if not kinds:
        return Unavailable(Kind.NOT_READ, "NCCL's log does not show the transport")
    if kinds == {"NET"}:
        return _port(experiment.path, log, rdma, pci)
    if kinds == {"P2P"} and experiment.path.way is Way.BETWEEN_NODES:  # src/transport/p2p.cc: "via P2P/MNNVL"
        joined = log is not None and all(via.detail in ("MNNVL", "MNNVL/read") for via in log.vias)
        kind = Kind.UNSUPPORTED if joined else Kind.NOT_READ
        return Unavailable(kind, "NVLink between nodes" if joined else "NCCL's log shows no way to another node")
    if kinds == {"P2P"}:
        return _between_gpus(experiment.gpus, gpus, pci)
    by = f"the data goes by {' and '.join(sorted(kinds))}"
    if experiment.path.way is not Way.DEFAULT:
        return Unavailable(Kind.NOT_READ, f"{by}: how much of it by which is not known")
    better = _between_gpus(experiment.gpus, gpus, pci)
    if isinstance(better, Limit) and better.nvlink and not _partitioned(gpus):
        return replace(better, why=f"{better.why}, and {by}")  # nothing but a fault keeps NCCL from NVLink
    if isinstance(better, Limit):  # whether it should be off is not known
        return Unavailable(Kind.NOT_READ, f"{by}, where P2P could carry it: whether it should is not known")
    return Unavailable(better.kind, f"{by}, whose limit is not known here")


def _port(path: Path, log: LogFacts | None, rdma: Rdma, pci: Pci) -> Limit | Unavailable:
    """One HCA port that both ranks share: each sends through it what the other receives.

    Its rate is that of the fastest port of its like: one that came up slower is a fault, no lower limit.
    """
    if log is not None and log.net == SOCKET:
        return Unavailable(Kind.UNSUPPORTED, "sockets of one node do not cross the network")
    if log is not None and log.net and network_family(log.net) != "IB":
        return Unavailable(Kind.UNSUPPORTED, f"{log.net} is a plugin's network: by which ports it goes is not said")
    if isinstance(rdma.devices, Unavailable) or not path.device:
        why = f"RDMA devices: {rdma.devices}" if path.device else "which port carried the data is not known"
        return Unavailable(Kind.NOT_READ, why)
    for device in rdma.devices:
        for one in device.ports or ():
            if device.name == path.device and one.number == path.port and not isinstance(one.rate, Unavailable):
                rate = max([one.rate, *_like(device, one, rdma.devices, pci)])
                return Limit(rate / 8 / 2, f"half of {rate:g} Gb/s: both ranks share the port {path.pinned}")
    return Unavailable(Kind.NOT_READ, f"the rate of {path.pinned} is not known")


def _like(device: RdmaDevice, port: RdmaPort, devices: tuple[RdmaDevice, ...], pci: Pci) -> Iterator[float]:
    """Gb/s of the ports of the same model, link layer and number: rails of a node are alike."""

    def model(one: RdmaDevice) -> tuple[int, int] | None:
        at = pci.at(one.pci) if isinstance(one.pci, str) and pci.devices else None
        return (at.vendor, at.device) if at else None

    for one in devices:
        if model(one) is None or model(one) != model(device):
            continue
        for other in one.ports or ():
            alike = other.number == port.number and other.link_layer == port.link_layer and other.state == "ACTIVE"
            if alike and not isinstance(other.rate, Unavailable):
                yield other.rate


def without_p2p(gpus: Gpus, pci: Pci) -> Loss:
    """What the job's GPUs lose where peer-to-peer is off and their data goes through host memory."""
    seen = gpus.visible
    if seen and len(seen) == 1:
        return replace(MIGHT, needed=False)
    better = _between_gpus(tuple(one.ordinal for one in seen or ()), gpus, pci) if seen else None
    if not isinstance(better, Limit) or not better.nvlink or _partitioned(gpus):
        return MIGHT
    return less(_PCIE[32.0] * 2, better.rate, "GB/s: PCIe 5 of 16 lanes at best, instead of NVLink")


def _partitioned(gpus: Gpus) -> bool:
    """MIG instances have no peers."""
    return any(gpu.mig is not False for gpu in gpus.all or ())


def _between_gpus(ordinals: tuple[int, ...], gpus: Gpus, pci: Pci) -> Limit | Unavailable:
    pairs = gpus.of_the_job
    if isinstance(pairs, Unavailable):
        return Unavailable(Kind.NOT_READ, f"GPUs: {pairs}")
    if not ordinals:
        return Unavailable(Kind.NOT_READ, "which GPUs took part is not told")
    mine = [gpu for seen, gpu in pairs if seen.ordinal in ordinals]
    known = [gpu for gpu in mine if gpu is not None]
    if len(known) < len(ordinals):
        return Unavailable(Kind.NOT_READ, "not every GPU is known to NVML")
    should = {one.subject: one.should for one in nvlinks(pci, gpus)}
    rates = [_nvlink(gpu, should.get(gpu_name(gpu.pci), 0) if isinstance(gpu.pci, str) else 0) for gpu in known]
    if any(isinstance(rate, Unavailable) for rate in rates):
        return next(rate for rate in rates if isinstance(rate, Unavailable))
    speeds = [rate for rate in rates if isinstance(rate, float)]
    if not any(speeds):
        return _pcie(known, pci)
    if isinstance(pci.gpus, Unavailable):
        return Unavailable(Kind.NOT_READ, f"how many GPUs NVLink joins: PCI: {pci.gpus}")
    there = max(len(pairs), sum(device.physical_function is None for device in pci.gpus))
    if not all(speeds) or (there > 2 and any(_bridged(gpu) for gpu in known)):
        return Unavailable(Kind.UNSUPPORTED, "NVLink does not join every pair of these GPUs")
    if len(known) < there < SWITCHED:
        return Unavailable(Kind.UNSUPPORTED, "without NVSwitch, some of the GPUs have some of the links to each other")
    rate = max(speeds)  # a GPU with fewer links than its like is a fault, no lower limit
    return Limit(rate, f"NVLink of each GPU: {rate:.0f} GB/s in NCCL's model", nvlink=True)


def _nvlink(gpu: Gpu, should: object) -> float | Unavailable:
    """GB/s of the NVLinks that it should have by its model and board, else of those that are active; 0 without."""
    if isinstance(gpu.nvlinks, Unavailable):
        return Unavailable(Kind.NOT_READ, f"NVLinks of GPU {gpu.index}: {gpu.nvlinks}")
    links = max(sum(gpu.nvlinks), should if isinstance(should, int) else 0)
    if not links:
        return 0.0
    if isinstance(gpu.capability, Unavailable) or gpu.capability not in NVLINK:
        return Unavailable(Kind.UNSUPPORTED, f"no figure for the NVLinks of compute capability {gpu.capability}")
    return NVLINK[gpu.capability] * links


def _bridged(gpu: Gpu) -> bool:
    # V100 of 8 GPUs without NVSwitch: a mesh in which rings of fewer GPUs have fewer links.
    return not isinstance(gpu.name, str) or gpu.capability in ((6, 0), (7, 0)) or bridged(gpu)


def _pcie(gpus: list[Gpu], pci: Pci) -> Limit | Unavailable:
    """Peer to peer below one root: the slowest link.  Across roots or sockets the CPU decides, which no figure covers."""
    if isinstance(pci.devices, Unavailable):
        return Unavailable(Kind.NOT_READ, f"PCI: {pci.devices}")
    found = [device for gpu in gpus if isinstance(gpu.pci, str) and (device := pci.at(gpu.pci))]
    # Root port first, then switches: two components above a device at least mean that a switch stands over it.
    if not all(d.placed for d in found):
        return Unavailable(Kind.NOT_READ, "where the GPUs sit on PCI is not known")
    if len(found) < len(gpus) or len({d.root for d in found}) > 1 or len({d.path[:1] for d in found}) > 1:
        return Unavailable(Kind.UNSUPPORTED, "the data crosses the CPU between PCIe roots, whose limit is not known here")
    rates = []
    for device in found:
        # A card may be able to do more than the port that it is plugged into (PCIe 5 in a switch of PCIe 4).
        above = pci.at(device.path[-1]) if device.path else None
        ends = [end.link for end in (device, above) if end and isinstance(end.link, PciLink)]
        speed = min((end.max_speed for end in ends), default=0.0)
        if len(ends) < 2 or speed not in _PCIE:
            return Unavailable(Kind.NOT_READ, f"the PCIe link of {device.address} is not known")
        rates.append(_PCIE[speed] * min(end.max_width for end in ends) / 8)
    rate = min(rates)
    return Limit(rate, f"the PCIe link of the slowest GPU: {rate:.0f} GB/s in NCCL's model")
