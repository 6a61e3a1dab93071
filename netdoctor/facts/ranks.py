"""The other ranks of the job on this node, and what each may see of the GPUs."""

from __future__ import annotations

from typing import Any, Final

from netdoctor.environment import Role, named
from netdoctor.facts.base import Fact
from netdoctor.facts.cpu import cpu_list
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.host.base import Host, mapping, question, value
from netdoctor.model import Kind, Unavailable, record

# What all processes of one job share, as launchers set it; those that are set are compared.
_JOB: Final = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PMIX_NAMESPACE",
    "FLUX_JOB_ID",
    "PALS_APID",
    "PBS_JOBID",
)
QUESTION: Final = question("ranks", local=",".join(named(Role.LOCAL_RANK)), job=",".join(_JOB))


_SEVERAL: Final = 570  # from R570 on a process is shown several, one compute instance of each GPU instance
_UNSEEN: Final = Unavailable(Kind.NOT_RECORDED, "Cpus_allowed_list of another rank")


@record
class SeenRank:
    """One rank that runs on this node now."""

    pid: int
    local_rank: int
    mask: str | None  # CUDA_VISIBLE_DEVICES; None: not set
    same: bool  # its numbers of GPUs mean the same: it is in this process's cgroup
    cpus: frozenset[int] | Unavailable = _UNSEEN  # Cpus_allowed_list


@record
class Ranks(Fact):
    """The GPUs that the job's ranks on this node were given, where this process is one of them."""

    seen: tuple[SeenRank, ...] | Unavailable


def probe(host: Host, environ: Environ) -> Ranks | Unavailable:
    """This process is one of them."""
    if isinstance(environ.launcher, Unavailable):
        return environ.launcher
    if environ.launcher.local_rank is None:
        return Ranks(())
    got = mapping(host, QUESTION)
    rows: list[Any] | Unavailable = got if isinstance(got, Unavailable) else value(got.get("ranks"), list, "ranks of this node")
    if isinstance(rows, Unavailable):
        return rows
    made = tuple(_rank(one if isinstance(one, dict) else {}) for one in rows)
    return Ranks(tuple(one for one in made if one) if all(made) else Unavailable(Kind.MALFORMED, "ranks of this node"))


def _rank(one: dict[str, Any]) -> SeenRank | None:
    pid, local, mask, same = (one.get(name) for name in ("pid", "local_rank", "mask", "same"))
    if type(pid) is not int or type(local) is not int or not isinstance(mask, str | None) or not isinstance(same, bool):
        return None
    cpus = one.get("cpus")
    return SeenRank(pid, local, mask, same, cpu_list(cpus, "Cpus_allowed_list") if isinstance(cpus, str) else _UNSEEN)


def masked(mask: str | None, gpus: Gpus) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order, by UUID or "#N"; it ends at what is none (CUDA C++ Programming Guide).

    Numbers, UUIDs and their beginnings, MIG instances; "" and -1 leave none, and so does naming one twice.  Numbers are those
    of NVML where all GPUs are of one model (CUDA_DEVICE_ORDER is by speed otherwise).  A driver before R570 shows a process
    the first MIG instance, and no GPU beside it (MIG User Guide, CUDA Device Enumeration).  One that the driver lost it shows
    nobody.
    """
    every = [gpu for gpu in gpus.all or () if getattr(gpu.uuid, "kind", None) is not Kind.ABSENT]
    alike = len({gpu.name for gpu in every}) == 1
    uuids = [str(gpu.uuid) for gpu in every]
    if mask is None:
        return tuple(uuids)
    known = [*uuids, *(one for gpu in every for one in gpu.mig_uuids or ())]
    found: list[str] = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry.isdecimal():
            if int(entry) >= len(every):
                break
            found.append(uuids[int(entry)] if alike else f"#{int(entry)}")
        elif entry.startswith(("GPU-", "MIG-")):
            fitting = [one for one in known if one.startswith(entry)]
            if len(fitting) != 1:
                break
            found.append(fitting[0])
        else:
            break
    parts = [one for one in found if one.startswith("MIG-")]
    if len(set(found)) < len(found):
        return ()
    return tuple(parts[:1] if parts and old_mig(gpus) is True else found)


def old_mig(gpus: Gpus) -> bool | Unavailable:
    """Whether this driver shows a process one MIG instance at most."""
    if isinstance(gpus.driver, Unavailable):
        return gpus.driver
    major = gpus.driver.partition(".")[0]
    return int(major) < _SEVERAL if major.isdecimal() else Unavailable(Kind.MALFORMED, f"driver version {gpus.driver[:20]!r}")
