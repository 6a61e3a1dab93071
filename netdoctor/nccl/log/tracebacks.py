"""Python's tracebacks, which are many lines: the exception that ended one, and the program's own line that raised it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_START: Final = b"Traceback (most recent call last):"
# Python's own words before the traceback of what nobody can catch, after which it goes on: Python/errors.c, Lib/atexit.
_NOT_RAISED: Final = re.compile(rb"Exception ignored (?:in|on|while)|Error in atexit\._run_exitfuncs")
# A server's words before the traceback of what a request ended in; it goes on.  uvicorn (protocols/http), aiohttp
# (web_protocol.py), Flask (app.py), Tornado (web.py), gRPC (_server.py), Django (log_response), vLLM (entrypoints/openai).
_HANDLED: Final = re.compile(
    rb"Exception in ASGI application|Error handling request\b|Exception on /\S{0,200} \[[A-Z]+\]"
    rb"|Uncaught exception [A-Z]{3,7} /|Exception calling application: "
    rb"|Internal Server Error: /|Error in preprocessing prompt inputs"
)
_WORDS_OF_HANDLED: Final = (b"xception", b"Error handling", b"Internal Server Error: /", b"Error in preproc")
# Between the tracebacks of exceptions that led to each other: Lib/traceback.py.
_CHAIN: Final = re.compile(rb"(?:During handling of the above exception|The above exception was the direct cause)")
_FRAME: Final = re.compile(rb'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})')
# A frame of a traceback whose head is not in the log, or of a SyntaxError, which has none; and the names that end one: a stack
# may be printed without an exception.
_HEADLESS: Final = re.compile(rb'^(?P<mark>.{0,200}?) {2}File "[^"]{1,400}", line \d{1,9}(?:, in \S|\r?$)')
_NAMED: Final = ("Error", "Exception")
# Names that an exception has where others' lines stand between it and its traceback: "GPU: NVIDIA H100" is none.
_COMMON: Final = (b"Error", b"Exception", b"Interrupt", b"Exit", b"Iteration", b"Expired", b"Timeout")
# Of a class, by the custom of its name; C's own begin small (socket.gaierror), and Ray puts the cause behind its own.
_RAISED: Final = re.compile(
    rb"(?P<type>(?:\w{1,60}\.){0,10}[A-Z]\w{1,80}|(?:\w{1,60}\.){1,10}\w{0,40}(?:error|timeout))"
    rb"(?P<of>\(\w{1,80}\))?(?:: ?.*)?$"
)
# Two processes write one file at once: each piece of the line stands there twice.
_TWICE: Final = re.compile(rb"(?P<type>(?:\w{1,60}\.){0,10}[A-Z]\w{1,80}?)(?P=type): : (?P<said>.{1,300}?)(?P=said)$")
# What differs from line to line in the mark that a launcher begins each line of a process with.
_TIMES: Final = re.compile(rb"\[?(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]{0,10}(?:Z|[+-]\d\d:?\d\d)?\]? ?")
# The mark of a launcher at the end of what stands before a traceback: a progress bar before it is of its first line only.
_MARK: Final = re.compile(rb"(?:\[(?:rank|default)\d+\]: ?|\(\w+ pid=[^)]*\) ?)+\Z")
_LAUNCHER: Final = re.compile(rb"(?:\[(?:rank|default)\d+\]: ?|\(\w+ pid=[^)]*\) ?| {0,8}\d{1,7}: )*")
# Lines that an editor or a forum has numbered: "12 ", "  12 | ", "12:" (srun's "3: " is a rank's).
_NUMBER: Final = re.compile(rb"( *)(\d{1,6})( *\| ?|\t| +|:)")
_LONGEST: Final = 400  # lines of one traceback
_CUT: Final = 2  # lines between two frames: the program's text, and Python 3.11's marks below it
_INDENTED: Final = b"  "  # a frame, and below it what it quotes of the program (Lib/traceback.py)
_QUOTED: Final = b"    "
_STATEMENT: Final = re.compile(rb"(?:raise|return|yield|await|with|for|if|assert)\b|[\w.\[\]]{1,80}(?: ?[:+*/|-]?= ?\S|\()")
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
    ignored: bool  # by Python, which goes on


class _Open:
    __slots__ = ("flat", "headless", "ignored", "last", "left", "number", "own", "quotes", "said", "since")

    def __init__(self, ignored: bool, headless: bool = False) -> None:
        self.headless = headless
        self.ignored = ignored
        self.left = _LONGEST
        self.own: tuple[bytes, bytes] | None = None
        self.last: tuple[bytes, bytes] | None = None
        self.flat = False  # the last frame is not indented
        self.quotes = False  # since the last frame there was nothing but what it quotes
        self.since = 0  # lines after the last frame
        self.said = b""  # the first of them: the program's own text
        self.number = 0  # of the line of the last frame


class Tracebacks:
    """Feed it lines; it says when a traceback has ended."""

    def __init__(self) -> None:
        self.quoting = False  # the line that was fed last is a frame, or the program's own text below one: nobody says it
        self._open: dict[bytes, _Open] = {}
        self._ignored: set[bytes] = set()  # marks of those whose next traceback is of what Python ignored, or a server handled
        self._last_ignored: bytes | None = None  # the mark of the last that has ended, where it was such

    @property
    def reading(self) -> bool:
        return bool(self._open or self._ignored)

    def close(self) -> list[Raised]:
        """Those in which the log ends, and that came as far as the program's own line: what was raised is not in it."""
        cut = [
            Raised(at.number, at.said, "", at.own[0].decode("utf-8", "replace"), at.own[1].decode(), ignored=False)
            for at in self._open.values()
            if at.own is not None and at.since <= _CUT and not (at.headless or at.ignored)
        ]
        self._open.clear()
        self._ignored.clear()
        self.quoting = False
        return cut

    def concerns(self, line: bytes) -> bool:
        """Whether `feed` could say anything about a line: most lines of a log begin no traceback and belong to none."""
        known = self.reading or _START in line or b"ignored" in line or b"atexit" in line or b'  File "' in line
        return known or any(word in line for word in _WORDS_OF_HANDLED)

    def feed(self, line: bytes, number: int) -> Raised | None:
        line = _TIMES.sub(b"", line, count=1)
        self.quoting = False
        start = line.find(_START)
        if start >= 0:
            if len(self._open) < _OPEN:
                self._open[line[:start]] = _Open(line[:start] in self._ignored)
                self.quoting = line[:start] in self._ignored
            self._ignored.discard(line[:start])
            return None
        if (before := _NOT_RAISED.search(line)) is not None:
            if len(self._ignored) < _OPEN:
                self._ignored.add(line[: before.start()])
            return None
        if self._of_a_request(line):
            self.quoting = True
            return None
        if self._ignored and (alone := next((m for m in self._ignored if line.startswith(m)), None)) is not None:
            self._ignored.discard(alone)  # without a traceback: of a stream that could not be flushed
            if (raised := _RAISED.match(body := line[len(alone) :].rstrip())) is not None:
                return Raised(number, body, raised["type"].decode("ascii", "replace"), "", "", ignored=True)
        mark = self._mark(line)
        return None if mark is None else self._goes_on(mark, line, number)

    def _goes_on(self, mark: bytes, line: bytes, number: int) -> Raised | None:
        at, body = self._open[mark], line[len(mark) :]
        at.left -= 1
        frame = _FRAME.search(body)
        if frame is not None:
            at.last = frame["file"], frame["line"]
            at.since, at.said, at.number = 0, b"", number
            at.flat, at.quotes, self.quoting = not body.startswith(_INDENTED), True, True
            if not _LIBRARIES.search(frame["file"]):
                at.own = at.last
            return None
        at.since += 1
        apart = at.since > 1 and not at.quotes  # what stands before it is neither a frame nor what it quotes
        at.quotes = self.quoting = at.quotes and self._quoted(at, body)
        if at.since == 1:
            at.said = body.strip()
        if at.last is not None and (twice := _TWICE.match(body.rstrip())) is not None:
            body = twice["type"] + b": " + twice["said"]
        raised = _RAISED.match(body.rstrip()) if at.last is not None else None
        if raised is not None and apart and not raised["type"].endswith(_COMMON):
            raised = None
        if raised is not None or at.left <= 0:
            del self._open[mark]
            self.quoting = False
            self._last_ignored = mark if at.ignored else None
        if raised is None or at.last is None:
            return None
        file, row = at.own or at.last
        kind = (raised["type"] + (raised["of"] or b"")).decode("ascii", "replace")
        if at.headless and not raised["type"].decode("ascii", "replace").endswith(_NAMED):
            return None
        if b":" not in body and at.said:  # a bare name, as of an assert: what it says is the program's own line
            body = body.rstrip() + b": " + at.said
        return Raised(number, body, kind, file.decode("utf-8", "replace"), row.decode(), at.ignored)

    def _of_a_request(self, line: bytes) -> bool:
        """Whether a line says that a server handled what the next traceback is of, or stands before or between such."""
        if (handled := _HANDLED.search(line)) is not None and len(self._ignored) < _OPEN:
            whole = line[: handled.start()]
            launched = _LAUNCHER.match(whole)
            self._ignored |= {whole, launched[0] if launched else b""}
            return True
        last = self._last_ignored
        if last is not None and line.startswith(last) and _CHAIN.match(line[len(last) :]):
            self._ignored.add(last)
            return True
        return any(line.rstrip() == one.rstrip() for one in self._ignored)

    @staticmethod
    def _quoted(at: _Open, body: bytes) -> bool:
        """Whether a line below a frame, and others of its kind, is the program's own; where a page took the indents away, a
        single one that reads like a statement."""
        if at.flat:
            return at.since == 1 and _STATEMENT.match(body) is not None and _RAISED.match(body.rstrip()) is None
        return body.startswith(_QUOTED)

    def _mark(self, line: bytes) -> bytes | None:
        """The open traceback that a line goes on: all its lines begin alike, or only the first has a logger's mark."""
        marks = [mark for mark in self._open if line.startswith(mark)]
        if marks:
            return max(marks, key=len)
        for mark in self._open:
            if (following := _following(mark)) is not None and line.startswith(following):
                self._open[following] = self._open.pop(mark)
                return following
        for mark in reversed(self._open):
            own = _MARK.search(mark)
            rest = own[0] if own else b""
            if self._open[mark].last is None and line.startswith(rest + b"  "):
                self._open[rest] = self._open.pop(mark)
                return rest
        begin = _HEADLESS.match(line)
        if begin is None or len(self._open) >= _OPEN:
            return None
        self._open[begin["mark"]] = _Open(ignored=False, headless=True)
        return begin["mark"]


def _following(mark: bytes) -> bytes | None:
    """The mark of the next line where a mark is the number of its line."""
    number = _NUMBER.fullmatch(mark)
    if number is None:
        return None
    following = b"%d" % (int(number[2]) + 1)
    return following.rjust(len(number[1]) + len(number[2])) + number[3]
