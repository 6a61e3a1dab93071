"""net.socket_ifname: the way of a node to itself."""

from __future__ import annotations

import pytest

from netdoctor.checks.net_socket_ifname import socket_ifname
from netdoctor.facts.intent import Intent
from netdoctor.facts.net import Link, Net
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Severity, Status
from tests.support.facts import job, judge, machine, net, netlink_link, vantage

LO = netlink_link("lo", 1, "127.0.0.1")
ETH0 = netlink_link("eth0", 2, "10.0.0.7")


@pytest.mark.parametrize(
    ("links", "own", "status"),
    [
        ((LO, ETH0), True, None),
        ((netlink_link("lo", 1, "127.0.0.1", up=False), ETH0), True, Status.FAIL),
        ((netlink_link("lo", 1, up=False), ETH0), True, Status.FAIL),  # a network namespace that was just made
        ((netlink_link("lo", 1, up=False), ETH0), False, None),  # the job has another one
        ((ETH0,), True, Status.UNKNOWN),
    ],
)
def test_the_way_of_a_node_to_itself(links: tuple[Link, ...], own: bool, status: Status | None) -> None:
    for several in (job(), job(nodes=2)):
        facts = {Net: net(links=links), Vantage: vantage(job_network=own), Intent: several}
        said = [one for one in judge(socket_ifname, machine(facts)) if one.subject == "loopback"]
        assert [one.status for one in said] == ([status] if status else [])
        assert status is not Status.FAIL or (said[0].loss is not None and said[0].loss.severity is Severity.CRITICAL)
        assert status is not Status.FAIL or (said[0].fix is not None and said[0].fix.commands == ("ip link set lo up",))
