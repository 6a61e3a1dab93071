"""Variables that name devices, where the node has none of them or others."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from tests.support.facts.variables import NEW
from tests.unit.test_env_table import together, verdict


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
@pytest.mark.parametrize(
    ("nodes", "there", "told"),
    [
        (2, ["lo", "eth0", "docker0", "cni-podman0", "lo:0"], "eth0"),
        (None, ["lo", "eth0"], "eth0"),
        (1, ["lo", "eth0"], "eth0, lo"),
        (2, ["lo", "docker0"], "docker0, lo"),  # no other is there: who reads it sees that
    ],
)
def test_several_nodes_are_offered_what_may_lead_out(name: str, nodes: int | None, there: list[str], told: str) -> None:
    (found,) = verdict(name, "nonesuch", NEW, links=there, nodes=nodes)
    assert (found.status, found.expected) == (Status.FAIL, f"one of: {told}")


@pytest.mark.parametrize(
    ("value", "beside", "known", "status", "rule"),
    [
        ("mlx5_99", {}, {"nodes": 2}, "unknown", "no-device"),
        ("=mlx5_0:1", {}, {"nodes": 2}, "unknown", "no-device"),
        ("mlx5", {}, {"nodes": 1}, "pass", "no-device"),  # an image names a fabric wherever it starts
        ("mlx5", {}, {}, "pass", "no-device"),
        ("mlx5", {}, {"nodes": 2, "sockets": True}, "pass", "ok"),
        ("mlx5", {"NCCL_IB_DISABLE": "1"}, {"nodes": 2}, "pass", "ok"),
        ("mlx5", {"NCCL_NET": "Socket"}, {"nodes": 2}, "pass", "ok"),
        ("^mlx5_3", {}, {"nodes": 2}, "pass", "ok"),
        ("mlx5", {}, {"nodes": 2, "hcas": None}, "pass", "ok"),  # no node was looked at, or it has devices of EFA
    ],
)
def test_rdma_devices_are_named_and_none_is_here(
    value: str, beside: dict[str, str], known: dict[str, object], status: str, rule: str
) -> None:
    found = together({"NCCL_IB_HCA": value, **beside}, **{"hcas": [], **known})
    assert found["NCCL_IB_HCA"] == (status, rule)
