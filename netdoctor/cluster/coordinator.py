"""The coordinator of a common run, on node 0: collects what each node sends about a subject and sends all of it to all of them.

Subjects come in a fixed order (`SUBJECTS`); each ends when every node that still takes part has sent its part, or at its
deadline.  A node that has not sent it by then is named to all others, with the reason, and takes part no more.  One thread.

A connection is a stranger's until its first frame proves that it belongs to this run (`netdoctor.cluster.channel`).  A stranger
may say `FIRST` bytes within `STRANGER_SECONDS` and is told a line; all strangers together hold `STRANGERS` connections.  A node
may say each subject once, at most `LIMITS` bytes, and nothing waits for it in memory but what is told to all.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from netdoctor.cluster.channel import (
    FIRST,
    PROTOCOL,
    Body,
    ForgedError,
    GarbageError,
    Keys,
    Receiver,
    Sender,
    first_line,
    nonce,
    read_first,
)
from netdoctor.cluster.line import Line, least_likely
from netdoctor.cluster.observations import Fault, Proof
from netdoctor.cluster.secret import Secret
from netdoctor.cluster.waiting import Gathering

SUBJECTS: Final = ("join", "place", "reach", "ready", "result")
# Bytes of one node's part as JSON.  64 links, 64 ways by three addresses, 400 traits; a rank's events are 1.3 KB, and of 64
# ranks that fail with long errors below 200 KB.
LIMITS: Final = {"join": 2 << 10, "place": 32 << 10, "reach": 16 << 10, "ready": 160 << 10, "result": 512 << 10}
MAX_ALL: Final = 128 << 20  # bytes of all parts of one subject
STRANGERS: Final = 64  # connections without proof, at once, beyond those that the nodes may make
STRANGER_SECONDS: Final = 10.0
MAX_REFUSED: Final = 32
STALE: Final = 2.0  # seconds without one of the signs of life, two a second: a node that comes anew takes the place
LAST_SECONDS: Final = 20.0  # after a result that failed: the others were told to stop, and end within the runner's own limits
# After one that did not: a slow node may still compare its data (`LIMITS` of runner.py for verify and done, and its end).
FINISH_SECONDS: Final = 100.0
NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # accept(2)
PAUSE: Final = 0.1  # seconds
FLUSH_SECONDS: Final = 2.0  # without progress, for what is still to be sent when the coordinator is closed
FLUSH_MOST: Final = 60.0  # in all: 1,024 nodes that get 1 MB each


class Coordinator:
    """`listeners` are listening sockets; `limits` are seconds for each subject, `silence` those without a sign of life."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        count: int,
        run: str,
        limits: Mapping[str, float],
        silence: float,
        secret: Secret | None = None,
    ) -> None:
        self.listeners, self.count, self.run, self.limits, self.silence = tuple(listeners), count, run, dict(limits), silence
        self.secret = secret or Secret()
        self.lines: dict[socket.socket, Line] = {}
        self.present: dict[int, Line | None] = dict.fromkeys(range(count))  # None: never came, or is gone
        self.gone: dict[int, str] = {}  # why a node takes part no more
        self.never: set[int] = set()  # of those, who did not come at all
        self.board: dict[str, dict[int, bytes]] = {subject: {} for subject in SUBJECTS}
        self.at = 0  # the subject that is open
        self.refused: dict[tuple[str, Fault, int | None], dict[str, Any]] = {}  # who was turned away, and why
        self.stopped, self.gathering = False, Gathering()
        self.paused: float | None = None  # until when no connection is accepted
        self.since = time.monotonic()
        self.end = self.since + self.limits["join"]
        self.closing = threading.Event()
        self.selector = selectors.DefaultSelector()
        self.thread = threading.Thread(target=self._live, name="netdoctor-coordinator", daemon=True)

    def start(self) -> None:
        for one in self.listeners:
            one.setblocking(False)
            self.selector.register(one, selectors.EVENT_READ)
        try:
            self.thread.start()
        except RuntimeError:
            self.selector.close()
            for one in self.listeners:
                one.close()
            raise

    def close(self) -> None:
        """Send what is still waiting, then close the connections."""
        self.closing.set()
        self.thread.join(FLUSH_MOST + 1.0)

    # The thread

    def _live(self) -> None:
        while not self.closing.is_set():
            self.turn()
        begun = since = time.monotonic()
        least = left = self._left()
        while left and time.monotonic() < min(since + FLUSH_SECONDS, begun + FLUSH_MOST):
            self.turn()
            if (left := self._left()) < least:
                least, since = left, time.monotonic()
        for line in list(self.lines.values()):
            self._drop(line, "")
        self.selector.close()
        for one in self.listeners:
            one.close()

    def _left(self) -> int:
        """Bytes that nodes do not have yet.  A connection that is closed with something unread loses what is on its way."""
        return sum(line.left() for line in self.lines.values() if line.node is not None)

    def turn(self) -> None:
        """Read and write where a connection is ready, or wait for a moment until one is."""
        for key, mask in self.selector.select(0.05):
            if key.fileobj in self.listeners:
                self._accept(key.fileobj)
                continue
            line = self.lines.get(key.fileobj)  # type: ignore[call-overload]
            if line is not None and mask & selectors.EVENT_READ:
                self._receive(line)
            if line is not None and mask & selectors.EVENT_WRITE and line.socket in self.lines:
                self._flush(line)
        self._clock()

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, address = listener.accept()
        except OSError as error:
            # A waiting connection keeps the listener readable: without a pause this thread would spin.
            if error.errno in NO_ROOM:
                for one in self.listeners:
                    self.selector.unregister(one)
                self.paused = time.monotonic() + PAUSE
            return
        strangers = [line for line in self.lines.values() if line.node is None]
        if len(strangers) >= STRANGERS + self.count:
            self._drop(least_likely(strangers), "")
        peer.setblocking(False)
        self.lines[peer] = Line(peer, str(address[0]).removeprefix("::ffff:"))
        self.selector.register(peer, selectors.EVENT_READ)

    def _receive(self, line: Line) -> None:
        try:
            data = line.socket.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._drop(line, f"its connection broke: {error.strerror}")
            return
        if not data:
            self._drop(line, "its connection was closed")
        if not data or line.over:
            return
        line.received = time.monotonic()
        try:
            if line.frames is None:
                data = self._first(line, data)
            if line.frames is not None:
                self._frames(line, line.frames, data)
        except ForgedError:
            self._unproven(line)
        except GarbageError as error:
            self._drop(line, str(error))
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            self._drop(line, "it said what nobody of this version says")

    def _first(self, line: Line, data: bytes) -> bytes:
        """Take the first line, once it is whole; what came behind it."""
        line.read += data[: FIRST + 1]
        first, end, rest = line.read.partition(b"\n")
        if len(first) > FIRST:
            raise GarbageError("it said too much")
        if end:
            self._hello(line, read_first(bytes(first)))
        return bytes(rest) if line.frames is not None else b""

    def _frames(self, line: Line, frames: Receiver, data: bytes) -> None:
        for message in frames.feed(data):
            if line.node is None:
                self._here(line, message)
            else:
                self._received(line, line.node, message)
            if line.over or line.socket not in self.lines:
                return

    def _received(self, line: Line, node: int, message: dict[str, Any]) -> None:
        subject = message["say"]
        if subject == "ping":
            when = message["t"]
            if not isinstance(when, float) or not abs(when) < 1e12:
                raise ValueError("no time")
            if not (line.write or self.closing.is_set()):  # who does not read gets no more of them
                now = time.monotonic()
                more = self.gathering.told(self.present, self.end, now) if self.at == 0 else {}
                self._tell(line, {"say": "pong", "t": when, "now": now, "wall": time.time(), **more})
        elif subject == "store" and node == 0:
            meeting = {"id": str(message["id"])[:256]} if "id" in message else {"port": int(message["port"])}
            self._tell_all(Body({"say": "store", **meeting}))
        elif subject == "bye":
            self.gone.setdefault(node, str(message.get("why", ""))[:200])
            self._drop(line, "it left")
        elif subject in SUBJECTS and node not in self.gone:
            self._part(node, subject, message)

    def _part(self, node: int, subject: str, message: Mapping[str, Any]) -> None:
        """A node's part of a subject, kept as text: what it means is for who reads it."""
        if node in self.board[subject] or subject not in SUBJECTS[self.at : self.at + 1]:  # said twice, or too late
            return
        text = json.dumps(message.get("data")).encode()
        if len(text) > LIMITS[subject] or sum(map(len, self.board[subject].values())) + len(text) > MAX_ALL:
            raise GarbageError("it said too much")
        self.board[subject][node] = text
        if subject == "result":
            self._ended(bool(message.get("failed")))

    # Strangers

    def _hello(self, line: Line, message: dict[str, Any]) -> None:
        """Challenge who may be a node of this run."""
        node, run, proof = message.get("node"), message.get("run"), message.get("proof")
        number = node if type(node) is int and 0 <= node < self.count else None
        if message["say"] != "join" or message.get("protocol") != PROTOCOL:
            self._refuse(line, "another version of netdoctor", number, Fault.UNPROVEN)
        elif run != self.run:
            self._refuse(line, "another job", None)
        elif message.get("nodes") != self.count or number is None:
            said = f"node {str(node)[:8]} of {str(message.get('nodes'))[:8]}"
            self._refuse(line, f"{said}, where {self.count} are expected", None)
        elif proof != self.secret.proof:
            self._refuse(line, _differ(proof, self.secret.proof), number, Fault.UNPROVEN)
        elif not isinstance(message.get("nonce"), str) or not 16 <= len(message["nonce"]) <= 64:
            raise GarbageError("it said what nobody of this version says")
        else:
            challenge = nonce()
            keys = Keys(self.secret, message, challenge)
            line.hello, line.frames, line.sender = message, Receiver(keys.up, FIRST), Sender(keys.down)
            more = {"credential": self.secret.credential} if self.secret.credential else {}
            self._write(line, first_line({"say": "challenge", "nonce": challenge, **more}))

    def _here(self, line: Line, message: dict[str, Any]) -> None:
        """It has the secret: give it its place."""
        node: int = line.hello["node"]
        there = self.present[node]
        if message["say"] != "here":
            raise GarbageError("it said what nobody of this version says")
        if self.at > 0:
            self._refuse(line, "too late: the others did not wait any longer", node, proven=True)
            return
        if there is not None and time.monotonic() - there.received < STALE:
            self._refuse(line, f"node {node} is there already", node, Fault.TWICE, proven=True)
            return
        data = message.get("data")
        text = json.dumps({**(data if isinstance(data, dict) else {}), "address": line.address}).encode()
        if len(text) > LIMITS["join"]:
            raise GarbageError("it said too much")
        self.present[node] = line
        line.node = node
        if there is not None:
            self._drop(there, "it came anew")
        # A netdoctor that was started again, while the others still come: that it was refused meanwhile is no second node.
        self.gone.pop(node, None)
        self.refused.pop((line.address, Fault.TWICE, node), None)
        self.board["join"][node] = text
        self._tell(line, {"say": "welcome"})

    def _unproven(self, line: Line) -> None:
        if line.node is not None:
            self._drop(line, "its connection carried what it did not say")
            return
        self._refuse(line, f"its {self.secret.proof} is another one", line.hello.get("node"), Fault.UNPROVEN)

    def _refuse(self, line: Line, why: str, node: int | None, kind: Fault = Fault.TURNED_AWAY, *, proven: bool = False) -> None:
        proven = proven and self.secret.proof is not Proof.NOTHING
        if len(self.refused) < MAX_REFUSED or proven:
            row = {"address": line.address, "why": why, "node": node, "proven": proven}
            self.refused.setdefault((line.address, kind, node), row)
        line.over = True
        seconds = round(time.monotonic() - self.since, 1)
        self._write(line, first_line({"say": "refused", "why": why, "kind": kind.value, "seconds": seconds}))

    def _ended(self, failed: bool) -> None:
        if failed:
            self._stop()
        self.end = min(self.end, time.monotonic() + (LAST_SECONDS if self.stopped else FINISH_SECONDS))

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._tell_all(Body({"say": "stop"}))

    def _drop(self, line: Line, why: str) -> None:
        if self.lines.pop(line.socket, None) is None:
            return
        self.selector.unregister(line.socket)
        line.socket.close()
        if line.node is not None and self.present[line.node] is line:
            self.present[line.node] = None
            self.gone.setdefault(line.node, why)
            if self.at == len(SUBJECTS) - 1 and line.node not in self.board["result"]:
                self._stop()  # its ranks died with it, or will

    def _clock(self) -> None:
        now = time.monotonic()
        if self.paused is not None and now >= self.paused:
            for one in self.listeners:
                self.selector.register(one, selectors.EVENT_READ)
            self.paused = None
        for line in list(self.lines.values()):
            if line.node is None and now - line.since > STRANGER_SECONDS:
                self._drop(line, "")
        if self.at >= len(SUBJECTS):
            return
        subject = SUBJECTS[self.at]
        awaited = [n for n in range(self.count) if n not in self.board[subject] and n not in self.gone]
        self._late(subject, awaited, now)
        if all(n in self.gone for n in awaited):
            self._next(subject, now)

    def _late(self, subject: str, awaited: Sequence[int], now: float) -> None:
        for node in awaited:
            if (one := self.present[node]) is not None and now - one.received > self.silence:
                self.gone[node] = f"it was silent for {self.silence:g} s"
                if subject == "result":
                    self._stop()
        for node in awaited if now >= self.end else ():
            if never := self.present[node] is None:
                self.never.add(node)
            late_join = f"it did not come within {self.limits['join']:g} s"
            self.gone.setdefault(node, late_join if never else f"it did not get ready in time ({subject})")

    def _next(self, subject: str, now: float) -> None:
        """Tell what is known of a subject, and open the next one."""
        self.at += 1
        if self.at < len(SUBJECTS):
            self.end = now + self.limits[SUBJECTS[self.at]]
            for line in self.lines.values():
                if line.frames is not None and line.node is not None:
                    line.frames.limit = LIMITS[SUBJECTS[self.at]] + FIRST
        self._tell_all(Body(self._told(subject)))
        self.board[subject] = dict.fromkeys(self.board[subject], b"")  # who sent is remembered, what it sent is told

    def _told(self, subject: str) -> bytes:
        """All parts of a subject as one message: the texts of the nodes go on as they are."""
        rest = {"gone": self.gone, "never": sorted(self.never), "refused": list(self.refused.values())}
        parts = b",".join(b'"%d":%b' % part for part in sorted(self.board[subject].items()))
        return b'{"say":"%b","data":{%b},%b' % (subject.encode(), parts, json.dumps(rest).encode()[1:])

    def _tell_all(self, body: Body) -> None:
        for line in list(self.lines.values()):
            if line.node is not None:
                self._queue(line, body)

    def _tell(self, line: Line, message: Mapping[str, Any]) -> None:
        self._queue(line, Body(message))

    def _queue(self, line: Line, body: Body) -> None:
        assert line.sender is not None
        line.write.append(memoryview(line.sender.frame(body)))
        line.write.append(body.data)
        self._flush(line)

    def _write(self, line: Line, data: bytes) -> None:
        line.write.append(memoryview(data))
        self._flush(line)

    def _flush(self, line: Line) -> None:
        try:
            while line.write:
                first = line.write.popleft()
                try:
                    first = first[line.socket.send(first) :]
                finally:
                    if first:
                        line.write.appendleft(first)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._drop(line, f"its connection broke: {error.strerror}")
            return
        self.selector.modify(line.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if line.write else 0))


def _differ(theirs: object, ours: Proof) -> str:
    said = theirs if theirs in (Proof.TOKEN, Proof.MUNGE) else Proof.NOTHING
    words = {Proof.TOKEN: "a token", Proof.MUNGE: "MUNGE", Proof.NOTHING: "neither token nor MUNGE"}
    return f"it has {words[Proof(str(said))]} to prove itself by, and node 0 has {words[ours]}"
