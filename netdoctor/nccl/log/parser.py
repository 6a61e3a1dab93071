"""The parser of NCCL's output: bytes in, `LogFacts` out.  One parser for log files and for the ranks that preflight runs.

Bytes stream through; what is kept grows with ranks and pairs of ranks.  Most lines of a training log are not NCCL's, so a
chunk in which NCCL is rare is searched for a few words instead of being read line by line, and what two lines of one shape
(equal apart from digits) have in common is worked out once.
"""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.log import messages, prefix
from netdoctor.nccl.log.accumulator import MAX_EVENTS, Process, Seen, State
from netdoctor.nccl.log.facts import LogFacts
from netdoctor.nccl.log.merge import merge
from netdoctor.nccl.log.patterns import Pattern, details, matching

__all__ = ["LogFacts", "Parser", "parse_bytes", "parse_text"]

_SLICE: Final = 1 << 20
_CACHE: Final = 16384  # entries of a cache before it is thrown away
# Lines of other programs that matter hold one of these.  A search for a word costs, and a training log has few shapes of lines
# (lines without their decimal digits): where the first lines of a chunk are alike, each word is looked for once a shape.
_WORDS: Final = (
    b"NCCL", b"nccl", b"rror", b"ailed", b"illed", b"Segmentation fault", b"Root Cause (first observed",
    b"out of memory", b"ACSCtl:", b"CCOM WARN", b"libibverbs", b"via NET/", b"via P2P/", b"nvidia_peermem", b"locked memory",
    b"GPUs in the partition", b"NVRM: Xid", b"Using network ", b"Avg bus bandwidth", b"Out of bounds values", b"  Rank ",
    b"NET/IB", b"imed out", b"Connection ", b"NET : Using", b"GPU Direct RDMA",
    b"exited on signal", b"IO_PAGE_FAULT", b"DMAR: ",
)  # fmt: skip
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


_NUMERIC: Final = frozenset({"status", "no", "rank", "task", "xid", "rc", "code", "what", "n", "text"})


def _telling(text: bytes, words: tuple[bytes, ...]) -> set[bytes]:
    """The lines of `text` that hold a word."""
    found = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            end = text.find(b"\n", at)
            if end < 0:
                end = len(text)
            found.add(text[text.rfind(b"\n", 0, at) + 1 : end])
            at = text.find(word, end)
    return found


class _Shape:
    """What lines of one shape have in common."""

    __slots__ = ("glued", "handler", "hot", "patience", "patterns")

    def __init__(self, handler: messages.Handler | None, patterns: tuple[Pattern, ...], glued: bool) -> None:
        self.glued = glued  # a second record follows on the same line
        self.handler = handler
        self.patterns = patterns
        # Process -> [how often, its last events]: a message that floods is counted after `patience` times and not read again.
        # Digits are not part of a shape: where digits tell events apart (a status, an errno), every line is read.
        self.hot: dict[int, tuple[int, tuple[Seen, ...]]] = {}
        keys = {name for p in patterns for name in p.key}
        self.patience = 1 if not keys else 64 if not keys & _NUMERIC else 0


