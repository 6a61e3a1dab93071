"""What each layer of a machine says of each GPU, joined by bus id and UUID: PCI, driver, NVML, libcuda, the ranks that ran."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpu, Gpus, VisibleGpu
from netdoctor.facts.intent import Intent
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.runs import Baseline, Caller, CommonRun, Run, Way
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Kind, Unavailable, Word, missing, record

MAX_RANKS: Final = 16  # of a run: GPUs of the largest single node (DGX-2, HGX with 16)


class Bound(Word):
    """Whose driver a function is bound to."""

    OWN = "its own"  # nvidia, or that of a platform
    GIVEN = "a virtual machine's"
    OTHER = "another"  # nouveau shows a picture, and no CUDA
    EXCLUDED = "its own, which was told to leave it alone"
    NONE = "none"


# Linux drivers/vfio, drivers/xen/xen-pciback, drivers/pci/pci-stub.c; drivers/gpu/drm/nouveau, drivers/gpu/nova-core
_GIVEN: Final = frozenset(
    {"vfio-pci", "pci-stub", "pciback", "xen-pciback", "nvgrace-gpu-vfio-pci", "mlx5-vfio-pci", "uio_pci_generic"}
)
_OTHER: Final = frozenset({"nouveau", "nova-core", "nova_core", "nvidiafb"})

_BATCH: Final = re.compile(
    r"slurm|pbs|lsf|condor|sge|(?<![a-z])(?:oar|flux)(?![a-z])", re.IGNORECASE
)  # in the name of a job's cgroup


def may_share(vantage: Vantage) -> bool:
    """Whether a job here may be given some of the GPUs: /sys shows it all of them, and NVML those that it may open."""
    batch = isinstance(vantage.cgroup, Unavailable) or _BATCH.search(vantage.cgroup) is not None
    return vantage.in_container or (vantage.job_user and batch) or "pid" not in (vantage.namespaces or ())


def bound(device: PciDevice) -> Bound:
    if device.driver in _GIVEN:
        return Bound.GIVEN
    if device.excluded:
        return Bound.EXCLUDED
    return Bound.OTHER if device.driver in _OTHER else Bound.OWN if device.driver else Bound.NONE


@record
class GpuLayers:
    """One GPU; a layer that does not show it has None, () or nothing."""

    address: str  # "" where no layer says it
    pci: PciDevice | None = None
    nvml: Gpu | None = None
    cuda: tuple[VisibleGpu, ...] = ()  # itself, or its MIG instances
    ranks: tuple[int, ...] = ()  # of the baseline

    @property
    def name(self) -> str:
        """As a message says it."""
        known = self.nvml.uuid if self.nvml is not None else next((one.uuid for one in self.cuda), "")
        return " ".join(filter(None, (self.address, f"({known})" if isinstance(known, str) and known else "")))

    @property
    def parted(self) -> bool:
        """In MIG mode: what a job gets of it is no whole GPU."""
        return self.nvml is not None and self.nvml.mig is True


def gpu_layers(pci: Pci, gpus: Gpus, baseline: Baseline) -> tuple[GpuLayers, ...]:
    """A row for each GPU that any layer shows, by address; functions of vGPU are part of theirs."""
    on_bus = {d.address: d for d in pci.gpus or () if d.physical_function is None}
    known = {gpu.pci: gpu for gpu in gpus.all or () if isinstance(gpu.pci, str)}
    seen: dict[str, list[VisibleGpu]] = {}
    for one, gpu in gpus.of_the_job or ():
        seen.setdefault(gpu.pci if gpu is not None and isinstance(gpu.pci, str) else f"?{one.uuid}", []).append(one)
    run = baseline.nccl_run
    order = run.experiment.gpus if run is not None and run.finished else ()
    rows = []
    for address in sorted(on_bus.keys() | known.keys() | seen.keys()):
        shown = tuple(seen.get(address, ()))
        ranks = tuple(n for n, ordinal in enumerate(order) if any(one.ordinal == ordinal for one in shown))
        rows.append(GpuLayers("" if address[:1] == "?" else address, on_bus.get(address), known.get(address), shown, ranks))
    return tuple(rows)


def lost(rows: Iterable[GpuLayers], vantage: Vantage) -> tuple[str, ...]:
    """Of the GPUs that have the driver those that NVML tells nothing of; () where they may be another job's."""
    if may_share(vantage):
        return ()
    own = (row.pci for row in rows if row.nvml is None and row.pci is not None)
    return tuple(device.address for device in own if bound(device) is Bound.OWN)


def hcas_without_device(functions: Iterable[PciDevice], devices: Iterable[RdmaDevice]) -> tuple[PciDevice, ...]:
    """Functions of a kind that has RDMA devices here, in slots where sysfs shows none.

    By slot: RoCE LAG makes one device of the two ports of a card (drivers/net/ethernet/mellanox/mlx5/core/lag).  An onboard NIC
    whose kind has no RDMA driver loaded is no RDMA device of anybody's; virtual functions are given away one by one.
    """
    functions, used = tuple(functions), {one.pci for one in devices if isinstance(one.pci, str)}
    kinds = {(d.vendor, d.device) for d in functions if d.address in used}
    slots = {address.rpartition(".")[0] for address in used}
    mine = (d for d in functions if (d.vendor, d.device) in kinds and d.physical_function is None)
    return tuple(d for d in mine if d.address.rpartition(".")[0] not in slots)


class Said(NamedTuple):
    """How many GPUs a job is said to have on this node, and by what."""

    gpus: int
    source: str
    nccl: bool = False  # NCCL joins the ranks, which takes no second one on a GPU


