"""NCCL's RAS answers, in the format strings of src/ras/client_support.cc, read and asked for over a real socket."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from netdoctor.cli import ras as command
from netdoctor.cli.options import Options
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl import ras
from netdoctor.nccl.ras import Trouble, ask, parse
from netdoctor.report import formats
from tests.support.facts import judged

HEAD = """NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
FINE = (
    HEAD
    + "    0         1         4         8        32        32   RUNNING      OK\n\nErrors\n======\n\nWarnings\n========\n\n"
)
BEHIND = (
    HEAD
    + """    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 4711 on node 10.0.0.1

"""
)
DEAD = (
    HEAD
    + """    0         1         4         8        32        32     ABORT  INCOMPLETE,ERROR

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4712 on node 10.0.0.2 managing GPU 3

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 11 -- GPU 3 managed by process 4712 on node 10.0.0.2

Warnings
========

"""
)


def test_all_ranks_together() -> None:
    status = parse(FINE)
    assert not (status.errors or status.dead or status.missing or status.behind)
    assert (status.nccl_version, status.nodes, status.processes, status.gpus, status.comms) == ("2.27.5", 4, 32, 32, 1)


def test_the_rank_that_is_behind_is_named() -> None:
    (one,) = parse(BEHIND).behind
    assert (one.collective, one.what, one.ranks) == ("AllReduce", "operation 6649 of 6650", (5,))
    assert one.where == ("GPU 5 managed by process 4711 on node 10.0.0.1",)


def test_ranks_that_launched_nothing_and_the_wording_of_2_24() -> None:
    text = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 7
  6 ranks have not launched any operations
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""
    (one,) = parse(text).behind
    assert (one.what, one.count, one.ranks, one.collective) == ("operation 0 of 7", 6, (0, 2), "")


def test_dead_processes() -> None:
    status = parse(DEAD)
    assert status.errors == ("ERROR", "INCOMPLETE")
    assert any("4712" in line for line in status.dead)
    assert [b.ranks for b in status.behind if b.kind is Trouble.INCOMPLETE] == [(11,)]


def test_control_characters_do_not_pass() -> None:
    assert parse("NCCL version 2.27.5\x1b]0;x\x07\n" + FINE).nccl_version == "2.27.5"


