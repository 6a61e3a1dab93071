"""Who is a node of a run: proofs of what strangers, neighbours and other versions could do at the meeting, kept as tests."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cluster import messages, secret
from netdoctor.cluster.channel import PROTOCOL, Body, ForgedError, Keys, Receiver, Sender
from netdoctor.cluster.member import MeetingError, Member
from netdoctor.cluster.observations import Cluster, Fault, Nodes, Proof
from netdoctor.cluster.secret import Secret, SecretError, take
from netdoctor.environment import kept, withheld
from netdoctor.model import Status
from tests.unit.test_nodes import free_port
from tests.unit.test_nodes_hostile import LIMITS, part, told
from tests.unit.test_nodes_strangers import TOKEN, Caller, Room

pytestmark = pytest.mark.slow

OTHER = Secret(Proof.TOKEN, b"another token, another token")
NOTHING = Secret()


def judged(room: Room, messages_: list[dict[str, Any]], proof: Proof = Proof.TOKEN) -> dict[str, Status]:
    """Node 0's findings, from what the hub told."""
    heard = Cluster(Nodes(room.count, 0, "h0", 1), proof=proof)
    for message in messages_:
        heard, _ = messages.take(heard, message["say"], message)
    return {f.subject: f.status for f in allreduce_nodes(heard)}


# Strangers


@pytest.mark.parametrize("stranger", [OTHER, NOTHING], ids=["another token", "no token"])
def test_a_stranger_who_comes_first_takes_nobodys_place(stranger: Secret) -> None:
    """Neither does a healthy fleet become sick by what it says, nor a sick one healthy."""
    with Room() as room:
        zero = room.call()
        assert zero.join(0, 2)["say"] == "welcome"
        thief = room.call(stranger)
        answer = thief.join(1, 2, {"host": "gpu-rack7-node12"})
        assert (answer["say"], answer["kind"]) == ("refused", Fault.UNPROVEN.value)
        one = room.call()
        assert one.join(1, 2)["say"] == "welcome"
        message = zero.until("join")
        assert {n: d["host"] for n, d in message["data"].items()} == {"0": "h0", "1": "h1"}
        assert [row["proven"] for row in message["refused"]] == [False]


def test_a_node_whose_place_a_stranger_claimed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "join", 0.6)
    with Room() as room:
        zero = room.call()
        zero.join(0, 2)
        room.call(OTHER).join(1, 2)
        found = judged(room, [zero.until("join")])
    assert found == {"node 1": Status.UNKNOWN}


def test_without_proof_nothing_is_healthy_and_nobody_is_blamed() -> None:
    """Among nodes without a token a stranger may be any of them: what he tells is no fault, and no pass of the meeting."""
    with Room(secret=NOTHING) as room:
        zero, thief = room.all()
        good, heard = told(), [zero.until("join")]
        for subject in ("place", "reach", "ready"):
            for one in (zero, thief):
                one.say({"say": subject, "data": good[subject]})
            heard.append(zero.until(subject))
        found = judged(room, heard, Proof.NOTHING)
    assert found["meeting"] is Status.UNKNOWN and Status.FAIL not in found.values()


def test_what_was_said_once_means_nothing_in_another_connection() -> None:
    with Room() as room:
        one = room.call()
        sent: list[bytes] = []
        raw = one.raw
        one.raw = lambda data: (sent.append(data), raw(data))[1]  # type: ignore[method-assign]
        assert one.join(1, 2)["say"] == "welcome"
        again = room.call()
        again.raw(sent[0])
        assert again.first()["say"] == "challenge"
        again.raw(sent[1])
        assert again.first()["kind"] == Fault.UNPROVEN.value


def keys() -> Keys:
    return Keys(TOKEN, {"node": 1, "nodes": 2, "run": "a", "nonce": "b"}, "c")


