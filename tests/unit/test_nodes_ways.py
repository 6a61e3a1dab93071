"""Nodes of a common run that would call NCCL in different ways, how they tell each other where to meet, and why they do not."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

import pytest

from netdoctor.allreduce.cause import OBSTACLES
from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cluster import combine, messages
from netdoctor.cluster.connectivity import elsewhere, fault_of
from netdoctor.cluster.member import MeetingError, Member
from netdoctor.cluster.membership import Given, find
from netdoctor.cluster.observations import Cluster, Nodes, Ready
from netdoctor.facts.runs import Caller, Obstacle
from tests.unit.test_nodes import SRUN

pytestmark = pytest.mark.slow

ID = "0123456789abcdef" * 16


def ready(via: Caller) -> Ready:
    return Ready(8, "nccl", via=via)


@pytest.mark.parametrize(("first", "second"), [(Caller.TORCH, Caller.NCCL), (Caller.NCCL, Caller.TORCH)])
def test_nodes_that_differ_run_nothing_and_say_why(first: Caller, second: Caller) -> None:
    cluster = Cluster(Nodes(2, 0, "h0", 29400), hosts={0: "h0", 1: "h1"}, ready={0: ready(first), 1: ready(second)})
    made = combine.experiments(cluster)
    assert isinstance(made, str) and "--via nccl" in made
    assert f"h{0 if first is Caller.NCCL else 1}" in made


@pytest.mark.parametrize("via", Caller)
def test_nodes_that_agree_run(via: Caller) -> None:
    made = combine.experiments(Cluster(Nodes(2, 0, "h0", 29400), ready={n: ready(via) for n in (0, 1)}))
    assert not isinstance(made, str) and made[1].backend == "nccl"


@pytest.mark.parametrize(("said", "via"), [("nccl", "nccl"), ("torch", "torch"), ("x", "torch"), (1, "torch"), (None, "torch")])
def test_what_a_node_says_it_calls_nccl_by(said: Any, via: str) -> None:
    assert messages.read_ready({"via": said}).via == via


@pytest.mark.parametrize(
    ("message", "meeting"),
    [
        ({"port": 4711}, {"port": 4711}),
        ({"id": ID}, {"id": ID}),
        ({"id": ID[:-1]}, {}),
        ({"id": ID.upper()}, {}),
        ({"id": 7, "port": "x"}, {}),
        ({"port": True}, {}),
        ({"port": 0}, {}),
        ({}, {}),
    ],
)
def test_where_to_meet_is_read_or_nothing(message: dict[str, Any], meeting: dict[str, Any]) -> None:
    assert messages.read_meeting(message) == meeting


@pytest.mark.parametrize(
    "first", [OSError(errno.EHOSTUNREACH, "x"), OSError(errno.ECONNREFUSED, "x"), TimeoutError("timed out")]
)
def test_what_the_network_said_counts_more_than_the_deadline(first: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempts are cut short by the deadline.  A fake of the connection: ICMP's answers need another host."""
    errors = iter([first])

    def connect(*_: object) -> socket.socket:
        raise next(errors, TimeoutError("timed out"))

    monkeypatch.setattr("netdoctor.cluster.member.connect", connect)
    member = Member(Nodes(2, 1, "192.0.2.1", 9), {}, 20.0)
    member.open()
    with pytest.raises(MeetingError) as error:
        member.join({}, time.monotonic() + 0.5)
    member.close()
    assert error.value.kind is fault_of(first)[0]


def test_a_task_a_node_is_who_looks_and_not_the_ranks() -> None:
    """srun --ntasks-per-node=1 netdoctor allreduce: a rank a GPU, or seven of eight are never tried."""
    assert find(Given(), SRUN).ranks_per_node is None
    tasks = {"SLURM_STEP_NUM_TASKS": "24", "SLURM_STEP_TASKS_PER_NODE": "8(x3)", "SLURM_PROCID": "16"}
    assert find(Given(), {**SRUN, **tasks}).ranks_per_node == 8


@pytest.mark.parametrize(
    ("host", "there"),
    [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", False), ("192.0.2.1", True), ("not.a.name.invalid", False)],
)
def test_a_master_that_is_none_of_this_host_is_told(host: str, there: bool) -> None:
    """192.0.2.1 is documentation's (RFC 5737), and nothing is sent to it."""
    assert elsewhere(host) is there


@pytest.mark.parametrize("node", [0, 2])
@pytest.mark.parametrize("obstacle", [*Obstacle, None])
def test_what_a_node_cannot_run_is_mended_there(node: int, obstacle: Obstacle | None) -> None:
    """By what stands in its way, on this node as on others; one that did not say it (another version) is asked."""
    told = messages.read_ready({"ranks": 0, "cannot": "why", "obstacle": obstacle and obstacle.value})
    met = Cluster(Nodes(3, 0, "h0", 29400), hosts={n: f"h{n}" for n in range(3)}, ready={node: told})
    (found,) = [one for one in allreduce_nodes(met) if "cannot run: why" in one.message]
    asked = "netdoctor preflight on that node; --python names the job's Python"
    assert (found.subject, found.how) == (met.subject(node), OBSTACLES[obstacle] if obstacle else asked)
