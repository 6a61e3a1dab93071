"""The parser of NCCL's output: bytes in, `LogFacts` out.  One parser for log files and for the ranks that preflight runs.

Bytes stream through; what is kept grows with ranks and pairs of ranks.  Most lines of a training log are not NCCL's, so a
chunk in which NCCL is rare is searched for a few words instead of being read line by line, and what two lines of one shape
(equal apart from digits) have in common is worked out once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from netdoctor.nccl.log import messages, prefix
from netdoctor.nccl.log.accumulator import Accumulator
from netdoctor.nccl.log.events import EventCollector, Shape, Writer
from netdoctor.nccl.log.facts import Level, LogFacts
from netdoctor.nccl.log.merge import merge
from netdoctor.nccl.log.patterns import matching

__all__ = ["LogFacts", "Parser", "parse_bytes", "parse_text"]

_SLICE: Final = 1 << 20
_LONG: Final = 4096  # bytes of a message that is not worth a look-up
_CACHE: Final = 16384  # entries of a cache before it is thrown away
# Lines of other programs that matter hold one of these.  A search for a word costs, and a training log has few shapes of lines
# (lines without their decimal digits): where the first lines of a chunk are alike, each word is looked for once a shape.
_WORDS: Final = tuple(
    b"NCCL|nccl|rror|ailed|illed|Segmentation fault|Root Cause (first observed|out of memory|ACSCtl:|CCOM WARN|libibverbs"
    b"|via NET/|via P2P/|nvidia_peermem|locked memory|GPUs in the partition|NVRM: Xid|Using network |Avg bus bandwidth"
    b"|Out of bounds values|  Rank |NET/IB|imed out|Connection |NET : Using|GPU Direct RDMA|exited on signal|IO_PAGE_FAULT"
    b"|DMAR: ".split(b"|")
)
_ANY_WORD: Final = re.compile(b"|".join(map(re.escape, _WORDS)))
_DECIMAL: Final = b"0123456789"
_SAMPLE: Final = 1 << 16
_WORD_SHAPES: Final = tuple(word.translate(None, _DECIMAL) for word in _WORDS)
_DIGITS: Final = b"0123456789abcdef"
_TESTS_HEADER: Final = re.compile(rb"# +Rank +\d+ +(?:Group +\d+ +)?Pid +\d+ on +(\S+) device +\d+ \[\S+\] (.{1,80})")
_BUSBW: Final = re.compile(rb"Avg bus bandwidth\s*:\s*([\d.]+)")
_TORCH: Final = re.compile(rb"(?:torch|pytorch)[ _]version\s*[:=]?\s*'?(\d+\.\d+\.\d+\S{0,20})", re.IGNORECASE)
_PYNCCL: Final = re.compile(rb"using nccl==(\d+\.\d+\.\d+)")

# NCCL's messages where the prefix was cut off.
_BARE: Final = re.compile(
    rb"\b(?:NET/(?:IB|Socket|Plugin|OFI) ?: |NET/OFI |Using network |Bootstrap ?: Using |GPU Direct RDMA "
    rb"|(?:Channel|Ring) \d+(?:/\d+)? : \d+.{0,40} via )"
)


def _telling(text: bytes, words: tuple[bytes, ...]) -> set[bytes]:
    """The lines of `text` that hold a word."""
    telling = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            end = text.find(b"\n", at)
            if end < 0:
                end = len(text)
            telling.add(text[text.rfind(b"\n", 0, at) + 1 : end])
            at = text.find(word, end)
    return telling


class Parser:
    """Feed it bytes, ask it for the facts.  Several files of one job: call `file` before each."""

    def __init__(self, name: str = "-") -> None:
        self.accumulator = Accumulator(files=[name])
        self._events = EventCollector(self.accumulator)
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
        self._line, self._anonymous = 0, -1
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
        if len(rest) > prefix.MAX_LINE:
            rest, self._overlong = rest[: prefix.MAX_LINE], True
        self._tail = rest
        if end >= 0:
            self._chunk(data[:end])

    def _flush(self) -> None:
        if self._tail or self._overlong:
            tail, self._tail, self._overlong = self._tail, b"", False
            self._chunk(tail)
        self._events.close()

    def _chunk(self, chunk: bytes) -> None:
        """Whole lines.  The accumulator's line count is that of all files, `_line` the number of the line before the chunk."""
        lines = chunk.count(b"\n") + 1
        if chunk.count(b"NCCL ") * 8 >= lines:
            self._read(enumerate(chunk.split(b"\n"), self._line + 1))
        else:
            self._read(self._telling_lines(chunk))
        self._line += lines
        self.accumulator.lines += lines

    def _telling_lines(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Where NCCL's lines are few: lines with one of the words, and those that an event goes on in, with their numbers."""
        lines = chunk.split(b"\n")
        some = chunk[:_SAMPLE].translate(None, _DECIMAL).split(b"\n")
        if len(set(some)) * 2 <= len(some):
            shapes = chunk.translate(None, _DECIMAL).split(b"\n")
            telling = _telling(b"\n".join(set(shapes)), _WORD_SHAPES)
        else:  # few lines are alike
            shapes, telling = lines, _telling(chunk, _WORDS)
        number, at = self._line + 1, 0
        for index in (*(i for i, shape in enumerate(shapes) if shape in telling), len(lines)):
            while self._events.following and at < index:
                yield number + at, lines[at]
                at += 1
            if index < len(lines):
                yield number + index, lines[index]
                at = index + 1

    def _read(self, numbered: Iterable[tuple[int, bytes]]) -> None:
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
                elif events.following or _ANY_WORD.search(line[: prefix.MAX_LINE]):
                    self._other(line, number)
                continue
            looked_up += 1
            events.following = 0
            if shape.handler is not None:
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
        writer = self._heads.get(head) or self._writer(head)
        self.accumulator.nccl_lines += 1
        self._events.following = 0
        glued = prefix.GLUED.search(msg) if b" NCCL " in msg else None
        self._message(msg[: glued.start()] if glued else msg, level, writer, number)
        if glued:
            self._record(msg[glued.start() :], number)

    def _writer(self, raw: bytes) -> Writer:
        head = prefix.head(raw)
        named = bool(head.host) or head.pid >= 0
        index = self.accumulator.process(head.host, head.pid) if named else self._unnamed()
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

    def _shape(self, msg: bytes, tagged: bool) -> Shape:
        key = msg.translate(None, _DIGITS)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _CACHE:
                self._shapes.clear()
            handler = messages.handler(msg) if tagged else None
            glued = b" NCCL " in msg and prefix.GLUED.search(msg) is not None
            shape = self._shapes[key] = Shape(handler, matching(msg), glued)
        return shape

    def _message(self, msg: bytes, level: Level, writer: Writer, number: int) -> None:
        accumulator = self.accumulator
        accumulator.levels.add(level)
        shape = self._shape(msg, tagged=True)
        if shape.handler is not None:
            shape.handler(accumulator, writer.process, writer.head.dev, msg)
        if shape.patterns:
            self._events.collect(shape, msg, writer, number, level)
        if level is Level.DIAG and len(accumulator.diagnostics) < 512:
            accumulator.diagnostics[msg.decode("utf-8", "replace")[:300]] = None

    def _other(self, line: bytes, number: int) -> None:
        """A line without NCCL's tag: another program's, or NCCL's with the prefix cut off."""
        line = line[: prefix.MAX_LINE]
        if self._events.following:
            self._events.more(line)
        if not line or line.isspace():
            return
        old = prefix.split_level(line)
        if old is not None:
            head, level, msg = old
            writer = self._heads.get(head) or self._writer(head)
            self.accumulator.library = self.accumulator.library or ("Neuron" if b"CCOM WARN" in line else "")
            self._message(msg.rstrip(b"\r"), level, writer, number)
            return
        self._plain(line.rstrip(b"\r"), number)

    def _plain(self, line: bytes, number: int) -> None:
        accumulator = self.accumulator
        if b"version" in line:
            messages.version(accumulator, None, -1, line)
            torch = _TORCH.search(line)
            if torch:
                accumulator.torch_version = torch[1].decode("ascii", "replace")
        elif b"nccl==" in line:
            pynccl = _PYNCCL.search(line)
            if pynccl:
                accumulator.versions[pynccl[1].decode()] += 1
        header = _TESTS_HEADER.search(line)
        if header:
            accumulator.header_hosts[header[1].decode("ascii", "replace")] = None
            accumulator.gpus[header[2].decode("utf-8", "replace").strip()] = None
            return
        busbw = _BUSBW.search(line)
        if busbw:
            accumulator.busbw = float(busbw[1]) if re.fullmatch(rb"\d+(?:\.\d+)?", busbw[1]) else None
        shape = self._shape(b"\0" + line, tagged=False)
        bare = _BARE.search(line)
        if not shape.patterns and not bare:
            return
        index = self._unnamed()
        process = accumulator.processes[index]
        handler = messages.handler(line[bare.start() :]) if bare else None
        if bare and handler:
            accumulator.nccl_lines += 1
            handler(accumulator, process, -1, line[bare.start() :])
        if shape.patterns:
            self._events.collect(shape, line, Writer(index, process, prefix.bare(line)), number, None)


def parse_bytes(data: bytes) -> LogFacts:
    """The facts of one log that is in memory."""
    parser = Parser("-")
    parser.feed(data)
    return parser.facts()


def parse_text(text: str) -> LogFacts:
    """The same for text, such as the output of ranks that netdoctor ran itself."""
    return parse_bytes(text.encode("utf-8", "surrogateescape"))
