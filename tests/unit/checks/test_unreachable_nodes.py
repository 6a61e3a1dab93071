"""Node 0 and the site's peers, where no connection comes to them; and which interfaces leave the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.causes.results import completed
from netdoctor.facts.net import Peer
from netdoctor.facts.reach import Path, Reach
from netdoctor.model import Severity, Status, Unavailable
from netdoctor.nccl import interfaces
from tests.support.facts import environ, netlink_link
from tests.unit.checks.test_net_socket_ifname import ETH0, LO, SEVERAL, far, findings, found, seen

FAIL, UNKNOWN, C = Status.FAIL, Status.UNKNOWN, Severity.CRITICAL


def nobody(name: str = "gone", **changes: Any) -> Peer:
    """Node 0 that no connection comes to."""
    local = Unavailable("not read") if "addresses" in changes else False
    return replace(far("eth0", name=name), variable="MASTER_ADDR", port=29500, local=local, **changes)


@pytest.mark.parametrize(
    ("master", "several", "unsaid"),
    [
        (nobody(addresses=Unavailable("absent", "EAI_NONAME")), FAIL, UNKNOWN),
        (nobody(addresses=Unavailable("failed", "EAI_AGAIN")), FAIL, UNKNOWN),
        (nobody(addresses=Unavailable("timed out")), UNKNOWN, UNKNOWN),  # a resolver that hangs says nothing
        (nobody(rtt_ms=Unavailable("absent", "EHOSTUNREACH")), FAIL, FAIL),  # it is another node: the job has several
        (nobody(rtt_ms=Unavailable("timed out", "ETIMEDOUT")), UNKNOWN, UNKNOWN),
        (nobody(rtt_ms=Unavailable("failed", "ECONNREFUSED")), None, None),  # it is there; rank 0 is not started yet
    ],
)
def test_a_node_0_that_nothing_reaches(master: Peer, several: Status | None, unsaid: Status | None) -> None:
    told = found(net=seen(master=master), job=SEVERAL).get("MASTER_ADDR")
    assert told == (None if several is None else (several, None))
    (status, _) = found(net=seen(master=master)).get("MASTER_ADDR", (None, None))
    assert status is unsaid


REFUSED = Unavailable("absent", "EHOSTUNREACH")  # of a host that is not there, and by a firewall's "prohibited" alike


def echo(**changes: Any) -> Reach:
    told = {"small": False, "middle": False, "full": False, "told": None, "error": None, **changes}
    return Reach((), 0, {"gone": Path("10.0.0.9", "eth0", 1500, **told)})


@pytest.mark.parametrize(
    ("reach", "master", "peer", "words"),
    [
        (echo(small=True, middle=True, full=True), FAIL, UNKNOWN, "rejects port 29500"),
        (echo(error="EACCES"), FAIL, UNKNOWN, "rejects port 29500"),  # a firewall answers the echo, too
        (echo(error="EHOSTUNREACH"), FAIL, FAIL, "nobody answers at"),
        (echo(), FAIL, UNKNOWN, "or a firewall rejects port 29500"),  # it drops echoes
        (echo(error="EPERM"), FAIL, UNKNOWN, "or a firewall rejects"),  # this node's own
        (Unavailable("denied"), FAIL, UNKNOWN, "or a firewall rejects"),
    ],
)
def test_an_echo_tells_a_firewall_from_nobody(reach: Any, master: Status, peer: Status, words: str) -> None:
    """The job needs node 0's port; that of a peer was named to measure a round trip."""
    one = nobody(rtt_ms=REFUSED)
    told = findings(net=seen(master=one), job=SEVERAL, reach=reach)["MASTER_ADDR"]
    assert told.status is master and words in told.message
    assert found(net=seen(peers=(replace(one, variable="expected.peers"),)), job=SEVERAL, reach=reach)["gone"] == (peer, None)


def test_a_firewalls_no_has_its_own_cause() -> None:
    told = findings(net=seen(master=nobody(rtt_ms=REFUSED)), job=SEVERAL, reach=echo(small=True))["MASTER_ADDR"]
    assert told.cause == "firewall_connect" and "firewall-cmd" in (told.how or "")


def test_a_silent_node_0_is_in_a_gates_way() -> None:
    (one,) = [f for f in findings(net=seen(master=nobody(rtt_ms=Unavailable("timed out"))), job=SEVERAL).values() if f.perhaps]
    assert one.subject == "MASTER_ADDR" and one.perhaps is not None
    assert completed(one.perhaps, "net.socket_ifname", "socket_ifname").severity is C


def test_an_address_that_the_node_gave_itself_is_called_so() -> None:
    told = {ip: findings(net=seen(LO, netlink_link("eth0", 2, ip)), job=SEVERAL)["NCCL"] for ip in ("169.254.7.7", "10.0.0.7")}
    assert {ip: "link-local" in one.message for ip, one in told.items()} == {"169.254.7.7": True, "10.0.0.7": False}


def test_a_peer_that_nothing_reaches_is_named() -> None:
    gone = replace(far(name="10.9.9.9"), variable="expected.peers")
    assert found(net=seen(peers=(gone,)), job=SEVERAL)["10.9.9.9"] == (FAIL, None)


@pytest.mark.parametrize("kind", ["tun", "wireguard"])
def test_a_tunnel_that_is_named_is_the_network(kind: str) -> None:
    """One rule says which interfaces leave the node: net.tcp_buffers asks it, too."""
    tunnel = netlink_link("wg0", 3, "10.8.0.7", kind=kind)
    there = seen(LO, ETH0, tunnel)
    assert [interfaces.stays(there, one) for one in (LO, ETH0, tunnel)] == [True, False, True]
    assert not interfaces.stays(there, tunnel, named=True)
    assert not interfaces.stays(seen(LO, ETH0, tunnel, master=far("wg0")), tunnel)


def test_sockets_take_a_tunnel_that_is_named() -> None:
    """Beside another interface, too; one that is not named is no way to other nodes."""
    there = seen(LO, ETH0, netlink_link("wg0", 3, "10.8.0.7", kind="wireguard"))
    named = findings(net=there, job=SEVERAL, environ=environ({"NCCL_SOCKET_IFNAME": "=eth0,wg0"}))["NET/Socket"]
    assert "lead to no other node" not in named.message
    by_rule = findings(net=there, job=SEVERAL)["NET/Socket"]
    assert "also takes wg0" in by_rule.message and "lead to no other node" in by_rule.message
