"""Python's tracebacks, which are many lines: the exception that ended one, and the program's own line that raised it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_START: Final = b"Traceback (most recent call last):"
_FRAME: Final = re.compile(rb'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})')
_RAISED: Final = re.compile(rb"(?P<type>(?:\w{1,60}\.){0,10}[A-Z]\w{1,80})(?:: ?.{0,600})?$")
# What differs from line to line in the mark that a launcher begins each line of a process with.
_TIMES: Final = re.compile(rb"\[?(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]{0,10}(?:Z|[+-]\d\d:?\d\d)?\]? ?")
_LONGEST: Final = 400  # lines of one traceback
_OPEN: Final = 256  # tracebacks that are read at once: ranks print theirs interleaved
# Files of others: the last frame outside of them is the program's.
_LIBRARIES: Final = re.compile(rb"site-packages|dist-packages|/lib/python3|<frozen|<string>|/runpy\.py")


class Raised(NamedTuple):
    """The end of a traceback."""

    number: int  # of the line that names the exception
    text: bytes
    type: str
    file: str
    line: str


class _Open:
    __slots__ = ("last", "left", "own")

    def __init__(self) -> None:
        self.left = _LONGEST
        self.own: tuple[bytes, bytes] | None = None
        self.last: tuple[bytes, bytes] | None = None


class Tracebacks:
    """Feed it lines; it says when a traceback has ended."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Open] = {}

    @property
    def reading(self) -> bool:
        return bool(self._open)

    def close(self) -> None:
        self._open.clear()

    def feed(self, line: bytes, number: int) -> Raised | None:
        line = _TIMES.sub(b"", line, count=1)
        start = line.find(_START)
        if start >= 0:
            if len(self._open) < _OPEN:
                self._open[line[:start]] = _Open()
            return None
        mark = self._mark(line)
        if mark is None:
            return None
        at, body = self._open[mark], line[len(mark) :]
        at.left -= 1
        frame = _FRAME.search(body)
        if frame is not None:
            at.last = frame["file"], frame["line"]
            if not _LIBRARIES.search(frame["file"]):
                at.own = at.last
            return None
        raised = _RAISED.match(body.rstrip()) if at.last is not None else None
        if raised is not None or at.left <= 0:
            del self._open[mark]
        if raised is None or at.last is None:
            return None
        file, row = at.own or at.last
        kind = raised["type"].decode("ascii", "replace")
        return Raised(number, body, kind, file.decode("utf-8", "replace"), row.decode())

    def _mark(self, line: bytes) -> bytes | None:
        """The open traceback that a line goes on: all its lines begin alike, or only the first has a logger's mark."""
        marks = [mark for mark in self._open if line.startswith(mark)]
        if marks:
            return max(marks, key=len)
        first = next(reversed(self._open), None)
        if first is None or not line.startswith(b"  ") or self._open[first].last is not None:
            return None
        self._open[b""] = self._open.pop(first)
        return b""
