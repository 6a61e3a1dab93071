"""Which GPU, or instance of one, each rank of a node takes, and whether NCCL lets several take one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.layers import named_gpus
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.ranks import SeenRank, masked, old_mig
from netdoctor.model import Fix, Kind, Unavailable, record
from netdoctor.nccl import gpu_driver

_MASK: Final = "CUDA_VISIBLE_DEVICES"
_UNSET: Final = f"unset {_MASK}"
_BY_NUMBER: Final = "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # in the program"
UNMASK: Final = Fix(
    "take CUDA_VISIBLE_DEVICES out of shell, image, job script and wrapper: each rank takes the GPU of its number",
    (_UNSET, _BY_NUMBER),
)
_BY_SLURM: Final = Fix(
    "let srun give each rank a GPU of its own, or take CUDA_VISIBLE_DEVICES away and use the local rank",
    ("srun --gpus-per-task=1 --gpu-bind=single:1 …", _UNSET, _BY_NUMBER),
)
BACK: Final = Fix("look for its Xid, then reset or reboot", ("dmesg | grep -i -e xid -e nvrm", "nvidia-smi -L"))
_FEWER: Final = {
    "torchrun": ("torchrun --nproc-per-node={} …",),
    "slurm": ("srun --ntasks-per-node={} …",),
    "openmpi": ("mpirun --map-by ppr:{}:node …",),
    "mpich": ("mpiexec -ppn {} …",),
}
_CROWDS: Final = (2, 30, 3)  # from here on NCCL_MULTI_RANK_GPU_ENABLE lets several ranks have one GPU (src/init.cc)


@record
class Taken:
    """A mask of one is a rank's own; of several it takes that of its number on the node (LOCAL_RANK)."""

    by: Mapping[str, list[int]]  # GPU or instance → ranks, by their numbers on the node
    without: tuple[int, ...]  # ranks that are left none
    unclear: Mapping[int, Unavailable]  # rank → why it is not known what it takes


def taken(ranks: list[SeenRank], gpus: Gpus) -> Taken:
    by: dict[str, list[int]] = {}
    without: list[int] = []
    unclear: dict[int, Unavailable] = {}
    for one in ranks:
        gpu = device_of(one, gpus)
        if isinstance(gpu, Unavailable):
            unclear[one.local_rank] = gpu
        elif gpu is None:
            without.append(one.local_rank)
        else:
            by.setdefault(gpu, []).append(one.local_rank)
    return Taken(by, tuple(without), unclear)


def device_of(rank: SeenRank, gpus: Gpus) -> str | None | Unavailable:
    """The UUID of its GPU or instance, or "#N"; None: its mask leaves it none."""
    has = masked(rank.mask, gpus)
    if (lost := _unclear(has, gpus)) is not None:
        return lost
    return has[0] if len(has) == 1 else has[rank.local_rank] if rank.local_rank < len(has) else None


def _unclear(has: tuple[str, ...], gpus: Gpus) -> Unavailable | None:
    """Of a mask's GPUs: why CUDA may show others, or in another order.  None: it shows these."""
    parted = [gpu for gpu in gpus.all or () if gpu.mig is True]
    whole = next((one for one in has if one[:1] == "#" or any(one == gpu.uuid for gpu in parted)), None) if parted else None
    if whole is not None:
        where = place_of(whole, gpus)
        text = f"{where} may be in MIG mode, and a number or the GPU's own name does not say which instance is meant"
        return Unavailable(Kind.NOT_READ, text)
    of_one = [some for gpu in parted if len(some := [one for one in has if one in (gpu.mig_uuids or ())]) > 1]
    if not of_one or {one.uuid for one in gpus.visible or ()}.issuperset(of_one[0]):
        return None
    if isinstance(old := old_mig(gpus), Unavailable):
        return old
    text = f"of {' and '.join(of_one[0])} CUDA shows a process one, where they are of one GPU instance"
    return Unavailable(Kind.NOT_READ, text)


