"""One node of a common run: sends the coordinator its part of each subject, receives those of all, and probes the others."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from netdoctor import textsafe
from netdoctor.cluster import sample
from netdoctor.cluster.channel import FIRST, PROTOCOL, Body, Keys, Receiver, Sender, first_line, nonce, read_first
from netdoctor.cluster.connectivity import (
    SMALL,
    TRY,
    Budget,
    ProbeServer,
    connect,
    fault_of,
    listen_as,
    own_address,
    probe,
    with_shutdown,
)
from netdoctor.cluster.coordinator import STALE, SUBJECTS, Coordinator
from netdoctor.cluster.messages import BACKENDS, MAX_SECONDS
from netdoctor.cluster.observations import Endpoints, Fault, Miss, Nodes, Proof
from netdoctor.cluster.secret import Secret, of_munge
from netdoctor.compare.clocks import Clock

MAX_ANSWER: Final = 64 << 20  # bytes of one message of the coordinator, unpacked: of `MAX_NODES` nodes with 8 ranks 15 MB
ANSWER: Final = 10.0  # seconds for the coordinator to challenge and to welcome: as long as it hears a stranger
ROOM: Final = 256  # descriptors beside those of the nodes: strangers, helpers, the run
SAID: Final = (*SUBJECTS, "store", "stop")  # what the coordinator says besides pongs
PING: Final = 0.5  # seconds
PROBE_SECONDS: Final = 3 * TRY  # that one probe may take: see `connectivity.probe`

Reached = dict[int, Miss | None]  # node -> None or why not


class MeetingError(Exception):
    """The coordinator cannot be had, or is lost: why, in words that go after the master's name."""

    def __init__(self, kind: Fault, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Member:
    """Used by one thread; `close` may be called at any moment."""

    def __init__(self, nodes: Nodes, limits: Mapping[str, float], silence: float, secret: Secret | None = None) -> None:
        self.nodes, self.limits, self.silence = nodes, dict(limits), silence
        self.secret = secret or Secret()
        self.coordinator: Coordinator | None = None
        self.line: socket.socket | None = None
        self.sender: Sender | None = None
        self.peer = ""  # the master's address as it was dialled
        self.received: dict[str, dict[str, Any]] = {}
        self.dead: MeetingError | None = None
        self.offset, self.trip = 0.0, float("inf")  # of the coordinator's clock against ours, and the round trip that showed it
        self.clock: Clock | None = None  # of this node against node 0's, by the shortest round trip
        self.changed = threading.Condition()
        self.last = time.monotonic()
        self.gathering: dict[str, Any] = {}  # what node 0 says of those who are still to come
        self.trying = ""  # why node 0 is not reached yet
        self.probe_server: ProbeServer | None = None
        self.closed = False
        self._writing = threading.Lock()

    @property
    def probe_key(self) -> bytes:
        return self.secret.derive(PROTOCOL, "probe", self.nodes.run)

    # Come and go

    def open(self) -> None:
        """Node 0: listen.  Raises MeetingError where the port cannot be had."""
        try:
            self.probe_server = ProbeServer(self.nodes.rank, self.probe_key)
        except OSError as error:
            raise MeetingError(Fault.NO_LOCAL_PORT, f"no local port can be listened on: {error.strerror}") from None
        if self.nodes.rank != 0:
            return
        _make_room(self.nodes.count)
        try:
            listeners = listen_as(self.nodes.master, self.nodes.port)
        except OSError as error:
            self.probe_server.close()
            raise MeetingError(Fault.PORT_TAKEN, f"port {self.nodes.port} cannot be listened on: {error.strerror}") from None
        coordinator = Coordinator(listeners, self.nodes.count, self.nodes.run, self.limits, self.silence, self.secret)
        coordinator.start()
        self.coordinator = coordinator

    def join(self, data: Mapping[str, Any], deadline: float) -> None:
        """Find the master, trying again until `deadline` (time.monotonic).  Raises MeetingError."""
        assert self.probe_server is not None
        here = {**data, "port": self.probe_server.port}
        error: MeetingError | None = None
        taken_since = 0.0
        while True:
            seconds = min(TRY, max(0.1, deadline - time.monotonic()))
            try:
                self._call(here, seconds)
                return
            except OSError as failed:
                # What the network said counts, not that the last attempt was cut short: answers of ICMP are one a second
                # (net.ipv4.icmp_ratelimit).
                if error is None or failed.errno is not None or seconds == TRY:
                    error = MeetingError(*fault_of(failed))
                if self.nodes.rank != 0 and (ip := own_address(self.nodes.master)):
                    error = MeetingError(Fault.OWN_ADDRESS, f"{ip} is an address of this node, too: it reaches itself")
            except MeetingError as failed:
                # A node whose netdoctor was started again may be there still, until its first connection counts as dead.
                taken_since = taken_since or time.monotonic()
                soon = failed.kind is Fault.TWICE and time.monotonic() < taken_since + 2 * STALE
                if failed.kind not in (Fault.LOST, Fault.SILENT) and not soon:
                    raise
                error = failed
            self.trying = str(error)
            if self.closed or time.monotonic() + 0.2 >= deadline:
                raise error
            with self.changed:
                self.changed.wait(0.2)

    def _call(self, here: Mapping[str, Any], seconds: float) -> None:
        """Connect, and show each other that both are of this run.  Raises OSError where nothing answers, and MeetingError."""
        # In small segments, both ways: a path that loses large ones must not lose the report of it.
        host = "127.0.0.1" if self.nodes.rank == 0 else self.nodes.master
        if self.line is not None:
            self.line.close()
        self.line = line = connect(host, self.nodes.port, seconds, SMALL)
        self.peer = str(line.getpeername()[0]).removeprefix("::ffff:")
        try:
            frames, early = self._introduce(line, here)
        except TimeoutError:
            raise MeetingError(Fault.SILENT, f"was silent for {ANSWER:.0f} s") from None
        except OSError as error:
            # Something on the way (a sidecar's proxy, a forwarded port) accepts for a master that does not listen yet.
            raise MeetingError(Fault.LOST, f"the connection to it broke: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise MeetingError(Fault.UNPROVEN, "what listens there is no netdoctor of this version") from None
        # A master that is frozen must not freeze us; the time-out of the socket object would hold for reading as well.
        line.settimeout(None)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, round(self.silence)), 0))
        self.last, self.dead = time.monotonic(), None
        for message in early:
            self._receive(message)
        for target, *arguments in ((self._listen, line, frames), (self._ping, line)):
            threading.Thread(target=target, args=arguments, name="netdoctor-member", daemon=True).start()

    def _introduce(self, line: socket.socket, here: Mapping[str, Any]) -> tuple[Receiver, list[dict[str, Any]]]:
        """The frames of the coordinator from now on, and what came with the first of them."""
        nodes, end = self.nodes, time.monotonic() + ANSWER
        hello = {"say": "join", "protocol": PROTOCOL, "node": nodes.rank, "nodes": nodes.count, "run": nodes.run}
        hello |= {"proof": self.secret.proof.value, "nonce": nonce()}
        line.sendall(first_line(hello))
        challenge = _first_answer(line, end)
        if self.secret.proof is Proof.MUNGE and nodes.rank != 0:
            told = of_munge(str(challenge["credential"]))
            if isinstance(told, str):
                why = f"its credential of MUNGE shows nothing here: {textsafe.line(told)}"
                raise MeetingError(Fault.UNPROVEN, f"did not prove that it is of this run: {why}")
            self.secret = told
        assert self.probe_server is not None
        self.probe_server.key = self.probe_key
        keys = Keys(self.secret, hello, str(challenge["nonce"]))
        sender, frames = Sender(keys.up), Receiver(keys.down, MAX_ANSWER)
        body = Body({"say": "here", "data": here})
        line.sendall(sender.frame(body) + body.data)
        answer = _more(line, end)
        if answer.startswith(b"{"):  # a frame begins with its length, which is less than 2 GB
            raise _refusal(read_first(answer))
        while not (early := list(frames.feed(answer))):
            answer = _more(line, end)
        if early[0]["say"] != "welcome":
            raise ValueError("no welcome")
        self.sender = sender
        return frames, early[1:]

    def close(self, why: str = "") -> None:
        """Leave.  `why` is the reason that the other nodes report if this one leaves before the end."""
        if self.closed:
            return
        self.send("bye", why=why)
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
        line, sender = self.line, self.sender
        if line is None or sender is None:
            return
        body = Body({"say": subject, **fields})
        try:
            with self._writing:
                line.sendall(sender.frame(body) + body.data)
        except OSError as error:
            self._died(MeetingError(Fault.LOST, f"the connection to it broke: {error.strerror}"), line)

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

    def _died(self, error: MeetingError, line: socket.socket | None) -> None:
        with self.changed:
            if line is self.line:  # an abandoned connection says nothing about the next one
                self.dead = self.dead or error
            self.changed.notify_all()

    def _ping(self, line: socket.socket) -> None:
        while not self.closed and self.dead is None and line is self.line:
            self.send("ping", t=time.monotonic())
            with self.changed:
                self.changed.wait(PING)

    def _listen(self, line: socket.socket, frames: Receiver) -> None:
        try:
            while data := line.recv(1 << 18):
                self.last = time.monotonic()
                for message in frames.feed(data):
                    self._receive(message)
            self._died(MeetingError(Fault.LOST, "the connection to it was closed"), line)
        except OSError as error:
            self._died(MeetingError(Fault.LOST, f"the connection to it broke: {error.strerror}"), line)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            self._died(MeetingError(Fault.UNPROVEN, "what speaks there is no netdoctor of this version"), line)

    def _receive(self, message: dict[str, Any]) -> None:
        subject = str(message["say"])
        with self.changed:
            if subject == "pong":
                here, now, sent = time.time(), time.monotonic(), float(message["t"])
                self.gathering = message
                if now - sent < self.trip:
                    self.trip, self.offset = now - sent, float(message["now"]) - (now + sent) / 2
                    self.clock = clock_of(here, message.get("wall"), self.trip)
            elif subject in SAID:
                self.received.setdefault(subject, message)
            self.changed.notify_all()

    # Every other node

    def reach(
        self, joined: Mapping[int, Mapping[str, Any]], endpoints: Mapping[int, Endpoints]
    ) -> tuple[Reached, dict[str, Reached]]:
        """Probe the others: node -> None or why not.  First at the address that they came to the coordinator from, then, by
        backend, where their ranks will listen."""
        ring = [n for n in sample.others(self.nodes.rank, self.nodes.count) if n in joined]
        usual = {n: self.peer if n == 0 else str(joined[n].get("address", "")) for n in ring}
        listening = sample.listeners(self.nodes.rank, usual, endpoints, self.secret.proof is not Proof.NOTHING)
        tries = sample.tries(usual, listening)
        found = self._try(tries, joined) if tries else {}
        # What was not tried is left out: nothing is known of it.
        by_backend: dict[str, Reached] = {kind: {} for kind in BACKENDS}
        for kind, row in listening.items():
            for n, ip in row.items():
                if isinstance(ip, Miss) or (n, ip) in found:
                    by_backend[kind][n] = ip if isinstance(ip, Miss) else found[n, ip]
        return {n: found[n, host] for n, host in usual.items() if (n, host) in found}, by_backend

    def _try(self, tries: sample.Tries, joined: Mapping[int, Mapping[str, Any]]) -> dict[tuple[int, str], Miss | None]:
        budget = Budget(sample.CONNECTIONS - len(tries))
        key = self.probe_key

        def one(target: tuple[int, str]) -> Miss | None:
            node, host = target
            port = joined[node].get("port")
            # No node serves probes below 1024: what the kernel gives out begins there (ip_local_port_range).
            return probe(host, port, node, key, budget) if type(port) is int and 1023 < port < 65536 else Miss(Fault.FAILED)

        last = time.monotonic() + self.limits["reach"] - PROBE_SECONDS
        try:
            with ThreadPoolExecutor(len(tries)) as pool:
                return dict(zip(tries, pool.map(one, tries), strict=True))
        except RuntimeError:  # a limit of processes: one after the other, then, and as many as there is time for
            found = {}
            for target in tries:
                if time.monotonic() < last:
                    found[target] = one(target)
            return found


