"""net.socket_ifname: the USB network of a node and its BMC, which is first in the list."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.model import Status
from tests.support.machines.composed import Composed

USB = {"name": "enxb03af2b6059f", "at": ["board", "0000:61:00.3"], "driver": "cdc_ether", "address": "169.254.3.1/24"}
OWN = {"name": "eno1np0", "at": ["board", "0000:61:00.0"], "address": "10.4.0.17/22", "speed": 100000}


def said(nodes: int = 2, named: str = "", **changes: Any) -> dict[str, Status]:
    first = {**USB, **changes}
    machine = {
        "nics": [first, OWN],
        "default": {"dev": "eno1np0", "via": "10.4.0.1"},
        "host.bootstrap": named or first["name"],
        "host.resolves": ["10.4.0.17"],
        "host.environment": {"NCCL_SOCKET_IFNAME": named} if named else {},
    }
    found = Composed("a100-pcie", machine, {"job.nodes": nodes, "vantage": "job"}).judged("net.socket_ifname")
    return {one.subject: one.status for one in found}


@pytest.mark.parametrize("driver", ["cdc_ether", "rndis_host", "cdc_ncm"])
def test_every_node_has_that_address(driver: str) -> None:
    found = said(driver=driver)
    assert (found["NCCL"], found["NET/Socket"]) == (Status.FAIL, Status.FAIL)


def test_who_names_it_gets_no_farther() -> None:
    assert said(named="enxb03af2b6059f")["NCCL"] is Status.FAIL


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 1},
        {"driver": "ixgbe"},  # a cable from node to node (DGX Spark)
        {"address": "10.5.0.17/24"},  # an adapter of a workstation's
        {"named": "eno1np0"},
    ],
)
def test_no_fault(changes: dict[str, Any]) -> None:
    assert said(**changes)["NCCL"] is not Status.FAIL
