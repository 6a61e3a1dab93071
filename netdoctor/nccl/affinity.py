"""CPUs, memory and interrupts near a device: the SLIT's distances, what binds a rank, and NCCL's own word on its mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from netdoctor.facts.cpu import Node
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.nccl_version import parse
from netdoctor.facts.net import Link
from netdoctor.facts.pci import Pci
from netdoctor.facts.ranks import SeenRank
from netdoctor.facts.runs import RankResult, Run
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl import hcas
from netdoctor.nccl.devices import device_of
from netdoctor.nccl.transport import log_of

# ACPI SLIT: 10 is the node itself.  Sub-NUMA neighbours in one socket are 11 to 15, other sockets 17 and more.
SAME_SOCKET: Final = 15
# OpenMP runtimes that bind the importing thread to one place: GCC's (libgomp manual), LLVM's and Intel's.
BINDERS: Final = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
_OFF: Final = frozenset({"false", "disabled", "none", ""})


def near_nodes(node: int, every: Iterable[Node]) -> frozenset[int] | Unavailable:
    """The nodes with CPUs that are as good as local to `node`: in its socket, or in the nearer half of the distances."""
    every = tuple(every)
    own = next((n for n in every if n.id == node), None)
    if own is None:
        return Unavailable(Kind.ABSENT, f"there is no NUMA node {node}")
    if isinstance(own.distances, Unavailable):
        return own.distances
    known = {n.id: own.distances[n.id] for n in every if n.cpus and n.id in own.distances}
    if not known:
        return Unavailable(Kind.MALFORMED, f"no distances of NUMA node {node}")
    limit = max(SAME_SOCKET, (10 + max(known.values())) / 2, min(known.values()))
    return frozenset(n for n, d in known.items() if d <= limit)


def binders(environ: Environ) -> Mapping[str, str] | Unavailable:
    """The variables that bind threads when OpenMP starts, with their values."""
    have = environ.variables
    if isinstance(have, Unavailable):
        return have
    return {name: have[name] for name in BINDERS if have.get(name, "").lower() not in _OFF}


def node_of(gpu: hcas.GpuPlace) -> int | Unavailable:
    """The GPU's NUMA node, as NVML says or else PCI; below 0: the firmware names none."""
    told = gpu.gpu.numa_node if gpu.gpu is not None else None
    if isinstance(told, int):
        return told
    return gpu.device if isinstance(gpu.device, Unavailable) else gpu.device.numa_node


def hca_node(gpu: hcas.GpuPlace, among: hcas.Candidates) -> int | None:
    """The NUMA node of the GPU's nearest HCA, where both are known."""
    if not among.devices:
        return None
    kind, near = among.nearest(gpu)
    node = near[0].numa_node
    return node if kind and isinstance(node, int) and node >= 0 else None


def place_of(rank: SeenRank, places: Sequence[hcas.GpuPlace], gpus: Gpus, pci: Pci) -> hcas.GpuPlace | Unavailable:
    """The GPU that another rank of this node takes: its only one, or that of its number on the node (LOCAL_RANK)."""
    uuid = device_of(rank, gpus)
    if isinstance(uuid, Unavailable):
        return uuid
    if not rank.same or uuid is None:
        why = "no GPU is left for it (gpu.mapping)" if rank.same else "which GPU it has is its own cgroup's to say"
        return Unavailable(Kind.NOT_READ, why)
    shown = next((one for one in places if one.visible is not None and one.visible.uuid == uuid), None)
    gpu = next((one for one in gpus.all or () if one.uuid == uuid), None)
    if shown is not None or gpu is None:
        return shown or Unavailable(Kind.NOT_READ, f"NVML does not show {uuid}")
    where = gpu.pci if isinstance(gpu.pci, Unavailable) else pci.at(gpu.pci)
    return hcas.GpuPlace(f"GPU {gpu.pci or uuid}", None, where, None, gpu)


def rank_with(gpu: hcas.GpuPlace, run: Run | None) -> RankResult | None:
    """The rank that had this GPU."""
    if run is None or gpu.ordinal is None or gpu.ordinal not in run.experiment.gpus:
        return None
    number = run.experiment.gpus.index(gpu.ordinal)
    return next((r for r in run.ranks if r.rank == number), None)


def found_cpus(gpu: hcas.GpuPlace, run: Run | None) -> bool | None:
    """Whether NCCL found CPUs of the mask near the GPU.

    Since 2.28.3 it says "empty, ignoring"; before, it says nothing where the intersection is empty (src/graph/topo.cc,
    ncclTopoGetCpuAffinity; src/init.cc).  Silence counts only in a log that shows such lines and of a run that finished.
    """
    log = log_of(run)
    if run is None or log is None or not run.finished or gpu.ordinal is None or "affinity" in log.absent:
        return None
    found = [mask for rank in log.ranks for dev, mask in rank.affinity.items() if dev == gpu.ordinal]
    if found:
        return "empty" not in found[0]
    version = parse(run.nccl_version)
    return False if log.affinity and version is not None and version < (2, 28, 3) else None


class Served(NamedTuple):
    """Where the interrupts of the interfaces are served."""

    near: tuple[str, ...]
    far: tuple[tuple[str, int, frozenset[int]], ...]  # interface, its node, the nodes that serve it
    unread: tuple[str, ...]


def interrupts(links: Iterable[Link], cpus: Mapping[str, frozenset[int] | Unavailable], every: tuple[Node, ...]) -> Served:
    """Of the interfaces that are up, have interrupts of their own and a node that the firmware names."""
    near, far, unread = [], [], []
    for link in links:
        served, node = cpus.get(link.name), link.numa_node
        if served is None or not link.up or (isinstance(node, int) and node < 0):
            continue
        close = node if isinstance(node, Unavailable) else near_nodes(node, every)
        if isinstance(served, Unavailable) or isinstance(close, Unavailable) or isinstance(node, Unavailable):
            unread.append(f"{link.name}: {served if isinstance(served, Unavailable) else close}")
            continue
        on = frozenset(n.id for n in every if n.cpus & served)
        if on & close:
            near.append(link.name)
        else:
            far.append((link.name, node, on))
    return Served(tuple(near), tuple(far), tuple(unread))
