"""Which launcher started this process, and what it says about ranks: one table, from the variables alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """What a launcher set: torchrun, srun, mpirun, Kubernetes operators."""

    name: str | None  # "torchrun" "openmpi" "mpich" "slurm" "flux" "trainjob" "leaderworkerset" …; None: none found
    rank: int | None
    world: int | None
    local_rank: int | None
    local_world: int | None
    nodes: int | None = None
    node_rank: int | None = None


def detect(variables: Mapping[str, str]) -> Launcher:
    """The innermost launcher.  torchrun inside srun inside a pod is torchrun: it is the one that started the ranks.

    Sources: torch.distributed.elastic (environment set for workers), Open MPI FAQ "environment variables", Hydra's
    MPI_LOCALRANKID, srun(1) "OUTPUT ENVIRONMENT VARIABLES", Kubeflow trainer (PET_*), LeaderWorkerSet, Volcano, KubeRay.
    """

    def number(*names: str) -> int | None:
        return next((got for name in names if (got := _number(variables.get(name))) is not None), None)

    if "TORCHELASTIC_RUN_ID" in variables:
        return Launcher(
            "torchrun",
            number("RANK"),
            number("WORLD_SIZE"),
            number("LOCAL_RANK"),
            number("LOCAL_WORLD_SIZE"),
            number("GROUP_WORLD_SIZE"),
            number("GROUP_RANK"),
        )
    if "OMPI_COMM_WORLD_RANK" in variables:
        base = "OMPI_COMM_WORLD_"
        return Launcher(
            "openmpi",
            number(base + "RANK"),
            number(base + "SIZE"),
            number(base + "LOCAL_RANK"),
            number(base + "LOCAL_SIZE"),
            node_rank=None,
        )
    # srun's PMI-2 sets PMI_RANK as well; only Hydra (MPICH, Intel MPI, MVAPICH) sets MPI_LOCALRANKID.
    if "PMI_RANK" in variables and ("MPI_LOCALRANKID" in variables or "SLURM_STEP_ID" not in variables):
        return Launcher("mpich", number("PMI_RANK"), number("PMI_SIZE"), number("MPI_LOCALRANKID"), number("MPI_LOCALNRANKS"))
    if "FLUX_TASK_RANK" in variables:
        return Launcher("flux", number("FLUX_TASK_RANK"), number("FLUX_JOB_SIZE"), number("FLUX_TASK_LOCAL_ID"), None)
    if "SLURM_JOB_ID" in variables or "SLURM_JOBID" in variables:
        return _slurm(variables, number("SLURM_NODEID"))
    return _kubernetes(variables) or _plain(variables)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None


def _slurm(variables: Mapping[str, str], node: int | None) -> Launcher:
    """A step's task; the batch script itself carries SLURM_PROCID=0 but is no rank: it has no step."""
    get = variables.get
    nodes = _number(get("SLURM_STEP_NUM_NODES") or get("SLURM_JOB_NUM_NODES") or get("SLURM_NNODES"))
    world = _number(get("SLURM_STEP_NUM_TASKS") or get("SLURM_NTASKS") or get("SLURM_NPROCS"))
    per_node = _per_node(get("SLURM_STEP_TASKS_PER_NODE") or get("SLURM_TASKS_PER_NODE") or "")
    if "SLURM_STEP_ID" not in variables and "SLURM_STEPID" not in variables:
        return Launcher("slurm", None, world, None, per_node[0] if len(set(per_node)) == 1 else None, nodes, None)
    local_world = per_node[node] if node is not None and node < len(per_node) else None
    return Launcher("slurm", _number(get("SLURM_PROCID")), world, _number(get("SLURM_LOCALID")), local_world, nodes, node)


def _per_node(text: str) -> list[int]:
    """``4(x2),3`` is 4, 4, 3; nothing where it is not of that form."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if not match:
            return []
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _kubernetes(variables: Mapping[str, str]) -> Launcher | None:
    """An operator says which pod of how many this is; ranks inside the pod are the program's own business."""
    get = variables.get

    def pod(name: str, index: str, count: str) -> Launcher:
        return Launcher(name, None, None, None, None, _number(get(count)), _number(get(index)))

    if "PET_NNODES" in variables or "PET_NODE_RANK" in variables:
        nodes, local = _number(get("PET_NNODES")), _number(get("PET_NPROC_PER_NODE"))
        world = nodes * local if nodes and local else None
        return Launcher("trainjob", None, world, None, local, nodes, _number(get("PET_NODE_RANK")))
    if "LWS_GROUP_SIZE" in variables:
        return pod("leaderworkerset", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE")
    if "K_MPI_JOB_ROLE" in variables:
        return pod("mpijob", "", "")
    if "VC_TASK_INDEX" in variables or "VK_TASK_INDEX" in variables:
        return pod("volcano", "VC_TASK_INDEX" if "VC_TASK_INDEX" in variables else "VK_TASK_INDEX", "")
    if "RAY_CLUSTER_NAME" in variables:
        return pod("kuberay", "", "")
    if "KUBERNETES_SERVICE_HOST" in variables and "MASTER_ADDR" in variables and "WORLD_SIZE" in variables:
        # PyTorchJob: RANK and WORLD_SIZE count pods when the container runs torchrun, processes when it runs python.
        return Launcher("pytorchjob", _number(get("RANK")), _number(get("WORLD_SIZE")), _number(get("LOCAL_RANK")), None)
    if "JOBSET_NAME" in variables or "JOB_COMPLETION_INDEX" in variables:
        return pod("jobset", "JOB_COMPLETION_INDEX", "")
    return None


def _plain(variables: Mapping[str, str]) -> Launcher:
    """RANK and WORLD_SIZE without a launcher that is known: torch's env:// rendezvous, set by hand."""
    rank, world = _number(variables.get("RANK")), _number(variables.get("WORLD_SIZE"))
    if rank is None or world is None:
        return Launcher(None, None, None, None, None)
    return Launcher("env", rank, world, _number(variables.get("LOCAL_RANK")), _number(variables.get("LOCAL_WORLD_SIZE")))
