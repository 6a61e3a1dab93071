"""Collects events while lines stream by: a kind, key and process once, with how often it came and what its next lines add."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from netdoctor.nccl.log import messages, prefix, whose
from netdoctor.nccl.log.accumulator import MAX_EVENTS, Accumulator, CollectedEvent, Process
from netdoctor.nccl.log.facts import Level
from netdoctor.nccl.log.last_words import LastWords
from netdoctor.nccl.log.pattern import Pattern
from netdoctor.nccl.log.patterns import details, listed
from netdoctor.nccl.log.plain import NOT_PLAIN, Plain
from netdoctor.nccl.log.tracebacks import Raised

# Groups of patterns whose values are digits.
_NUMERIC: Final = frozenset({"status", "no", "rank", "task", "xid", "rc", "code", "what", "n", "text", "signal", "said"})
# c10's warnings: "[W1203 10:00:00.123 socket.cpp:752] [c10d]"; its errors begin with E, what ends the process with F
_MILD: Final = re.compile(rb"\[W(?:\d{3,4})? ?[\d:.]{0,24} ?[\w./]{1,80}:\d{1,6}\]")
_LAST_WORD: Final = Pattern("last_words", (), r"(?s)(?P<said>.{1,200})", ("said",))
_CLOSED: Final = Pattern("finished", (), r"(?P<left>.)(?P<closed>.{0,200})", ("closed",))
_RAISED: Final = Pattern("exception", (), r"(?P<type>[\w.]+)", ("type",))
_HANDLED: Final = Pattern("handled", (), r"(?P<type>[\w.]+)", ("type",))
_NAMELESS: Final = 3
_MAX_NODES: Final = 64
_MAX_RANK: Final = 1 << 20
_CHAIN: Final = 16  # exceptions that led to each other
_BELOW: Final = 6  # lines below an exception that may be of its message
_OF_PARAGRAPHS: Final = frozenset({"elastic", "register", "peer_closed", "node_failed", "told"})
_WORDS: Final = re.compile(rb"(?: {1,16}|\t{1,4})[\w'\"\[(<*-]")
_ANOTHERS: Final = re.compile(rb"\[|\(\w+ pid=|\d{1,7}: |\d{2,4}[-/:]|(?:DEBUG|INFO|WARN(?:ING)?|ERROR)\b")  # another's head
_STATEMENT: Final = re.compile(rb" {4}(?:[\w.]{1,80}(?:, [\w.]{1,80}){0,8} [-+*/|]?= \S|(?:\w{1,80}\.){0,6}\w{1,80}\()")
_FRAMES: Final = re.compile(rb'Traceback \(most recent call last\):|  File "[^"]{1,400}", line \d')
_PACKAGE: Final = re.compile(r"(?:(?:site|dist)-packages|\.cache)/([\w.\-]{1,60})")
_OF_A_FRAME: Final = re.compile(rb"(?<=\))\s+/\S{1,400}:\d{1,7}\s*$")  # the source's path: the function is what tells
_KNOWN: Final = Pattern("raised", (), r"(?P<type>[\w.]+)")


def _package(file: str) -> str:
    """Whose a file is that is not the program's."""
    found = _PACKAGE.search(file)
    if file.startswith("<frozen "):
        return file.removeprefix("<frozen ").rstrip(">") + ".py"
    return found[1].removesuffix(".py") if found else file.rpartition("/")[2]


class Writer(NamedTuple):
    """Who printed a line."""

    slot: int  # of the process in the accumulator
    process: Process
    head: prefix.Head


class Shape:
    """What lines of one shape have in common: lines are of one shape if they are equal apart from digits."""

    __slots__ = ("ends", "glued", "handler", "hot", "patience", "patterns", "plain")

    def __init__(
        self, handler: messages.Handler | None, patterns: tuple[Pattern, ...], glued: bool, plain: Plain = NOT_PLAIN
    ) -> None:
        self.plain = plain
        self.glued = glued  # a second record follows on the same line
        self.handler = handler
        self.patterns = patterns
        # A good end by the program's own word, and nothing else; the figures of a bar may be any.
        self.ends = bool(patterns) and all(p.kind == "finished" and "bar" not in p.named for p in patterns)
        # Process -> (how often, its last events): a message that floods is counted after `patience` times and not read again.
        # Digits are not part of a shape: where digits tell events apart (a status, an errno), every line is read.
        self.hot: dict[int, tuple[int, tuple[CollectedEvent, ...]]] = {}
        keys = {name.rstrip("0123456789") for p in patterns for name in p.key}
        self.patience = 0 if keys & _NUMERIC or any(p.each for p in patterns) else 64 if keys else 1


