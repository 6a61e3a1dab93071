"""Losing evidence may turn a result of the network checks into unknown, never into pass or skip."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from checks.net_port_range import port_range
from checks.net_socket_ifname import socket_ifname
from checks.net_tcp_buffers import tcp_buffers
from netdoctor.engine import BY_PARAMETER
from netdoctor.facts.environ import Environ, Launcher
from netdoctor.facts.job import JobShape
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Link, LocalPorts, Net, Peer, Route
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline
from netdoctor.model import STATUS_ORDER, Finding, Status, Unavailable
from netdoctor.nccl.log.facts import LogFacts
from tests.support.facts import baseline, environ, job, judge, kernel, machine, net, netlink_link, no_rdma, ports, run

LOST = Unavailable("denied")
GOOD = (Status.PASS, Status.SKIP)
CHECKS: dict[str, Callable[..., Iterable[Finding]]] = {
    "net.port_range": port_range,
    "net.socket_ifname": socket_ifname,
    "net.tcp_buffers": tcp_buffers,
}
LO, BR = netlink_link("lo", 1, "127.0.0.1"), netlink_link("br-1a2b", 2, "172.18.0.1", kind="bridge")
ETH0, SLOW = netlink_link("eth0", 5, "10.0.0.7", speed_mbps=100000), netlink_link("eth1", 6, "10.1.0.7", speed_mbps=1000)
FAR = Peer("10.0.0.1", ("10.0.0.1",), {"10.0.0.1": Route("eth0", None)}, local=False, rtt_ms=1.0)
HERE = Peer("10.0.0.7", ("10.0.0.7",), {}, local=True)
DEFAULT = Route("eth0", "10.0.0.7")


def ether(*links: Link, **changes: Any) -> Net:
    return net(*links, **{"default_route": DEFAULT, **changes})


SCENES: dict[str, dict[type, object]] = {
    "a bridge before the interface with the route": {Net: ether(LO, BR, ETH0, master=FAR)},
    "the same on a node by itself": {Net: ether(LO, BR, ETH0)},
    "the loopback by name": {Net: ether(LO, ETH0, master=FAR), Environ: environ({"NCCL_SOCKET_IFNAME": "lo"})},
    "a name that is not there": {Net: ether(LO, ETH0), Environ: environ({"NCCL_SOCKET_IFNAME": "ib"})},
    "a Gloo name that is not there": {Net: ether(LO, ETH0), Environ: environ({"GLOO_SOCKET_IFNAME": "ib0"})},
    "a host name on the loopback": {Net: ether(LO, ETH0, master=FAR, hostname_addresses=("127.0.1.1",))},
    "sockets over a slow interface": {
        Net: ether(LO, ETH0, SLOW, master=FAR),
        Baseline: baseline(run(log=LogFacts(net="Socket"))),
    },
    "sockets without RDMA over a slow interface": {Net: ether(LO, ETH0, SLOW, master=FAR), Rdma: no_rdma()},
    "several nodes by the launcher": {
        Net: ether(LO, default_route=None),
        Environ: environ(launcher=Launcher("torchrun", 0, 16, 0, 8, 2)),
    },
    "several nodes by the configuration": {Net: ether(LO, default_route=None), JobShape: job(nodes=2)},
    "a narrow range": {LocalPorts: ports(low=40000, high=40040)},
    "a range that is reserved": {LocalPorts: ports(reserved=frozenset(range(32768, 60980)))},
    "many communicators": {LocalPorts: ports(low=40000, high=40999), JobShape: job(communicators=64)},
    "a lowered floor": {LocalPorts: ports(low=1024, high=65535)},
    "a master port inside the range": {Net: ether(LO, ETH0, master=HERE, master_port=40000)},
    "a master port of somebody else": {
        Net: ether(LO, ETH0, master=HERE, master_port=29500),
        LocalPorts: ports(listening=frozenset({29500}), owners={29500: frozenset({7})}),
    },
    "no auto-tuning": {
        Net: ether(LO, ETH0, master=FAR),
        Rdma: no_rdma(),
        Baseline: LOST,
        Kernel: kernel(sysctls={**kernel().sysctls, "net.ipv4.tcp_moderate_rcvbuf": "0"}),
    },
}


def whole(scene: str) -> dict[type, object]:
    return machine({NcclChoice: LOST, **SCENES[scene]})  # the DGX's own answer (ib0) fits none of these


def verdict(check: Callable[..., Iterable[Finding]], facts: dict[type, object]) -> Status | None:
    """The check's status as the engine would say; None where it could not be called (the engine says unknown)."""
    hints = typing.get_type_hints(check)
    old = check.__netdoctor_check__.id in BY_PARAMETER  # type: ignore[attr-defined]
    for hint in (h for name, h in hints.items() if old and name != "return"):
        if Unavailable not in typing.get_args(hint) and isinstance(facts.get(hint, LOST), Unavailable):
            return None
    have = {finding.status for finding in judge(check, facts)}
    return next(status for status in STATUS_ORDER if status in have)


def losses(facts: dict[type, object]) -> Iterator[tuple[str, dict[type, object]]]:
    """Each fact lost as a whole, and each field of the network's facts that may be Unavailable."""
    for kind in facts:
        yield kind.__name__, {**facts, kind: LOST}
    for kind in (Net, LocalPorts):
        fact = facts[kind]
        hints = typing.get_type_hints(kind)
        for one in fields(fact):  # type: ignore[arg-type]
            if Unavailable in typing.get_args(hints[one.name]):
                yield f"{kind.__name__}.{one.name}", {**facts, kind: replace(fact, **{one.name: LOST})}  # type: ignore[type-var]
    settings = facts[Kernel]
    assert isinstance(settings, Kernel)
    for name in settings.sysctls:
        yield name, {**facts, Kernel: replace(settings, sysctls={**settings.sysctls, name: LOST})}
    seen = facts[Net]
    assert isinstance(seen, Net)
    for link in seen.links:
        blind = tuple(replace(one, speed_mbps=LOST) if one is link else one for one in seen.links)
        yield f"speed of {link.name}", {**facts, Net: replace(seen, links=blind)}


@pytest.mark.parametrize("id", CHECKS)
def test_scenes_are_bad_for_some_check(id: str) -> None:
    assert any(verdict(CHECKS[id], whole(scene)) is Status.FAIL for scene in SCENES)


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("id", CHECKS)
def test_losing_evidence_never_mends(id: str, scene: str) -> None:
    facts = whole(scene)
    before = verdict(CHECKS[id], facts)
    if before in GOOD:
        return
    mended = {name: after for name, less in losses(facts) if (after := verdict(CHECKS[id], less)) in GOOD}
    assert not mended