class Parser:
    """Feed it bytes, ask it for the facts.  Several files of one job: call `file` before each."""

    def __init__(self, name: str = "-") -> None:
        self.state = State(files=[name])
        self._file = 0
        self._line = 0
        self._tail = b""
        self._overlong = False  # inside a line of which MAX_LINE bytes are kept already
        self._shapes: dict[bytes, _Shape] = {}
        self._heads: dict[bytes, tuple[int, prefix.Head, Process]] = {}
        self._anonymous = -1
        self._open: Seen | None = None  # an event that may go on in the next lines
        self._want = 0

    def file(self, name: str) -> None:
        """The bytes that follow are of another file."""
        self._flush()
        state = self.state
        if state.lines == 0 and self._line == 0 and state.bytes_read == 0 and len(state.files) == 1:
            state.files[0] = name
        else:
            state.files.append(name)
        self._file, self._line, self._anonymous = len(state.files) - 1, 0, -1
        self._heads.clear()

    def feed(self, data: bytes) -> None:
        """Take the next bytes; they may end anywhere."""
        self.state.bytes_read += len(data)
        for begin in range(0, len(data), _SLICE):
            self._feed(data[begin : begin + _SLICE] if len(data) > _SLICE else data)

    def facts(self) -> LogFacts:
        """What is known so far; more may be fed after it."""
        self._flush()
        return merge(self.state)

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
        self._open, self._want = None, 0

    def _chunk(self, chunk: bytes) -> None:
        """Whole lines.  The state's line count is the file's, `_line` is the number of the line before the chunk."""
        lines = chunk.count(b"\n") + 1
        if chunk.count(b"NCCL ") * 8 >= lines:
            self._dense(chunk)
        else:
            self._sparse(chunk)
        self._line += lines
        self.state.lines += lines

    def _dense(self, chunk: bytes) -> None:
        """NCCL's lines are many: look at every line.  `_record` and `_message` once more, for INFO lines and in one piece."""
        heads, shapes, state, plain = self._heads, self._shapes, self.state, 0
        clean = b"\r" not in chunk
        for number, line in enumerate(chunk.split(b"\n"), self._line + 1):
            head, tag, msg = line.partition(b"NCCL INFO ")
            if not tag or not clean or len(msg) > 4096:
                if b"NCCL " in line:
                    self._record(line, number)
                elif self._want or _ANY_WORD.search(line[: prefix.MAX_LINE]):
                    self._other(line, number)
                continue
            known = heads.get(head)
            if known is None:
                known = self._head(head)
            shape = shapes.get(msg.translate(None, _DIGITS))
            if shape is None:
                shape = self._shape(msg, "INFO")
            if shape.glued:
                self._record(line, number)
                continue
            plain += 1
            self._want = 0
            if shape.handler is not None:
                shape.handler(state, known[2], known[1].dev, msg)
            if shape.patterns:
                self._events(shape, msg, known[0], known[2], known[1], number, "INFO")
        if plain:
            self.state.nccl_lines += plain
            self.state.levels.add("INFO")

    def _sparse(self, chunk: bytes) -> None:
        """NCCL's lines are few: find the lines with one of the words, and those that an event goes on in."""
        lines = chunk.split(b"\n")
        some = chunk[:_SAMPLE].translate(None, _DECIMAL).split(b"\n")
        if len(set(some)) * 2 <= len(some):
            shapes = chunk.translate(None, _DECIMAL).split(b"\n")
            telling = _telling(b"\n".join(set(shapes)), _WORD_SHAPES)
        else:  # few lines are alike
            shapes, telling = lines, _telling(chunk, _WORDS)
        number, at = self._line + 1, 0
        for index in (*(i for i, shape in enumerate(shapes) if shape in telling), len(lines)):
            while self._want and at < index:
                self._other(lines[at], number + at)
                at += 1
            if index < len(lines):
                line, at = lines[index], index + 1
                if b"NCCL " in line:
                    self._record(line, number + index)
                elif self._want or _ANY_WORD.search(line):  # "fai1led" has the shape of a word
                    self._other(line, number + index)

    def _record(self, line: bytes, number: int) -> None:
        """A line with NCCL's tag in it."""
        if len(line) > prefix.MAX_LINE:
            line = line[: prefix.MAX_LINE]
        at = line.find(b"NCCL ")
        level = line[at + 5 : at + 10]
        if level == b"INFO ":
            head, msg, name = line[:at], line[at + 10 :], "INFO"
        else:
            found = prefix.split_level(line)
            if found is None:
                self._other(line, number)
                return
            head, raw, msg = found
            name = raw.decode()
        if msg.endswith(b"\r"):
            msg = msg.rstrip(b"\r")
        known = self._heads.get(head)
        if known is None:
            known = self._head(head)
        index, who, _ = known
        self.state.nccl_lines += 1
        self._want = 0
        if b" NCCL " in msg:
            glued = prefix.GLUED.search(msg)
            if glued:
                self._message(msg[: glued.start()], name, index, who, number)
                self._record(msg[glued.start() :], number)
                return
        self._message(msg, name, index, who, number)

    def _head(self, raw: bytes) -> tuple[int, prefix.Head, Process]:
        who = prefix.head(raw)
        if who.host or who.pid >= 0:
            index = self.state.process(who.host, who.pid)
        else:
            index = self._nobody()
        if who.rank >= 0:
            self.state.processes[index].rank_hint = who.rank
        if who.dev >= 0:
            self.state.processes[index].devs.add(who.dev)
        if len(self._heads) >= _CACHE:
            self._heads.clear()
        known = self._heads[raw] = index, who, self.state.processes[index]
        return known

    def _nobody(self) -> int:
        """The process of lines without a prefix: one a file."""
        if self._anonymous < 0:
            self._anonymous = self.state.process("", -2 - self._file)
        return self._anonymous

    def _shape(self, msg: bytes, level: str) -> _Shape:
        key = msg.translate(None, _DIGITS)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _CACHE:
                self._shapes.clear()
            handler = messages.handler(msg) if level != "" else None
            glued = b" NCCL " in msg and prefix.GLUED.search(msg) is not None
            shape = self._shapes[key] = _Shape(handler, matching(msg), glued)
        return shape

    def _message(self, msg: bytes, level: str, index: int, who: prefix.Head, number: int) -> None:
        state = self.state
        shape = self._shape(msg, level)
        state.levels.add(level)
        process = state.processes[index]
        if shape.handler is not None:
            shape.handler(state, process, who.dev, msg)
        if shape.patterns:
            self._events(shape, msg, index, process, who, number, level)
        if level == "DIAG" and len(state.diagnostics) < 512:
            state.diagnostics[msg.decode("utf-8", "replace")[:300]] = None

    def _other(self, line: bytes, number: int) -> None:
        """A line without NCCL's tag: another program's, or NCCL's with the prefix cut off."""
        if len(line) > prefix.MAX_LINE:
            line = line[: prefix.MAX_LINE]
        if self._want:
            self._more(line)
        if not line or line.isspace():
            return
        old = prefix.split_level(line)
        if old is not None:
            self._heads.setdefault(old[0], self._head(old[0]))
            index, who, _ = self._heads[old[0]]
            self.state.library = self.state.library or ("Neuron" if b"CCOM WARN" in line else "")
            self._message(old[2].rstrip(b"\r"), old[1].decode(), index, who, number)
            return
        self._plain(line.rstrip(b"\r"), number)

    def _plain(self, line: bytes, number: int) -> None:
        state = self.state
        if b"version" in line:
            messages.version(state, None, -1, line)
            torch = _TORCH.search(line)
            if torch:
                state.torch_version = torch[1].decode("ascii", "replace")
        elif b"nccl==" in line:
            pynccl = _PYNCCL.search(line)
            if pynccl:
                state.versions[pynccl[1].decode()] += 1
        header = _TESTS_HEADER.search(line)
        if header:
            state.header_hosts[header[1].decode("ascii", "replace")] = None
            state.gpus[header[2].decode("utf-8", "replace").strip()] = None
            return
        busbw = _BUSBW.search(line)
        if busbw:
            state.busbw = float(busbw[1]) if re.fullmatch(rb"\d+(?:\.\d+)?", busbw[1]) else None
        shape = self._shape(b"\0" + line, "")
        at = _BARE.search(line)
        if shape.patterns or at:
            index = self._nobody()
            process = state.processes[index]
            if at:
                bare = messages.handler(line[at.start() :])
                if bare:
                    state.nccl_lines += 1
                    bare(state, process, -1, line[at.start() :])
            if shape.patterns:
                self._events(shape, line, index, process, prefix.bare(line), number, "")

    def _events(
        self, shape: _Shape, msg: bytes, index: int, process: Process, who: prefix.Head, number: int, level: str
    ) -> None:
        hot = shape.hot.get(index)
        if hot is not None and 0 < shape.patience <= hot[0]:
            for seen in hot[1]:
                seen.count += 1
            return
        last = tuple(self._event(p, msg, index, process, who, number, level) for p in shape.patterns)
        kept = tuple(e for e in last if e is not None)
        if shape.patience and len(kept) == len(last):
            shape.hot[index] = (hot[0] + 1 if hot else 1), kept

    def _event(
        self, pattern: Pattern, msg: bytes, index: int, process: Process, who: prefix.Head, number: int, level: str
    ) -> Seen | None:
        """Count an event, or keep it where it is new; None where there are too many."""
        events = self.state.events
        match = pattern.regex.search(msg) if pattern.key else None
        key: tuple[object, ...] = (pattern.kind, index, level == "INFO")
        if match is not None:
            key = (*key, *(match[g] for g in pattern.key if g in pattern.regex.groupindex))
        seen = events.get(key)
        if seen is not None:
            seen.count += 1
            return seen
        if len(events) >= MAX_EVENTS:
            return None
        data = details(pattern.kind, msg, match or pattern.regex.search(msg))
        if level:
            data["level"] = level
        rank = who.rank if who.rank >= 0 else process.rank_hint
        seen = Seen(pattern.kind, self._file, number, msg[:2000], index, who.dev, rank, who.at, who.source, data)
        events[key] = seen
        if pattern.follow:
            self._open, self._want = seen, pattern.follow
        return seen

    def _more(self, line: bytes) -> None:
        """A line after an event that may belong to it: kept, and searched for details that are missing."""
        self._want -= 1
        seen = self._open
        if seen is None or prefix.GLUED.search(line):
            self._want = 0
            return
        if not line.strip():
            if seen.kind not in {"elastic", "register"}:
                self._want = 0
            return
        seen.text = (seen.text + b" " + line.strip())[:3000]
        for name, value in details(seen.kind, seen.text, None).items():
            seen.data.setdefault(name, value)


def parse_bytes(data: bytes, name: str = "-") -> LogFacts:
    """The facts of one log that is in memory."""
    parser = Parser(name)
    parser.feed(data)
    return parser.facts()


def parse_text(text: str) -> LogFacts:
    """The same for text, such as the output of ranks that netdoctor ran itself."""
    return parse_bytes(text.encode("utf-8", "surrogateescape"))
