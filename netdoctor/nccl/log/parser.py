"""The parser of NCCL's output: bytes in, `LogFacts` out.  One for log files and for the ranks that preflight runs.

Bytes stream through; what is kept grows with ranks and pairs of ranks.  Most lines of a training log are not NCCL's, so a
chunk in which NCCL is rare is searched for a few words instead of being read line by line, and what two lines of one shape
(equal apart from digits) have in common is worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from netdoctor.nccl.log import benign, documents, forms, levels, messages, prefix, runs, whose
from netdoctor.nccl.log.accumulator import Accumulator
from netdoctor.nccl.log.events import EventCollector, Shape, Writer
from netdoctor.nccl.log.facts import Level, LogFacts
from netdoctor.nccl.log.last_words import LastWords
from netdoctor.nccl.log.merge import earlier, merge
from netdoctor.nccl.log.needles import DECIMAL, LOWER, NEEDLE
from netdoctor.nccl.log.own import OwnReports
from netdoctor.nccl.log.pattern import Pattern
from netdoctor.nccl.log.patterns import ASIDE, NOT_RAISED, matching
from netdoctor.nccl.log.plain import BARE, NOT_PLAIN, plain, tell_facts
from netdoctor.nccl.log.sieve import Sieve
from netdoctor.nccl.log.tracebacks import Raised, Tracebacks

__all__ = ["LogFacts", "Parser", "parse_bytes", "parse_text"]

_SLICE: Final = 1 << 20
_LONG: Final = 4096  # bytes of a message that is not worth a look-up
_CACHE: Final = 16384  # entries of a cache before it is thrown away
_MARK: Final = 100  # bytes in which a launcher's mark of a line stands
_THOROUGH: Final = 1 << 18  # bytes at the end of a file of which every line is read; a quarter of it at the begin
_DIGITS: Final = b"0123456789abcdef"

# What an exception that Python ignored still tells: of a GPU, not of the way a process left.
_TELLS: Final = frozenset({"cuda", "oom", "generic"})
# After which a run may be another.
_ENDS: Final = frozenset({"finished", "died", "elastic", "ended"})
# A warning of NCCL's that no row knows.
_WARNING: Final = Pattern("warning", (), r"(?s)(?P<said>.{1,200})", ("said",))


class Parser:
    """Feed it bytes, ask it for the facts.  Several files of one job: call `file` before each."""

    def __init__(self, name: str = "-") -> None:
        self.accumulator = Accumulator(files=[name])
        self._last_words = LastWords()
        self._events = EventCollector(self.accumulator, self._last_words)
        self._own = OwnReports()
        self._tracebacks = Tracebacks()
        self._runs = runs.Runs()
        self._begin = b""  # of the file, as much as tells whether it is a log
        self._held = b""  # lines that may be the file's last: these are all read
        self._sieve = Sieve()
        self._line = 0
        self._tail = b""
        self._overlong = False  # inside a line of which MAX_LINE bytes are kept already
        self._shapes: dict[bytes, Shape] = {}
        self._heads: dict[bytes, Writer] = {}
        self._anonymous = -1

    def file(self, name: str) -> None:
        """The bytes that follow are of another file."""
        self._flush()
        accumulator = self.accumulator
        if accumulator.lines == 0 and self._line == 0 and accumulator.bytes_read == 0 and len(accumulator.files) == 1:
            accumulator.files[0] = name
        else:
            accumulator.files.append(name)
        self._line, self._anonymous, self._begin = 0, -1, b""
        self._runs = runs.Runs()
        self._heads.clear()

    def feed(self, data: bytes) -> None:
        """Take the next bytes; they may end anywhere."""
        self.accumulator.bytes_read += len(data)
        for begin in range(0, len(data), _SLICE):
            self._feed(data[begin : begin + _SLICE] if len(data) > _SLICE else data)

    def facts(self) -> LogFacts:
        """What is known so far; more may be fed after it."""
        self._flush()
        return merge(self.accumulator)

    def _feed(self, data: bytes) -> None:
        if self._overlong:
            end = data.find(b"\n")
            if end < 0:
                return
            self._overlong, data = False, self._tail + data[end:]
        elif self._tail:
            data = self._tail + data
        self._tail = b""
        end = data.rfind(b"\n")
        rest = data[end + 1 :]
        if end >= 0:
            self._hold(self._own.without(data[:end]))
        self._tail = self._long(rest) if len(rest) > prefix.MAX_LINE else rest

    def _long(self, rest: bytes) -> bytes:
        """Of a line that has no end yet: what may still matter.  A progress bar's line never ends; its parts do."""
        cut = rest.rfind(b"\r")
        if cut >= 0:
            self._release()
            self._read(forms.unwrapped([(self._line + 1, rest[:cut])]), every=True)
            rest = rest[cut + 1 :]
        if len(rest) > prefix.MAX_LINE:
            rest, self._overlong = rest[: prefix.MAX_LINE], True
        return rest

    def _hold(self, whole: bytes) -> None:
        """Whole lines: those at the end are kept back until it is known whether they are the last."""
        if len(self._begin) < documents.SAMPLE:
            self._begin += whole[: documents.SAMPLE] + b"\n"
        data = self._held + b"\n" + whole if self._held else whole
        cut = data.rfind(b"\n", 0, len(data) - _THOROUGH) if len(data) > _THOROUGH else -1
        self._held = data[cut + 1 :]
        if cut < 0:
            return
        data = data[:cut]
        if self._line == 0 and (begin := data.find(b"\n", _THOROUGH // 4)) >= 0:
            self._chunk(data[:begin], every=True)
            data = data[begin + 1 :]
        self._chunk(data, every=self._line == 0)

    def _release(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._chunk(held, every=True)

    def _document(self) -> bool:
        """Whether the file is none of a job's, by both of its ends; what it says is forgotten then."""
        if not (documents.document(self._begin) and documents.document((self._held + b"\n" + self._tail)[-documents.SAMPLE :])):
            return False
        lines = self._held.count(b"\n") + bool(self._held) + bool(self._tail)
        self._line += lines
        self.accumulator.lines += lines
        self._held, self._tail, self._overlong = b"", b"", False
        self._tracebacks.close()
        self._last_words.close(silent=True)
        self.accumulator.document()
        return True

    def _flush(self) -> None:
        if self._document():
            return
        self._release()
        if self._tail or self._overlong:
            tail, self._tail, self._overlong = self._tail, b"", False
            self.accumulator.unended.add(len(self.accumulator.files) - 1)
            self._chunk(tail, every=True)
        self._conclude()

    def _conclude(self, *, amid: bool = False) -> None:
        """The lines that come are another file's, or another run's; `amid` tracebacks of that run."""
        self._events.close()
        for cut in () if amid else self._tracebacks.close():
            self._raised(cut, cut.text)
        self.accumulator.counted = self._last_words.counted
        self.accumulator.silence = max(self.accumulator.silence, self._last_words.silence)
        if (end := self._last_words.end) is not None:
            self._events.closed(end[1], self._anyone(end[1]), end[0])
            self._last_words.ended(end[0])
        for number, line in self._last_words.close(not self.accumulator.nccl_lines).items():
            self._events.last_word(line, self._anyone(line), number)

    def _chunk(self, chunk: bytes, every: bool) -> None:
        """Whole lines.  The accumulator's line count is that of all files, `_line` the number of the line before the chunk."""
        lines = chunk.count(b"\n") + 1
        dense = chunk.count(b"NCCL ") * 8 >= lines
        numbered: Iterable[tuple[int, bytes]]
        numbered = enumerate(chunk.split(b"\n"), self._line + 1) if every or dense else self._telling(chunk)
        self._read(forms.unwrapped(numbered) if forms.wrapped(chunk) else numbered, every or not dense)
        self._line += lines
        self.accumulator.lines += lines

    def _telling(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        self._sieve.opening = self._runs.opening
        return self._sieve.lines(chunk, self._line + 1, lambda: bool(self._events.following or self._tracebacks.reading))

    def _read(self, numbered: Iterable[tuple[int, bytes]], every: bool) -> None:
        """Every line is read the slow way until its head and its shape are known; most lines of NCCL's then are a look-up.

        A known head holds no tag of NCCL's, so a look-up takes no line whose first record is another than the INFO one.  What a
        look-up finds is handled here and not in `_message`: a call a line costs 5 to 8 % of the speed (bench/log.py).
        """
        heads, shapes, accumulator, events, looked_up = self._heads, self._shapes, self.accumulator, self._events, 0
        for number, line in numbered:
            head, _, msg = line.partition(b"NCCL INFO ")
            writer = heads.get(head)
            shape = shapes.get(msg.translate(None, _DIGITS)) if writer is not None and len(msg) < _LONG else None
            if writer is None or shape is None or shape.glued:
                if b"NCCL " in line:
                    self._record(line, number)
                elif (
                    every
                    or events.following
                    or self._tracebacks.reading
                    or NEEDLE.search(line[: prefix.MAX_LINE].translate(LOWER, DECIMAL))
                ):
                    self._other(line, number)
                continue
            looked_up += 1
            events.following = 0
            if shape.handler is not None:
                accumulator.at = number
                shape.handler(accumulator, writer.process, writer.head.dev, msg)
            if shape.patterns:
                events.collect(shape, msg, writer, number, Level.INFO)
        if looked_up:
            accumulator.nccl_lines += looked_up
            accumulator.levels.add(Level.INFO)

    def _record(self, line: bytes, number: int) -> None:
        """A line with NCCL's tag in it."""
        record = prefix.split_level(line[: prefix.MAX_LINE])
        if record is None:
            self._other(line, number)
            return
        head, level, msg = record
        msg = msg.rstrip(b"\r")
        writer = self._heads.get(head)
        if writer is None and prefix.mentioned(head):
            self._last_words.saw(line, number)
            return
        writer = writer or self._writer(head)
        self.accumulator.nccl_lines += 1
        self._events.following = 0
        glued = prefix.GLUED.search(msg) if b" NCCL " in msg else None
        cut = len(msg) if glued is None else self._glued(msg, glued.start())
        self._message(msg[:cut], level, writer, number)
        if glued:
            self._record(msg[cut:], number)

    def _glued(self, msg: bytes, start: int) -> int:
        """Where a second record begins whose host's name follows on the last word of the first: at a name that is known."""
        end = msg.index(b":", start)
        names = (n for n in range(start, end) if msg[n:end].decode("ascii", "replace") in self.accumulator.hosts)
        return next(names, start)

    def _writer(self, raw: bytes) -> Writer:
        head = prefix.head(raw)
        messages.library(self.accumulator, raw)
        index = self.accumulator.process(head.host, head.pid) if head.host or head.pid >= 0 else self._unnamed()
        process = self.accumulator.processes[index]
        if head.rank >= 0:
            process.rank_hint = head.rank
        if head.dev >= 0:
            process.devs.add(head.dev)
        if len(self._heads) >= _CACHE:
            self._heads.clear()
        writer = self._heads[raw] = Writer(index, process, head)
        return writer

    def _unnamed(self) -> int:
        """The process of lines without a prefix: one a file."""
        if self._anonymous < 0:
            self._anonymous = self.accumulator.process("", -1 - len(self.accumulator.files))
        return self._anonymous

    def _anyone(self, line: bytes) -> Writer:
        """The writer of a line without a prefix."""
        index = self._unnamed()
        return Writer(index, self.accumulator.processes[index], prefix.bare(line))

    def _shape(self, msg: bytes, tagged: bool, warns: bool = False) -> Shape:
        key = msg.translate(None, _DIGITS) if not warns else b"\1" + msg.translate(None, _DIGITS)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _CACHE:
                self._shapes.clear()
            handler = messages.handler(msg) if tagged else None
            messages.library(self.accumulator, msg)
            glued = b" NCCL " in msg and prefix.GLUED.search(msg) is not None
            patterns = matching(msg.removeprefix(b"\0"))
            if warns and not patterns and not benign.benign(msg):
                patterns = (_WARNING,)
            shape = self._shapes[key] = Shape(handler, patterns, glued, plain(msg[1:]) if msg[:1] == b"\0" else NOT_PLAIN)
        return shape

    def _message(self, msg: bytes, level: Level, writer: Writer, number: int) -> None:
        accumulator = self.accumulator
        accumulator.levels.add(level)
        accumulator.at = number
        shape = self._shape(msg, tagged=True, warns=level is Level.WARN)
        if shape.handler is not None:
            shape.handler(accumulator, writer.process, writer.head.dev, msg)
        if shape.ends:
            self._last_words.ended(number)
        if shape.patterns:
            self._events.collect(shape, msg, writer, number, level)
        if level is Level.DIAG and len(accumulator.diagnostics) < 512:
            accumulator.diagnostics[msg.decode("utf-8", "replace")[:300]] = None

    def _other(self, line: bytes, number: int) -> None:
        """A line without NCCL's tag: another program's, or NCCL's with the prefix cut off."""
        line = line[: prefix.MAX_LINE]
        if self._events.following:
            self._events.more(line)
        if line.isspace() or not line:
            return
        raised = None
        if self._tracebacks.concerns(line):
            raised = self._tracebacks.feed(line, number, self._last_words.above(number))
        if raised is not None:
            if raised.handled:
                self._events.handled(raised, self._anyone(line))
            if (raised.ignored or levels.caught(line)) and not any(p.kind in _TELLS for p in matching(raised.text)):
                return
            self._raised(raised, line)
        elif self._tracebacks.quoting:
            self._last_words.saw(line, number)
            return
        if (old := prefix.split_level(line)) is not None:
            writer = self._heads.get(old[0]) or self._writer(old[0])
            self.accumulator.library = self.accumulator.library or ("Neuron" if b"CCOM WARN" in line else "")
            self._message(old[2].rstrip(b"\r"), old[1], writer, number)
            return
        self._plain(line.rstrip(b"\r"), number)

    def _plain(self, line: bytes, number: int) -> None:
        accumulator = self.accumulator
        shape = self._shape(b"\0" + line, tagged=False)
        work, of_others, may_be_bare, facts, figure = shape.plain
        if (facts or self._runs.over or self._runs.opens(line)) and (begin := self._runs.feed(line, number)) > 0:
            self._next_run(begin)
            shape = self._shape(b"\0" + line, tagged=False)  # what the old one holds is of the run before
        self._last_words.saw(line, number)
        if work:
            counted = self._last_words.work(line, number)
            if counted >= 0:
                accumulator.worked(whose.rank(line[:_MARK]), number, counted, self._last_words.whose, figure=figure)
        if (facts and tell_facts(accumulator, line)) or (of_others and not any(p.kind == "service" for p in shape.patterns)):
            return
        bare = BARE.search(line) if may_be_bare else None
        if shape.patterns and benign.says_nothing(line):
            return
        if shape.ends and self._last_words.doubtful(line):
            self._last_words.doubted(line, number)
            return
        if shape.ends:
            self._last_words.ended(number)
            accumulator.left |= whose.spoken_of(line)
        if not shape.patterns and not bare:
            if not (self._last_words.feed(line, number) or self._events.following or line[:1].isspace()):
                accumulator.spoke()
            return
        writer = self._anyone(line)
        handler = messages.handler(line[bare.start() :]) if bare else None
        if bare and handler:
            accumulator.nccl_lines += 1
            handler(accumulator, writer.process, -1, line[bare.start() :])
        if shape.patterns:
            self._runs.fell |= any(p.kind in _ENDS for p in shape.patterns)
            self._events.collect(shape, line, writer, number, None)

    def _next_run(self, begin: int, *, amid: bool = False) -> None:
        """Another job's output follows, of which `begin` is the first line: what came before is not asked for."""
        silence = self.accumulator.silence
        self._conclude(amid=amid)
        self.accumulator.earlier.append(earlier(self.accumulator, begin))
        self.accumulator.next_run(begin)
        self.accumulator.silence = silence
        self._shapes.clear()  # they hold events

    def _raised(self, raised: Raised, line: bytes) -> None:
        """An exception is news where no other family knows what it says."""
        if (begin := self._runs.raised(raised)) > 0:
            self._next_run(begin, amid=True)
        self._runs.fell = True
        kinds = {p.kind for p in matching(raised.text)} - ASIDE
        if "ended" in kinds:
            self._events.interrupted(raised)
        if not kinds & NOT_RAISED and not (raised.printed and benign.of_others(raised.text)):
            self._events.raised(raised, self._anyone(line), bool(kinds), line)


def parse_bytes(data: bytes) -> LogFacts:
    """The facts of one log that is in memory."""
    parser = Parser("-")
    parser.feed(data)
    return parser.facts()


def parse_text(text: str) -> LogFacts:
    """The same for text, such as the output of ranks that netdoctor ran itself."""
    return parse_bytes(text.encode("utf-8", "surrogateescape"))
