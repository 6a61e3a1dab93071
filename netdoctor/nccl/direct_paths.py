"""GPUs and HCAs that send each other data below one PCIe switch, and what may turn it back there (ACS).

Sources: drivers/pci/p2pdma.c (calc_map_type_and_dist, pci_bridge_has_acs_redir: the bridges below the one that two functions
share), include/uapi/linux/pci_regs.h (PCI_ACS_*), PCI Express Base Specification, Access Control Services.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Final

from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import GpuHealth
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.pci_path import COMPLETIONS, EGRESS, REQUESTS, PciPath, apart, shared
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.facts.runs import Baseline, PathRun, Run
from netdoctor.model import Kind, Unavailable, missing, record
from netdoctor.nccl import hcas
from netdoctor.nccl.gdr_evidence import GdrProof, gdr_mechanisms, gdr_proof
from netdoctor.nccl.integers import param
from netdoctor.nccl.selector import parse_hcas
from netdoctor.nccl.transport import log_of
from netdoctor.nccl.used_version import used_nccl

_DATA: Final = {2.5: 0.8, 5.0: 0.8}  # of the bits of a link those that are data: 8b/10b, and 128b/130b from PCIe 3 on


@record
class Pair:
    """Two functions below one switch that send each other data."""

    name: str
    one: PciDevice
    other: PciDevice
    rate: float | None  # GB/s of the HCA's port, one way; None: the other is a GPU
    shown: float = 0.0  # GB/s that the switch's link would have carried each way in a run, had the data been turned back

    @property
    def switch(self) -> str:
        return shared(self.one, self.other)[-1]

    @property
    def bridges(self) -> tuple[str, ...]:
        return apart(self.one, self.other) or ()

    @property
    def ports(self) -> tuple[tuple[str, int], ...]:
        """The bridges between them, and by which bits each turns back their data.

        An HCA writes to a GPU by requests, and what it reads comes back from the GPU's side as completions.
        """
        mine = set(self.one.path)
        if self.rate is None:
            return tuple((bridge, REQUESTS | COMPLETIONS | EGRESS) for bridge in self.bridges)
        return tuple((bridge, EGRESS | (COMPLETIONS if bridge in mine else REQUESTS)) for bridge in self.bridges)


@record
class Paths:
    """What pairs are made from, and judged by."""

    pci: Pci
    way: PciPath
    gpus: Gpus
    state: GpuHealth
    rdma: Rdma
    environ: Environ
    kernel: Kernel
    libraries: Libraries
    baseline: Baseline
    runs: PathRun

    def link(self, pair: Pair) -> float | None:
        """GB/s, each way, of the link between the pair's switch and the CPU at most; None: not known."""
        top = self.pci.at(pair.switch)
        if isinstance(top, Unavailable) or not isinstance(top.link, PciLink):
            return None
        return top.link.max_speed * top.link.max_width * _DATA.get(top.link.max_speed, 128 / 130) / 8

    def direct(self, pair: Pair) -> bool:
        """Whether a run moved more than can have been turned back."""
        most = self.link(pair)
        return most is not None and pair.shown > most

    def turned_back(self, pair: Pair) -> dict[str, str]:
        """Bridges that turn back what goes from one to the other, and by what."""
        seen = {b: found.turns_back(bits) for b, bits in pair.ports if (found := self.way.at(b))}
        return {bridge: word for bridge, word in seen.items() if word}

    def load(self, pair: Pair) -> float:
        """GB/s that the link of the switch has to carry more each way, at the full rate of the HCA."""
        back, mine = self.turned_back(pair), set(pair.one.path)
        return (pair.rate or 0.0) * (any(b in mine for b in back) + any(b not in mine for b in back))

    def lost(self, pair: Pair) -> Unavailable | None:
        return missing(*(self.way.at(b) for b in pair.bridges))

    def split(self, pair: Pair) -> bool:
        """Whether the kernel, when it started, found them kept apart (pci_device_group, drivers/iommu/iommu.c)."""
        mine, its = self.way.group(pair.one.address), self.way.group(pair.other.address)
        return bool(mine and its and mine.number != its.number)


def to_hcas(places: Iterable[hcas.GpuPlace], paths: Paths) -> Iterator[Pair | Unavailable]:
    """Each GPU with the HCAs nearest to it, as far as GPUDirect goes between them; Unavailable: it cannot be told."""
    devices, environ = paths.rdma.devices, paths.environ
    named, network, off = (environ.get(name) for name in ("NCCL_IB_HCA", "NCCL_NET", "NCCL_IB_DISABLE"))
    if isinstance(devices, Unavailable):
        yield devices
        return
    if (lost := missing(named, network, off)) is not None:
        yield lost
        return
    if (network or "").lower() == "socket" or (off and param(off, 0)):
        return  # NCCL asks no RDMA device: src/plugin/net.cc, ncclIbInit
    choice = parse_hcas(named or "")
    candidates = hcas.Candidates(hcas.selected(devices, choice) if choice else devices, paths.pci)
    for gpu in places if candidates.devices else ():
        kind, near = candidates.nearest(gpu)
        if isinstance(gpu.device, Unavailable) or not kind:
            yield gpu.device if isinstance(gpu.device, Unavailable) else Unavailable(Kind.NOT_READ, f"the HCA of {gpu.label}")
            continue
        for device in near if kind in ("PIX", "PXB") else ():
            if hcas.active_ports(device) and (found := _to_hca(gpu, gpu.device, device, paths)) is not None:
                yield found


