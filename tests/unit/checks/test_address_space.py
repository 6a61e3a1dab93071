"""process.limits: the limit of addresses (ulimit -v), which CUDA meets before any memory is used."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.model import Finding, Status
from tests.support.machines.composed import Composed

REFUSED = {"unavailable": "failed", "detail": "cuInit: CUDA_ERROR_OUT_OF_MEMORY (2)", "code": 2}
OTHER = {"unavailable": "failed", "detail": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "code": 802}


def said(limit: str, cuda: Any = None, name: str = "dgx-h100", *, ran: bool = False) -> Finding | None:
    machine = Composed(name, {}, {"job.nodes": 1, "job.ranks_per_node": 8, "vantage": "job"})
    text = machine.files.files["/proc/self/limits"]
    machine.files.write(
        "/proc/self/limits", text.replace("address space         unlimited ", f"address space         {limit:<10}")
    )
    if cuda:
        machine.host.answers["ask:cuda"] = {"driver_version": 13000, "devices": cuda}
    if not ran:
        setattr(machine, "_runs", lambda _: {})  # noqa: B010 - a method
    found = machine.judged("process.limits")
    return next((one for one in found if one.subject == "addresses"), None)


def test_cuda_is_out_of_memory_below_a_limit() -> None:
    one = said("70866960384", REFUSED)
    assert one is not None
    assert (one.status, str(one.severity)) == ("fail", "critical")
    assert one.message == "ulimit -v leaves 66 GiB of addresses, and cuInit ends with CUDA_ERROR_OUT_OF_MEMORY (2)"


@pytest.mark.parametrize(
    ("limit", "cuda", "name", "ran", "status"),
    [
        ("unlimited", None, "dgx-h100", False, None),
        ("unlimited", REFUSED, "dgx-h100", False, None),  # something else has the memory
        ("70866960384", None, "dgx-h100", False, Status.UNKNOWN),  # cuInit came through; a context may not
        ("70866960384", OTHER, "dgx-h100", False, Status.UNKNOWN),
        ("70866960384", None, "dgx-h100", True, None),  # the ranks of the run had their contexts
        ("70866960384", None, "cpu-node", False, None),
    ],
)
def test_what_the_limit_alone_says(limit: str, cuda: Any, name: str, ran: bool, status: Status | None) -> None:
    one = said(limit, cuda, name, ran=ran)
    assert (one and one.status) == status
