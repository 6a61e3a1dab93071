"""Strangers at the hub and nodes that are short of something cost nobody else the meeting."""

from __future__ import annotations

import errno
import random
import selectors
import socket
import string
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cluster import connectivity, coordinator, member
from netdoctor.cluster.channel import PROTOCOL, Body, Keys, Receiver, Sender, first_line, nonce, read_first
from netdoctor.cluster.coordinator import STRANGERS, SUBJECTS, Coordinator
from netdoctor.cluster.member import MeetingError, Member
from netdoctor.cluster.observations import Endpoints, Nodes, Proof
from netdoctor.cluster.secret import Secret
from netdoctor.cluster.session import ClusterSession, Limits
from netdoctor.model import Status
from tests.unit.test_nodes_hostile import LIMITS

pytestmark = pytest.mark.slow

# Strangers at the hub


TOKEN = Secret(Proof.TOKEN, b"0123456789abcdef0123456789abcdef")


class Caller:
    """One connection to the hub: a light client that speaks the protocol, or anything else."""

    def __init__(self, port: int, secret: Secret = TOKEN) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), 20)
        self.secret = secret
        self.sender: Sender | None = None
        self.frames: Receiver | None = None
        self.heard: list[dict[str, Any]] = []

    def raw(self, data: bytes) -> None:
        self.line.sendall(data)

    def first(self) -> dict[str, Any]:
        """One line, before there are frames."""
        data = b""
        while not data.endswith(b"\n"):
            more = self.line.recv(1)
            assert more, "hung up"
            data += more
        return read_first(data)

    def knock(self, node: int, nodes: int, **more: Any) -> dict[str, Any]:
        """Say join: the answer."""
        self.hello = {"say": "join", "protocol": PROTOCOL, "node": node, "nodes": nodes, "run": "", "proof": self.secret.proof}
        self.hello |= {"nonce": nonce(), **more}
        self.raw(first_line(self.hello))
        return self.first()

    def join(self, node: int, nodes: int, data: Any = None, **more: Any) -> dict[str, Any]:
        """Prove to be this node: welcome, or refused."""
        answer = self.knock(node, nodes, **more)
        if answer["say"] != "challenge":
            return answer
        keys = Keys(self.secret, self.hello, answer["nonce"])
        self.sender, self.frames = Sender(keys.up), Receiver(keys.down, 64 << 20)
        self.say({"say": "here", "data": data or {"host": f"h{node}"}})
        begin = self.line.recv(1, socket.MSG_PEEK)
        return self.first() if begin == b"{" else self.next()

    def say(self, message: Any) -> None:
        assert self.sender is not None
        body = Body(message.encode() if isinstance(message, str) else message)
        self.raw(self.sender.frame(body) + body.data)

    def next(self) -> dict[str, Any]:
        assert self.frames is not None
        while not self.heard:
            data = self.line.recv(1 << 16)
            assert data, "hung up"
            self.heard += self.frames.feed(data)
        return self.heard.pop(0)

    def until(self, subject: str) -> dict[str, Any]:
        while (message := self.next())["say"] != subject:
            pass
        return message

    def hung_up(self) -> bool:
        """Whether the hub closes the connection, whatever it still says."""
        try:
            while self.line.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.line.close()


class Room:
    """A hub on a port of its own, and who came to it."""

    def __init__(self, count: int = 2, secret: Secret = TOKEN, run: str = "") -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = listener.getsockname()[1]
        self.coordinator = Coordinator([listener], count, run, LIMITS, 20.0, secret)
        self.count, self.callers, self.secret = count, list[Caller](), secret
        self.coordinator.start()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self.coordinator.close()
        for one in self.callers:
            one.close()

    def call(self, secret: Secret | None = None) -> Caller:
        self.callers.append(Caller(self.port, secret or self.secret))
        return self.callers[-1]

    def all(self) -> list[Caller]:
        """Every node, joined."""
        nodes = [self.call() for _ in range(self.count)]
        for number, one in enumerate(nodes):
            assert one.join(number, self.count)["say"] == "welcome"
        return nodes


