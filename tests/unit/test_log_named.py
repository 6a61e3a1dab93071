"""Who and what a line names beside its kind: the node, the reason, the device; and what is only advice or a consequence."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS


def of(text: str) -> tuple[Finding, ...]:
    return diagnose(parse_text(text))


STEP = "slurmstepd: error: *** STEP 37.0 ON n1 CANCELLED AT 2021-03-15T17:50:23 ***\n"
JOB = "slurmstepd: error: *** JOB 37 ON n1 CANCELLED AT 2021-03-15T18:00:46{} ***\n"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (" DUE TO PREEMPTION", "preempted"),
        (" DUE TO TIME LIMIT", "its time limit"),
        ("", "the scheduler or its user cancelled"),
    ],
)
def test_of_several_orders_the_one_with_a_reason_tells_it(reason: str, told: str) -> None:
    found = of(STEPS + STEP + JOB.format(reason))[0]
    assert found.status is Status.UNKNOWN
    assert told in found.message
    assert any(told.split()[0] == "the" or reason in line for line in found.evidence["shown"])


def test_a_signal_beside_a_bare_order_is_no_reason() -> None:
    assert "Ctrl-C" not in of(STEPS + STEP + "KeyboardInterrupt\n")[0].message
