"""gpu.fabric: cuInit that does not return, and an MPS server of another user."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.model import Kind, Status, Unavailable
from tests.support.machines.composed import Composed

SERVER = {"name": "nvidia-cuda-mps-server", "user": "bob", "uid": 40012, "status": "sleeping"}
SILENT = Unavailable(Kind.TIMED_OUT, "no answer within 10 s")


def said(process: dict[str, Any], cuda: Unavailable | None = SILENT, **changes: Any) -> Status | None:
    machine = Composed("a100-pcie", {"host.uid": 40077, **changes}, {"job.nodes": 1, "vantage": "job"})
    if cuda is not None:
        machine.host.answers["ask:cuda"] = cuda
    for one in machine.host.answers["ask:nvml"]["devices"]:
        one |= {"processes": 1, "pids": [4411]}
    machine.host.answers["ask:psutil?pids=4411"] = {"processes": {"4411": process}}
    return next((one.status for one in machine.judged("gpu.fabric") if one.subject == "driver"), None)


@pytest.mark.parametrize(
    ("process", "cuda", "changes", "status"),
    [
        (SERVER, SILENT, {}, Status.FAIL),
        (SERVER, None, {}, None),  # who got in
        (SERVER, Unavailable(Kind.FAILED, "cuInit: 802"), {}, Status.UNKNOWN),
        ({**SERVER, "uid": 40077}, SILENT, {}, Status.UNKNOWN),  # this user's own
        ({**SERVER, "uid": 0}, SILENT, {}, Status.UNKNOWN),  # for all users
        ({**SERVER, "uid": {"unavailable": "denied", "detail": ""}}, SILENT, {}, Status.UNKNOWN),
        ({**SERVER, "name": "python"}, SILENT, {}, Status.UNKNOWN),
        (SERVER, SILENT, {"host.container": True}, Status.UNKNOWN),  # NVML's number is another process's here
    ],
)
def test_clients_of_one_user_at_a_time(
    process: dict[str, Any], cuda: Unavailable | None, changes: dict[str, Any], status: Status | None
) -> None:
    assert said(process, cuda, **changes) == status