def clock_of(here: float, there: object, trip: float) -> Clock | None:
    """`there` was read at some moment of the round trip, at the end of which it was `here`."""
    return Clock(here - trip / 2 - there, trip / 2) if isinstance(there, float) and abs(there) < MAX_SECONDS else None


def _more(line: socket.socket, end: float) -> bytes:
    line.settimeout(max(0.01, end - time.monotonic()))
    if not (data := line.recv(1 << 16)):
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return data


def _first_answer(line: socket.socket, end: float) -> dict[str, Any]:
    """The coordinator's challenge.  Raises MeetingError where it refuses."""
    data = b""
    while not data.endswith(b"\n"):
        data += _more(line, end)
        if len(data) > FIRST:
            raise ValueError("too much")
    message = read_first(data)
    if message["say"] == "challenge":
        return message
    raise _refusal(message)


def _refusal(message: Mapping[str, Any]) -> MeetingError:
    """Who refuses proved nothing: from somebody who is not node 0 it is no verdict about this node."""
    if message["say"] != "refused":
        raise ValueError("no answer")
    said = message.get("kind")  # older ones say none
    kind = next((one for one in (Fault.TURNED_AWAY, Fault.TWICE) if said == one.value), Fault.UNPROVEN)
    return MeetingError(kind, f"turned this node away: {textsafe.line(message['why'])}")


def _make_room(count: int) -> None:
    """A descriptor for each node, where the limit allows it (getrlimit(2)); node 0's ranks inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + ROOM
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
