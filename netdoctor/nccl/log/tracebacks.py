"""Python's tracebacks, which are many lines: the exception that ended one, and the program's own line that raised it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.nccl.log import records

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
_FRAME: Final = re.compile(rb'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})(?:, in (?P<name>\S{1,100}))?')
# Where a traceback begins that reaches the bottom of its thread: nobody caught it.  A caught one begins where it was caught.
_BOTTOM: Final = frozenset((b"<module>", b"_run_module_as_main"))
# The bottoms of other threads and processes: threading.py, multiprocessing (process.py, spawn.py), concurrent/futures,
# torch/multiprocessing/spawn.py; and of Ray's tasks (_raylet.pyx).
_BOTTOM_OF_OTHERS: Final = frozenset(
    (b"_bootstrap", b"_bootstrap_inner", b"spawn_main", b"_process_worker", b"_wrap", b"_run_module_code")
)
_RAYS: Final = b"_raylet.pyx"
# Hydra cuts the bottom off (run_and_report), and ends with it.
_CUT_OFF: Final = b"Error executing job with overrides"
# Of a process that tells its name: the same exception at one line of it a third time shows that it outlived the first two.
_PROCESS: Final = re.compile(rb"pid[= ]\d|\[(?:rank|default)\d+\]:")
# A frame of a traceback whose head is not in the log, or of a SyntaxError, which has none; and the names that end one: a stack
# may be printed without an exception.
_HEADLESS: Final = re.compile(rb'^(?P<mark>.{0,200}?) {2}File "[^"]{1,400}", line \d{1,9}(?:, in \S|\r?$)')
_NAMED: Final = ("Error", "Exception")
# Names that an exception has where others' lines stand between it and its traceback: "GPU: NVIDIA H100" is none.
_COMMON: Final = (b"Error", b"Exception", b"Interrupt", b"Exit", b"Iteration", b"Expired", b"Timeout")
# Of a class, by the custom of its name; C modules' begin small (socket.gaierror), and Ray puts the cause behind its own.
_RAISED: Final = re.compile(
    rb"(?P<type>(?:\w{1,60}\.){0,10}[A-Z]\w{1,80}"
    rb"|(?:\w{1,60}\.){1,10}\w{0,40}(?:[Ee]rror|[Tt]imeout|Exception))"
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
_TEXT: Final = b"<string>"  # what Python calls a text that is executed
_ORIGINAL: Final = b"Original "  # torch/_utils.py, ExceptionWrapper: of a DataLoader's worker, or of one of several replicas
_PLACES: Final = 4096
_LOGGED: Final = re.compile(rb"\b(?:ERROR|WARN(?:ING)?|INFO|CRITICAL)\b")  # in what stands before a traceback
_OPEN: Final = 256  # tracebacks that are read at once: ranks print theirs interleaved
# Files of others: the last frame outside of them is the program's.
_LIBRARIES: Final = re.compile(
    rb"site-packages|dist-packages|/lib(?:64)?/python\d|^<(?!stdin|ipython)|/runpy\.py|\.(?:pyx|pxi|cu|cuh|c|cc|cpp|h|hpp|rs)$"
    rb"|/bin/[\w\-]+$|/torchinductor_|\.triton/cache"
)
_LINGERS: Final = 12  # lines behind an exception in which Python says that another one came of it, or one quotes another's


class Raised(NamedTuple):
    """The end of a traceback."""

    number: int  # of the line that names the exception
    text: bytes
    type: str
    file: str
    line: str
    ignored: bool  # by Python, or by a server that answers the next request
    handled: bool = False  # by that server
    told: str = ""  # the program's own line that raised it
    within: str = ""  # the line of a text that the program executes there
    library: bool = False  # every frame is of others' files
    deep: str = ""  # the frame of others' in which it was raised, below the program's own
    printed: bool = False  # not from the bottom of a thread: somebody caught it and printed it
    program: str = ""  # the script of which it reached the bottom, where it did
    caught: bool = False  # it did not, and a logger's head stands before it
    times: int = 1  # that this process raised it at that line
    cause: int = 0  # the line of the exception that it came of
    quoted: int = 0  # the line of the exception whose message quotes it
    below: bool = False  # a logger's record stands right above it
    began: int = 0  # the line of its last frame
    instead: bool = False  # a handler raised it, by a statement of its own, in place of the exception that it came of


class _Open:
    __slots__ = (
        *(
            "bottom",
            "caught",
            "cause",
            "flat",
            "frames",
            "handled",
            "handler",
            "headless",
            "ignored",
            "last",
            "left",
            "logged",
            "module",
            "number",
            "own",
            "program",
        ),
        *("quoted", "quotes", "record", "said", "since", "told", "within"),
    )

    def __init__(self, ignored: bool, headless: bool = False) -> None:
        self.handled = False
        self.logged = False  # behind a logger's head
        self.record = b""  # what a logger's record right above it says
        self.bottom = headless  # began where nobody is left to catch it, as far as can be told
        self.caught = False  # begins where somebody caught it
        self.module = False  # began at the bottom
        self.program = b""
        self.told = b""  # the program's text below the last frame of its own
        self.cause = self.quoted = 0
        self.frames = set[tuple[bytes, bytes]]()  # functions, by their files
        self.handler = set[tuple[bytes, bytes]]()  # those of the exception while which was handled this one was raised
        self.within = False  # the last frame is one of them
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
        self._served: set[bytes] = set()  # of those: a server's
        self._last_served = False  # the last that has ended was such
        self._ended: dict[bytes, int] = {}  # mark -> the line of the exception that has just ended there
        self._colon = 0  # the same, where the message goes on below
        self._came_of: dict[bytes, int] = {}  # mark -> the exception that the next one there came of
        self._lingers = 0
        self._frames = set[tuple[bytes, bytes]]()  # of the one that has just ended
        self._handling = set[tuple[bytes, bytes]]()
        self._times: dict[tuple[bytes, bytes, bytes], int] = {}
        self._cut_off = False

    @property
    def reading(self) -> bool:
        return bool(self._open or self._ignored or self._lingers)

    def close(self) -> list[Raised]:
        """Those in which the log ends, and that came as far as the program's own line: what was raised is not in it."""
        cut = [
            Raised(at.number, at.said, "", at.own[0].decode("utf-8", "replace"), at.own[1].decode(), ignored=False)
            for mark, at in self._open.items()
            if at.own is not None and at.since <= _CUT and not (at.headless or at.ignored or self._outlived(mark, at))
        ]
        self._open.clear()
        self._ignored.clear()
        self.quoting = False
        return cut

    def _outlived(self, mark: bytes, at: _Open) -> bool:
        """Whether that process caught others before."""
        return at.caught and any(told == mark for told, _, _ in self._times)

    def concerns(self, line: bytes) -> bool:
        """Whether `feed` could say anything about a line: most lines of a log begin no traceback and belong to none."""
        known = self.reading or _START in line or b"ignored" in line or b"atexit" in line or b'  File "' in line
        known = known or _CUT_OFF in line
        return known or any(word in line for word in _WORDS_OF_HANDLED)

    def feed(self, line: bytes, number: int, above: bytes = b"") -> Raised | None:
        """`above`: the line right before it, where that was read."""
        line = _TIMES.sub(b"", line, count=1)
        self.quoting = False
        start = line.find(_START)
        if start >= 0:
            self._begin(line[:start], above)
            return None
        self._cut_off |= _CUT_OFF in line
        if self._lingers and (chain := _CHAIN.search(line)) is not None:
            shared = line[: chain.start()]
            self._came_of[shared] = self._ended.get(shared, 0)
            self._handling = self._frames if chain[0].startswith(b"During") else set()
        if self._lingers:
            self._linger(line)
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

    def _begin(self, mark: bytes, above: bytes) -> None:
        if mark.endswith(_ORIGINAL):
            mark = mark.removesuffix(_ORIGINAL)
            self._colon = self._ended.get(mark, 0)
        if len(self._open) < _OPEN:
            at = self._open[mark] = _Open(mark in self._ignored)
            at.handled = at.ignored and mark in self._served
            at.bottom, self._cut_off = self._cut_off, False
            at.logged = _LOGGED.search(mark) is not None
            at.record = records.record(above[len(mark) :] if above.startswith(mark) else b"")
            at.cause, at.quoted = self._came_of.pop(mark, 0), self._colon
            at.handler = self._handling if at.cause else set()
            self.quoting = at.ignored
        self._ignored.discard(mark)
        self._served.discard(mark)
        self._colon = 0

    def _linger(self, line: bytes) -> None:
        """Blank lines stand between an exception and what it came to, or quotes; any other line shows that nothing comes."""
        self._lingers -= 1
        if not any(line.rstrip() == mark.rstrip() for mark in self._ended):
            self._colon = 0
        if not self._lingers:
            self._ended.clear()
            self._came_of.clear()
            self._colon = 0

    def _goes_on(self, mark: bytes, line: bytes, number: int) -> Raised | None:
        at, body = self._open[mark], line[len(mark) :]
        at.left -= 1
        frame = _FRAME.search(body)
        if frame is not None:
            first, at.last = at.last is None, (frame["file"], frame["line"])
            at.since, at.said, at.number = 0, b"", number
            at.flat, at.quotes, self.quoting = not body.startswith(_INDENTED), True, True
            self._whose(at, frame, first)
            at.frames.add((frame["file"], frame["name"]))
            at.within = (frame["file"], frame["name"]) in at.handler
            return None
        at.since += 1
        apart = at.since > 1 and not at.quotes  # what stands before it is neither a frame nor what it quotes
        at.quotes = self.quoting = at.quotes and self._quoted(at, body)
        if at.since == 1 and at.quotes:
            at.said = body.strip()
            at.told = at.said if at.own == at.last else at.told
        if at.last is not None and (twice := _TWICE.match(body.rstrip())) is not None:
            body = twice["type"] + b": " + twice["said"]
        raised = _RAISED.match(body.rstrip()) if at.last is not None else None
        if raised is not None and apart and not raised["type"].endswith(_COMMON):
            raised = None
        if raised is not None and (raised["type"] == b"Error" or raised["type"].isupper()):
            raised = None  # a program's own words, or a logger's: no class has that name
        if raised is not None or at.left <= 0:
            del self._open[mark]
            self.quoting = False
            self._last_ignored, self._last_served = (mark if at.ignored else None), at.handled
        if raised is None or at.last is None:
            return None
        self._ended[mark], self._lingers, self._frames = number, _LINGERS, at.frames
        self._colon = number if body.rstrip().endswith(b":") else 0
        file, row = at.own or at.last
        kind = (raised["type"] + (raised["of"] or b"")).decode("ascii", "replace")
        if at.headless and not raised["type"].decode("ascii", "replace").endswith(_NAMED):
            return None
        body = body.rstrip()
        if b":" not in body and (said := at.said or at.told):  # a bare name, as of an assert: the program's own line says it
            body += b": " + said
        if len(self._times) < _PLACES:
            self._times[mark, file, row] = self._times.get((mark, file, row), 0) + 1
        return Raised(
            number,
            body,
            kind,
            file.decode("utf-8", "replace"),
            row.decode(),
            at.ignored,
            at.handled,
            at.told.decode("utf-8", "replace")[:200],
            at.last[1].decode() if at.own and at.last[0] == _TEXT else "",
            library=at.own is None,
            deep=b":".join(at.last).decode("utf-8", "replace") if at.own not in {None, at.last} and at.last[0] != _TEXT else "",
            printed=records.speaks_of(at.record, raised["type"], body) or not at.bottom,
            program=at.program.decode("utf-8", "replace"),
            caught=at.caught and _PROCESS.search(mark) is not None,
            times=self._times.get((mark, file, row), 1),
            cause=at.cause,
            quoted=at.quoted,
            below=bool(at.record),
            began=at.number,
            instead=at.within and at.said.startswith(b"raise "),
        )

    @staticmethod
    def _whose(at: _Open, frame: re.Match[bytes], first: bool) -> None:
        """What a frame tells of who raised an exception, and of who caught it."""
        own = not _LIBRARIES.search(frame["file"])
        if own:
            at.own, at.told = at.last, b""
        if first:
            at.module = frame["name"] in _BOTTOM
            at.bottom |= (
                at.module or frame["name"] is None or frame["name"] in _BOTTOM_OF_OTHERS or frame["file"].endswith(_RAYS)
            )
            at.caught = at.logged and not at.module and frame["name"] is not None
        if at.module and own and not at.program and frame["name"] == b"<module>":
            at.program = frame["file"]

    def _of_a_request(self, line: bytes) -> bool:
        """Whether a line says that a server handled what the next traceback is of, or stands before or between such."""
        if (handled := _HANDLED.search(line)) is not None and len(self._ignored) < _OPEN:
            whole = line[: handled.start()]
            launched = _LAUNCHER.match(whole)
            self._ignored |= {whole, launched[0] if launched else b""}
            self._served |= {whole, launched[0] if launched else b""}
            return True
        last = self._last_ignored
        if last is not None and line.startswith(last) and _CHAIN.match(line[len(last) :]):
            self._ignored.add(last)
            if self._last_served:
                self._served.add(last)
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
            own, launched = _MARK.search(mark), _LAUNCHER.match(mark)
            for rest in (own[0] if own else b"", launched[0] if launched else b""):
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
