"""net.socket_ifname: interfaces that NET/Socket takes, against faster ones that are left out, and their MTUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.facts.net import Link, Net, Route
from netdoctor.model import Severity, Status
from netdoctor.nccl.log.facts import LogFacts
from tests.support.facts import baseline, environ, job, netlink_link, run
from tests.unit.checks.test_net_socket_ifname import (
    FAIL,
    LO,
    LOST,
    PASS,
    SEVERAL,
    SOCKET_LOG,
    UNKNOWN,
    far,
    findings,
    found,
    seen,
)

ENO1 = netlink_link("eno1", 2, "10.0.0.7", speed_mbps=1000)
ENS1 = netlink_link("ens1", 3, "10.1.0.7", speed_mbps=100000)
ENO2 = netlink_link("eno2", 4, "10.2.0.7", speed_mbps=1000)
BOTH = far("eno1", "ens1")
HALVES = far("ens0", "ens1")
CLOUD = (netlink_link("ens0", 2, "10.0.0.7"), netlink_link("ens1", 3, "10.1.0.7", mtu=8244))
FORCED = environ({"NCCL_SOCKET_IFNAME": "eno1"})
BY_RDMA = baseline(run(log=LogFacts(net="IB")))


def given(*links: Link, master: Any = BOTH, **changes: Any) -> Net:
    return seen(LO, *(links or (ENO1, ENS1)), **{"master": master, "default_route": Route("eno1"), **changes})


def said(net: Net, **facts: Any) -> Any:
    return found(**{"net": net, "environ": FORCED, "baseline": SOCKET_LOG, "job": SEVERAL, **facts}).get("NET/Socket")


@pytest.mark.parametrize(
    ("net", "facts", "status"),
    [
        (given(), {}, (FAIL, Severity.CRITICAL)),
        (given(ENO1, netlink_link("ens1", 3, "10.1.0.7", speed_mbps=1100)), {}, (FAIL, Severity.WARNING)),
        (given(ENO1, netlink_link("ens1", 3, "10.1.0.7", speed_mbps=1000)), {}, None),
        (given(master=far("eno1")), {}, None),  # nothing leads to the others by it: another network, of storage
        (given(master=None, peers=(far("eno1", "ens1"), far("eno1", name="10.0.0.9"))), {}, None),  # not to all of them
        (given(master=None), {}, None),
        (given(ENO1, ENS1, netlink_link("ens2", 5, "10.5.0.7", speed_mbps=400000)), {}, (FAIL, Severity.CRITICAL)),
        (given(ENO1, netlink_link("ens1", 3, "10.1.0.7", speed_mbps=100000, up=False)), {}, None),
        (given(ENO1, netlink_link("ens1", 3, "10.1.0.7", speed_mbps=100000, running=False)), {}, None),
        (given(ENO1, netlink_link("ens1", 3, speed_mbps=100000)), {}, None),  # without an address
        (given(ENO1, netlink_link("ens1", 3, "10.1.0.7", speed_mbps=LOST)), {}, None),
        (given(netlink_link("eno1", 2, "10.0.0.7", speed_mbps=LOST), ENS1), {}, None),
        (given(), {"job": job(nodes=1)}, None),
        (given(), {"baseline": LOST}, (UNKNOWN, None)),
        (given(), {"baseline": BY_RDMA}, (PASS, None)),
        (given(), {"baseline": BY_RDMA, "environ": environ({"NCCL_SOCKET_IFNAME": "^ens1"})}, None),
        (given(), {"environ": environ({"NCCL_SOCKET_IFNAME": "^ens1,lo"})}, (FAIL, Severity.CRITICAL)),
        (given(ENO1, ENO2, ENS1), {"environ": environ({"NCCL_SOCKET_IFNAME": "eno"})}, (FAIL, Severity.CRITICAL)),
        (
            given(ENO1, ENO2, netlink_link("ens1", 3, "10.1.0.7", speed_mbps=2000)),
            {"environ": environ({"NCCL_SOCKET_IFNAME": "eno"})},
            (PASS, None),
        ),
    ],
)
def test_a_faster_interface_is_left_out(net: Net, facts: dict[str, Any], status: Any) -> None:
    assert said(net, **facts) == status


def test_what_it_costs_and_what_mends_it() -> None:
    finding = findings(net=given(), environ=FORCED, baseline=SOCKET_LOG, job=SEVERAL)["NET/Socket"]
    assert (
        "eno1 (1000 Mb/s): slower than ens1 alone, left out here, by which the other nodes are reached too" in finding.message
    )
    assert finding.loss and finding.loss.formula == "1000 of 100000 Mb/s"
    assert finding.fix and finding.fix.commands == ("export NCCL_SOCKET_IFNAME==ens1",)
    noted = findings(net=given(), environ=FORCED, baseline=BY_RDMA, job=SEVERAL)["NET/Socket"]
    assert noted.status is Status.PASS and noted.notes == (finding.message,)


def rails(*mtus: int, **changes: Any) -> Net:
    links = (netlink_link(f"ens{n}", n + 2, f"10.{n}.0.7", mtu=mtu, **changes) for n, mtu in enumerate(mtus))
    return given(*links, master=far(*(f"ens{n}" for n in range(len(mtus)))))


@pytest.mark.parametrize(
    ("net", "status"),
    [
        (rails(9000, 9000), (PASS, None)),
        (rails(9000, 1500), (FAIL, Severity.WARNING)),
        (rails(9000, 9000, 1500), (FAIL, Severity.WARNING)),
        (rails(1500, 1500, 9000), (PASS, None)),  # more than the others use costs nothing
        (rails(1500, 9000, 1500, 9000), (PASS, None)),  # halves: nothing says which was meant
        (rails(9000, 1500, driver=LOST), (PASS, None)),
        (given(netlink_link("ens0", 2, "10.0.0.7", speed_mbps=50000), replace(ENS1, mtu=9000), master=HALVES), (PASS, None)),
        (given(CLOUD[1], netlink_link("ens0", 2, "10.0.0.7", driver="ena")), (PASS, None)),
        # a cloud's first interface has its network's MTU
        (given(*CLOUD, master=far("ens0", "ens1"), default_route=Route("ens0")), (PASS, None)),
        (given(*CLOUD, master=far("ens0", "ens1"), default_route=None), (FAIL, Severity.WARNING)),
        (given(*CLOUD, master=far("ens0", "ens1"), default_route=LOST), (PASS, None)),
    ],
)
def test_interfaces_alike_with_another_mtu(net: Net, status: Any) -> None:
    assert said(net, environ=environ({"NCCL_SOCKET_IFNAME": "ens"})) == status


def test_the_smaller_mtu_is_named() -> None:
    finding = findings(net=rails(9000, 9000, 1500), environ=environ({"NCCL_SOCKET_IFNAME": "ens"}), baseline=SOCKET_LOG)
    assert finding["NET/Socket"].cause == "mtu" and "ens2: MTU 1500, others like it have 9000" in finding["NET/Socket"].message
    assert finding["NET/Socket"].fix and finding["NET/Socket"].fix.commands == ("ip link set ens2 mtu 9000",)
