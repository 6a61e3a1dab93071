"""A signal before or after the look at the node is kept, and a second one ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from netdoctor import live
from netdoctor.config.load import Config
from netdoctor.host.live import LiveHost
from netdoctor.process import signals
from tests.lab import fixtures


@pytest.fixture(autouse=True)
def as_before() -> object:
    begun = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    signals.restore()
    signals._noted.clear()
    assert {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} == {
        number: handlers[number] for number in (signal.SIGINT, signal.SIGTERM)
    }
    signal.signal(signal.SIGALRM, handlers[signal.SIGALRM])
    signal.signal(signal.SIGINT, begun)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_came_before_ends_the_look_at_once(number: signal.Signals) -> None:
    signals.defer()
    os.kill(os.getpid(), number)
    assert signals.pending() == number
    seen: list[str] = []
    outcome = live.run(
        LiveHost(None, Config().as_answer()),
        Config(),
        fixtures.specs(),
        (),
        host_root=None,
        allreduce=True,
        progress=seen.append,
    )
    assert outcome.signal == number and outcome.partial == f"interrupted by {number.name}"
    assert seen == [] and outcome.host.answers == {}


def test_nothing_is_noted_where_nobody_holds() -> None:
    signals.defer()
    os.kill(os.getpid(), signal.SIGTERM)
    signals.defer()
    assert signals.pending() is None
    signals.restore()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signals.pending() is None


SECOND = """
import os, signal
from netdoctor.process import signals
signals.defer()
os.kill(os.getpid(), signal.SIGINT)
print("on", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("never", flush=True)
"""
PATIENT = """
import signal
from netdoctor.process import signals
signals.PATIENCE = 1
signals.defer()
signal.raise_signal(signal.SIGTERM)
print("on", flush=True)
signal.pause()
print("never", flush=True)
"""


@pytest.mark.parametrize("program", [SECOND, PATIENT], ids=["a second one", "no end of its own"])
def test_it_ends_all_the_same(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "on\n")