def mend(masks: Sequence[str | None], gpus: Gpus, environ: Environ, gone: tuple[str, ...]) -> Fix:
    """Of ranks that share a GPU or have none.  Where no mask stands in their way there are fewer GPUs than ranks; a mask that
    names more than there are lacks the one that the driver lost (`gone`)."""
    masked_out = [mask for mask in masks if mask is not None]
    if gone and all(len(named_gpus(mask)) > len(masked(mask, gpus)) for mask in masked_out):
        return BACK
    if not masked_out:
        return fewer(environ.launcher, shown(gpus))
    of_slurm = environ.launcher and environ.launcher.name == "slurm"  # which alone gives each of them GPUs of its own
    fix = _BY_SLURM if of_slurm else UNMASK
    if isinstance(environ.get(_MASK), str):
        return fix
    return replace(fix, commands=tuple(one for one in fix.commands if one != _UNSET))  # who starts each of them sets it


def shown(gpus: Gpus) -> int:
    """How many there are for ranks without a mask."""
    return len(masked(None, gpus))


def fewer(launcher: Launcher | Unavailable, gpus: int) -> Fix:
    name = launcher.name if launcher else None
    commands = (command.format(gpus) for command in _FEWER.get(name or "", ()) if gpus)
    return Fix("start as many ranks as there are GPUs", (*commands, "nvidia-smi -L"))


def place_of(device: str, gpus: Gpus) -> str:
    """A GPU as findings name it, by its place; an instance, and what has none, by its own name."""
    return next((gpu.place for gpu in gpus.all or () if gpu.uuid == device), device)


class Shared(NamedTuple):
    ranks: list[int]
    what: str
    allowed: bool | Unavailable
    device: str  # its UUID


def shared(found: Taken, gpus: Gpus, nccl: Version | Unavailable, told: bool) -> Shared | None:
    """Ranks that share a GPU, or instances of one: of several the worst.  `told`: NCCL_MULTI_RANK_GPU_ENABLE is on."""
    whole = {part: str(gpu.uuid) for gpu in gpus.all or () for part in gpu.mig_uuids or ()}
    parts: dict[str, list[int]] = {}
    for one, ranks in found.by.items():
        if one in whole:
            parts.setdefault(whole[one], []).extend(ranks)
    every = [
        Shared(some, f"one GPU ({place_of(one, gpus)})", _allowed(nccl, told), one)
        for one, some in found.by.items()
        if some[1:]
    ]
    for gpu, some in parts.items():
        if some[1:]:
            what = f"instances of one GPU ({place_of(gpu, gpus)})"
            every.append(Shared(sorted(some), what, _parts_allowed(nccl, told), gpu))
    return min(every, key=lambda one: (one.allowed is not False, one.allowed is True), default=None)


def _allowed(nccl: Version | Unavailable, told: bool) -> bool | Unavailable:
    return told and (nccl if isinstance(nccl, Unavailable) else nccl >= _CROWDS)


def _parts_allowed(nccl: Version | Unavailable, told: bool) -> bool | Unavailable:
    """MIG instances of one GPU are one to it before 2.30.3 (busId, src/init.cc).  Of later ones NVIDIA's guide says that they
    are two, and 2.31.2 was seen to refuse them until it was told to."""
    if isinstance(nccl, Unavailable) or nccl < _CROWDS:
        return nccl if isinstance(nccl, Unavailable) else False
    return told or Unavailable(Kind.NOT_READ, "NCCL from 2.30.3 on may want NCCL_MULTI_RANK_GPU_ENABLE=1 for it")


def of_another_job(gpus: Gpus, environ: Environ) -> str | None:
    """GPUs that the job named itself and Slurm gave others, or nobody; None: not, or it cannot be told.

    Where every GPU of the node opens, no cgroup holds the job to its own (cgroup.conf(5), ConstrainDevices), and Slurm's
    numbers are the node's, as those of CUDA_VISIBLE_DEVICES are (src/plugins/gres/common).  Where some do not, CUDA's begin at
    0 again.
    """
    given = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
    numbers = [one.split(",") for one in (given, environ.get("CUDA_VISIBLE_DEVICES")) if isinstance(one, str) and one]
    if len(numbers) < 2 or not all(one.isdecimal() for some in numbers for one in some):
        return None
    own, taken = ({int(one) for one in some} for some in numbers)
    opened = {gpu.index for gpu in gpus.all or () if isinstance(gpu.uuid, str)}
    if taken <= own or not own | taken <= opened:
        return None
    others = ", ".join(map(str, sorted(taken - own)))
    return f"Slurm gave this job GPUs {given} of this node, and CUDA_VISIBLE_DEVICES takes {others}"


misfit, cuda_misfit, gpus_meant = gpu_driver.misfit, gpu_driver.cuda_misfit, gpu_driver.gpus_meant
