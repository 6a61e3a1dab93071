"""What TCP counted of the ranks' connections: read from the kernel, told to the others, judged."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from netdoctor.cluster import findings, tcp_stats
from netdoctor.cluster import network as paths
from netdoctor.cluster.combine import Heard
from netdoctor.cluster.endpoints import Own, Place
from netdoctor.cluster.membership import Nodes
from netdoctor.cluster.tcp_stats import Flow, Sampler
from netdoctor.facts.runs import AllReduce, CommonRun, RankResult
from netdoctor.model import Status

GB = 1 << 30


def heard(carried: dict[tuple[int, int], Flow], count: int = 3, seconds: float = 6.0) -> Heard:
    made = Heard(Nodes(count, 0, "h0", 29400), {n: f"h{n}" for n in range(count)})
    made.places = {n: Place(f"s{n}", {}, (Own("eth0", f"10.0.0.{n + 1}", 24, 1500),)) for n in range(count)}
    for (a, b), flow in carried.items():
        made.flows.setdefault(a, {})[f"10.0.0.{b + 1}"] = flow
    ranks = tuple(RankResult(n, "done", collective_seconds=seconds) for n in range(count))
    made.run = CommonRun(AllReduce("gloo", count), "finished", ranks=ranks)
    return made


def fails(made: Heard) -> dict[str, str | None]:
    return {f.subject: f.cause for f in findings.result(made).findings if f.status is Status.FAIL}


def ring(*busy: float, again: int = 0) -> dict[tuple[int, int], Flow]:
    """One GiB from each node to the next, in so many seconds."""
    return {(n, (n + 1) % len(busy)): Flow(GB, seconds, GB + again, again) for n, seconds in enumerate(busy)}


@pytest.mark.parametrize(
    ("carried", "expected"),
    [
        (ring(0.7, 0.6, 0.9), {}),
        (ring(0.7, 5.0, 5.5), {"h2": "straggler"}),
        (ring(0.7, 0.7, 5.5), {"h2 to h0": "straggler"}),
        (ring(5.5, 5.2, 5.6), {}),  # all alike
        (ring(2.0, 5.0, 5.5), {}),  # not much more than twice
        (ring(0.01, 0.1, 0.1), {}),  # nobody waited for that
        ({**ring(0.7, 0.7, 0.7), (2, 1): Flow(50_000, 5.0, 50_000, 0)}, {}),  # a few bytes say nothing
        (ring(0.7, 5.5), {"h1 to h0": "straggler"}),
        ({}, {}),
    ],
)
def test_who_is_slower_than_the_others(carried: dict[tuple[int, int], Flow], expected: dict[str, str]) -> None:
    assert fails(heard(carried)) == expected


def test_slow_data_that_nobody_waited_for_is_no_fault() -> None:
    assert fails(heard(ring(0.7, 5.0, 5.5), seconds=60.0)) == {}


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ({}, {}),
        ({(1, 2): GB // 1000}, {}),
        ({(1, 2): GB // 50}, {"h1 to h2": "link_degraded"}),
        ({(1, 2): GB // 50, (2, 3): GB // 50}, {"h2": "link_degraded"}),
        ({(0, 1): GB // 50, (2, 3): GB // 50}, {"h0 to h1": "link_degraded", "h2 to h3": "link_degraded"}),
    ],
)
def test_who_loses_packets(again: dict[tuple[int, int], int], expected: dict[str, str]) -> None:
    carried = {pair: Flow(GB, 0.7, GB, again.get(pair, 0)) for pair in ring(1, 1, 1, 1)}
    assert fails(heard(carried, count=4)) == expected


def test_an_address_of_several_nodes_is_nobodys() -> None:
    made = heard(ring(0.7, 5.0, 5.5))
    made.places = {n: Place("", {}, (Own("eth0", "10.0.0.1", 24, 1500),)) for n in range(3)}
    assert paths.flows(made) == {}


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
    assert tcp_stats.read(said) == {}


def test_what_goes_to_the_others_is_read_again() -> None:
    sampler = Sampler()
    sampler.found = {7: ("10.0.0.1", Flow(1, 2.0, 4, 3)), 8: ("10.0.0.1", Flow(1, 2.0, 4, 3))}
    assert tcp_stats.read(sampler.stop()) == {"10.0.0.1": Flow(2, 4.0, 8, 6)}


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
    assert mine[0][1].sent == 50_000 and mine[0][1].again == 0


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
                told = tcp_stats.read(sampler.stop())
            child.communicate(b"x\n", timeout=20)
    if not told and not _sock_diag():
        pytest.skip("no sock_diag here")
    assert told["127.0.0.1"].sent == 70_000


def _sock_diag() -> bool:
    try:
        list(tcp_stats.connections(()))
    except OSError:
        return False
    return True
