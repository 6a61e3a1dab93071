"""At which level a line speaks, where a speaker says so whose levels are known: below an error it alleges nothing by itself.

Formats: glog and absl (TensorFlow, XLA, Triton, Ray: ``I0625 08:02:31.2 17 server.cc:674]``), TensorFlow's own
(``2025-01-31 10:20:01.1: W path.cc:12]``), c10 (``[W131 10:20:01.1 socket.cpp:12]``), UCX (src/ucs/debug/log.c: five letters
behind the component), the loggers of TensorRT and TensorRT-LLM, vLLM's (``WARNING 04-07 10:00:00 file.py:12]``),
and Python's, by the comma before its milliseconds (``2026-01-01 10:00:00,123 - name - INFO - ``).
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final


class Level(Enum):
    """How bad it is, in the words of the one who says it."""

    TOLD = auto()  # information, or what is for those who look for a mistake
    WARNED = auto()  # it goes on
    UNKNOWN = auto()  # an error, or nobody says


_SOURCE: Final = r"[\w./\-]{1,120}:\d{1,6}\]"


def _forms(glog: str, word: str, letter: str, ucx: str) -> re.Pattern[bytes]:
    return re.compile(
        rf"(?:^|[\s|>:\]])[{glog}]\d{{4}} \d\d:\d\d:[\d.]{{2,20}} +\d{{1,10}} {_SOURCE}"
        rf"|\d\d:\d\d:\d\d\.\d{{1,9}}: [{glog}] {_SOURCE}"
        rf"|\[[{glog}](?:\d{{3,4}})? ?[\d:.]{{0,24}} ?{_SOURCE}"
        rf"|\bUCX  (?:{ucx})\b"
        rf"|\[TensorRT-LLM\]\[(?:{word})\]|\[TRT(?:-LLM)?\] \[{letter}\]"
        rf"|(?:^|\) )(?:{word}) \d\d-\d\d \d\d:\d\d:\d\d \[?{_SOURCE}"
        rf"|\d\d:\d\d:\d\d,\d{{3}}\]?(?: -)? (?:\[?[\w.]{{1,60}}\]?(?: -| :|:)? )?\[?(?:{word})\b".encode()
    )


_TOLD: Final = _forms("ID", "INFO|DEBUG|VERBOSE|TRACE", "[IV]", "DEBUG|INFO|TRACE|REQ|DATA|ASYNC|FUNC|POLL|DIAG")
_WARNED: Final = _forms("W", "WARN|WARNING", "W", "WARN")
_HEAD: Final = 300  # bytes in which a level stands


def level(line: bytes) -> Level:
    """The level of a line without NCCL's tag."""
    head = line[:_HEAD]
    if _TOLD.search(head):
        return Level.TOLD
    return Level.WARNED if _WARNED.search(head) else Level.UNKNOWN


def caught(line: bytes) -> bool:
    """Whether an exception's last line is a logger's warning; information may be a child's output that is passed on."""
    return level(line) is Level.WARNED
