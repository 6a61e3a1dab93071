"""A step that srun killed since it was told itself to end: somebody's order, and no want of memory."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS

FORCING = "srun: forcing job termination\n"
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
CANCELLED = "slurmstepd: error: *** STEP 81.0 ON c1 CANCELLED AT 2026-02-03T04:05:06 DUE to SIGNAL Killed ***\n"
KILLED = "srun: error: c1: task 0: Killed\n"
OOM = "slurmstepd: error: Detected 1 oom_kill event in StepId=81.0. Some of the step tasks have been OOM Killed.\n"


@pytest.mark.parametrize("text", [FORCING + ABORTED + CANCELLED + KILLED, FORCING + KILLED, STEPS + FORCING + KILLED])
def test_a_forced_end_is_somebodys_order(text: str) -> None:
    log = parse_text(text)
    assert outcome(log).ending is Ending.ENDED
    assert [f.status for f in diagnose(log)] == [Status.UNKNOWN]
    assert "somebody ended it" in diagnose(log)[0].message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(KILLED + ABORTED + FORCING, id="killed before the order"),
        pytest.param(OOM + FORCING + ABORTED + CANCELLED + KILLED, id="the kernel took it for its memory"),
        pytest.param(FORCING + OOM + KILLED, id="so it did behind the order"),
        pytest.param(ABORTED + KILLED, id="no order"),
    ],
)
def test_a_kill_without_an_order_before_it_fails(text: str) -> None:
    assert diagnose(parse_text(text))[0].status is Status.FAIL


def test_the_schedulers_reason_comes_before_sruns_word() -> None:
    late = CANCELLED.replace("SIGNAL Killed", "TIME LIMIT").replace("DUE to", "DUE TO")
    assert "time limit" in diagnose(parse_text(FORCING + late + KILLED))[0].message
