"""What a hostile neighbour tries at a meeting of nodes, with and without its token (`tests.lab.meeting`)."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from netdoctor.cluster.channel import Body, Keys, Sender, first_line, nonce
from netdoctor.cluster.coordinator import SUBJECTS, Coordinator
from netdoctor.cluster.observations import Proof
from netdoctor.cluster.secret import Secret
from tests.lab.meeting_nodes import Meeting
from tests.unit.test_nodes_hostile import LIMITS
from tests.unit.test_nodes_strangers import TOKEN, Caller

OTHER: Final = Secret(Proof.TOKEN, b"the token of somebody else")
NASTY: Final = "evil\x9b2J\x1b[2J\u202egnp\u2066\x07"

Attack = Callable[[Meeting], None]
ATTACKS: dict[str, tuple[bool, Attack, tuple[int, ...]]] = {}  # with the token; the attack; nodes that the attacker plays


def attack(text: str, *, token: bool = False, plays: tuple[int, ...] = ()) -> Callable[[Attack], Attack]:
    def kept(function: Attack) -> Attack:
        ATTACKS[text] = token, function, plays
        return function

    return kept


def beside(work: Callable[[], None]) -> None:
    """In a thread of its own, whatever becomes of it."""

    def quiet() -> None:
        with contextlib.suppress(OSError, AssertionError, ValueError, KeyError):
            work()

    threading.Thread(target=quiet, daemon=True).start()


def first(meeting: Meeting, node: int, secret: Secret, **more: Any) -> Caller:
    caller = Caller(meeting.port, secret)
    caller.join(node, meeting.count, {"host": "gpu-rack7-node12"}, run="lab", **more)
    return caller


# Without the token


@attack("comes first as node 1 without a token")
def _(meeting: Meeting) -> None:
    first(meeting, 1, Secret())


@attack("comes first as every node with another token")
def _(meeting: Meeting) -> None:
    for node in range(3):
        first(meeting, node, OTHER)


@attack("says that it has no proof to give, and that it has MUNGE")
def _(meeting: Meeting) -> None:
    for proof in ("nothing", "munge", "", None, [], {"token": 1}):
        with contextlib.suppress(AssertionError, OSError):
            Caller(meeting.port, TOKEN).knock(1, 3, run="lab", proof=proof)


def record(meeting: Meeting) -> list[bytes]:
    """What an honest node sends in a meeting of its own."""
    sent: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    hub = Coordinator([listener], 3, "lab", LIMITS, 20.0, TOKEN)
    hub.start()
    caller = Caller(listener.getsockname()[1], TOKEN)
    raw = caller.raw
    caller.raw = lambda data: (sent.append(data), raw(data))[1]  # type: ignore[method-assign]
    caller.join(1, 3, run="lab")
    caller.say({"say": "result", "data": {}, "failed": True})
    hub.close()
    caller.close()
    return sent


@attack("replays what node 1 said in an earlier meeting")
def _(meeting: Meeting) -> None:
    sent = record(meeting)
    one = Caller(meeting.port, TOKEN)
    for part in sent:
        one.raw(part)


@attack("replays it whole, in each connection that it can get")
def _(meeting: Meeting) -> None:
    sent = b"".join(record(meeting))
    for _ in range(30):
        Caller(meeting.port, TOKEN).raw(sent)


@attack("sends node 0's own frames back to it")
def _(meeting: Meeting) -> None:
    one = Caller(meeting.port, OTHER)
    answer = one.knock(1, 3, run="lab", proof="token")
    one.raw(first_line(answer) * 3)


@attack("guesses frames")
def _(meeting: Meeting) -> None:
    for length in (0, 1, 36, 4096, 1 << 31, (1 << 32) - 1):
        one = Caller(meeting.port, OTHER)
        one.knock(1, 3, run="lab", proof="token")
        with contextlib.suppress(OSError):
            one.raw(length.to_bytes(4, "big") + bytes(32) + bytes(min(length, 4000)))


@attack("opens connections as fast as it can")
def _(meeting: Meeting) -> None:
    def flood() -> None:
        for _ in range(3000):
            with socket.create_connection(("127.0.0.1", meeting.port), 2):
                pass

    beside(flood)


@attack("holds three hundred connections and says nothing")
def _(meeting: Meeting) -> None:
    kept = [socket.create_connection(("127.0.0.1", meeting.port), 5) for _ in range(300)]

    def leave() -> None:
        time.sleep(6)
        for one in kept:
            one.close()

    beside(leave)


@attack("says a byte a second on fifty connections")
def _(meeting: Meeting) -> None:
    def drip() -> None:
        kept = [socket.create_connection(("127.0.0.1", meeting.port), 5) for _ in range(50)]
        for byte in first_line({"say": "join", "nonce": nonce()})[:8]:
            for one in kept:
                one.sendall(bytes([byte]))
            time.sleep(1)

    beside(drip)


@attack("says a line without end")
def _(meeting: Meeting) -> None:
    def endless() -> None:
        with socket.create_connection(("127.0.0.1", meeting.port), 5) as one:
            for _ in range(1000):
                one.sendall(b"x" * 65536)

    for _ in range(8):
        beside(endless)


@attack("says JSON that is deep, long, of huge numbers, of half characters")
def _(meeting: Meeting) -> None:
    for text in (
        b"[" * 4000,
        b'{"say":' + b"9" * 3900 + b"}",
        b'{"say":"\\ud800"}',
        b"\xff\xfe",
        b'{"say":"join","node":NaN}',
        b"null",
    ):
        with contextlib.suppress(OSError):
            Caller(meeting.port, OTHER).raw(text + b"\n")
    for node in (True, -1, 1.0, "1", None, 10**30, [1], 3):
        with contextlib.suppress(OSError, AssertionError):
            Caller(meeting.port, OTHER).knock(node, 3, run="lab")  # type: ignore[arg-type]


@attack("is a netdoctor of the version before")
def _(meeting: Meeting) -> None:
    one = Caller(meeting.port, Secret())
    one.raw(
        first_line({"say": "join", "protocol": "netdoctor.meeting/2", "node": 1, "nodes": 3, "data": {"host": "h1", "port": 5}})
    )


@attack("has names of escapes and of text from right to left")
def _(meeting: Meeting) -> None:
    for more in (
        {"run": NASTY},
        {"run": "lab", "protocol": NASTY},
        {"run": "lab", "nodes": NASTY},
        {"run": "lab", "node": NASTY},
    ):
        with contextlib.suppress(AssertionError, OSError):
            Caller(meeting.port, OTHER).raw(first_line({"say": "join", "node": 1, "nodes": 3, "nonce": nonce(), **more}))


@attack("alters what goes between node 1 and node 0")
def _(meeting: Meeting) -> None:
    meeting.proxied[1] = proxy(meeting.port, alter=True)


@attack("knocks at the probe servers, slowly and often")
def _(meeting: Meeting) -> None:
    def hold() -> None:
        hub = meeting.hub
        assert hub is not None
        time.sleep(0.3)
        ports = [json.loads(part)["port"] for part in list(hub.board["join"].values()) if part]
        kept = [socket.create_connection(("127.0.0.2", port), 2) for port in ports for _ in range(100)]
        time.sleep(5)
        for one in kept:
            one.close()

    beside(hold)


# In the place of node 0


def pretender(answer: Callable[[socket.socket], None]) -> int:
    """The port of somebody who says that it is node 0."""
    listener = socket.create_server(("127.0.0.1", 0))

    def live() -> None:
        with listener:
            listener.settimeout(15)
            while True:
                guest, _ = listener.accept()
                beside(lambda guest=guest: answer(guest))  # type: ignore[misc]

    beside(live)
    return int(listener.getsockname()[1])


@attack("is node 0 to node 1, without the token: welcomes it, and tells it that all is well")
def _(meeting: Meeting) -> None:
    def welcome(guest: socket.socket) -> None:
        hello = json.loads(guest.recv(4096))
        guest.sendall(first_line({"say": "challenge", "nonce": nonce()}))
        guest.recv(4096)
        sender = Sender(Keys(OTHER, hello, nonce()).down)
        for message in ({"say": "welcome"}, *({"say": subject, "data": {}} for subject in SUBJECTS)):
            body = Body(message)
            guest.sendall(sender.frame(body) + body.data)
        time.sleep(2)

    meeting.proxied[1] = pretender(welcome)


@attack("is node 0 to node 1: turns it away in its own words")
def _(meeting: Meeting) -> None:
    def refuse(guest: socket.socket) -> None:
        guest.recv(4096)
        guest.sendall(first_line({"say": "refused", "why": f"another version {NASTY}", "kind": "not proven"}))

    meeting.proxied[1] = pretender(refuse)


@attack("is node 0 to node 1: talks without end")
def _(meeting: Meeting) -> None:
    def talk(guest: socket.socket) -> None:
        while True:
            guest.sendall(b"x" * 65536)

    meeting.proxied[1] = pretender(talk)


def proxy(port: int, *, alter: bool = False) -> int:
    """Somebody between a node and node 0 who hands on what they say, a byte in a thousand changed."""

    def carry(here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(65536):
                if alter and not data.startswith(b"{"):
                    data = data[:40] + bytes([data[40] ^ 1]) + data[41:] if len(data) > 40 else data
                there.sendall(data)
        for one in (here, there):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def both(guest: socket.socket) -> None:
        there = socket.create_connection(("127.0.0.1", port), 5)
        beside(lambda: carry(there, guest))
        carry(guest, there)

    return pretender(both)
