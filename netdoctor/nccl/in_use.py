"""Who uses the GPUs: the job's beside its ranks, and the node's between jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.causes import cost
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.gpu_users import MAX_NAMED, GpuUsers
from netdoctor.facts.ranks import Ranks
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable, missing
from netdoctor.textsafe import listed

USED: Final = "GPUs in use"
MPS: Final = "CUDA_MPS_PIPE_DIRECTORY"
# By what a batch system says that it gives one GPU to several jobs: Slurm's gres/shard and gres/mps (src/plugins/gres, their
# set_env).  LSF does so where it is not told otherwise ("mode=shared:j_exclusive=no", IBM's documentation of bsub -gpu).
SHARED: Final = {
    "SLURM_SHARDS_ON_NODE": "Slurm shares the GPUs among jobs (gres/shard)",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "an MPS server shares the GPUs",
}
LSF: Final = "LSB_JOBID"
LENT: Final = "which LSF gives to several jobs unless it is asked not to (bsub -gpu, j_exclusive=yes)"
WHOSE: Final = "see whose it is: another job's, or left behind by one that ended"
STUCK: Final = "no signal ends it: see where its threads stand; where they stay there, drain the node and reboot it"


def judge(gpus: Gpus, users: GpuUsers, ranks: Ranks, environ: Environ) -> Finding:
    """Processes on the job's GPUs that are no ranks of it; an MPS server is there for everybody.

    Of a GPU in MIG mode NVML tells the processes of all its instances (nvml.h, nvmlDeviceGetComputeRunningProcesses).
    """
    if shared := next((words for name, words in SHARED.items() if environ.get(name)), ""):
        return _skip(shared)
    own, pairs = {one.pid for one in ranks.seen or ()}, gpus.of_the_job or ()
    here = [gpu for _, gpu in pairs if gpu is not None and gpu.mig is False]
    busy = [gpu for gpu in here if gpu.processes and not (gpu.pids and own.issuperset(gpu.pids))]
    served = [gpu for gpu in busy if users.servers.intersection(gpu.pids or ())]
    busy = [gpu for gpu in busy if gpu not in served]
    theirs = [gpu for gpu in busy if users.strangers.intersection(gpu.pids or ())]
    others = [gpu for gpu in busy if gpu not in theirs]
    if busy and environ.get(LSF):
        return _unknown(f"{_named(busy, users)}: GPUs {LENT}", how="; ".join(_look(busy, users)))
    if busy and (own or isinstance(ranks.seen, Unavailable)):
        said = [f"{_named(theirs, users)}, of another user"] * bool(theirs)
        said += [f"{_named(others, users)}, of this job or of another"] * bool(others)
        if theirs:
            return Finding(Status.FAIL, "; ".join(said), USED, loss=cost.MIGHT, fix=_mend(theirs, users))
        return _unknown("; ".join(said), how="; ".join(_look(busy, users)))
    if busy and environ.get(MPS) and not users.initial_pids:
        return _skip("an MPS server shares the GPUs")
    if busy:
        return Finding(Status.FAIL, _named(busy, users), USED, loss=cost.MIGHT, fix=_mend(busy, users))
    shares = _skip("an MPS server shares the GPUs")
    return shares if served or environ.get(MPS) else _seen_free(gpus, users, here)


def _named(busy: list[Gpu], users: GpuUsers) -> str:
    """All of them, and who is on them."""
    who = list(dict.fromkeys(users.of(gpu) for gpu in busy))
    return f"{', '.join(gpu.place for gpu in busy)}: in use by {listed(who, 3, between='; ')}"


def _mend(busy: list[Gpu], users: GpuUsers) -> Fix:
    pids = sorted({pid for gpu in busy for pid in gpu.pids or ()})
    if pids and users.unkillable.issuperset(pids):
        stacks = " ".join(f"/proc/{pid}/task/*/stack" for pid in pids[:MAX_NAMED])
        return Fix(STUCK, (f"grep . {stacks}   # as root", "nvidia-smi"))
    return Fix(WHOSE, (*_look(busy, users), "fuser -v /dev/nvidia*"))


def _look(busy: list[Gpu], users: GpuUsers) -> tuple[str, ...]:
    """Where NVML's numbers are this PID namespace's, of the processes themselves."""
    pids = sorted({pid for gpu in busy for pid in gpu.pids or ()}) if users.initial_pids else []
    return (*([f"ps -o pid,user,lstart,args -p {','.join(map(str, pids))}"] if pids else []), "nvidia-smi")


def _seen_free(gpus: Gpus, users: GpuUsers, here: list[Gpu]) -> Finding:
    """No process was seen on them: whether there can be one all the same."""
    pairs = gpus.of_the_job or ()
    if not pairs:
        return _skip("libcuda shows the job no GPU")
    if strange := [gpu.place if gpu else seen.uuid for seen, gpu in pairs if gpu is None or isinstance(gpu.mig, Unavailable)]:
        return _unknown(f"NVML does not tell whose GPU {strange[0]} is: who uses it could not be read")
    held = [gpu.place for gpu in here if gpu.unexplained]
    if held:
        why = "no process explains it" if users.initial_pids else "this PID namespace does not show by whom"
        return _unknown(f"memory of {', '.join(held)} is in use, and {why}", how="nvidia-smi; fuser -v /dev/nvidia*")
    lost = [one for gpu in here if isinstance(one := gpu.processes, Unavailable)]
    if not users.initial_pids:  # of other PID namespaces NVML names no process: there memory alone tells
        blind = missing(*(gpu.memory_used for gpu in here if not isinstance(gpu.processes, Unavailable)))
        if blind is not None:
            return _unknown(f"this PID namespace does not show who uses the GPUs, nor does their memory: {blind}")
    if lost:
        real = [one for one in lost if one.kind is not Kind.UNSUPPORTED]
        return (_unknown if real else _skip)(f"who uses the GPUs could not be read: {(real or lost)[0]}")
    if not here:
        return _skip("GPUs in MIG mode: NVML tells the processes of all their instances")
    return Finding(Status.PASS, "nobody else computes on the job's GPUs", USED)


def left_behind(gpus: Gpus, users: GpuUsers) -> Iterator[Finding]:
    """What the next job may meet, whoever that is.  What runs is some job's.  Who ended or stands in the kernel may be about to
    go: of a process with many threads the first is a zombie while the last still gives the GPU's memory back (kernel/exit.c,
    do_exit).  That a thread is blocked for minutes node.system says.  In other PID namespaces nobody is seen."""
    every = [gpu for gpu in gpus.all or () if gpu.mig is False]
    dead = [gpu for gpu in every if users.unkillable.intersection(gpu.pids or ())]
    held = [gpu for gpu in every if gpu.unexplained and gpu.processes == 0 and users.initial_pids]
    if dead:
        text = "; ".join(f"{gpu.place} is held by {users.of(gpu)}" for gpu in dead)
        yield _unknown(f"{text}: a fault where it stays so", how="nvidia-smi, again in a minute; drain the node then")
    if held:
        text = f"memory of {', '.join(gpu.place for gpu in held)} is in use, and no process explains it"
        yield _unknown(text, how="nvidia-smi; fuser -v /dev/nvidia*")


def _skip(text: str) -> Finding:
    return Finding(Status.SKIP, text, USED)


def _unknown(text: str, how: str = "") -> Finding:
    return Finding(Status.UNKNOWN, text, USED, how=how or None)
