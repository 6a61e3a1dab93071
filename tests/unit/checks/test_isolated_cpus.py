"""cpu.numa_affinity: CPUs that isolcpus or Slurm's srun keep from the ranks, though they are there."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.model import Finding, Status
from tests.support.machines.composed import Composed

JOB = {"job.nodes": 2, "vantage": "job"}
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_CPUS_PER_TASK": "12",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x000000000001000000000001",
}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "12", "SLURM_NTASKS_PER_NODE": "8"}


def said(mask: str, isolated: str = "", *, runs: bool = False, **environment: str) -> tuple[Finding, ...]:
    machine = Composed("dgx-h100", {"numa": ["0-47", "48-95"], "host.environment": environment}, JOB)
    status = machine.files.files["/proc/self/status"]
    machine.files.write("/proc/self/status", status.replace("Cpus_allowed_list:\t0-47,48-95", f"Cpus_allowed_list:\t{mask}"))
    machine.files.write("/sys/devices/system/cpu/isolated", f"{isolated}\n")
    if not runs:
        setattr(machine, "_runs", lambda *_: {})  # noqa: B010 - a method
    return machine.judged("cpu.numa_affinity")


def of_isolation(found: tuple[Finding, ...]) -> list[str]:
    return sorted({one.message for one in found if "isolcpus" in one.message and one.status is Status.FAIL})


def test_what_isolcpus_leaves_is_shared_by_all_ranks() -> None:
    (one,) = of_isolation(said("0-3", "4-95"))
    assert one.startswith("8 ranks share 4 of 96 CPUs: 92 are isolated")


@pytest.mark.parametrize(
    ("mask", "isolated"),
    [
        ("0-95", ""),
        ("0-15", "16-95"),  # room for all that start here
        ("0-3", "90-95"),  # narrow by something else, which may bind the ranks otherwise
        ("0-47,48-95", "2-3"),
    ],
)
def test_enough_is_left(mask: str, isolated: str) -> None:
    assert of_isolation(said(mask, isolated)) == []


def test_ranks_on_isolated_cpus_stay_on_one() -> None:
    """The run's ranks have the CPUs of their GPU's node each."""
    (one,) = of_isolation(said("0-95", "4-95", runs=True))
    assert one == "4 ranks share 1 of 48 CPUs: 48 are isolated (isolcpus), and the scheduler moves no thread there"


def test_what_is_isolated_could_not_be_read() -> None:
    passed = {one.subject for one in said("0-47,48-95", "", runs=True) if one.status is Status.PASS and "GPU" in one.subject}
    lost = {one.subject: one.status for one in said("0-47,48-95", "4-", runs=True)}
    assert passed and {lost[subject] for subject in passed} == {Status.UNKNOWN}


def of_slurm(mask: str = "0-95", **environment: str) -> Any:
    found = [one for one in said(mask, **environment) if one.subject == "tasks of Slurm"]
    return found[0].status if found else None


@pytest.mark.parametrize(
    ("mask", "environment", "status"),
    [
        ("3,51", STEP, Status.FAIL),
        ("0-11", STEP, None),
        ("3,51", {**STEP, "SRUN_CPUS_PER_TASK": "2"}, None),  # somebody wanted it so
        ("3,51", {**STEP, "SLURM_CPU_BIND": "quiet,none"}, None),  # not Slurm bound it
        ("3,51", {**STEP, "SLURM_CPUS_PER_TASK": "1"}, None),
        ("3,51", {**STEP, "SLURM_CPUS_PER_TASK": "many"}, None),
        ("0-95", BATCH, Status.UNKNOWN),
        ("0-95", {**BATCH, "SRUN_CPUS_PER_TASK": "12"}, None),
        ("0-95", {**BATCH, "SLURM_NTASKS_PER_NODE": "1"}, None),  # torchrun, which starts the ranks itself
    ],
)
def test_srun_does_not_hear_what_sbatch_was_asked_for(mask: str, environment: dict[str, str], status: Status | None) -> None:
    assert of_slurm(mask, **environment) == status