def test_strangers_who_say_nothing_keep_nobody_out() -> None:
    with Room() as room:
        for _ in range(2 * STRANGERS):
            room.call()
        assert sorted(room.all()[1].until("join")["data"]) == ["0", "1"]


@pytest.mark.parametrize("port", ["1e400", "[]", '"x"', "null", "NaN"])
def test_no_message_ends_the_hub(port: str) -> None:
    with Room() as room:
        first, second = room.all()
        second.until("join")
        first.say(f'{{"say":"store","port":{port}}}')
        second.say({"say": "place", "data": {}})
        assert "nobody of this version" in second.until("place")["gone"]["0"]


def test_a_hub_without_a_descriptor_lets_in_who_waits_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(socket.socket):
        asked, poor = 0, True

        def accept(self) -> tuple[socket.socket, Any]:
            self.asked += 1
            if self.poor:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    clock = [100.0]
    monkeypatch.setattr(coordinator.time, "monotonic", lambda: clock[0])
    door = Poor(fileno=socket.create_server(("127.0.0.1", 0)).detach())
    one = Coordinator([door], 2, "", LIMITS, 20.0)
    one.selector.register(door, selectors.EVENT_READ)
    with socket.create_connection(door.getsockname()):
        for _ in range(3):
            one.turn()
        assert door.asked == 1  # by a clock that stands still
        door.poor = False
        clock[0] += 1.0
        for _ in range(2):
            one.turn()
        assert len(one.lines) == 1
    for line in one.lines:
        line.close()
    one.selector.close()
    door.close()


def test_what_nodes_have_not_read_yet_is_kept_once() -> None:
    with Room(120) as room:
        nodes = room.all()
        for line in room.coordinator.lines.values():
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for one in nodes:
            one.until("join")
            one.say({"say": "place", "data": "".join(random.choices(string.ascii_letters, k=30 << 10))})
        assert len(nodes[0].until("place")["data"]) == 120
        waiting = [one.write for one in room.coordinator.lines.values() if one.write]
        shared = {id(part.obj): len(part.obj) for one in waiting for part in one if len(part.obj) > 1024}
        assert len(waiting) > 5 and len(shared) == 1
        assert len(nodes[1].until("place")["data"]) == 120


def test_a_node_that_verifies_for_long_is_waited_for() -> None:
    """Nobody told it to stop: the runner's own limits hold, not those after a failure."""
    door = socket.create_server(("127.0.0.1", 0))
    made = Coordinator([door], 2, "", {**LIMITS, "result": 300.0}, 20.0)
    made.at, made.end = len(SUBJECTS) - 1, time.monotonic() + 300.0
    made._ended(False)
    assert made.end - time.monotonic() > 75.0 + 15.0  # runner.LIMITS: verify, done
    made._ended(True)
    assert made.end - time.monotonic() <= coordinator.LAST_SECONDS
    door.close()


# On the way to the hub


def test_a_way_open_before_the_master_listens_is_tried_again() -> None:
    """A proxy (a sidecar, a forwarded port) accepts for a master that is not there yet, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        port = proxy.getsockname()[1]
        hung_up = threading.Event()

        def live() -> None:
            for _ in range(2):
                proxy.accept()[0].close()
            proxy.close()
            hung_up.set()

        threading.Thread(target=live, daemon=True).start()
        other = Member(Nodes(2, 1, "127.0.0.1", port), LIMITS, 5.0)
        other.open()
        coming = threading.Thread(target=other.join, args=({"host": "h1"}, time.monotonic() + 20), daemon=True)
        coming.start()
        assert hung_up.wait(20)
    first = Member(Nodes(2, 0, "127.0.0.1", port), LIMITS, 5.0)
    first.open()
    try:
        first.join({"host": "h0"}, time.monotonic() + 20)
        coming.join()
        assert sorted(other.wait("join", time.monotonic() + 20)["data"]) == ["0", "1"]
    finally:
        other.close()
        first.close()


def test_a_master_that_is_gone_before_it_answered_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        other = Member(Nodes(2, 1, "127.0.0.1", proxy.getsockname()[1]), LIMITS, 5.0)
        other.open()

        def accept() -> None:
            proxy.accept()[0].close()
            proxy.close()

        live = threading.Thread(target=accept, daemon=True)
        live.start()
        try:
            with pytest.raises(MeetingError, match="refuses connections"):
                other.join({"host": "h1"}, time.monotonic() + 1)
                other.wait("join", time.monotonic() + 5)
        finally:
            other.close()
            live.join()


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "\udcff", "a b"])
def test_a_name_that_nobody_can_have_is_no_crash(host: str) -> None:
    made = Member(Nodes(2, 1, host, 5), LIMITS, 5.0)
    made.open()
    try:
        with pytest.raises(MeetingError, match="its name is not known"):
            made.join({}, time.monotonic())
    finally:
        made.close()


def test_many_who_knock_at_once_all_hear_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 64 nodes brings each of them up to three visits of every other at the same moment."""
    monkeypatch.setattr(connectivity, "MAX_CLIENTS", 2)
    door = connectivity.ProbeServer(1)
    try:
        with ThreadPoolExecutor(40) as pool:
            assert set(pool.map(lambda _: connectivity.probe("127.0.0.1", door.port, 1), range(120))) == {None}
    finally:
        door.close()