class Server:
    """Answers like NCCL: a line at a time, then closes."""

    def __init__(self, answers: list[str]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answers = answers
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        for answer in self.answers:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            with link, link.makefile("rb") as lines:
                for line in lines:
                    if line.startswith(b"CLIENT PROTOCOL"):
                        link.sendall(b"SERVER PROTOCOL 2\n")
                    elif line.startswith(b"TIMEOUT"):
                        link.sendall(b"OK\n")
                    else:
                        link.sendall(answer.encode())
                        break

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # accept(2) ends; a close alone leaves it waiting
        self.listener.close()
        self.thread.join()


@pytest.fixture
def serve() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.close()


def test_a_job_is_asked(serve: list[Server]) -> None:
    serve.append(Server([FINE]))
    answer = ask("127.0.0.1", serve[0].port)
    assert isinstance(answer, str)
    assert parse(answer).gpus == 32


def test_no_job(serve: list[Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    answer = ask("127.0.0.1", port)
    assert isinstance(answer, Unavailable)
    assert answer.kind == "absent"


def test_something_else_listens(serve: list[Server]) -> None:
    listener = Server([])
    serve.append(listener)

    def speak() -> None:
        link, _ = other.accept()
        with link:
            link.sendall(b"SSH-2.0-OpenSSH\r\n")

    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        answer = ask("127.0.0.1", other.getsockname()[1])
        thread.join(5)
    assert isinstance(answer, Unavailable)
    assert answer.kind == "malformed"


def test_who_sends_a_byte_now_and_then_holds_nobody_up() -> None:
    ended = threading.Event()

    def drip() -> None:
        link, _ = other.accept()
        with link, contextlib.suppress(OSError):
            for byte in b"SERVER PROTOCOL 2" * 1000:
                link.sendall(bytes([byte]))
                if ended.wait(0.05):
                    return

    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        answer = ask("127.0.0.1", other.getsockname()[1], timeout=0.1)
        ended.set()
        thread.join(30)
    assert isinstance(answer, Unavailable) and answer.kind is Kind.TIMED_OUT


def test_an_answer_that_is_cut_is_no_answer(serve: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netdoctor.nccl.ras._MAX_ANSWER", 100)
    serve.append(Server([FINE]))
    answer = ask("127.0.0.1", serve[0].port)
    assert isinstance(answer, Unavailable) and answer.kind is Kind.MALFORMED


def test_a_rank_that_does_not_move_is_a_hang(serve: list[Server], capsys: pytest.CaptureFixture[str]) -> None:
    serve.append(Server([BEHIND, BEHIND]))
    assert command.run(Options(), f"127.0.0.1:{serve[0].port}", interval=0) == 3
    assert "rank 5" in capsys.readouterr().out


def test_a_rank_that_moves_on_is_none(serve: list[Server], capsys: pytest.CaptureFixture[str]) -> None:
    later = BEHIND.replace("6650", "6700").replace("6649", "6699")
    serve.append(Server([BEHIND, later]))
    assert command.run(Options(), f"127.0.0.1:{serve[0].port}", interval=0) == 0
    assert "moved on" in capsys.readouterr().out


def test_no_answer_is_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert command.run(Options(format="json"), f"127.0.0.1:{port}") == 4
    assert '"inconclusive"' in capsys.readouterr().out


ERROR = FINE.replace("   RUNNING      OK", "   RUNNING   ERROR").replace(
    "Errors\n======\n", "Errors\n======\n\n#0-0 (27a079b828ff1a75) ???\n", 1
)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (FINE, 0),
        (ERROR, 3),
        (ERROR.replace("ERROR", "INCOMPLETE"), 4),
        (ERROR.replace("ERROR", "MISMATCH"), 4),
        (ERROR.replace("ERROR", "WONDROUS"), 4),
        (DEAD, 3),
        (HEAD, 4),
    ],
    ids=["fine", "in error", "incomplete", "mismatch", "another word", "dead", "no communicator"],
)
@pytest.mark.parametrize("format", formats.names())
def test_an_error_that_the_table_names_is_no_pass(
    answer: str, code: int, format: str, serve: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    serve.append(Server([answer, answer]))
    assert command.run(Options(format=format), f"127.0.0.1:{serve[0].port}", interval=0) == code
    out = capsys.readouterr().out
    if format == "json":
        assert judged.validated(out, "ras")["verdict"]["exit_code"] == code


@pytest.mark.parametrize("address", ["host:0", "host:x", "host:70000"])
def test_bad_addresses(address: str) -> None:
    assert command.run(Options(), address) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_job_of_another_user_is_not_ours(serve: list[Server], monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """The port is one for all users of a node: whose process has it is the kernel's word."""
    serve.append(Server([FINE]))
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    answer = ask(host, serve[0].port)
    assert isinstance(answer, Unavailable) and answer.kind == "refused" and f"uid {uid}" in answer.detail


def test_the_same_user_s_job_is_asked_by_ipv6_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as every:
        port = every.getsockname()[1]
        assert {ras._owner(peer, "", port) for peer in ("::1", "127.0.0.1")} == {os.geteuid()}
        assert ras._owner("192.0.2.1", "192.0.2.2", port) is None


def test_the_address_is_the_job_s_own(
    serve: list[Server], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.append(Server([FINE]))
    monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{serve[0].port}")
    assert command.run(Options()) == 0
    assert f"127.0.0.1:{serve[0].port} (by NCCL_RAS_ADDR)" in capsys.readouterr().out
    monkeypatch.setenv("NCCL_RAS_ADDR", "here:port")
    assert command.run(Options()) == 2
    assert "NCCL_RAS_ADDR: not an address: 'here:port'" in capsys.readouterr().err


def test_what_is_given_goes_before_the_job_s_address(
    serve: list[Server], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.append(Server([FINE]))
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    assert command.run(Options(), f"127.0.0.1:{serve[0].port}") == 0
    assert "by NCCL_RAS_ADDR" not in capsys.readouterr().out
