"""At which level a line speaks, where a speaker says so whose levels are known: below an error it alleges nothing by itself.

Formats: glog and absl (TensorFlow, XLA, Triton, Ray: ``I0625 08:02:31.2 17 server.cc:674]``), TensorFlow's own
(``2025-01-31 10:20:01.1: W path.cc:12]``), Ray's core (``10:20:01,123 W 17 18] (raylet) path.cc:12:``), c10
(``[W131 10:20:01.1 socket.cpp:12]``), UCX (src/ucs/debug/log.c: five letters behind the component), the loggers of TensorRT and
TensorRT-LLM, vLLM's (``WARNING 04-07 10:00:00 file.py:12]``), and Python's, by the comma before its milliseconds
(``2026-01-01 10:00:00,123 - name - INFO - ``).
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
        rf"|\d\d:\d\d:\d\d,\d{{3}} [{glog}] \d{{1,10}} \d{{1,10}}\] "
        rf"|\[[{glog}](?:\d{{3,4}})? ?[\d:.]{{0,24}} ?{_SOURCE}"
        rf"|\bUCX  (?:{ucx})\b"
        rf"|\[TensorRT-LLM\]\[(?:{word})\]|\[TRT(?:-LLM)?\] \[{letter}\]"
        rf"|(?:^|\) )(?:{word}) \d\d-\d\d \d\d:\d\d:\d\d \[?{_SOURCE}"
        rf"|\d\d:\d\d:\d\d,\d{{3}}\]?(?: -)? (?:\[?[\w.]{{1,60}}\]?(?: -| :|:)? )?\[?(?:{word})\b".encode()
    )


_TOLD: Final = _forms("ID", "INFO|DEBUG|VERBOSE|TRACE", "[IV]", "DEBUG|INFO|TRACE|REQ|DATA|ASYNC|FUNC|POLL|DIAG")
_WARNED: Final = _forms("W", "WARN|WARNING", "W", "WARN")
_FAILED: Final = _forms("EFC", "ERROR|FATAL|CRITICAL", "[EF]", "ERROR|FATAL")
# How many there were, or how large it is: a figure or a flag, and no word behind it.
_FIGURE: Final = rb"[ |:]{0,8}(?:[-+]?\d[\d.eE+\-]*|[Nn]one|null|[Tt]rue|[Ff]alse)(?: {0,4}[,;|%(]| {2}|\s*$)"
# The same without a time: Python's loggers as they are, uvicorn's, and what programs write to standard error by custom.
_BARE: Final = re.compile(
    rb"(?:\(\w+ pid=[^)]{1,60}\) ?|\[rank\d+\]: ?)?(?:\[?(?:ERROR|CRITICAL|FATAL)\]?[: |]|(?:[Ee]rror|[Ff]atal): )"
    rb"(?!" + _FIGURE + rb")"
)
_KERNEL: Final = re.compile(
    rb"(?:.{0,60} kernel: )?\[ {0,8}\d{1,9}\.\d{1,6}\] .*"
    rb"\b(?:errors?|fail(?:ed|ure)|fault|timed out|BUG|Oops|corrupt\w*|panic|lost)\b"
)
_NVSHMEM: Final = re.compile(rb"\.(?:cpp|cu):\d{1,6}: (?:non-zero status: \d|NULL value)")  # src/include/util.h
# What starts a job, of itself: Slurm's commands (src/common/log.c), Hydra (lib/utils/sock.c and others), Apptainer (pkg/sylog),
# and of enroot and Docker
_STARTERS: Final = re.compile(
    rb"(?:\[[\d\-T:. ]{1,40}\] )?(?:(?:srun|sbatch|salloc|slurmstepd): error: |FATAL: {1,5}\S|enroot-\w{1,20}: |docker: \S"
    rb"|\[(?:mpiexec|proxy:\d{1,6}:\d{1,6})@[^\]]{1,100}\] \w{1,80} \(\S{1,120}\.[ch]:\d{1,6}\): \S)"
)
# Of what is done again, or goes on all the same.
_MILDER: Final = re.compile(
    rb"\b(?:retr(?:y|ies|ying)|again|ignor\w+|continu\w+|skipp\w+|instead|fall\w* back|warning)\b", re.IGNORECASE
)
_HEAD: Final = 300  # bytes in which a level stands


def level(line: bytes) -> Level:
    """The level of a line without NCCL's tag."""
    head = line[:_HEAD]
    if _TOLD.search(head):
        return Level.TOLD
    return Level.WARNED if _WARNED.search(head) else Level.UNKNOWN


def of_a_starter(line: bytes) -> bool:
    """Whether it is an error of what starts a job's processes, by the way in which it says all of its errors."""
    return _STARTERS.match(line[:_HEAD]) is not None


def of_the_kernel(line: bytes) -> bool:
    """Whether it is a line of the kernel's log that tells of something bad."""
    return _KERNEL.match(line[:_HEAD]) is not None


def failed(line: bytes) -> bool:
    """Whether a line is an error by its level, and no word of it says that it is tried again or done without."""
    head = line[:_HEAD]
    told = _FAILED.search(head) or _NVSHMEM.search(head) or _STARTERS.match(head) or _BARE.match(head)
    return (told is not None or of_the_kernel(line)) and _MILDER.search(line) is None


def caught(line: bytes) -> bool:
    """Whether an exception's last line is a logger's warning; information may be a child's output that is passed on."""
    return level(line) is Level.WARNED