@pytest.mark.parametrize("how", ["again", "another order", "the other way", "a bit"])
def test_a_frame_counts_once_in_its_place_and_direction(how: str) -> None:
    sender, bodies = Sender(keys().up), [Body({"say": "place", "data": n}) for n in range(2)]
    frames = [sender.frame(body) + bytes(body.data) for body in bodies]
    sent = {
        "again": [frames[0], frames[0]],
        "another order": frames[::-1],
        "the other way": frames[:1],
        "a bit": [frames[0][:-1] + b"]"],
    }[how]
    receiver = Receiver(keys().down if how == "the other way" else keys().up, 1000)
    with pytest.raises(ForgedError):
        for one in sent:
            list(receiver.feed(one))


@pytest.mark.parametrize(("changed", "value"), [("node", 0), ("nodes", 3), ("run", "b"), ("nonce", "c")])
def test_keys_are_of_one_node_of_one_run(changed: str, value: Any) -> None:
    join = {"node": 1, "nodes": 2, "run": "a", "nonce": "b"}
    assert Keys(TOKEN, {**join, changed: value}, "c").up != Keys(TOKEN, join, "c").up != Keys(TOKEN, join, "d").up
    assert Keys(TOKEN, join, "c").up != Keys(OTHER, join, "c").up != Keys(OTHER, join, "c").down


@pytest.mark.parametrize("run", ["", "b", None, 7])
def test_a_run_without_its_name_is_another_job(run: Any) -> None:
    with Room(run="a") as room:
        assert room.call().knock(1, 2, run=run)["why"] == "another job"
        assert room.call().join(1, 2, run="a")["say"] == "welcome"


@pytest.mark.parametrize("protocol", ["netdoctor.meeting/2", "netdoctor.meeting/4", None, 3])
def test_another_version_is_named_and_unknown(protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "join", 2.0)
    with Room() as room:
        zero = room.call()
        zero.join(0, 2)
        other = room.call()
        answer = other.knock(1, 2, protocol=protocol)
        assert answer["why"] == "another version of netdoctor"
        message = zero.until("join")
    (row,) = message["refused"]
    assert (row["why"], row["node"]) == ("another version of netdoctor", 1)
    assert judged(room, [message]) == {"node 1": Status.UNKNOWN}


def test_at_an_older_master_a_node_is_another_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as old:
        made = Member(Nodes(2, 1, "127.0.0.1", old.getsockname()[1]), LIMITS, 5.0, TOKEN)
        made.open()

        def answer() -> None:
            guest, _ = old.accept()
            with guest:
                guest.recv(4096)
                guest.sendall(b'{"say": "refused", "why": "another version of netdoctor", "seconds": 1.0}\n')

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(MeetingError) as error:
            made.join({}, time.monotonic() + 5)
        made.close()
    assert error.value.kind is Fault.UNPROVEN
    heard = Cluster(made.nodes, {1: "h1"}, master=(error.value.kind, str(error.value)), proof=Proof.TOKEN)
    assert {f.status for f in allreduce_nodes(heard)} == {Status.UNKNOWN}


def test_two_with_the_token_that_say_one_number_are_no_pass() -> None:
    with Room() as room:
        zero, _ = room.all()
        message = zero.until("join")
        assert not message["refused"]
        double = room.call().join(1, 2)
        assert double["say"] == "refused"
        (row,) = room.coordinator.refused.values()
    assert row["proven"]


def test_a_node_that_is_started_again_takes_its_place() -> None:
    with Room(3) as room:
        zero, first = room.call(), room.call()
        zero.join(0, 3)
        first.join(1, 3, {"host": "before"})
        first.close()
        end = time.monotonic() + 10
        while 1 not in room.coordinator.gone and time.monotonic() < end:
            time.sleep(0.01)
        assert room.call().join(1, 3, {"host": "after"})["say"] == "welcome"
        room.call().join(2, 3)
        message = zero.until("join")
    assert message["data"]["1"]["host"] == "after" and message["gone"] == {} and message["refused"] == []


# The token


