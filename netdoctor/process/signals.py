"""SIGINT and SIGTERM before and after the part of a command that can be interrupted: noted, so that a report is made anyhow.

Reading the configuration, importing the checks and writing the report go on, for they end by themselves.  The first signal is
kept for the look at the node (which then is over at once) and for the exit code; a second one, or `PATIENCE` seconds, ends
the process as if nothing were here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

PATIENCE: Final = 10  # seconds; Slurm's KillWait and Kubernetes' grace period are 30
# A signal to the whole process group (Ctrl-C, scancel) reaches a child twice, once through its parent.
TWICE: Final = 1.0  # seconds within which the same signal is one
COMMANDS: Final = frozenset({"preflight", "snapshot", "run", "allreduce"})  # what writes a partial report
_DEFERRED: Final = (signal.SIGINT, signal.SIGTERM)
_before: dict[int, Any] = {}
_noted: dict[int, float] = {}  # the signals in the order they came, and when: time.monotonic()


class Interrupted(BaseException):
    """SIGINT or SIGTERM: finish with what is there."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def defer() -> None:
    """From here to `restore` signals are noted.  For the main thread only."""
    _noted.clear()
    for number in _DEFERRED:
        if number not in _before:
            _before[number] = signal.signal(number, _note)


def restore() -> None:
    """Signals do what they did; what was noted stays known."""
    signal.alarm(0)
    for number, handler in _before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()


def pending() -> int | None:
    """The first signal that came."""
    return next(iter(_noted), None)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `Interrupted`, also one that came before; later ones wait for the (bounded) end."""

    def raise_once(number: int, _frame: FrameType | None) -> None:
        for other in _DEFERRED:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, raise_once) for number in _DEFERRED}
    try:
        if (number := pending()) is not None:
            raise Interrupted(number)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def passed_on(child: int) -> Iterator[None]:
    """Where signals are noted: they are `child`'s, too, which alone knows how to end."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        _noted.setdefault(number, time.monotonic())
        os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _before}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(number: int, _frame: FrameType | None) -> None:
    if _noted:
        if time.monotonic() - _noted.get(number, 0.0) < TWICE:
            return
        _end(number)
    _noted[number] = time.monotonic()
    signal.signal(signal.SIGALRM, lambda *_: _end(number))
    signal.alarm(PATIENCE)


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
