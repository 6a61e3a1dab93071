"""netdoctor allreduce: nodes that NVLink does not join with the others of their job."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.cluster import messages
from netdoctor.cluster.fabric import beyond
from netdoctor.cluster.observations import Proof
from netdoctor.model import Finding, Severity, Status
from tests.lab import fixtures
from tests.support.facts import cluster
from tests.support.machines import composed
from tests.unit.checks.test_allreduce_nodes import findings

RACK, OTHER, NONE = "6d1f0c5e9b7a4e0f8a3bd2c41e5f7a90", "a7" * 16, "none"


def told(*fabrics: object, **more: Any) -> dict[str, Finding]:
    """What a meeting of nodes of these fabrics says of them."""
    parts = {n: {"ranks": 1, "backend": "gloo", "traits": {}, "fabric": one} for n, one in enumerate(fabrics)}
    made = cluster(len(fabrics), ready={n: messages.read_ready(one) for n, one in parts.items()}, **more)
    return {one.subject: one for one in findings(made) if "NVLink" in one.subject}


@pytest.mark.parametrize(
    "fabrics",
    [
        [f"{RACK}/1"] * 4,
        [NONE] * 3,  # boards of their own
        [f"{RACK}/1", f"{OTHER}/1"],  # no two nodes of one rack: nothing says that they were to be
        [f"{RACK}/1", "", f"{RACK}/1"],  # not known
        [f"{RACK}/1", None, 7, "\x1b[2J", f"{RACK}/x", RACK],  # of a stranger
    ],
)
def test_nodes_that_lack_nothing(fabrics: list[object]) -> None:
    assert told(*fabrics) == {}


def test_a_node_in_another_partition_is_named() -> None:
    found = told(f"{RACK}/1", f"{RACK}/1", f"{RACK}/2", f"{RACK}/1")
    assert [(name, one.status, one.cause) for name, one in found.items()] == [
        ("h2, NVLink fabric", Status.FAIL, "fabric_manager")
    ]
    (fail,) = found.values()
    assert fail.severity is Severity.WARNING
    assert "1 on 3 nodes (node 0 (h0), node 1 (h1), node 3 (h3)); 2 on node 2 (h2)" in fail.message


def test_of_two_partitions_nobody_is_blamed() -> None:
    found = told(f"{RACK}/1", f"{RACK}/1", f"{RACK}/2", f"{RACK}/2")
    assert {name: one.status for name, one in found.items()} == {"nodes, NVLink fabric": Status.FAIL}
    unproven = told(f"{RACK}/1", f"{RACK}/2", proof=Proof.NOTHING)
    assert {name: one.status for name, one in unproven.items()} == {"nodes, NVLink fabric": Status.UNKNOWN}


@pytest.mark.parametrize(
    ("fabrics", "status", "words"),
    [
        ([f"{RACK}/1"] * 3 + [f"{OTHER}/1"], Status.UNKNOWN, "not node 3 (h3)"),
        ([f"{RACK}/1"] * 3 + [NONE], Status.UNKNOWN, "no fabric beyond the node on node 3 (h3)"),
        ([f"{RACK}/1"] * 2 + [f"{OTHER}/1"] * 2, Status.PASS, "the network the rest"),  # a job of two racks
        ([f"{RACK}/1"] * 2 + [NONE] * 2, Status.PASS, "the network the rest"),
    ],
)
def test_racks_are_no_fault(fabrics: list[str], status: Status, words: str) -> None:
    (found,) = told(*fabrics).values()
    assert found.status is status
    assert words in found.message


@pytest.mark.parametrize(
    ("name", "change", "fabric"),
    [
        ("gb200-nvl72", {}, f"{RACK}/1"),
        ("gb200-nvl72", {"gpus.all.state.fabric.clique": 9}, f"{RACK}/9"),
        ("gb200-nvl72", {"gpus.2.state.fabric.clique": 9}, ""),  # they differ: gpu.fabric names it
        ("gb200-nvl72", {"gpus.all.state.fabric.state": 2}, ""),
        ("gb200-nvl72", {"gpus.all.state.fabric.status": 999}, ""),
        ("gb200-nvl72", {"gpus.all.state.fabric.state": 0}, NONE),
        ("dgx-h100", {}, NONE),
        ("a100-pcie", {}, NONE),
        ("cpu-node", {}, ""),
    ],
)
def test_what_a_node_tells_of_itself(name: str, change: dict[str, Any], fabric: str) -> None:
    assert beyond(fixtures.facts_of(composed.Composed(name, change).snapshot())["GpuHealth"]) == fabric
