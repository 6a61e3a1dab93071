"""A control of the way between two nodes, over real sockets."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from netdoctor.cluster import connectivity, control
from netdoctor.cluster.connectivity import ProbeServer, control_of
from netdoctor.facts.runs import BURSTS, Control


@pytest.fixture
def server() -> Any:
    made = ProbeServer(1)
    yield made
    made.close()


def test_a_clean_way_loses_nothing(server: ProbeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "BURST_SECONDS", 0.02)
    found = control_of(("127.0.0.1", server.port, 1), (server.port, 1), bulk=True)
    assert (found.pings, found.again, found.loses) == (control.PINGS, 0, False)
    assert found.round_trip > 0 and found.segment > 0 and found.own > 0
    assert len(found.plain) == len(found.wide) == BURSTS
    assert control.read(control.told(found)) == found


def test_without_data_by_tcp_there_is_no_bulk(server: ProbeServer) -> None:
    found = control_of(("127.0.0.1", server.port, 1), (server.port, 1), bulk=False)
    assert found.pings and not found.plain and not found.own


def test_nobody_there_is_no_control() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    assert control_of(("127.0.0.1", port, 1), (port, 1), bulk=True) == Control()


def test_the_server_still_serves_probes(server: ProbeServer) -> None:
    assert connectivity.probe("127.0.0.1", server.port, 1) is None


@pytest.mark.parametrize(
    "said",
    [None, 7, [], [1] * 7, [1, 0, 0.1, 1448, ["x"], [1], 0], [-1, 0, 0, 0, [], [], 0], [True, 0, 0, 0, [], [], 0], [0] * 6],
)
def test_rubbish_is_no_more_than_nothing(said: Any) -> None:
    found = control.read(said)
    assert found is None or (not found.narrowed and not found.plain)


@pytest.mark.parametrize(
    ("pings", "again", "loses"), [(400, 0, False), (400, 1, False), (400, 2, True), (10, 4, True), (0, 0, False)]
)
def test_a_share_and_not_a_number_is_loss(pings: int, again: int, loses: bool) -> None:
    assert Control(pings, again).loses is loses
