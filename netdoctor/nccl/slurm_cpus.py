"""CPUs that sbatch was asked for and that srun gives no task of its steps.

Since Slurm 22.05 srun takes --cpus-per-task neither from sbatch nor from SLURM_CPUS_PER_TASK, but from its command line and
SRUN_CPUS_PER_TASK (srun(1), --cpus-per-task; RELEASE_NOTES of 22.05); without it a task gets one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.causes.cost import MIGHT
from netdoctor.facts.environ import Environ
from netdoctor.model import Finding, Fix, Status, Unavailable, missing

SUBJECT: Final = "tasks of Slurm"
_NAMES: Final = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_STEP_ID", "SLURM_CPU_BIND")
_SEE: Final = "srun … bash -c 'grep Cpus_allowed_list /proc/self/status'"


def judge(environ: Environ, allowed: frozenset[int] | Unavailable) -> Iterator[Finding]:
    """Only what is wrong or open; `allowed` is the mask of this process."""
    values = [environ.get(name) for name in _NAMES]
    if missing(allowed, *values) is not None:
        return
    asked, heard, step, bound = ("" if value is None else str(value) for value in values)
    if heard or not asked.isdecimal() or int(asked) < 2:
        return
    mend = Fix("let srun hear it", ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", f"srun --cpus-per-task={asked} …"))
    if not step:  # the batch script, whose own CPUs are those of all tasks
        tasks = environ.get("SLURM_NTASKS_PER_NODE") or environ.get("SLURM_NTASKS") or "1"
        if tasks != "1":
            text = f"sbatch was asked for {asked} CPUs a task, and srun since Slurm 22.05 gives one where it is not told again"
            how = f"{mend.commands[0]}; {_SEE}"
            yield Finding(Status.UNKNOWN, f"{text}: what its tasks get is not seen from here", SUBJECT, how=how)
    elif len(allowed or ()) < int(asked) and "mask_cpu" in bound:
        yield Finding(
            Status.FAIL,
            f"Slurm bound this task to {len(allowed or ())} CPUs, and the job asked for {asked} a task",
            SUBJECT,
            loss=MIGHT,
            expected=f"{asked} CPUs a task",
            why="srun since Slurm 22.05 does not take --cpus-per-task from sbatch: data loaders, torch and NCCL share a core",
            fix=mend,
            evidence={"cpus": sorted(allowed or ())},
        )
