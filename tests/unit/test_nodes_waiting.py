"""While nodes gather, each says who is missing and for how long it still waits."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.cluster import waiting
from netdoctor.cluster.observations import Nodes, Proof
from netdoctor.cluster.secret import Secret
from netdoctor.cluster.session import ClusterSession, Limits
from netdoctor.model import Kind, Unavailable

pytestmark = pytest.mark.slow

TOKEN = Secret(Proof.TOKEN, b"x" * 32)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ClusterSession]]:
    """Sessions that are closed at the end; a line is due at once."""
    for name in ("FIRST", "EVERY", "FRESH"):
        monkeypatch.setattr(waiting, name, 0.1)
    made: list[ClusterSession] = []
    yield made
    for one in made:
        one.close()


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port: int = door.getsockname()[1]
        return port


def said(sessions: list[ClusterSession], lines: list[str], nodes: Nodes, wanted: str) -> None:
    """Gathers until a line is that, in its words before the seconds."""
    one = ClusterSession(nodes, Limits(wait=60.0), lines.append, TOKEN)
    sessions.append(one)
    one.begin()
    end = time.monotonic() + 30
    while not any(line.rpartition(";")[0] == wanted for line in lines) and time.monotonic() < end:
        one.waiting.tick(one.member.gathering, one.member.trying)
        time.sleep(0.05)
    assert wanted in {line.rpartition(";")[0] for line in lines}
    assert all(line.endswith(" s left") for line in lines)


def test_both_ends_name_who_has_not_come(quick: list[ClusterSession]) -> None:
    port, names = free(), ("gpu01", "gpu02", "gpu03", "gpu04")
    first: list[str] = []
    said(
        quick,
        first,
        Nodes(4, 0, "127.0.0.1", port, names=names),
        "waiting for 3 of 4 nodes: node 1 (gpu02), node 2 (gpu03), node 3 (gpu04)",
    )
    said(quick, [], Nodes(4, 1, "127.0.0.1", port), "waiting for 2 of 4 nodes: node 2, node 3")
    said(quick, first, Nodes(4, 3, "127.0.0.1", port), "waiting for 1 of 4 nodes: node 2")


def test_of_many_some_are_named(quick: list[ClusterSession]) -> None:
    numbers = ", ".join(f"node {n}" for n in range(1, 9))
    said(quick, [], Nodes(100, 0, "127.0.0.1", free()), f"waiting for 99 of 100 nodes: {numbers} and 91 more")


def test_why_node_0_is_not_reached_is_said(quick: list[ClusterSession]) -> None:
    port = free()
    why = "it refuses connections: nothing listens there (not started, or ended already), or a firewall rejects them"
    said(quick, [], Nodes(2, 1, "127.0.0.2", port), f"waiting for node 0 at 127.0.0.2:{port}: {why}")


def test_a_name_that_is_not_known_is_said_at_once(quick: list[ClusterSession]) -> None:
    lines: list[str] = []
    one = ClusterSession(Nodes(2, 1, "no.such.host.invalid", 29400), Limits(wait=60.0), lines.append, TOKEN)
    quick.append(one)
    one.begin()
    end = time.monotonic() + 40
    while not any("its name is not known" in line for line in lines) and time.monotonic() < end:
        one.waiting.tick(one.member.gathering, one.member.trying)
        time.sleep(0.05)
    assert any(line.startswith("waiting for node 0 at no.such.host.invalid:29400: its name is not known") for line in lines)


@pytest.mark.parametrize(
    "rubbish",
    [
        {},
        {"awaits": "x"},
        {"awaits": [True, -1, "1", 99]},
        {"awaits": [1], "lacks": "many", "left": float("nan")},
        {"awaits": [[]]},
    ],
)
def test_rubbish_of_node_0_breaks_nothing(rubbish: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST", 0.0)
    lines: list[str] = []
    waiting.Teller(Nodes(2, 1, "127.0.0.1", 5), lines.append, time.monotonic() + 10).tick({"say": "pong", **rubbish}, "")
    assert lines in ([], ["waiting for 1 of 2 nodes: node 1; 0 s left"])


def test_whose_fault_it_is_that_nobody_met(quick: list[ClusterSession]) -> None:
    """A port that is taken is node 0's own, and a node 0 that is not there another node's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for rank, address, kind in ((0, port, Kind.THIS_NODE), (1, free(), Kind.OTHER_NODES)):
            one = ClusterSession(Nodes(2, rank, "127.0.0.1", address), Limits(wait=0.5), lambda _: None, TOKEN)
            quick.append(one)
            one.begin()
            lost = one.run(None, {})
            assert isinstance(lost, Unavailable) and lost.kind is kind, lost


def test_who_is_to_look_where_nothing_could_run(quick: list[ClusterSession]) -> None:
    """A node that itself keeps the run from being is not sent to another one."""
    alone = ClusterSession(Nodes(1, 0, "127.0.0.1", free()), Limits(), lambda _: None, TOKEN)
    quick.append(alone)
    alone.begin()
    lost = alone.run(None, {})
    assert isinstance(lost, Unavailable) and lost.kind is Kind.THIS_NODE, lost
    alone.cluster = replace(alone.cluster, ready={**alone.cluster.ready, 0: replace(alone.cluster.ready[0], cannot="")})
    assert alone._lacking() is Kind.OTHER_NODES
