"""Which launcher started this process, and what it says about ranks: rules over the table of variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, NamedTuple

from netdoctor.environment import TABLE, VOLCANO_TASK, Role, named
from netdoctor.facts import nodelist
from netdoctor.model import record


@record
class Launcher:
    """What a launcher set: torchrun, srun, mpirun, Kubernetes operators."""

    name: str | None  # "torchrun" "openmpi" "mpich" "slurm" "flux" "trainjob" "leaderworkerset" …; None: none found
    rank: int | None
    world: int | None
    local_rank: int | None
    local_world: int | None
    nodes: int | None = None
    node_rank: int | None = None
    by_options: bool = field(default=False, kw_only=True)  # what the job's command tells it (cli/launched.py), not variables

    @property
    def called(self) -> str:
        """For people."""
        return f"{self.name}'s command line" if self.by_options else self.name or "the environment"

    @property
    def of_gpus(self) -> bool:
        """It starts ranks of torch, one for each GPU."""
        return self.name in ("torchrun", "trainjob", "accelerate", "deepspeed")

    @property
    def one_task(self) -> bool:
        """It started a single task here, which may well be torchrun, and that starts a rank for each GPU it sees."""
        return self.local_world == 1 and not self.by_options and not self.of_gpus and self.name not in (None, "env")

    @property
    def several(self) -> bool:
        """What it set says that there is more than this node."""
        beyond = self.name == "pals" and (self.node_rank or 0) > 0  # it counts nodes and says no sum
        return beyond or (self.nodes or 1) > 1 or (self.world or 1) > (self.local_world or self.world or 1)

    @property
    def nodes_unsaid(self) -> bool:
        """There is a launcher, and nothing it set tells how many nodes the job has."""
        alone = self.world is not None and self.world <= (self.local_world or 1)
        return self.name is not None and self.nodes is None and not alone and not (self.world and self.local_world)

    def first_node(self, nodes: int | None) -> bool | None:
        """Whether rank 0 is on this node, as it counts; without a local rank, by blocks of ranks (torchrun's and Slurm's own
        way)."""
        if self.node_rank is not None:
            return self.node_rank == 0
        if self.rank is not None and self.local_rank is None and self.world and nodes:
            return self.rank < max(1, self.world // nodes)
        return self.rank == self.local_rank if None not in (self.rank, self.local_rank) else None


class _Rule(NamedTuple):
    launcher: str | None
    all_of: tuple[str, ...]  # found by these, all of them there
    programs: tuple[str, ...]  # whose rows are asked, the first first
    none_of: tuple[str, ...] = ()


_STEP: Final = named(Role.IN_JOB, "slurm")
# Innermost first: torchrun inside srun inside a pod is torchrun, for it started the ranks.
_RULES: Final = (
    _Rule("torchrun", ("TORCHELASTIC_RUN_ID",), ("torch", "user")),
    _Rule("openmpi", ("OMPI_COMM_WORLD_RANK",), ("openmpi",)),
    # srun's PMI-2 sets PMI_RANK as well; only Hydra (MPICH, Intel MPI, MVAPICH) sets MPI_LOCALRANKID.
    _Rule("mpich", ("PMI_RANK", "MPI_LOCALRANKID"), ("hydra",)),
    _Rule("mpich", ("PMI_RANK",), ("hydra",), none_of=_STEP),
    _Rule("flux", ("FLUX_TASK_RANK",), ("flux",)),
    *(_Rule("slurm", (name,), ("slurm",)) for name in ("SLURM_JOB_ID", "SLURM_JOBID", *named(Role.NODES, "slurm"))),
    *(_Rule("trainjob", (name,), ("torchrun", "user")) for name in ("PET_NNODES", "PET_NODE_RANK")),
    _Rule("leaderworkerset", ("LWS_GROUP_SIZE",), ("leaderworkerset",)),
    _Rule("mpijob", ("K_MPI_JOB_ROLE",), ("mpijob", "user")),
    *(_Rule("volcano", (name,), ("volcano", "user")) for name in ("VC_TASK_INDEX", "VK_TASK_INDEX")),
    _Rule("kuberay", ("RAY_CLUSTER_NAME",), ("kuberay", "user")),
    # RANK and WORLD_SIZE count pods where the container runs torchrun, processes where it runs python.
    _Rule("pytorchjob", ("KUBERNETES_SERVICE_HOST", "MASTER_ADDR", "WORLD_SIZE"), ("torch", "user")),
    *(_Rule("jobset", (name,), ("jobset", "user")) for name in ("JOBSET_NAME", "JOB_COMPLETION_INDEX")),
    _Rule("env", ("RANK", "WORLD_SIZE"), ("torch", "user")),  # torch's env:// rendezvous, set by hand
)
_OF_A_JOB: Final = frozenset({Role.RANK, Role.WORLD, Role.NODES, Role.NODELIST, Role.IN_JOB})
_COUNTS: Final = (Role.RANK, Role.WORLD, Role.LOCAL_RANK, Role.LOCAL_WORLD, Role.NODES, Role.NODE_RANK)


def detect(variables: Mapping[str, str]) -> Launcher:
    """The innermost launcher, and its numbers."""
    for rule in _RULES:
        if all(name in variables for name in rule.all_of) and not any(name in variables for name in rule.none_of):
            found = Launcher(rule.launcher, *(_first(variables, role, rule.programs) for role in _COUNTS))
            if rule.launcher != "env" or (found.rank is not None and found.world is not None):
                return _REFINED[rule.launcher](found, variables) if rule.launcher in _REFINED else found
    return _other(variables)


def in_command(found: Launcher, told: Mapping[str, Any]) -> Launcher:
    """With the options of a launcher that the job's command names: it starts the ranks, in the place of all that is around."""
    given = {name: told[name] for name in ("nodes", "local_world", "node_rank") if isinstance(told.get(name), int)}
    inner = replace(found, **given, name=str(told.get("name")), rank=None, local_rank=None, by_options=True)
    counted = inner.nodes * inner.local_world if inner.nodes and inner.local_world else None
    world = told.get("world")
    return replace(inner, world=world if isinstance(world, int) else counted)


