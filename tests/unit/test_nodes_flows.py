"""What TCP counted of the ranks' connections: read from the kernel, told to the others, judged."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from netdoctor.cluster import messages, tcp_stats
from netdoctor.cluster.tcp_stats import Flow, Sampler


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {"x": 1},
        {"x": [1, 2, 3]},
        {"x": [1, "2", 3, 4]},
        {"x": [-1, 0, 0, 0]},
        {"x": [0, 0, 0, 1 << 30]},
        {3: [1] * 4},
    ],
)
def test_rubbish_is_no_flow(said: Any) -> None:
    assert messages.read_flows(said) == {}


def test_what_goes_to_the_others_is_read_again() -> None:
    sampler = Sampler()
    sampler.found = {7: ("10.0.0.1", Flow(1, 2.0, 4, 3)), 8: ("10.0.0.1", Flow(1, 2.0, 4, 3))}
    assert messages.read_flows(sampler.stop()) == {"10.0.0.1": Flow(2, 4.0, 8, 6)}


def test_where_no_more_threads_are_to_be_had_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", limited)
    sampler = Sampler()
    sampler.start()
    assert sampler.stop() == {}


def test_the_kernels_counts_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as line:
        far, _ = door.accept()
        with far:
            line.sendall(bytes(50_000))
            left = 50_000
            while left:
                left -= len(far.recv(left))
            inode = os.fstat(line.fileno()).st_ino
            try:
                mine = [(ip, flow) for _, ip, flow in tcp_stats.connections({inode})]
            except OSError as error:
                pytest.skip(f"sock_diag: {error}")
    assert [ip for ip, _ in mine] == ["127.0.0.1"]
    # `sent` has what went twice: TCP does not wait for an end that is slow to answer (a tail loss probe), lost or not.
    assert mine[0][1].sent - mine[0][1].again == 50_000


@pytest.mark.slow
def test_only_descendants_are_counted() -> None:
    with subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in tcp_stats.descendants(os.getpid())
        assert os.getpid() not in tcp_stats.descendants(os.getpid())
        assert tcp_stats.descendants(child.pid) == set()
        child.communicate(b"x\n", timeout=20)


CONNECT = """import socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
one.sendall(bytes(70000))
input()"""


@pytest.mark.slow
def test_a_child_with_a_connection_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        command = [sys.executable, "-I", "-c", CONNECT, str(door.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            far, _ = door.accept()
            sampler = Sampler()
            with far:
                left = 70_000
                while left:
                    left -= len(far.recv(left))
                sampler.start()
                for _ in range(300):
                    if sampler.found or not sampler.thread.is_alive():
                        break
                    sampler.ended.wait(0.05)
                told = messages.read_flows(sampler.stop())
            child.communicate(b"x\n", timeout=20)
    if not told and not _sock_diag():
        pytest.skip("no sock_diag here")
    assert told["127.0.0.1"].sent - told["127.0.0.1"].again == 70_000


def _sock_diag() -> bool:
    try:
        list(tcp_stats.connections(()))
    except OSError:
        return False
    return True
