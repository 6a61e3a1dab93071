"""One node of a common run: sends the coordinator its part of each subject, receives those of all, and probes the others."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from netdoctor import textsafe
from netdoctor.cluster.connectivity import SMALL, TRY, ProbeServer, connect, fault_of, listen, own_address, probe, with_shutdown
from netdoctor.cluster.coordinator import PROTOCOL, Coordinator
from netdoctor.cluster.messages import BACKENDS
from netdoctor.cluster.observations import Endpoints, Fault, Miss, Nodes

MAX_ANSWER: Final = 128 << 20  # bytes of one line of the coordinator: the parts of `MAX_NODES` nodes
PING: Final = 0.5  # seconds
REACHED: Final = 64  # nodes that each node tries to reach
PROBE_SECONDS: Final = 3 * TRY  # that one probe may take: see `connectivity.probe`
MAX_TRIES: Final = 2 * REACHED  # at once: those that time out would add up

Reached = dict[int, Miss | None]  # node -> None or why not


class MeetingError(Exception):
    """The coordinator cannot be had, or is lost: why, in words that go after the master's name."""

    def __init__(self, kind: Fault, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Member:
    """Used by one thread; `close` may be called at any moment."""

    def __init__(self, nodes: Nodes, limits: Mapping[str, float], silence: float) -> None:
        self.nodes, self.limits, self.silence = nodes, dict(limits), silence
        self.coordinator: Coordinator | None = None
        self.line: socket.socket | None = None
        self.peer = ""  # the master's address as it was dialled
        self.received: dict[str, dict[str, Any]] = {}
        self.dead: MeetingError | None = None
        self.offset, self.trip = 0.0, float("inf")  # of the coordinator's clock against ours, and the round trip that showed it
        self.changed = threading.Condition()
        self.last = time.monotonic()
        self.probe_server: ProbeServer | None = None
        self.closed = False
        self._writing = threading.Lock()

    # Come and go

    def open(self) -> None:
        """Node 0: listen.  Raises MeetingError where the port cannot be had."""
        try:
            self.probe_server = ProbeServer(self.nodes.rank)
        except OSError as error:
            raise MeetingError(Fault.NO_LOCAL_PORT, f"no local port can be listened on: {error.strerror}") from None
        if self.nodes.rank != 0:
            return
        try:
            listener = listen(self.nodes.port)
        except OSError as error:
            self.probe_server.close()
            raise MeetingError(Fault.PORT_TAKEN, f"port {self.nodes.port} cannot be listened on: {error.strerror}") from None
        coordinator = Coordinator(listener, self.nodes.count, self.nodes.run, self.limits, self.silence)
        coordinator.start()
        self.coordinator = coordinator

    def join(self, data: Mapping[str, Any], deadline: float) -> None:
        """Find the master, trying again until `deadline` (time.monotonic).  Raises MeetingError."""
        assert self.probe_server is not None
        hello = {"say": "join", "protocol": PROTOCOL, "node": self.nodes.rank, "nodes": self.nodes.count, "run": self.nodes.run}
        hello |= {"data": {**data, "port": self.probe_server.port}}
        error: MeetingError | None = None
        while True:
            seconds = min(TRY, max(0.1, deadline - time.monotonic()))
            try:
                error = self._call(hello, seconds)
            except OSError as failed:
                # What the network said counts, not that the last attempt was cut short: answers of ICMP are one a second
                # (net.ipv4.icmp_ratelimit).
                if error is None or failed.errno is not None or seconds == TRY:
                    error = MeetingError(*fault_of(failed))
                if self.nodes.rank != 0 and (ip := own_address(self.nodes.master)):
                    error = MeetingError(Fault.OWN_ADDRESS, f"{ip} is an address of this node, too: it reaches itself")
            if error is None:
                return
            if self.closed or time.monotonic() + 0.2 >= deadline:
                raise error
            with self.changed:
                self.changed.wait(0.2)

    def _call(self, hello: Mapping[str, Any], seconds: float) -> MeetingError | None:
        """Connect and send who this is.  Raises OSError; what is returned is a reason to try again, too."""
        # In small segments, both ways: a path that loses large ones must not lose the report of it.
        host = "127.0.0.1" if self.nodes.rank == 0 else self.nodes.master
        if self.line is not None:
            self.line.close()
        self.line = line = connect(host, self.nodes.port, seconds, SMALL)
        self.peer = str(line.getpeername()[0]).removeprefix("::ffff:")
        # A master that is frozen must not freeze us; the time-out of the socket object would hold for reading as well.
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, round(self.silence)), 0))
        self.last, self.dead = time.monotonic(), None
        self._send(hello)
        for target in (self._listen, self._ping):
            threading.Thread(target=target, args=(line,), name="netdoctor-member", daemon=True).start()
        return self._lost_at_once()

    def _lost_at_once(self) -> MeetingError | None:
        """The connection broke before the coordinator sent anything: something on the way (a sidecar's proxy, a forwarded port)
        accepts for a master that does not listen yet."""
        end = time.monotonic() + TRY
        with self.changed:
            while not self.received and self.trip == float("inf") and time.monotonic() < end and not self.closed:
                if self.dead is not None:
                    return self.dead if self.dead.kind is Fault.LOST else None
                self.changed.wait(0.1)
        return None

    def close(self, why: str = "") -> None:
        """Leave.  `why` is the reason that the other nodes report if this one leaves before the end."""
        if self.closed:
            return
        self._send({"say": "bye", "why": why})
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if self.coordinator is not None:
            self.coordinator.close()
        if self.line is not None:
            with_shutdown(self.line)
        if self.probe_server is not None:
            self.probe_server.close()

    # Send and receive

    def send(self, subject: str, **fields: Any) -> None:
        self._send({"say": subject, **fields})

    def wait(self, subject: str, deadline: float) -> dict[str, Any]:
        """What the coordinator sent about `subject`.  Raises MeetingError where it is gone, or silent beyond `deadline`."""
        with self.changed:
            while subject not in self.received:
                if self.dead is not None:
                    raise self.dead
                now = time.monotonic()
                if now - self.last > self.silence or now >= deadline:
                    raise MeetingError(Fault.SILENT, f"was silent for {now - self.last:.0f} s")
                self.changed.wait(0.1)
            return self.received[subject]

    def _send(self, message: Mapping[str, Any]) -> None:
        line = self.line
        if line is None:
            return
        try:
            with self._writing:
                line.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self._died(MeetingError(Fault.LOST, f"the connection to it broke: {error.strerror}"), line)

    def _died(self, error: MeetingError, line: socket.socket | None) -> None:
        with self.changed:
            if line is self.line:  # an abandoned connection says nothing about the next one
                self.dead = self.dead or error
            self.changed.notify_all()

    def _ping(self, line: socket.socket) -> None:
        while not self.closed and self.dead is None and line is self.line:
            self._send({"say": "ping", "t": time.monotonic()})
            with self.changed:
                self.changed.wait(PING)

    def _listen(self, line: socket.socket) -> None:
        read = bytearray()
        try:
            while data := line.recv(1 << 16):
                self.last = time.monotonic()
                read += data
                while b"\n" in read:
                    first, _, read = read.partition(b"\n")
                    self._receive(json.loads(first))
                if len(read) > MAX_ANSWER:
                    raise ValueError("too much")
            self._died(MeetingError(Fault.LOST, "the connection to it was closed"), line)
        except OSError as error:
            self._died(MeetingError(Fault.LOST, f"the connection to it broke: {error.strerror}"), line)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self._died(MeetingError(Fault.TURNED_AWAY, "what listens there is no netdoctor of this version"), line)

    def _receive(self, message: dict[str, Any]) -> None:
        subject = str(message["say"])
        if subject == "pong":
            now, sent = time.monotonic(), float(message["t"])
            if now - sent < self.trip:
                self.trip, self.offset = now - sent, float(message["now"]) - (now + sent) / 2
            with self.changed:
                self.changed.notify_all()
            return
        if subject == "refused":
            self._died(MeetingError(Fault.TURNED_AWAY, f"turned this node away: {textsafe.line(message['why'])}"), self.line)
            return
        with self.changed:
            self.received.setdefault(subject, message)
            self.changed.notify_all()

    # Every other node

    def reach(
        self, joined: Mapping[int, Mapping[str, Any]], endpoints: Mapping[int, Endpoints]
    ) -> tuple[Reached, dict[str, Reached]]:
        """Probe the others: node -> None or why not.  First at the address that they came to the coordinator from, then, by
        backend, where their ranks will listen."""
        others = sorted(joined, key=lambda n: (n - self.nodes.rank) % self.nodes.count)
        targets = [n for n in others if n != self.nodes.rank][:REACHED]
        usual = {n: self.peer if n == 0 else str(joined[n].get("address", "")) for n in targets}
        taken = {(kind, n): ip for n in targets if n in endpoints for kind, (_, ip) in endpoints[n].listen.items()}
        tries = {(n, usual[n]) for n in targets} | {(n, ip) for (_, n), ip in taken.items()}
        if not tries:
            return {}, {}
        probe_at = lambda one: _probe(one[0], one[1], joined[one[0]])  # noqa: E731
        last = time.monotonic() + self.limits["reach"] - PROBE_SECONDS
        try:
            with ThreadPoolExecutor(min(MAX_TRIES, len(tries))) as pool:
                found = dict(zip(tries, pool.map(probe_at, tries), strict=True))
        except RuntimeError:  # a limit of processes: one after the other, then, and as many as there is time for
            found = {}
            for one in sorted(tries, key=lambda one: (targets.index(one[0]), one[1] != usual[one[0]])):
                if time.monotonic() < last:
                    found[one] = _probe(one[0], one[1], joined[one[0]])
        # What was not tried is left out: nothing is known of it.
        by_backend = {
            kind: {n: found[n, ip] for (one, n), ip in taken.items() if one == kind and (n, ip) in found} for kind in BACKENDS
        }
        return {n: found[n, host] for n, host in usual.items() if (n, host) in found}, by_backend


def _probe(node: int, host: str, joined: Mapping[str, Any]) -> Miss | None:
    port = joined.get("port")
    return probe(host, port, node) if type(port) is int and 0 < port < 65536 else Miss(Fault.FAILED)
