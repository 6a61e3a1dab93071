"""net.socket_ifname: NCCL_COMM_ID decides before NCCL_SOCKET_IFNAME."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.checks.net_socket_ifname import socket_ifname
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.net import Net
from netdoctor.facts.peers import Peer, Route
from netdoctor.model import Status, Unavailable
from tests.support import facts as f


def test_an_address_in_no_subnet_here() -> None:
    """As the unmodified 2.27.5 and 2.30.7 say: NET/Socket : No usable listening interface found."""
    settings = f.environ({"NCCL_COMM_ID": "203.0.113.1:4000", "NCCL_SOCKET_IFNAME": "eth0"})
    links = (f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7"))
    found = f.judge(socket_ifname, f.machine({Environ: settings, Net: f.net(*links)}))
    one = next(finding for finding in found if finding.subject == "NCCL")
    assert one.status is Status.FAIL and one.cause == "env_misuse"
    assert one.message.startswith("NCCL_COMM_ID=203.0.113.1:4000: no interface is in its subnet")
    assert one.fix is not None and "NCCL_COMM_ID" in one.fix.summary


@pytest.mark.parametrize(
    ("address", "status"), [("10.0.0.9", Status.PASS), ("203.0.113.1", Status.FAIL), (None, Status.UNKNOWN)]
)
def test_a_host_by_its_first_address(address: str | None, status: Status) -> None:
    """NCCL listens where that is reached without a router."""
    settings = f.environ({"NCCL_COMM_ID": "head:4000"})
    links = (f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7"))
    addresses = (address,) if address else Unavailable("timed out")
    route = {address: Route("eth0")} if address else {}
    root = Peer("head:4000", addresses, route, local=False, variable="NCCL_COMM_ID")
    net = replace(f.net(*links), peers=(root,))
    found = f.judge(socket_ifname, f.machine({Environ: settings, Net: net, Intent: f.job(nodes=2)}))
    one = next(finding for finding in found if finding.subject == "NCCL")
    assert one.status is status, one.message
    assert ("eth0 (10.0.0.7), which leads to head:4000" in one.message) is (status is Status.PASS)
