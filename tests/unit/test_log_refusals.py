"""A rank whose own NCCL gave a connection up, when it had been refused until its retries ran out."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS

RAISED = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/w/t.py", line 34, in main\n'
    "[rank1]:     dist.barrier()\n"
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: /t/NCCLUtils.cpp:77, remote process exited or there was a "
    "network error, NCCL version 2.26.2\n"
    "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "[rank1]: Last error:\n"
)
OLD = "[rank1]: socketPollConnect: connect returned Connection refused, exceeded error retry count (35)\n"
NEW = OLD.replace("connect returned", "connect to 10.0.0.7<36085> returned").replace("(35)", "after 35 attempts")
LEFT = (
    "[rank1]:[W1020 20:38:36.17 ProcessGroupNCCL.cpp:1479] Warning: WARNING: destroy_process_group() was not called before "
    "program exit, which can leak resources. (function operator())\n"
)
EXITS = (
    "srun: error: c2: task 1: Exited with exit code 1\nsrun: Terminating StepId=3.1\n"
    "slurmstepd: error: *** STEP 3.1 ON c1 CANCELLED AT 2025-10-20T20:38:36 ***\nsrun: error: c1: task 0: Terminated\n"
)


@pytest.mark.parametrize("said", [OLD, NEW])
@pytest.mark.parametrize("end", [LEFT + EXITS, EXITS])
def test_a_connection_that_was_given_up_is_the_cause(said: str, end: str) -> None:
    found = diagnose(parse_text(RAISED + said + end))[0]
    assert (found.cause, found.status) == ("firewall_connect", Status.FAIL)
    assert any("exceeded error retry count" in line for line in found.evidence["lines"])


def test_a_refusal_that_a_retry_mended_is_no_fault() -> None:
    tried = "c1:1:9 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (1/34) after sleep\n"
    assert diagnose(parse_text(tried + STEPS + LEFT))[0].status is not Status.FAIL
