"""node.clock: the clock of the kernel against the one on the board."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Kind, Status, Unavailable
from tests.support.machines.composed import Composed

FILE = "/sys/class/rtc/rtc0/since_epoch"
NOW, DAY, FREE, KEPT = 1795805752, 86400, 64, 8193


def said(board: str | Unavailable | None, status: int = FREE, now: int = NOW) -> Finding:
    machine = Composed("dgx-h100", {"host.clock": {"status": status, "now": now}})
    if isinstance(board, Unavailable):
        machine.files.errors[FILE] = board
    elif board is not None:
        machine.files.write(FILE, f"{board}\n")
    return next(one for one in machine.judged("node.clock") if one.subject == "clock")


@pytest.mark.parametrize(
    ("board", "words"),
    [
        (NOW - 2 * DAY, "days ahead of the one on the board"),
        (NOW - 3650 * DAY // 10, "days ahead of"),
        (NOW + 2 * DAY, "days behind the one on the board"),
        (NOW + 3650 * DAY, "days behind"),
    ],
)
def test_one_of_two_clocks_is_wrong(board: int, words: str) -> None:
    found = said(str(board))
    assert found.status is Status.UNKNOWN and words in found.message
    assert found.measured["ahead"].value == NOW - board


@pytest.mark.parametrize(
    "board",
    [
        pytest.param(str(NOW), id="the same time"),
        pytest.param(str(NOW + 14 * 3600), id="the time of a zone"),
        pytest.param(str(NOW - 12 * 3600), id="of another"),
        pytest.param(str(NOW - 2 * DAY + 1), id="a second less than two days"),
        pytest.param(str(NOW + 2 * DAY - 1), id="a second less than two days behind"),
        pytest.param("86400", id="no battery"),
        pytest.param("1735689599", id="the last second that is impossible"),
        pytest.param(None, id="no clock on the board"),
        pytest.param("now", id="no number"),
        pytest.param(Unavailable(Kind.DENIED, "EACCES"), id="not for this user"),
        pytest.param(Unavailable(Kind.NOT_RECORDED), id="an older recording"),
    ],
)
def test_what_says_nothing_of_it(board: str | Unavailable | None) -> None:
    assert said(board).status is Status.PASS


def test_a_clock_that_is_kept_is_right() -> None:
    assert said(str(NOW + 30 * DAY), status=KEPT).status is Status.PASS
    assert said("1735689600", status=FREE, now=1735689600 + 3 * DAY).status is Status.UNKNOWN, "the first that is possible"
    assert said(str(NOW), now=86400).status is Status.FAIL, "one of 1970 is wrong whatever the board says"
