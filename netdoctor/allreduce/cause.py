"""Why an all-reduce failed, as far as NCCL's log and the ranks' own errors tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from netdoctor.facts.library_search import GIVE_PYTHON
from netdoctor.facts.runs import Obstacle, Run
from netdoctor.model import Status, Word
from netdoctor.nccl.transport import log_of

# These say that it failed, not why.
_NO_REASON = ("other", "rank_died", "hang", "straggler")
_PORTS = ("bind: address already in use", "cannot assign requested address")
_MEMORY = ("out of memory", "outofmemory")
# errno's own words (strerror(3)), C++'s and Python's for a limit that is reached: RLIMIT_AS, RLIMIT_NOFILE, RLIMIT_NPROC.
_LIMITS = (
    *("cannot allocate memory", "can't allocate memory", "std::bad_alloc", "memoryerror", "failed to map segment"),
    *("resource temporarily unavailable", "can't start new thread"),
    # libstdc++, where a std::thread that runs is destroyed: what made it could not start the next one.
    "terminate called without an active exception",
)
_DESCRIPTORS, _OF_THE_NODE = "too many open files", "too many open files in system"  # EMFILE, ENFILE

# What stands in the way of a run, and what mends it there.
OBSTACLES: Final[Mapping[Obstacle, str]] = {
    Obstacle.GPU_BUSY: "run it when the GPUs are free",
    Obstacle.GPU_UNREAD: "nvidia-smi: NVML does not tell whether the GPUs are free",
    Obstacle.LOCK: "run it when the GPUs are free",
    Obstacle.SAME_MACHINE: "give each node a machine of its own; --ranks-per-node starts several ranks on one",
    Obstacle.REFUSED: "as the job's user, or --user NAME; where root is the job's user --user root",
    Obstacle.NO_TORCH: GIVE_PYTHON,
    Obstacle.NO_NCCL: "LD_LIBRARY_PATH of the job; --python, where its Python has the nvidia-nccl wheel",
    Obstacle.NOT_READY: "systemctl status nvidia-fabricmanager; confidential computing: nvidia-smi conf-compute -srs 1",
    Obstacle.NO_GPU: "see hardware.accelerator; CUDA_VISIBLE_DEVICES; libcuda.so.1 and /dev/nvidia* in the container",
    Obstacle.IMPORT: "import torch with that interpreter; give another with --python; --via nccl goes without torch",
    Obstacle.TIME: "more time: --budget SECONDS, or budget_s in the configuration",
    Obstacle.MEMORY: "ulimit -n, -u and -v, and the limits of memory and processes of the cgroup",
    Obstacle.FILES: "raise it where netdoctor starts: ulimit -n $(ulimit -Hn); LimitNOFILE= of the unit that starts the job",
    Obstacle.NO_PROC: "mount -t proc proc /proc",
    Obstacle.LOST: "dmesg: whether the kernel ended it (out of memory); run it again",
    Obstacle.OTHER_NODE: "see allreduce.nodes",
}


class Scarce(Word):
    """What a rank had too little of at a limit of its own process, which it has from whoever starts it."""

    DESCRIPTORS = "descriptors"
    OTHER = "memory or processes"


def cause_of(run: Run) -> str | None:
    """The likeliest cause by name, or None where nothing tells more than that it failed."""
    from netdoctor.nccl.diagnosis import diagnose  # only where something failed: these rules take a while to import
    from netdoctor.nccl.log.parser import parse_text

    first = [r for r in run.ranks if r.rank in run.blamed] + [r for r in run.ranks if r.rank not in run.blamed]
    said = "".join(f"[rank{r.rank}]: {r.error}\n" for r in first if r.error)
    if any(text in said.lower() for text in _PORTS):
        return "bootstrap_ports"
    # Gloo's own failure points at Gloo in a job's log; here it was asked for.
    passed = (*_NO_REASON, "gloo_backend") if run.experiment.backend == "gloo" else _NO_REASON
    for facts in (log_of(run), parse_text(said) if said else None):
        for finding in diagnose(facts) if facts is not None else ():
            # A setting or a transport that costs speed shows facts and no line: a run does not end of it, and path runs set
            # NCCL_SHM_DISABLE themselves.
            if finding.status is Status.FAIL and finding.cause not in passed and finding.evidence.get("lines"):
                return finding.cause
    return None


def out_of_memory(run: Run) -> bool:
    """Whether a GPU had no room for the buffers: somebody else's memory, no fault of the node."""
    return any(text in r.error.lower() for r in run.ranks for text in _MEMORY)


def at_a_limit(run: Run) -> Scarce | None:
    """What a rank ended of, by its own words or those of a library of it; None: of no limit of its process."""
    said, log = [one.lower() for one in (run.output, *(r.error for r in run.ranks))], log_of(run)
    if any(_DESCRIPTORS in one.replace(_OF_THE_NODE, "") for one in said) or (log is not None and log.of("polled")):
        return Scarce.DESCRIPTORS
    return Scarce.OTHER if any(text in one for one in said for text in _LIMITS) else None
