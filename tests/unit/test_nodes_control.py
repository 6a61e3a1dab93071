"""A control of the way between two nodes, over real sockets."""

from __future__ import annotations

import socket
import struct
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
    for guard in ("BURST_MOST", "PING_SECONDS", "SERVE_SECONDS"):  # against hangs: a machine that is busy may take its time
        monkeypatch.setattr(control, guard, 60.0)
    found = control_of(("127.0.0.1", server.port, 1), (server.port, 1), bulk=True)
    assert (found.pings, found.again, found.loses) == (control.PINGS, 0, False)
    assert found.round_trip > 0 and found.segment > 0 and found.own > 0
    assert len(found.plain) == len(found.wide) == BURSTS
    assert control.read(control.told(found)) == found


class Line:
    """A connection of which the kernel counted packets sent again, and such that came twice."""

    def __init__(self, again: int, twice: int, length: int = 220) -> None:
        self.info = bytearray(232)
        struct.pack_into("=I", self.info, 100, again)
        struct.pack_into("=I", self.info, 216, twice)
        self.length = length

    def getsockopt(self, level: int, name: int, length: int) -> bytes:
        return bytes(self.info[: min(length, self.length)])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        pytest.param(Line(0, 0), (0, 0), id="nothing"),
        pytest.param(Line(5, 0), (5, 0), id="all were lost"),
        pytest.param(Line(5, 5), (0, 5), id="none was: the other end was slow"),
        pytest.param(Line(5, 3), (2, 3), id="some"),
        pytest.param(Line(1, 3), (0, 1), id="the way itself doubles packets"),
        pytest.param(Line(5, 5, length=216), (5, 0), id="a kernel that does not count them"),
    ],
)
def test_what_came_twice_was_not_lost(line: Line, found: tuple[int, int]) -> None:
    assert control._again(line) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "again"), [(b"\0\0\0\4", 4 + 1), (b"", 3 + 1), (b"\0\0", 3 + 1)], ids=["told", "not told", "cut short"]
)
def test_a_lost_answer_is_a_loss(answer: bytes, again: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the ping come twice.  Where the other end says nothing of its own packets, that is all there is to go by."""
    monkeypatch.setattr(control, "PINGS", 0)
    monkeypatch.setattr(control, "_again", lambda _: (1, 3))
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as line:
        far, _ = door.accept()
        with far:
            far.sendall(answer)
            far.shutdown(socket.SHUT_WR)
            assert control._pings(line).again == again


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
