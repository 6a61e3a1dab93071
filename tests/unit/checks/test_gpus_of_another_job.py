"""gpu.mapping: GPUs that a job of Slurm's names itself, where no cgroup holds it to its own."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from tests.support.machines.composed import Composed

JOB = {"SLURM_JOB_ID": "4712", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2"}
REFUSED = {"unavailable": "denied", "detail": "NVML: Insufficient Permissions", "code": 4}


def said(given: str, taken: str, shown: tuple[int, ...] = tuple(range(8)), name: str = "SLURM_JOB_GPUS") -> Status:
    environment = {**JOB, name: given, "CUDA_VISIBLE_DEVICES": taken}
    machine = Composed("dgx-h100", {"host.environment": environment}, {"vantage": "job"})
    devices = machine.host.answers["ask:nvml"]["devices"]
    machine.host.answers["ask:nvml"]["devices"] = [
        one if n in shown else {"index": n, **REFUSED} for n, one in enumerate(devices)
    ]
    (one,) = (one for one in machine.judged("gpu.mapping") if one.subject == "GPUs that were given")
    return one.status


@pytest.mark.parametrize(
    ("given", "taken", "shown", "name", "status"),
    [
        ("2,3", "0,1", tuple(range(8)), "SLURM_JOB_GPUS", Status.FAIL),
        ("2,3", "0,1", tuple(range(8)), "SLURM_STEP_GPUS", Status.FAIL),
        ("2,3", "3,4", tuple(range(8)), "SLURM_JOB_GPUS", Status.FAIL),
        ("2,3", "2,3", tuple(range(8)), "SLURM_JOB_GPUS", Status.PASS),
        ("2,3", "3", tuple(range(8)), "SLURM_JOB_GPUS", Status.PASS),
        ("2,3", "0,1", (0, 1), "SLURM_JOB_GPUS", Status.PASS),  # ConstrainDevices: both begin at 0 again
        ("2-3", "0,1", tuple(range(8)), "SLURM_JOB_GPUS", Status.PASS),  # not as Slurm writes it
    ],
)
def test_whose_they_are(given: str, taken: str, shown: tuple[int, ...], name: str, status: Status) -> None:
    assert said(given, taken, shown, name) is status
