"""How much may be said at a meeting, whom others make a node dial, where node 0 listens: proofs of a review."""

from __future__ import annotations

import resource
import socket
import threading
import time
import zlib

import pytest

from netdoctor.cluster import channel, connectivity, coordinator, sample
from netdoctor.cluster.channel import FIRST, Body, GarbageError, Receiver, Sender
from netdoctor.cluster.connectivity import ProbeServer
from netdoctor.cluster.coordinator import LIMITS as BYTES
from netdoctor.cluster.line import Line, least_likely
from netdoctor.cluster.member import Member
from netdoctor.cluster.observations import Endpoints, Fault, Miss, Nodes, OwnAddress
from tests.unit.test_nodes import free_port
from tests.unit.test_nodes_hostile import LIMITS
from tests.unit.test_nodes_proof import keys
from tests.unit.test_nodes_strangers import TOKEN, Room

pytestmark = pytest.mark.slow

# How much may be said


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("t", ['"' + "x" * 1000 + '"', "null", "[1.0]", "1e400", "NaN", "1"])
def test_a_ping_is_a_time_and_nothing_else(t: str) -> None:
    """2 MB of text in the place of a time came back threefold, and stayed in memory: 829 MB after 8 s."""
    with Room() as room:
        one = room.call()
        one.join(1, 2)
        one.say('{"say":"ping","t":' + t + "}")
        assert one.hung_up()


def test_who_does_not_read_is_not_written_to_without_end() -> None:
    with Room() as room:
        one = room.call()
        one.join(1, 2)
        one.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        (line,) = [line for line in room.coordinator.lines.values() if line.node == 1]
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one.line.settimeout(2)
        for _ in range(3000):
            one.say({"say": "ping", "t": 1.0})
        assert sum(len(part) for part in line.write) < 1000


@pytest.mark.parametrize("subject", [s for s in coordinator.SUBJECTS if s != "join"])
def test_a_part_is_bounded_by_its_subject(subject: str) -> None:
    with Room() as room:
        nodes = room.all()
        for before in coordinator.SUBJECTS[1 : coordinator.SUBJECTS.index(subject)]:
            for one in nodes:
                one.say({"say": before, "data": {}})
            nodes[0].until(before)
        nodes[1].line.settimeout(20)
        try:
            nodes[1].say({"say": subject, "data": "".join(chr(33 + n % 90) for n in range(BYTES[subject] + 10))})
        except OSError:
            pass
        nodes[0].say({"say": subject, "data": {}})
        message = nodes[0].until(subject)
    assert message["gone"] == {"1": "it said too much"}


def test_a_bomb_is_not_unpacked() -> None:
    packed = b"z" + zlib.compress(b'{"say":"' + b"0" * (64 << 20), 9)
    body = Body.__new__(Body)
    body.data, body.digest = memoryview(packed), channel.hashlib.sha256(packed).digest()
    frame, before = Sender(keys().up).frame(body) + packed, memory()
    with pytest.raises(GarbageError, match="too much"):
        list(Receiver(keys().up, 100_000).feed(frame))
    assert memory() - before < 16 << 20


