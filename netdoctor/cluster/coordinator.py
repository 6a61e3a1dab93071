"""The coordinator of a common run, on node 0: collects what each node sends about a subject and sends all of it to all of them.

Subjects come in a fixed order (`SUBJECTS`); each ends when every node that still takes part has sent its part, or at its
deadline.  A node that has not sent it by then is named to all others, with the reason, and takes part no more.  One thread;
messages are lines of JSON.  A connection is a stranger's until its first line shows that it belongs to this run, and no line
may be longer than `MAX_LINE`.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

PROTOCOL: Final = "netdoctor.meeting/2"
SUBJECTS: Final = ("join", "place", "reach", "ready", "result")
MAX_LINE: Final = 2 << 20  # bytes of one line of one node: results of 16 ranks are 20 KB
STRANGERS: Final = 64  # connections without a first line, at once, beyond those that the nodes may make
STRANGER_SECONDS: Final = 10.0
LAST_SECONDS: Final = 20.0  # after a result that failed: the others were told to stop, and end within the runner's own limits
# After one that did not: a slow node may still compare its data (`LIMITS` of runner.py for verify and done, and its end).
FINISH_SECONDS: Final = 100.0
NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # accept(2)
PAUSE: Final = 0.1  # seconds
FLUSH_SECONDS: Final = 2.0  # for what is still to be sent when the coordinator is closed


class Line:
    """One connection, with what is half read and half written."""

    def __init__(self, peer: socket.socket, address: str) -> None:
        self.socket, self.address = peer, address
        self.node: int | None = None
        self.read = bytearray()
        self.write: deque[memoryview] = deque()  # of what is told to all, the nodes share the bytes
        self.received = self.since = time.monotonic()


class Coordinator:
    """`listener` is a listening socket; `limits` are seconds for each subject, `silence` those without a sign of life."""

    def __init__(self, listener: socket.socket, count: int, run: str, limits: Mapping[str, float], silence: float) -> None:
        self.listener, self.count, self.run, self.limits, self.silence = listener, count, run, dict(limits), silence
        self.lines: dict[socket.socket, Line] = {}
        self.present: dict[int, Line | None] = dict.fromkeys(range(count))  # None: never came, or is gone
        self.gone: dict[int, str] = {}  # why a node takes part no more
        self.never: set[int] = set()  # of those, who did not come at all
        self.board: dict[str, dict[int, Any]] = {subject: {} for subject in SUBJECTS}
        self.at = 0  # the subject that is open
        self.refused: list[str] = []  # who was turned away, and why
        self.stopped = False
        self.paused: float | None = None  # until when no connection is accepted
        self.since = time.monotonic()
        self.end = self.since + self.limits["join"]
        self.closing = threading.Event()
        self.selector = selectors.DefaultSelector()
        self.thread = threading.Thread(target=self._live, name="netdoctor-coordinator", daemon=True)

    def start(self) -> None:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        try:
            self.thread.start()
        except RuntimeError:
            self.selector.close()
            self.listener.close()
            raise

    def close(self) -> None:
        """Send what is still waiting, then close the connections."""
        self.closing.set()
        self.thread.join(FLUSH_SECONDS + 1.0)

    # The thread

    def _live(self) -> None:
        flush = None
        while True:
            self.turn()
            if self.closing.is_set():
                flush = flush or time.monotonic() + FLUSH_SECONDS
                if time.monotonic() >= flush or not any(line.write for line in self.lines.values()):
                    break
        for line in list(self.lines.values()):
            self._drop(line, "")
        self.selector.close()
        self.listener.close()

    def turn(self) -> None:
        """Read and write where a connection is ready, or wait for a moment until one is."""
        for key, mask in self.selector.select(0.05):
            if key.fileobj is self.listener:
                self._accept()
                continue
            line = self.lines.get(key.fileobj)  # type: ignore[call-overload]
            if line is not None and mask & selectors.EVENT_READ:
                self._receive(line)
            if line is not None and mask & selectors.EVENT_WRITE and line.socket in self.lines:
                self._flush(line)
        self._clock()

    def _accept(self) -> None:
        try:
            peer, address = self.listener.accept()
        except OSError as error:
            # A waiting connection keeps the listener readable: without a pause this thread would spin.
            if error.errno in NO_ROOM:
                self.selector.unregister(self.listener)
                self.paused = time.monotonic() + PAUSE
            return
        strangers = [line for line in self.lines.values() if line.node is None]
        if len(strangers) >= STRANGERS + self.count:
            self._drop(strangers[0], "")  # nodes of the run send their first line at once: the oldest is none
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
            return
        line.received = time.monotonic()
        line.read += data
        while b"\n" in line.read and line.socket in self.lines:
            first, _, rest = line.read.partition(b"\n")
            line.read = rest
            try:
                message = json.loads(first)
                if not isinstance(message, dict):
                    raise ValueError("no object")
                self._received(line, message)
            except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
                self._drop(line, "it said what nobody of this version says")
                return
        if len(line.read) > (MAX_LINE if line.node is not None else 1 << 16):
            self._drop(line, "it said too much")

    def _received(self, line: Line, message: dict[str, Any]) -> None:
        subject = message["say"]
        if line.node is None:
            self._hello(line, message)
        elif subject == "ping":
            self._tell(line, {"say": "pong", "t": message["t"], "now": time.monotonic()})
        elif subject == "store" and line.node == 0:
            meeting = {"id": str(message["id"])[:256]} if "id" in message else {"port": int(message["port"])}
            self._tell_all({"say": "store", **meeting})
        elif subject == "bye":
            self.gone.setdefault(line.node, str(message.get("why", ""))[:200])
            self._drop(line, "it left")
        elif subject in SUBJECTS and line.node not in self.gone:
            self.board[subject].setdefault(line.node, message.get("data"))
            if subject == "result":
                self._ended(bool(message.get("failed")))

    def _hello(self, line: Line, message: dict[str, Any]) -> None:
        node = message["node"]
        why = ""
        if message["say"] != "join" or message.get("protocol") != PROTOCOL:
            why = "another version of netdoctor"
        elif message.get("run") and self.run and message["run"] != self.run:
            why = "another job"
        elif message.get("nodes") != self.count or type(node) is not int or not 0 <= node < self.count:
            why = f"node {str(node)[:8]} of {str(message.get('nodes'))[:8]}, where {self.count} are expected"
        elif self.present[node] is not None or node in self.board["join"]:
            why = f"node {node} is there already"
        elif self.at > 0:
            why = "too late: the others did not wait any longer"
        if why:
            self.refused.append(f"{line.address}: {why}")
            del self.refused[32:]
            self._tell(line, {"say": "refused", "why": why, "seconds": round(time.monotonic() - self.since, 1)})
            return
        line.node = node
        self.present[node] = line
        data = message.get("data")
        self.board["join"][node] = {**(data if isinstance(data, dict) else {}), "address": line.address}

    def _ended(self, failed: bool) -> None:
        if failed:
            self._stop()
        self.end = min(self.end, time.monotonic() + (LAST_SECONDS if self.stopped else FINISH_SECONDS))

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._tell_all({"say": "stop"})

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
            self.selector.register(self.listener, selectors.EVENT_READ)
            self.paused = None
        for line in list(self.lines.values()):
            if line.node is None and now - line.since > STRANGER_SECONDS:
                self._drop(line, "")
        if self.at >= len(SUBJECTS):
            return
        subject = SUBJECTS[self.at]
        board = self.board[subject]
        awaited = [n for n in range(self.count) if n not in board and n not in self.gone]
        late = [n for n in awaited if (one := self.present[n]) is not None and now - one.received > self.silence]
        for node in late:
            self.gone[node] = f"it was silent for {self.silence:g} s"
            if subject == "result":
                self._stop()
        if now >= self.end:
            for node in awaited:
                never = self.present[node] is None
                if never:
                    self.never.add(node)
                late_join = f"it did not come within {self.limits['join']:g} s"
                self.gone.setdefault(node, late_join if never else f"it did not get ready in time ({subject})")
        if any(n not in self.gone for n in awaited):
            return
        self.at += 1
        if self.at < len(SUBJECTS):
            self.end = now + self.limits[SUBJECTS[self.at]]
        self._tell_all({"say": subject, "data": board, "gone": self.gone, "never": sorted(self.never), "refused": self.refused})

    def _tell_all(self, message: Mapping[str, Any]) -> None:
        packed = memoryview(json.dumps(message).encode() + b"\n")
        for line in list(self.lines.values()):
            if line.node is not None:
                line.write.append(packed)
                self._flush(line)

    def _tell(self, line: Line, message: Mapping[str, Any]) -> None:
        line.write.append(memoryview(json.dumps(message).encode() + b"\n"))
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