def _to_hca(gpu: hcas.GpuPlace, at: PciDevice, device: RdmaDevice, paths: Paths) -> Pair | None:
    """None: data between them goes by host memory, and by the CPU's ports anyway."""
    proof = gdr_proof(paths.runs.runs or (), gpu.ordinal, device.name)
    own = paths.pci.at(device.pci) if isinstance(device.pci, str) else None
    if not own or not own.placed or apart(at, own) is None or _staged(gpu, device, proof, paths):
        return None
    shown = _shown(proof.run, own, device, paths) if proof.send and proof.receive else 0.0
    return Pair(f"{gpu.label}–{device.name}", at, own, hcas.rate(device) / 8, shown)


def _staged(gpu: hcas.GpuPlace, device: RdmaDevice, proof: GdrProof, paths: Paths) -> bool:
    if proof.shown:
        return not proof.send and not proof.receive
    version, dmabuf = used_nccl(paths.libraries, paths.baseline), paths.environ.get("NCCL_DMABUF_ENABLE")
    if isinstance(version, Unavailable) or isinstance(dmabuf, Unavailable):
        return False
    return gdr_mechanisms(version, paths.kernel, paths.gpus, gpu, device, dmabuf).yes is False


def _shown(run: Run | None, own: PciDevice, device: RdmaDevice, paths: Paths) -> float:
    """What the link of the HCA's switch would have carried each way in a run of two GPUs through this HCA alone.

    It reads and writes the memory of both: what is turned back goes up twice, and the other GPU's once at least.  Where
    a second HCA is beside it, half of that would be too much already.
    """
    slot = own.address.rpartition(".")[0]
    beside = any(apart(one, own) is not None and one.address.rpartition(".")[0] != slot for one in paths.pci.rdma or ())
    if run is None or not run.finished or not run.busbw or beside or run.experiment.path.device != device.name:
        return 0.0
    return 3 * run.busbw[max(run.busbw)] if len(set(run.experiment.gpus)) == 2 else 0.0


def to_gpus(places: Iterable[hcas.GpuPlace], paths: Paths) -> Iterator[Pair | Unavailable]:
    """GPUs below one switch that no NVLink joins, as far as NCCL connects them by PCIe; Unavailable: it cannot be told."""
    for one, other in combinations(places, 2):
        mine, its = one.device, other.device
        if isinstance(mine, Unavailable):
            yield mine
            return
        if isinstance(its, Unavailable):
            yield its
            return
        if apart(mine, its) is None:
            continue
        by_pcie, rate = _by_pcie(one, other, paths)
        if isinstance(by_pcie, Unavailable):
            yield by_pcie
            return
        if by_pcie:
            yield Pair(f"{one.label}–{other.label}", mine, its, None, 2 * rate)


def _by_pcie(one: hcas.GpuPlace, other: hcas.GpuPlace, paths: Paths) -> tuple[bool | Unavailable, float]:
    """Whether NCCL connects two GPUs by PCIe directly, and what it moved between them: the run's log, else NVML's word.

    Within switches it does wherever CUDA lets it (src/graph/paths.cc, ncclTopoCheckP2p: PATH_PXB).
    """
    nothing = Unavailable(Kind.NOT_READ, f"NVLinks of {one.label} and {other.label}")
    links = [place.gpu.nvlinks if place.gpu else nothing for place in (one, other)]
    off = paths.environ.get("NCCL_P2P_DISABLE")
    if (lost := missing(off, *links)) is not None:
        return lost, 0.0
    if any(any(each or ()) for each in links) or (off and param(off, 0)):
        return False, 0.0
    run = paths.baseline.nccl_run
    log = log_of(run)
    if run is not None and log is not None and run.finished and one.ordinal in run.experiment.gpus:
        gpus = run.experiment.gpus
        own = [via for via in log.vias if via.src == gpus.index(one.ordinal)]
        if {gpus[via.dst] for via in own if via.dst < len(gpus)} == {other.ordinal}:
            alone = all(via.transport == "P2P" for via in own)
            return alone, run.busbw[max(run.busbw)] if alone and run.busbw else 0.0
    numbers = {place.gpu.index for place in (one, other) if place.gpu}
    if isinstance(paths.state.pairs, Unavailable):
        return paths.state.pairs, 0.0
    told = next((pair.read for pair in paths.state.pairs if {pair.one, pair.other} == numbers), nothing)
    return (told if isinstance(told, Unavailable) else told == 0), 0.0