class EventCollector:
    def __init__(self, accumulator: Accumulator, said: LastWords) -> None:
        self._said = said
        self.following = 0  # lines that may still belong to the last event
        self._indented: bytes | None = None  # the mark of what was raised, which only indented lines go on
        self._at_once = 0  # and so many of the next
        self._last: CollectedEvent | None = None
        self._accumulator = accumulator
        self._raised_at: dict[tuple[int, int], CollectedEvent] = {}  # (file, line) -> what was raised there
        self._interrupts: set[tuple[int, int]] = set()  # where a Ctrl-C stands, and what was raised while it was handled

    def close(self) -> None:
        """The lines that come belong to no event before them."""
        self._last, self.following, self._indented = None, 0, None

    def collect(self, shape: Shape, msg: bytes, writer: Writer, number: int, level: Level | None) -> None:
        """The events of a message of `shape`."""
        hot = shape.hot.get(writer.slot)
        if hot is not None and 0 < shape.patience <= hot[0]:
            for event in hot[1]:
                event.count += 1
                event.last = number
            return
        events = tuple(self._event(p, msg, writer, number, level, *([str(number)] if p.each else ())) for p in shape.patterns)
        kept = tuple(e for e in events if e is not None)
        if shape.patience and len(kept) == len(events):
            shape.hot[writer.slot] = (hot[0] + 1 if hot else 1), kept

    def _event(
        self, pattern: Pattern, msg: bytes, writer: Writer, number: int, level: Level | None, *place: str
    ) -> CollectedEvent | None:
        """Count an event, or keep it where it is new; None where there are too many."""
        events = self._accumulator.events
        match = pattern.regex.search(msg) if pattern.key else None
        mild = level is None and _MILD.search(msg) is not None  # a warning and the error it leads to are two events
        key: tuple[object, ...] = (pattern.kind, writer.slot, level is Level.INFO, mild, *place)
        if match is not None:
            key = (*key, *(match[g] for g in pattern.key))
        event, at = events.get(key), len(self._accumulator.files) - 1
        if event is not None:
            event.count += 1
            spoken = self._accumulator.ordinary.get(at, 0)
            event.outlived += spoken > event.spoken
            event.last, event.spoken, event.amid = number, spoken, self._accumulator.amid.get(at, 0)
            if 0 <= writer.head.rank < _MAX_RANK:
                event.ranks.add(writer.head.rank)
            if (node := whose.node(msg)) and len(event.nodes) < _MAX_NODES:
                event.nodes.add(node)
            return event
        if len(events) >= MAX_EVENTS:
            return None
        data = details(pattern.kind, msg, match or pattern.regex.search(msg)) | listed(pattern.kind, msg)
        head = writer.head
        if (
            pattern.kind == "died"
            and data.get("task", "").isdecimal()
            and (said := self._said.of_a_task(data["task"].encode()))
        ):
            data["last"] = said
        if pattern.kind == "died" and "code" in data and (begun := self._said.begun):
            data["begun"] = begun
        if pattern.kind == "died" and (local := data.get("local_rank")) and (said := self._said.error_of(local)):
            data["error"] = said
        if pattern.kind == "ended" and b"KeyboardInterrupt" not in msg and (stood := self._said.stood):
            data["stood"] = stood
        event = CollectedEvent(
            pattern.kind,
            file=at,
            line=number,
            text=msg[:2000],
            process=writer.slot,
            dev=head.dev,
            # srun's and mpirun's lines are about a task and a rank, whoever printed them.
            rank=-1 if data.get("task") else head.rank if head.rank >= 0 else writer.process.rank_hint,
            at=head.at,
            level=level,
            source=head.source,
            data=data,
            last=number,
            mild=mild,
            ranks={writer.head.rank} if 0 <= writer.head.rank < _MAX_RANK else set(),
            spoken=self._accumulator.ordinary.get(at, 0),
            labelled=head.labelled,
            amid=self._accumulator.amid.get(at, 0),
            nodes={node} if (node := whose.node(msg)) else set(),
        )
        events[key] = event
        if pattern.follow:
            self._last, self.following, self._indented = event, pattern.follow, None
        return event

    def handled(self, raised: Raised, writer: Writer) -> None:
        """What a request ended in, of a server that answered it with an error."""
        event = self._event(_HANDLED, raised.text, writer, raised.number, None, raised.file, raised.line)
        if event is not None and "file" not in event.data:
            event.data |= {"type": raised.type, "file": raised.file, "at": raised.line, "cause": str(raised.cause or "")}

    def raised(self, raised: Raised, writer: Writer, known: bool = False, line: bytes = b"") -> None:
        """An exception that nobody caught where the traceback was printed.

        `known`: another family says what it is; `line`: the whole of its last one.
        """
        event = self._event(_KNOWN if known else _RAISED, raised.text, writer, raised.number, None, raised.file, raised.line)
        if event is None:
            return
        event.data["times"] = str(max(raised.times, int(event.data.get("times", "1"))))
        if raised.printed and event.count == 1:
            event.data["printed"] = "printed"
        elif not raised.printed:
            event.data.pop("printed", None)
        self._chained(event, raised)
        if "file" not in event.data:
            event.data |= {"type": raised.type, "file": raised.file, "at": raised.line}
            told = {
                "told": raised.told,
                "within": raised.within,
                "deep": raised.deep,
                "raiser": _package(raised.deep.rpartition(":")[0]) if raised.deep else "",
                "program": raised.program,
                "library": _package(raised.file) if raised.library else "",
                "below": "a record" if raised.below else "",
                "caught": "caught" if raised.caught else "",
                "cause": str(raised.cause or ""),
                "quoted": str(raised.quoted or ""),
                "instead": "instead" if raised.instead else "",
                "awaited": self._said.awaited.names(raised.number, raised.text),
            }
            event.data |= {name: value for name, value in told.items() if value}
            # What a message says may stand below it: pydantic's errors, load_state_dict's, a compiler's.
            self._last, self.following, self._indented = event, _BELOW, line[: max(line.find(raised.text[:20]), 0)]
            # Nothing but its name before the colon: all of its words stand below.
            self._at_once = 0 if not event.text.endswith(b":") else 1 if b": " in event.text else _NAMELESS

    def _chained(self, event: CollectedEvent, raised: Raised) -> None:
        """What another exception came of was caught where that one was raised, and ended what it did."""
        if len(self._raised_at) >= MAX_EVENTS:
            self._raised_at.clear()
        file = event.file
        self._raised_at[file, raised.number] = event
        # What is raised while a Ctrl-C is handled comes of that, where nothing else raised the like.
        if (file, raised.cause) in self._interrupts and (event.count == 1 or "interrupted" in event.data):
            self._interrupts.add((file, raised.number))
            event.data["interrupted"] = "interrupted"
        else:
            event.data.pop("interrupted", None)
        if (outer := self._raised_at.get((file, raised.quoted))) is not None and "printed" not in outer.data:
            event.data.pop("printed", None)
        if "printed" not in event.data:
            for inner in self._came_of(file, raised.cause):
                inner.data.pop("printed", None)

    def _came_of(self, file: int, line: int) -> Iterator[CollectedEvent]:
        for _ in range(_CHAIN):
            inner = self._raised_at.get((file, line))
            if inner is None:
                return
            yield inner
            line = int(inner.data.get("cause", "0"))

    def interrupted(self, raised: Raised) -> None:
        """Somebody's Ctrl-C came while these were handled: they ended nothing."""
        file = len(self._accumulator.files) - 1
        for inner in self._came_of(file, raised.cause):
            inner.data["interrupted"] = "interrupted"
        if raised.type == "KeyboardInterrupt" and len(self._interrupts) < MAX_EVENTS:
            self._interrupts.add((file, raised.number))

    def closed(self, line: bytes, writer: Writer, number: int) -> None:
        """The line with which a program, or its script, says that it has come to its end."""
        self._event(_CLOSED, line, writer, number, None)

    def last_word(self, line: bytes, writer: Writer, number: int) -> None:
        """A line after the last sign of work that no family knows."""
        self._event(_LAST_WORD, line, writer, number, None)

    def _of_message(self, mark: bytes, line: bytes) -> bool:
        """Whether a line goes on what was raised: indented, or the next behind a colon."""
        at_once, self._at_once = self._at_once > 0, max(self._at_once - 1, 0)
        if not line.startswith(mark) or _FRAMES.search(line):
            return False
        rest = line[len(mark) :]
        if _STATEMENT.match(rest):  # of another process's traceback, which was torn
            return False
        return _WORDS.match(rest) is not None or (at_once and _ANOTHERS.match(rest) is None)

    def more(self, line: bytes) -> None:
        """A line after an event that may belong to it: kept, and searched for details that are missing."""
        self.following -= 1
        event = self._last
        mark = self._indented
        if event is None or prefix.GLUED.search(line) or not (mark is None or self._of_message(mark, line)):
            self.following = 0
            return
        line = line[len(mark or b"") :]
        line = _OF_A_FRAME.sub(b"", line) if event.kind == "stood" else line
        if not line.strip():
            if event.kind not in _OF_PARAGRAPHS:
                self.following = 0
            return
        event.text = (event.text + b" " + line.strip())[:3000]
        for name, value in details(event.kind, event.text, None).items():
            event.data.setdefault(name, value)
        event.data |= listed(event.kind, event.text)