@pytest.mark.parametrize("text", ["short", "a b" * 8, "x" * 1025, "é" * 16])
def test_a_token_is_long_and_printable(text: str) -> None:
    with pytest.raises(SecretError) as error:
        take(None, {secret.VARIABLE: text})
    assert text not in str(error.value)


def test_the_token_is_kept_from_all_that_this_process_starts(tmp_path: Any) -> None:
    environ = {secret.VARIABLE: "0123456789abcdef\n"}
    one = take(None, environ)
    assert (one.proof, one.key, environ) == (Proof.TOKEN, b"0123456789abcdef", {}) and "0123" not in repr(one)
    assert not kept(secret.VARIABLE) and withheld(secret.VARIABLE)
    file = tmp_path / "token"
    file.write_text("0123456789abcdefghij\n")
    assert take(str(file), {}).key == b"0123456789abcdefghij"
    assert take(None, {}) == Secret()
    with pytest.raises(SecretError, match="No such file"):
        take(str(tmp_path / "none"), {})


def test_the_token_is_in_nothing_that_is_sent() -> None:
    port = free_port()
    sent: list[bytes] = []
    first = Member(Nodes(2, 0, "127.0.0.1", port), LIMITS, 5.0, TOKEN)
    first.open()
    first.join({"host": "h0"}, time.monotonic() + 5)
    try:
        with Room() as room:
            one = room.call()
            raw = one.raw
            one.raw = lambda data: (sent.append(data), raw(data))[1]  # type: ignore[method-assign]
            one.join(1, 2)
            one.say({"say": "place", "data": part()})
        assert TOKEN.key not in b"".join(sent) and TOKEN.key not in json.dumps(first.received).encode()
    finally:
        first.close()


def test_light_clients_speak_as_members_do() -> None:
    """What these tests send is what a Member sends."""
    port = free_port()
    first = Member(Nodes(2, 0, "127.0.0.1", port), LIMITS, 5.0, TOKEN)
    first.open()
    one = Caller(port)
    try:
        first.join({"host": "h0"}, time.monotonic() + 5)
        assert one.join(1, 2)["say"] == "welcome" and PROTOCOL.endswith("/3")
        assert first.wait("join", time.monotonic() + 5)["data"]["1"]["host"] == "h1"
    finally:
        first.close()
        one.close()


@pytest.mark.parametrize(("code", "words"), [(15, "clocks"), (16, "clocks"), (14, "Invalid")])
def test_clocks_that_are_apart_are_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    """A key of another realm is no matter of clocks."""
    (tmp_path / "unmunge").write_text(f"#!/bin/sh\necho 'unmunge: Error: Invalid credential' >&2\nexit {code}\n")
    (tmp_path / "unmunge").chmod(0o755)
    monkeypatch.setattr(secret, "_FOLDERS", (str(tmp_path),))
    told = secret.of_munge("MUNGE:x")
    assert isinstance(told, str) and words in told


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o644])
def test_a_token_that_others_may_read_is_told(mode: int, tmp_path: Path) -> None:
    """It is no refusal: the files of a Secret in a pod are so."""
    file = tmp_path / "token"
    file.write_text("0123456789abcdefghij\n")
    file.chmod(mode)
    assert take(str(file), {}).key == b"0123456789abcdefghij"
    assert (f"(mode {mode:04o}): chmod 600 {file}" in secret.exposed(str(file))) is bool(mode & 0o077)
    assert not secret.exposed("-") and not secret.exposed(str(tmp_path / "none"))


def test_a_mounted_secret_is_no_exposed_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes mounts a Secret with mode 0644, Docker with 0444: for that container alone, and read-only."""
    file, volume = tmp_path / "token", tmp_path / "volume"
    file.write_text("x")
    file.chmod(0o444)
    assert secret.exposed(str(file))
    (volume / "..2026").mkdir(parents=True)
    (volume / "..data").symlink_to("..2026")
    (volume / "token").symlink_to("..data/token")
    (volume / "..2026" / "token").touch(0o644)
    assert not secret.exposed(str(volume / "token"))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert not secret.exposed(str(file))
