"""docker --env-file leaves a comment in the value: NCCL reads the number before it, and so does the verdict."""

from __future__ import annotations

import pytest

from netdoctor.model import Severity, Status
from tests.lab import fixtures
from tests.support.machines import composed


@pytest.mark.parametrize("value", ["1", "1 # off", "1   # off until the switch is back, see the ticket"])
def test_what_the_number_switches_off_counts(value: str) -> None:
    machine = composed.Composed("dgx-h100", {"host.environment.NCCL_IB_DISABLE": value}, {"job.nodes": 2})
    report = fixtures.report(machine.snapshot())
    assert Severity.CRITICAL in [one.severity for one in report.findings(Status.FAIL) if one.subject == "NCCL_IB_DISABLE"]
    assert report.verdict.exit_code == 3