def _other(variables: Mapping[str, str]) -> Launcher:
    """Whoever set a rank, a size or a list of nodes started a job, though no rule knows it; what is not said is not known."""
    for row in TABLE:
        if row.role in _OF_A_JOB and row.name in variables and row.program != "user":
            found = Launcher(row.program, *(_first(variables, role, (row.program,)) for role in _COUNTS))
            found = found if found.nodes else replace(found, nodes=_listed(row.program, variables))
            if row.program != "torch" or found.several:  # WORLD_SIZE alone is set by many a shell
                return found
    return Launcher(None, *(_first(variables, role, ("user",)) for role in _COUNTS))


def _listed(program: str, variables: Mapping[str, str]) -> int | None:
    """How many nodes a list names; SageMaker's is JSON."""
    if program == "sagemaker":
        names = re.findall(r'"([^"]+)"', variables.get("SM_HOSTS", ""))
    elif program == "lsf":
        return len(nodelist.of_lsf(variables) or ()) or None
    else:
        names = []
    return len(set(names)) or None


def _first(variables: Mapping[str, str], role: Role, programs: tuple[str, ...]) -> int | None:
    """The first that is a number: what an outer launcher left empty or as a word counts as not there."""
    return next((n for name in named(role, *programs) if (n := _number(variables.get(name))) is not None), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None


def _slurm(found: Launcher, variables: Mapping[str, str]) -> Launcher:
    """A step's task; the batch script itself carries SLURM_PROCID=0 but is no rank: it has no step."""
    per_node = _per_node(next((variables[name] for name in named(Role.PER_NODE, "slurm") if variables.get(name)), ""))
    if not any(name in variables for name in _STEP):
        every = per_node[0] if len(set(per_node)) == 1 else None
        return replace(found, rank=None, local_rank=None, local_world=every, node_rank=None)
    node = found.node_rank
    if _more_than_the_step(variables):
        found = replace(found, nodes=None, world=None)
    return replace(found, local_world=per_node[node] if node is not None and node < len(per_node) else None)


def _more_than_the_step(variables: Mapping[str, str]) -> bool:
    """Whether the step is less than the job: Ray starts one a node; a heterogeneous job has several parts."""
    step, job = _number(variables.get("SLURM_STEP_NUM_NODES")), _number(variables.get("SLURM_JOB_NUM_NODES"))
    parts = max(_number(variables.get(name)) or 1 for name in ("SLURM_HET_SIZE", "SLURM_PACK_SIZE"))
    return parts > 1 or (step is not None and job is not None and step < job)


def _per_node(text: str) -> list[int]:
    """``4(x2),3`` is 4, 4, 3; nothing where it is not of that form."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part)
        if not match:
            return []
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    return counts


def _trainjob(found: Launcher, _variables: Mapping[str, str]) -> Launcher:
    """torchrun's options; it will start the ranks, so here is none yet."""
    return replace(found, world=found.nodes * found.local_world if found.nodes and found.local_world else None)


def _volcano(found: Launcher, variables: Mapping[str, str]) -> Launcher:
    """Its index counts within one task; where no task of several workers is named, all pods of all tasks are the nodes."""
    if (found.nodes or 0) > 1:
        return found
    tasks = [n for name, value in variables.items() if VOLCANO_TASK.match(name) and (n := _number(value)) is not None]
    return replace(found, nodes=sum(tasks) or found.nodes)


_REFINED: Final = {"slurm": _slurm, "trainjob": _trainjob, "volcano": _volcano}