@pytest.mark.parametrize("first", [b"x" * (FIRST + 1), b'{"say":"join",', b"{" * 4000 + b"\n", b"\xff\n", b"\0" * 64])
def test_a_stranger_is_told_no_more_than_a_line(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly it speaks: the deadline is one for all that it says."""
    monkeypatch.setattr(coordinator, "STRANGER_SECONDS", 0.4)
    with Room() as room:
        one = room.call()
        one.raw(first)
        got, end = 0, time.monotonic() + 10
        one.line.settimeout(0.05)
        while time.monotonic() < end:
            try:
                more = one.line.recv(4096)
            except TimeoutError:
                with pytest.MonkeyPatch.context():
                    try:
                        one.raw(b" ")  # it keeps on, a byte at a time
                    except OSError:
                        break
                continue
            except OSError:
                break
            if not more:
                break
            got += len(more)
        assert got < 300 and time.monotonic() < end
        assert sorted(room.all()[0].until("join")["data"]) == ["0", "1"]


def test_one_address_that_floods_does_not_drive_out_another() -> None:
    lines = [Line(socket.socket(), address) for address in ("10.0.0.1", *["10.9.9.9"] * 5, "10.0.0.2")]
    assert least_likely(lines) is lines[1]
    for one in lines:
        one.socket.close()


# Whom a node dials


def endpoint(ip: str, netns: str = "") -> Endpoints:
    return Endpoints(netns, {"gloo": ("eth0", ip)}, (OwnAddress("eth0", ip, 24, 1500),))


def test_nobody_makes_nodes_dial_what_no_connection_shows() -> None:
    usual = {1: "10.0.0.2"}
    for ip in ("127.0.0.9", "10.0.0.77", "::1"):
        found = sample.listeners(0, usual, {0: endpoint("10.0.0.1", "a"), 1: endpoint(ip, "b")}, proven=False)
        assert not any(isinstance(one, str) for row in found.values() for one in row.values()), ip
    same = sample.listeners(0, usual, {1: endpoint("10.0.0.2")}, proven=False)
    assert same == {"gloo": {1: "10.0.0.2"}}


@pytest.mark.parametrize(
    ("ip", "netns", "dialled"),
    [
        ("192.168.7.2", "b", "192.168.7.2"),  # where its ranks will listen: they dial it a moment later
        ("127.0.1.1", "b", Miss(Fault.LOOPBACK)),
        ("127.0.1.1", "a", "127.0.1.1"),  # two of one machine
        ("127.0.1.1", "", Miss(Fault.LOOPBACK)),
        ("224.0.0.1", "b", None),
        ("0.0.0.0", "b", None),
    ],
)
def test_what_a_proven_node_may_name(ip: str, netns: str, dialled: str | Miss | None) -> None:
    found = sample.listeners(0, {1: "10.0.0.2"}, {0: endpoint("10.0.0.1", "a"), 1: endpoint(ip, netns)}, proven=True)
    assert found == ({} if dialled is None else {"gloo": {1: dialled}})


def test_no_port_of_the_system_is_dialled() -> None:
    made = Member(Nodes(2, 0, "127.0.0.1", 5), LIMITS, 5.0, TOKEN)
    assert made.reach({1: {"port": 22, "address": "127.0.0.1"}}, {})[0] == {1: Miss(Fault.FAILED)}


@pytest.mark.parametrize("count", [2, 3, 8, 57, 58, 200, 512, 1024, 16384])
def test_no_node_opens_more_connections_than_it_may(count: int) -> None:
    tried = [sample.others(rank, count) for rank in (0, 1, count // 2, count - 1)]
    assert all(len(set(one)) == len(one) == min(count - 1, sample.FIRST_TRIES) for one in tried)
    assert all(rank not in one for rank, one in zip((0, 1, count // 2, count - 1), tried, strict=True))
    usual = {n: f"10.0.{n // 250}.{n % 250}" for n in tried[0]}
    two = sample.listeners(0, usual, {n: endpoint(f"10.1.{n // 250}.{n % 250}") for n in usual}, proven=True)
    assert len(sample.tries(usual, two)) <= sample.FIRST_TRIES < sample.CONNECTIONS
    assert (1 % count) in tried[0]


def test_every_node_is_tried_as_often_as_any_other() -> None:
    into = dict.fromkeys(range(300), 0)
    for _, other in sample.pairs(300):
        into[other] += 1
    assert set(into.values()) == {sample.FIRST_TRIES}


def test_a_second_try_comes_out_of_the_same_purse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectivity, "TRY", 0.1)
    dialled: list[int] = []
    connect = connectivity.connect
    monkeypatch.setattr(connectivity, "connect", lambda *a, **k: (dialled.append(1), connect(*a, **k))[1])
    budget = connectivity.Budget(1)
    with connectivity.listen(0) as silent:

        def stall() -> None:
            for _ in range(3):
                guest, _ = silent.accept()
                guest.sendall(connectivity._greeting(1, bytes(16)))
                kept_open.append(guest)

        kept_open: list[socket.socket] = []
        threading.Thread(target=stall, daemon=True).start()
        for _ in range(2):
            assert connectivity.probe("127.0.0.1", silent.getsockname()[1], 1, b"", budget) == Miss(Fault.STALLS)
        for one in kept_open:
            one.close()
    assert len(dialled) == 3


def test_a_server_of_probes_serves_its_own_run_alone() -> None:
    server = ProbeServer(1, b"key")
    try:
        assert connectivity.probe("127.0.0.1", server.port, 1, b"key") is None
        assert connectivity.probe("127.0.0.1", server.port, 1, b"other") == Miss(Fault.STALLS)
        assert connectivity.probe("127.0.0.1", server.port, 2, b"key") == Miss(Fault.ANOTHER_NODE)
    finally:
        server.close()


def test_who_answers_a_probe_without_the_key_is_not_that_node() -> None:
    server = ProbeServer(1, b"other")
    server.key = b"key"
    code = connectivity._code
    try:
        with pytest.MonkeyPatch.context() as patch:  # a server that lets in everybody, and cannot answer
            patch.setattr(connectivity, "_code", lambda key, what, *rest: code(b"x" if what == b"probes" else key, what, *rest))
            server.key = b"stranger"
            assert connectivity.probe("127.0.0.1", server.port, 1, b"key") == Miss(Fault.ANOTHER_NODE)
    finally:
        server.close()


# Where node 0 listens


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("127.0.0.3", {"127.0.0.1", "127.0.0.3"}),
        ("::1", {"127.0.0.1", "::1"}),
        ("localhost", {"::"}),
    ],
)
def test_node_0_listens_where_it_is_called(master: str, addresses: set[str]) -> None:
    """A name that is the loopback's here (Debian's 127.0.1.1) says nothing about the address that others know."""
    port = free_port()
    made = connectivity.listen_as(master, port)
    try:
        assert {one.getsockname()[0] for one in made} <= addresses | {"0.0.0.0"} and made
        for one in made:
            assert one.getsockname()[1] == port
    finally:
        for one in made:
            one.close()


@pytest.mark.parametrize("master", ["192.0.2.1", "no-such-host.invalid", "a..b"])
def test_behind_the_address_of_another_machine_it_listens_on_all(master: str) -> None:
    """A Service of Kubernetes, NAT: connections to it come to some address of this node."""
    (one,) = connectivity.listen_as(master, free_port())
    assert one.getsockname()[0] in ("::", "0.0.0.0")
    one.close()
