"""nccl.environment: a conf file on a file system that does not answer."""

from __future__ import annotations

import pytest

from netdoctor.model import Kind, Status, Unavailable
from tests.support.machines.composed import Composed

HOME = "/home/ada/.nccl.conf"


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        (HOME, Kind.TIMED_OUT, Status.FAIL),
        ("/etc/nccl.conf", Kind.TIMED_OUT, Status.FAIL),
        (HOME, Kind.FAILED, Status.UNKNOWN),
        (HOME, Kind.DENIED, None),  # NCCL passes over what fopen(3) refuses
    ],
)
def test_nccl_would_hang_there(path: str, kind: Kind, status: Status | None) -> None:
    machine = Composed("dgx-h100", config={"job.nodes": 2, "vantage": "job"})
    machine.files.errors[path] = Unavailable(kind, "it did not answer within 5 s")
    machine.files.write(path, "")
    found = {one.subject: one for one in machine.judged("nccl.environment")}
    assert (found[path].status if path in found else None) == status
    assert Status.PASS not in {one.status for one in found.values()} or kind is Kind.DENIED
