"""SIGINT and SIGTERM before and after the part of a command that can be interrupted: noted, so that a report is made anyhow.

Reading the configuration, importing the checks and writing the report go on, for they end by themselves.  The first signal is
kept for the look at the node (which then is over at once) and for the exit code; a second one, or `PATIENCE` seconds, ends
the process as if nothing were here.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Final

PATIENCE: Final = 10  # seconds; Slurm's KillWait and Kubernetes' grace period are 30
COMMANDS: Final = frozenset({"preflight", "snapshot", "run", "allreduce"})  # what writes a partial report
_DEFERRED: Final = (signal.SIGINT, signal.SIGTERM)
_before: dict[int, Any] = {}
_noted: list[int] = []


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
    return _noted[0] if _noted else None


def _note(number: int, _frame: FrameType | None) -> None:
    if _noted:
        _end(number)
    _noted.append(number)
    signal.signal(signal.SIGALRM, lambda *_: _end(number))
    signal.alarm(PATIENCE)


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
