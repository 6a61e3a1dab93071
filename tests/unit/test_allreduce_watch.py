"""When a rank that stands still is told by its state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.allreduce.verdict import build
from netdoctor.allreduce.watch import POLL, STILL, Still
from netdoctor.facts.runs import AllReduce
from netdoctor.process import proc


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that is stopped."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield process.pid
        process.kill()


def looks(still: Still, pid: int, begin: float, seconds: float, phase: str = "timed") -> bool:
    """The last of so many seconds' looks."""
    found = False
    for number in range(int(seconds / POLL) + 1):
        found = still.look(begin + number * POLL, {pid: phase})
    return found


def test_a_process_that_stays_stopped_is_told(stopped: int) -> None:
    assert not looks(Still(), stopped, 100.0, STILL["T"])
    assert looks(Still(), stopped, 100.0, STILL["T"] + POLL, "import")


def test_one_that_goes_on_between_is_not(stopped: int) -> None:
    still = Still()
    assert not looks(still, stopped, 100.0, STILL["T"] - POLL)
    still.look(100.0 + STILL["T"], {os.getpid(): "timed"})  # runs
    assert not looks(still, stopped, 100.0 + STILL["T"] + POLL, STILL["T"] - POLL)


def test_who_did_not_look_for_a_while_begins_anew(stopped: int) -> None:
    """netdoctor was suspended itself, with its ranks."""
    still = Still()
    looks(still, stopped, 100.0, POLL)
    assert not still.look(200.0, {stopped: "timed"})


@pytest.mark.parametrize(("phase", "told"), [("import", False), ("device", False), ("init", True), ("timed", True)])
def test_a_wait_in_the_kernel(monkeypatch: pytest.MonkeyPatch, phase: str, told: bool) -> None:
    """Files from a network and contexts of GPUs take their time."""
    monkeypatch.setattr(proc, "state", lambda _: "D")
    assert not looks(Still(), 1, 100.0, STILL["D"], phase)
    assert looks(Still(), 1, 100.0, STILL["D"] + POLL, phase) is told


@pytest.mark.parametrize(
    ("phase", "words"), [("import", "phase import"), ("device", "phase device"), ("timed", "a collective")]
)
def test_a_stopped_rank_is_named_in_every_phase(phase: str, words: str) -> None:
    events = [{"event": "phase", "rank": n, "phase": p, "t": 1.0} for n, p in ((0, "timed"), (1, phase))]
    run = build(AllReduce("gloo", 2), events, Interruption(InterruptionKind.STALLED, 9.0, 5.0, stopped=(1,)))
    assert (run.state, run.blamed) == ("hung", (1,))
    assert run.reason == f"no progress in {words} for 5 s: rank 1 is stopped"
