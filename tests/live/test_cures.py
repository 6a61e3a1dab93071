"""Cures of NCCL's faults, tried by a real NCCL on a machine that is not there: the mend changes what carries the data.

The driver is a fake: how long a run takes means nothing, so nothing here says that one is faster.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import pytest

from tests.fakegpu import doctor, machine, namespace
from tests.support.machines import ways

pytestmark = [
    pytest.mark.live,
    pytest.mark.nccl,
    pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-"),
]


@pytest.fixture(scope="module")
def job() -> Iterator[pathlib.Path]:
    with doctor.job(ways.real().parts[-5]) as python:
        yield python


@pytest.mark.parametrize(
    ("variable", "nodes", "before", "after"),
    [
        ("NCCL_P2P_DISABLE=1", 1, "SHM/", "P2P/"),
        ("NCCL_IB_DISABLE=1", 2, "NET/Socket/", "NET/IB/"),
        ("NCCL_NET=Socket", 2, "NET/Socket/", "NET/IB/"),
        ("NCCL_IB_HCA=mlx4", 2, "NET/Socket/", "NET/IB/"),
    ],
)
def test_a_cure_changes_what_carries_the_data(job: pathlib.Path, variable: str, nodes: int, before: str, after: str) -> None:
    name, _, value = variable.partition("=")
    around = doctor.Around(
        env={name: value, doctor.TRIALS: "1"},
        config=f"job: {{nodes: {nodes}}}",
        options=("--budget", "120", "--only", "nccl.environment,rdma.dev_infiniband,allreduce.run"),
    )
    found = doctor.preflight(machine.read("epyc-nps4"), job, around)
    wrong = [one for id in ("nccl.environment", "rdma.dev_infiniband") for one in found.of(id) if one["status"] == "fail"]
    assert f"without {name}" in [one["cure"] for one in wrong]
    assert found.data["volatile"]["cost"], "the cost says what was tried"
    trials = [one for one in found.trials if one["state"] == "finished"]  # the budget may end the last one
    assert {trial["cure"] for trial in trials} == {f"without {name}"}
    assert {trial["changed"] for trial in trials} == {False, True}
    for trial in trials:
        assert trial["verified"]
        carried = {re.match(r"NET/[^/]+/|[^/]+/", one).group() for one in trial["transports"]}  # type: ignore[union-attr]
        there = any(one.startswith(after) for one in carried)
        assert there is trial["changed"], trial
        assert trial["changed"] or any(one.startswith(before) for one in carried), trial