def said_gpus(job: Intent, environ: Environ) -> Said | None | Unavailable:
    """The configuration's word, the launcher's, the batch system's; None: nobody says it.

    The variables of a process that is a rank tell what all ranks of the node have, not what it has: it may be given one GPU
    (srun --gpus-per-task=1, mpirun with a wrapper).
    """
    alone = not crowds(environ)
    if job.ranks_per_node:
        return Said(job.ranks_per_node, "job.ranks_per_node", alone and job.by_site)
    if (lost := missing(job.nodes, environ.variables, environ.launcher)) is not None:
        return lost
    launcher = environ.launcher or None
    if launcher is None or (launcher.local_rank is not None and not launcher.of_gpus):
        return None
    if launcher.local_world:
        source = launcher.called if launcher.by_options else launcher.name or "the launcher"
        return Said(launcher.local_world, f"{source}: ranks on this node", alone and (launcher.of_gpus or job.by_site))
    given = environ.get("SLURM_GPUS_ON_NODE")
    return Said(int(given), "SLURM_GPUS_ON_NODE") if isinstance(given, str) and re.fullmatch(r"\d{1,3}", given) else None


def crowds(environ: Environ) -> bool:
    """Whether NCCL is told that several ranks may have one GPU (src/init.cc, from 2.30.3 on)."""
    return environ.get("NCCL_MULTI_RANK_GPU_ENABLE") not in (None, "", "0")


def named_gpus(mask: str) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names: the list ends at what is no device (CUDA C++ Programming Guide).

    Slurm writes NoDevFiles for a step without GPUs.
    """
    found: list[str] = []
    for entry in (part.strip() for part in mask.split(",")):
        if not re.match(r"\d|GPU-|MIG-", entry):
            break
        found.append(entry)
    return tuple(found)


class Gift(Word):
    """What NVIDIA_VISIBLE_DEVICES tells the container toolkit (its documentation, Docker Specialized Configurations)."""

    UNSET = "not set"  # as if the toolkit were not there, as an empty value
    VOID = "void"  # the same, said: of images whose GPUs come by CDI, of Enroot
    NONE = "none"  # the driver's libraries, and no GPU
    ALL = "all"
    LIST = "a list"


def gift(value: str | None) -> Gift:
    if not value:
        return Gift.UNSET
    return {"void": Gift.VOID, "none": Gift.NONE, "all": Gift.ALL}.get(value, Gift.LIST)


_OF_POD: Final = (
    "the container asks for them: resources: {limits: {nvidia.com/gpu: N}}, and runtimeClassName: nvidia in the pod where "
    "containerd's default runtime is another; kubectl describe node: nvidia.com/gpu"
)
_OF_CONTAINER: Final = "ask for them: docker run --gpus all; of a pod's container, resources: {limits: {nvidia.com/gpu: N}}"


def asks_for_gpus(vantage: Vantage) -> str:
    """How a container is given GPUs."""
    return _OF_POD if vantage.runtime == "kubernetes" else _OF_CONTAINER


def given_none(gpus: Gpus, vantage: Vantage) -> str | None:
    """In a container that has none of the driver's libraries, how it gets GPUs; None: that is not what is wrong here."""
    found = (gpus.all, gpus.visible)
    bare = all(isinstance(one, Unavailable) and one.kind is Kind.ABSENT for one in found)
    return asks_for_gpus(vantage) if bare and vantage.in_container else None


def look_for_gpus(gpus: Gpus, vantage: Vantage) -> str:
    """How to find out where NVML's GPUs are."""
    return given_none(gpus, vantage) or "nvidia-smi -L, here and on the node"


_NOT_MADE: Final = frozenset({Kind.REFUSED, Kind.NO_BUDGET, Kind.UNSUPPORTED})


def lost_runs(*runs: object) -> Unavailable | None:
    """Of runs that may have been made the first that could not be read; one that was not made told nothing."""
    return next((one for one in runs if isinstance(one, Unavailable) and one.kind not in _NOT_MADE), None)


def torch_count(run: Run | Unavailable | None) -> int | None:
    """torch.cuda.device_count() of the job's torch, where it was asked and can use CUDA."""
    told = run.torch if run and run.via is Caller.TORCH else None
    return told.device_count if told and told.cuda_available else None


def lacks(run: Run, gpus: Gpus, job: Intent) -> str:
    """That a run that ended well had fewer GPUs than its library shows the job, or may have had: it proves nothing about them.

    "": it had all, or it is no such run.
    """
    if not run.verified or any(r.wrong for r in run.ranks):
        return ""
    one = run.experiment
    here = run.here if isinstance(run, CommonRun) else None  # each rank of a run of nodes has a GPU of its own
    if one.backend != "nccl" or (one.path.way == Way.BETWEEN_NODES and here is None):
        return ""
    told = run.torch.device_count if run.torch and run.via is Caller.TORCH else None
    seen = told if told is not None else gpus.visible if isinstance(gpus.visible, Unavailable) else len(gpus.visible)
    if isinstance(seen, Unavailable):
        return f"and whether every GPU of the job took part could not be read: {seen}"
    ran = len(set(one.gpus)) if here is None else here
    wanted = min(seen, job.ranks_per_node or MAX_RANKS, MAX_RANKS)
    return f"with {ran} of the job's {wanted} GPUs: nothing is known of the others" if ran < wanted else ""


def listed(rows: Iterable[GpuLayers]) -> str:
    return ", ".join(row.name for row in rows)
