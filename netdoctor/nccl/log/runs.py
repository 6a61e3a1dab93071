"""Many runs in one file: of LSF's jobs, and of a program that its user starts again, with a shell's ``>>`` or ``tee -a``.

LSF 10.1, "bsub -o": the report comes first and says "The output (if any) follows:", or last and says that the output "is above
this job summary".  A report is of one job that has ended, so whatever follows is another's.

What a shell joins may as well be the ranks of one job, so four things count as a new start: a program that refuses its
arguments, and then others (Python's argparse; ranks are started with the same, but for numbers), a run of W&B that begins
long after the last one, which an exception had closed (torchrun starts ranks again within one job, and says that they failed),
the file's first line, long after it was first told and behind an end: ranks of one job begin at once; and an exception that
nobody caught, of a program of which several others had ended it already, or that Python now cannot even compile: a process ends
by one, and the ranks of a job mostly by the same.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from netdoctor.nccl.log.times import when
from netdoctor.nccl.log.tracebacks import Raised
from netdoctor.nccl.log.wordings import Wording

_REPORT: Final = b"Sender: LSF System <"
_FOLLOWS: Final = b"The output (if any) follows"
_ABOVE: Final = b"The output (if any) is above"
_REST: Final = (b"PS:", b"Read file <")  # of a report, behind its last words
_USAGE: Final = re.compile(rb"usage: (?P<program>[\w.\-]{1,100}) ")
_REFUSED: Final = re.compile(rb"(?P<program>[\w.\-]{1,100}): error: (?P<said>.{1,1000})")
_DIGITS: Final = b"0123456789"
# wandb/sdk/lib/printer, without a launcher's mark: its folder is named after the start ("run-20260105_101500-ab12cd34").
_COLOURED: Final = rb"(?:\x1b\[[\d;]{0,12}m)*"
_FOLDER: Final = re.compile(
    _COLOURED + rb"wandb" + _COLOURED + rb": (?:(?P<open>Run data is saved locally in)|Find logs at:) .{0,1000}"
    rb"\brun-(?P<start>\d{8}_\d{6})-(?P<id>\w{1,64})"
)
# wandb.wandb_agent: a sweep's agent starts one after the other.
_AGENT: Final = re.compile(rb"\bAgent [Ss]tarting [Rr]un\b")
_RANK_FAILED: Final = b"failed (exitcode"
_APART: Final = 60  # seconds between two starts: ranks of one job call wandb.init at once
_OPENINGS: Final = 20  # lines at the begin of a file, of which the first with a time and some words is its opening
_SEVERAL: Final = 3  # exceptions that ended a program, and that are more than the ranks of one job differ in
_MOST: Final = 1024  # runs, and exceptions of a program
_UNCOMPILED: Final = frozenset({"SyntaxError", "IndentationError", "TabError"})
_WORDS: Final = re.compile(rb"[^\d]{24,200}")


def may_be(line: bytes) -> bool:
    """Whether lines of this line's shape may be of a report, or of a start or an end."""
    return (
        _REPORT in line
        or b"The output (if any)" in line
        or line.startswith(b"usage: ")
        or b": error: " in line
        or b"Run data is saved locally in" in line
        or b"Find logs at:" in line
        or _RANK_FAILED in line
        or b"Agent " in line
    )


class Runs:
    """Feed it the lines of one file; it says where another run begins."""

    def __init__(self) -> None:
        self._report = 0  # line of the last report's begin
        self.over = 0  # line at which a job's output, and the report behind it, were over
        self._first = True
        self._usage: dict[bytes, int] = {}  # program -> line of its last usage
        self._refused: dict[bytes, bytes] = {}  # program -> what it last said to its arguments
        self.fell = False  # by an exception, since the last start
        self._within = False  # torchrun speaks: it may start ranks again
        self._open: tuple[bytes, bytes] | None = None  # the start and the name of W&B's last run
        self._closed = False
        self._sweeps = False  # a sweep's agent has started a run
        self.opening = b""  # words of the first line that tells its time; nothing where none does
        self._opened: datetime | None = None
        self._lines = 0
        self._raised: dict[str, dict[tuple[str, ...], int]] = {}  # program -> what ended it, and where -> the line
        self._ended = 0  # runs

    def opens(self, line: bytes) -> bool:
        """Whether a line may be the first of a run."""
        return self.opening in line if self.opening else self._lines < _OPENINGS

    def feed(self, line: bytes, number: int) -> int:
        """The first line of another run where this line shows that one has begun, else 0."""
        begin = 0
        if self.over and not line.startswith(_REST):
            begin, self.over = self.over + 1, 0
        if _REPORT in line:
            self._report = number
        elif line.startswith(_ABOVE):
            self.over = number
        elif line.startswith(_FOLLOWS) and self._report:
            begin, self._first = (0 if self._first else self._report), False
        return begin or self._arguments(line, number) or self._tracked(line, number) or self._opens_again(line, number)

    def raised(self, one: Raised) -> int:
        """The first line of another run where this exception shows that one has begun, else 0."""
        uncompiled = one.type in _UNCOMPILED and not one.deep
        program = one.program or (one.file if uncompiled else "")
        if not (program and one.type) or one.printed or Wording.ECHO_EXCEPTION.within(one.type) or self._ended >= _MOST:
            return 0
        known = self._raised.setdefault(program, {})
        this = one.type, one.file, one.line
        latest = max(known, key=known.__getitem__, default=this)
        begin = 0
        if this != latest and (uncompiled or len(known) >= _SEVERAL):
            begin = one.began if uncompiled else known[latest] + 1
        if this in known or len(known) < _MOST:
            known[this] = one.number
        self._ended += begin > 0
        return begin

    def _opens_again(self, line: bytes, number: int) -> int:
        """The file's first line, when the run that it began has ended."""
        if not self.opening:
            self._lines += 1
            words, at = _WORDS.search(line), when(line)
            if words is not None and at is not None and self._lines <= _OPENINGS:
                self.opening, self._opened = words[0], at
            return 0
        if self.opening not in line or self._opened is None or (at := when(line)) is None:
            return 0
        apart, again = (at - self._opened).total_seconds(), self.fell
        if again and apart >= _APART:
            self._opened, self.fell = at, False
            return number
        return 0

    def _arguments(self, line: bytes, number: int) -> int:
        if (usage := _USAGE.match(line)) is not None:
            self._usage[usage["program"]] = number
        if (refused := _REFUSED.match(line)) is None:
            return 0
        program, said = refused["program"], refused["said"].translate(None, _DIGITS)
        begin = self._usage.pop(program, 0)
        before, self._refused[program] = self._refused.get(program, said), said
        return begin if before != said else 0

    def _tracked(self, line: bytes, number: int) -> int:
        self._within |= _RANK_FAILED in line
        if _AGENT.search(line) is not None:
            again, self.fell, self._sweeps = self._sweeps and self.fell, False, True
            return number if again else 0
        if (folder := _FOLDER.match(line)) is None:
            return 0
        this = folder["start"], folder["id"]
        if not folder["open"]:
            self._closed = this == self._open
            return 0
        again = self._closed and self.fell and not self._within and self._open is not None
        again = again and self._open is not None and _seconds(self._open[0], this[0]) >= _APART
        self._open, self._closed, self.fell, self._within = this, False, False, False
        return number if again else 0


def _seconds(one: bytes, other: bytes) -> float:
    try:
        first, second = (datetime.strptime(when.decode() + "+0000", "%Y%m%d_%H%M%S%z") for when in (one, other))
    except ValueError:
        return 0.0
    return (second - first).total_seconds()
