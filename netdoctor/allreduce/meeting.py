"""One node at the meeting: finds the hub, says what it has to say, hears what all have said, and tries every other node."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from netdoctor.allreduce.hub import PROTOCOL, Hub
from netdoctor.allreduce.nodes import Nodes
from netdoctor.textsafe import clean

MAX_ANSWER: Final = 128 << 20  # bytes of one line of the hub: what `MAX_NODES` nodes said
PING: Final = 0.5  # seconds
TRY: Final = 3.0  # seconds for one connection: a lost SYN is sent again after 1 s (RFC 6298)
REACHED: Final = 64  # nodes that each node tries to reach
_KINDS: Final = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timed out",
    errno.EHOSTUNREACH: "no route",
    errno.ENETUNREACH: "no route",
    errno.EACCES: "forbidden here",
    errno.EPERM: "forbidden here",
}


class MeetingError(Exception):
    """There is no meeting, or no more: why, in words that name the master."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind  # "refused" "timed out" "no route" "no such host" "turned away" "lost" "silent" "failed" "port"


class Meeting:
    """Used by one thread; `close` may be called at any moment."""

    def __init__(self, nodes: Nodes, limits: Mapping[str, float], silence: float) -> None:
        self.nodes, self.limits, self.silence = nodes, dict(limits), silence
        self.hub: Hub | None = None
        self.line: socket.socket | None = None
        self.peer = ""  # the master's address as it was dialled
        self.heard: dict[str, dict[str, Any]] = {}
        self.dead: MeetingError | None = None
        self.offset, self.trip = 0.0, float("inf")  # of the hub's clock against ours, and the round trip that showed it
        self.changed = threading.Condition()
        self.last = time.monotonic()
        self.door: socket.socket | None = None  # which other nodes try
        self.closed = False
        self._writing = threading.Lock()

    # Come and go

    def open(self) -> None:
        """Node 0: listen.  Raises MeetingError where the port cannot be had."""
        self.door = _listen(0)
        threading.Thread(target=self._admit, name="netdoctor-door", daemon=True).start()
        if self.nodes.rank != 0:
            return
        try:
            door = _listen(self.nodes.port)
        except OSError as error:
            raise MeetingError("port", f"port {self.nodes.port} cannot be listened on: {error.strerror}") from None
        self.hub = Hub(door, self.nodes.count, self.nodes.run, self.limits, self.silence)
        self.hub.start()

    def join(self, data: Mapping[str, Any], deadline: float) -> None:
        """Find the master, trying again until `deadline` (time.monotonic).  Raises MeetingError."""
        assert self.door is not None
        host = "127.0.0.1" if self.nodes.rank == 0 else self.nodes.master
        while True:
            try:
                self.line = _connect(host, self.nodes.port, min(TRY, max(0.1, deadline - time.monotonic())))
                break
            except OSError as error:
                kind, text = kind_of(error)
                if self.closed or time.monotonic() + 0.2 >= deadline:
                    raise MeetingError(kind, text) from None
            with self.changed:
                self.changed.wait(0.2)
        self.peer = str(self.line.getpeername()[0]).removeprefix("::ffff:")
        # A master that is frozen must not freeze us; the time-out of the socket object would hold for reading as well.
        self.line.settimeout(None)
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, round(self.silence)), 0))
        self.last = time.monotonic()
        hello = {"say": "join", "protocol": PROTOCOL, "node": self.nodes.rank, "nodes": self.nodes.count, "run": self.nodes.run}
        self._send({**hello, "data": {**data, "port": self.door.getsockname()[1]}})
        for target in (self._listen, self._ping):
            threading.Thread(target=target, name="netdoctor-meeting", daemon=True).start()

    def close(self, why: str = "") -> None:
        """Leave.  `why` is what the others are told where this node goes before the end."""
        if self.closed:
            return
        self._send({"say": "bye", "why": why})
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self.hub is not None:
            self.hub.close()
        for one in (self.line, self.door):
            if one is not None:
                with_shutdown(one)

    # Say and hear

    def say(self, subject: str, **fields: Any) -> None:
        self._send({"say": subject, **fields})

    def has(self, subject: str) -> bool:
        return subject in self.heard

    def wait(self, subject: str, deadline: float) -> dict[str, Any]:
        """What the hub said about `subject`.  Raises MeetingError where the hub is gone, or silent beyond `deadline`."""
        with self.changed:
            while subject not in self.heard:
                if self.dead is not None:
                    raise self.dead
                now = time.monotonic()
                if now - self.last > self.silence or now >= deadline:
                    raise MeetingError("silent", f"was silent for {now - self.last:.0f} s")
                self.changed.wait(0.1)
            return self.heard[subject]

    def _send(self, message: Mapping[str, Any]) -> None:
        line = self.line
        if line is None:
            return
        try:
            with self._writing:
                line.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._died(MeetingError("lost", f"the connection to it broke: {error.strerror}"))

    def _died(self, error: MeetingError) -> None:
        with self.changed:
            self.dead = self.dead or error
            self.changed.notify_all()

    def _ping(self) -> None:
        while not self.closed and self.dead is None:
            self._send({"say": "ping", "t": time.monotonic()})
            with self.changed:
                self.changed.wait(PING)

    def _listen(self) -> None:
        assert self.line is not None
        read = bytearray()
        try:
            while data := self.line.recv(1 << 16):
                self.last = time.monotonic()
                read += data
                while b"\n" in read:
                    first, _, read = read.partition(b"\n")
                    self._hear(json.loads(first))
                if len(read) > MAX_ANSWER:
                    raise ValueError("too much")
            self._died(MeetingError("lost", "the connection to it was closed"))
        except OSError as error:
            self._died(MeetingError("lost", f"the connection to it broke: {error.strerror}"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._died(MeetingError("turned away", "what listens there is no netdoctor of this version"))

    def _hear(self, message: dict[str, Any]) -> None:
        subject = str(message["say"])
        if subject == "pong":
            now, sent = time.monotonic(), float(message["t"])
            if now - sent < self.trip:
                self.trip, self.offset = now - sent, float(message["now"]) - (now + sent) / 2
            return
        if subject == "refused":
            self._died(MeetingError("turned away", f"turned this node away: {clean(str(message['why']))[:200]}"))
            return
        with self.changed:
            self.heard.setdefault(subject, message)
            self.changed.notify_all()

    # Every other node

    def _admit(self) -> None:
        """Whoever tries this node hears who it is."""
        assert self.door is not None
        who = f"{PROTOCOL} {self.nodes.rank}\n".encode()
        try:
            while True:
                peer, _ = self.door.accept()
                with peer:
                    peer.settimeout(1.0)
                    try:
                        peer.sendall(who)
                    except OSError:
                        pass
        except OSError:
            pass  # closed

    def reach(self, joined: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
        """Try the ports of the others: node -> "" or why not, as `kind_of` has it.

        A port like those that NCCL's bootstrap and Gloo listen on: one that the kernel gave out.
        """
        others = sorted(joined, key=lambda n: (n - self.nodes.rank) % self.nodes.count)
        targets = [n for n in others if n != self.nodes.rank][:REACHED]
        if not targets:
            return {}
        with ThreadPoolExecutor(min(16, len(targets))) as pool:
            return dict(zip(targets, pool.map(lambda n: self._reach(n, joined[n]), targets), strict=True))

    def _reach(self, node: int, data: Mapping[str, Any]) -> str:
        host = self.peer if node == 0 else str(data.get("address", ""))
        try:
            port = int(data["port"])
            with _connect(host, port, min(TRY, self.limits["reach"])) as line:
                line.settimeout(min(TRY, self.limits["reach"]))
                said = line.recv(64).decode("ascii", "replace")
        except OSError as error:
            return kind_of(error)[0]
        except (KeyError, TypeError, ValueError):
            return "failed"
        return "" if said == f"{PROTOCOL} {node}\n" else "another node answers"


def kind_of(error: OSError) -> tuple[str, str]:
    """Refused, timed out and no route are three faults: nobody listens or a firewall rejects; a firewall drops or the host is
    down; routing, or a firewall that answers with ICMP."""
    if isinstance(error, socket.gaierror):
        return "no such host", f"its name is not known: {error.strerror}"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return "timed out", "connections to it time out: it is down, or a firewall drops them"
    kind = _KINDS.get(error.errno or 0, "failed")
    if kind == "refused":
        return kind, "it refuses connections: nothing listens there (not started, or ended already), or a firewall rejects them"
    if kind == "no route":
        return kind, f"there is no way to it: {os.strerror(error.errno or 0)} (routing, it is down, or a firewall rejects)"
    return kind, f"connecting to it fails: {error.strerror or error}"


def _connect(host: str, port: int, seconds: float) -> socket.socket:
    """Raises OSError: the last address's."""
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        line = socket.socket(family, kind, protocol)
        try:
            line.settimeout(seconds)
            line.connect(address)
            if line.getsockname() == line.getpeername():  # a port of ours that is the one dialled: TCP's simultaneous open
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return line
        except OSError as error:
            line.close()
            last = error
    raise last


def _listen(port: int) -> socket.socket:
    """On every address, of IPv6 too where there is IPv6.  Raises OSError."""
    door = None
    if socket.has_dualstack_ipv6():
        try:
            door = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return door or socket.create_server(("", port), backlog=512)


def with_shutdown(one: socket.socket) -> None:
    """Close, and wake whoever sits in accept or recv."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