def test_a_door_that_lacks_a_descriptor_for_a_moment_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(socket.socket):
        poor = True

        def accept(self) -> tuple[socket.socket, Any]:
            if self.poor:
                self.poor = False
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    made = connectivity.listen(0)
    monkeypatch.setattr(connectivity, "listen", lambda port: Poor(fileno=made.detach()))
    door = connectivity.ProbeServer(1)
    try:
        assert connectivity.probe("127.0.0.1", door.port, 1) is None
    finally:
        door.close()


START = threading.Thread.start


def no_pool(thread: threading.Thread) -> None:
    """Thread.start where a pool gets none."""
    if thread.name.startswith("ThreadPool"):
        raise RuntimeError("can't start new thread")
    START(thread)


def test_a_node_without_threads_tries_the_others_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Member(Nodes(2, 0, "127.0.0.1", 5), LIMITS, 5.0)
    door = connectivity.ProbeServer(1, made.probe_key)
    monkeypatch.setattr(threading.Thread, "start", no_pool)
    try:
        assert made.reach({1: {"port": door.port, "address": "127.0.0.1"}}, {}) == ({1: None}, {"gloo": {}, "nccl": {}})
    finally:
        door.close()


@pytest.mark.parametrize(("extra", "there"), [(0.0, {}), (1.0, {1: None})])
def test_without_threads_what_there_is_no_time_for_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, extra: float, there: dict[int, None]
) -> None:
    """Each door takes the most that it may, by a clock of its own: it fits in once, or not at all."""
    monkeypatch.setattr(threading.Thread, "start", no_pool)
    clock = [100.0]

    def probe(*_: object) -> None:
        clock[0] += member.PROBE_SECONDS

    monkeypatch.setattr(member, "probe", probe)
    made = Member(Nodes(128, 0, "127.0.0.1", 5), {**LIMITS, "reach": member.PROBE_SECONDS + extra}, 5.0)
    monkeypatch.setattr(member.time, "monotonic", lambda: clock[0])
    joined = {n: {"port": 7000, "address": f"10.0.0.{n}"} for n in range(1, 128)}
    taken = {n: Endpoints(listen={"gloo": ("eth1", f"10.1.0.{n}")}) for n in range(1, 128)}
    assert made.reach(joined, taken) == (there, {"gloo": {}, "nccl": {}})


@pytest.mark.parametrize("name", ["netdoctor-join", "netdoctor-probe-server", "netdoctor-coordinator", "netdoctor-member"])
def test_a_node_that_gets_no_thread_at_all_blames_itself(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setattr(threading.Thread, "start", limited)
    made = ClusterSession(Nodes(2, 0, "127.0.0.1", port), Limits(wait=5.0), lambda _: None)
    made.begin()
    try:
        assert "it cannot take part: can't start new thread" in str(made.run(None, {}))
    finally:
        made.close()
    own = [one for one in allreduce_nodes(made.cluster) if "cannot take part" in one.message]
    assert [one.status for one in own] == [Status.UNKNOWN]
