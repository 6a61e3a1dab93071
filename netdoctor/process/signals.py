"""SIGINT, SIGTERM, SIGHUP and SIGQUIT around the part of a command that can be interrupted: noted, so that a report is made.

Reading the configuration, importing the checks and writing the report go on, for they end by themselves.  The first signal is
kept for the look at the node (which then is over at once) and for the exit code; a second one, or `PATIENCE` seconds, ends
the process as if nothing were here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

PATIENCE: Final = 10  # seconds; Slurm's KillWait and Kubernetes' grace period are 30
# A signal to the whole process group (Ctrl-C, scancel) reaches a child twice, once through its parent.
TWICE: Final = 1.0  # seconds within which the same signal is one
COMMANDS: Final = frozenset({"preflight", "snapshot", "run", "allreduce"})  # what writes a partial report
DEFERRED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_before: dict[int, Any] = {}
_blocked: set[int] = set()  # that a caller (PAM, an agent) left blocked: nothing would ever end us
_noted: dict[int, float] = {}  # the signals in the order they came, and when: time.monotonic()
_raised: list[int] = []  # the signal that ended the last look: whoever swallowed it, it came
AGAIN: Final = 0.05  # seconds until an `Interrupted` that Python dropped is raised once more


class Interrupted(BaseException):
    """One of these signals: finish with what is there."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def ended(status: int) -> str:
    """How a process ended, by its status as subprocess has it: below 0 it is a signal's number."""
    if -status not in signal.valid_signals():
        return f"ended with status {status}"
    return f"was ended by {signal.Signals(-status).name if -status < signal.SIGRTMIN else f'signal {-status}'}"


def defer() -> None:
    """From here to `restore` signals are noted, and children can be waited for.  For the main thread only."""
    _noted.clear()
    _raised.clear()
    for number in DEFERRED:
        if number not in _before and not _wanted_ignored(number):
            _before[number] = signal.signal(number, _note)
    _blocked.update(signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_before, signal.SIGALRM)) & {*_before, signal.SIGALRM})
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # the kernel would collect our children (sigaction(2))
        _before.setdefault(signal.SIGCHLD, signal.signal(signal.SIGCHLD, signal.SIG_DFL))


def _wanted_ignored(number: int) -> bool:
    """Under nohup(1) a SIGHUP is no wish of anybody's; a shell's job in the background has no SIGQUIT."""
    return number in (signal.SIGHUP, signal.SIGQUIT) and signal.getsignal(number) is signal.SIG_IGN


def restore() -> None:
    """Signals do what they did; what was noted stays known."""
    signal.alarm(0)
    for number, handler in _before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _before.clear()
    signal.pthread_sigmask(signal.SIG_BLOCK, _blocked)
    _blocked.clear()


def pending() -> int | None:
    """The first signal that came."""
    return next(iter((*_noted, *_raised)), None)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first of these signals into `Interrupted`, also one that came before; later ones wait for the (bounded) end.

    What is raised while Python runs a callback of its own (of a weak reference, as importlib's locks have them, or `__del__`)
    is dropped (sys.unraisablehook): then it is raised once more.
    """
    ours = [number for number in DEFERRED if not _wanted_ignored(number)]

    def raise_once(number: int, _frame: FrameType | None) -> None:
        for other in ours:
            signal.signal(other, signal.SIG_IGN)
        _raised[:] = [number]
        raise Interrupted(number)

    def raise_again(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted(_raised[0])

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, Interrupted):
            signal.signal(signal.SIGALRM, raise_again)
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            hook(what)

    _raised.clear()
    before = {number: signal.signal(number, raise_once) for number in ours}
    alarm, hook, sys.unraisablehook = signal.getsignal(signal.SIGALRM), sys.unraisablehook, dropped
    try:
        if _noted:
            raise Interrupted(next(iter(_noted)))
        yield
    finally:
        sys.unraisablehook = hook
        if signal.getsignal(signal.SIGALRM) is raise_again:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def passed_on(child: int) -> Iterator[None]:
    """Where signals are noted: they are `child`'s, too, which alone knows how to end."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        _noted.setdefault(number, time.monotonic())
        os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _before if number in DEFERRED}
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
    os._exit(128 + number)  # process 1 of a container: the kernel drops what it does not handle (pid_namespaces(7))
