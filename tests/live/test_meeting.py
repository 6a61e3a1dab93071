"""A hostile neighbour at the meeting of nodes changes nothing; healthy meetings of every shape are silent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import meeting
from tests.lab.meeting_attacks import ATTACKS

pytestmark = pytest.mark.live
HEALTHY = dict(meeting.healthy())


@pytest.fixture(autouse=True)
def hung_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An attacker holds its lines to the end; then they are closed, and not by whoever collects the garbage."""
    made: list[socket.socket] = []
    connect, accept = socket.create_connection, socket.socket.accept

    def connected(*given: Any, **more: Any) -> socket.socket:
        made.append(connect(*given, **more))
        return made[-1]

    def accepted(server: socket.socket) -> tuple[socket.socket, Any]:
        line, whom = accept(server)
        made.append(line)
        return line, whom

    monkeypatch.setattr(socket, "create_connection", connected)
    monkeypatch.setattr(socket.socket, "accept", accepted)
    yield
    for one in made:
        one.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_changes_nothing(attack: str) -> None:
    assert meeting.tried(attack) == []


@pytest.mark.parametrize("shape", HEALTHY)
def test_a_healthy_meeting_is_silent(shape: str) -> None:
    assert HEALTHY[shape]() == []


def test_there_are_enough() -> None:
    assert sum(not token for token, _, _ in ATTACKS.values()) >= 19 and len(ATTACKS) >= 30 and len(HEALTHY) >= 12
