"""A signal before or after the look at the node is kept, and a second one ends the process."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from netdoctor import live
from netdoctor.config.load import Config
from netdoctor.host.live import LiveHost
from netdoctor.process import signals
from tests.lab import fixtures


@pytest.fixture(autouse=True)
def as_before() -> object:
    begun = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    quits = signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # and this
    hung = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one under nohup with this
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    signals.restore()
    signals._noted.clear()
    assert {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} == {
        number: handlers[number] for number in (signal.SIGINT, signal.SIGTERM)
    }
    signal.signal(signal.SIGALRM, handlers[signal.SIGALRM])
    signal.signal(signal.SIGINT, begun)
    signal.signal(signal.SIGQUIT, quits)
    signal.signal(signal.SIGHUP, hung)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_what_came_before_ends_the_look_at_once(number: signal.Signals) -> None:
    signals.defer()
    signal.raise_signal(number)  # in this thread, at once
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


class Callback:
    """As a weak reference of importlib's locks: what is raised while it runs is dropped."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_callback_of_pythons_is_not_lost() -> None:
    ended, end = False, time.monotonic() + 20
    with pytest.raises(signals.Interrupted), signals.interruptible():
        Callback()
        while time.monotonic() < end:
            ended = ended or signals.pending() == signal.SIGTERM
            Callback()  # once more in the next
    assert ended and time.monotonic() < end - 10 and signals.pending() == signal.SIGTERM
    with signals.interruptible():  # the next look is another one
        assert signals.pending() is None


def test_a_signal_that_somebody_swallowed_came_all_the_same() -> None:
    signals.defer()
    with signals.interruptible(), suppress(signals.Interrupted):
        signal.raise_signal(signal.SIGINT)
    assert signals.pending() == signal.SIGINT


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


@pytest.mark.slow
@pytest.mark.parametrize("program", [SECOND, PATIENT], ids=["a second one", "no end of its own"])
def test_it_ends_all_the_same(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "on\n")


IMPORTING = """
import sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "netdoctor.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from netdoctor.__main__ import main
main()
"""


@pytest.mark.slow
def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "netdoctor: interrupted by SIGINT\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_log_that_is_still_written_has_a_partial_report(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "netdoctor", "log", "-", "-f", "json", "-o", str(tmp_path / "log.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdin is not None
        started.stdin.write("host:1:2 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n")
        started.stdin.flush()
        waits = 0
        while started.poll() is None and waits < 3:  # until it has been read, and the reader sleeps over an empty pipe
            time.sleep(0.05)
            left = int.from_bytes(fcntl.ioctl(started.stdin, termios.FIONREAD, bytes(4)), sys.byteorder)
            state = Path(f"/proc/{started.pid}/stat").read_text().rpartition(") ")[2][:1]
            waits = waits + 1 if not left and state == "S" else 0
        started.send_signal(number)
        printed, _ = started.communicate(timeout=60)
    assert started.returncode == 128 + number
    report = json.loads(printed)
    assert report == json.loads((tmp_path / "log.json").read_text())
    assert (report["partial"], report["verdict"]["exit_code"]) == (f"interrupted by {number.name}", 128 + number)
    assert "2.27.5" in printed, "what came before counts"
