"""What a meeting of many nodes costs node 0: one real node 0, the others light clients in one process with an address each.

The clients say and read all that a node does, in frames that are checked, but read what all are told once for all of them, and
try nobody: of their ways they tell that all went well.  Node 0 does all of its own part, verdict of the check included.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

from bench import Row, row
from netdoctor.cluster import combine, messages, sample
from netdoctor.cluster.channel import PROTOCOL, Body, Keys, Receiver, Sender, first_line, nonce, read_first
from netdoctor.cluster.connectivity import ProbeServer
from netdoctor.cluster.coordinator import SUBJECTS
from netdoctor.cluster.member import MAX_ANSWER, Member
from netdoctor.cluster.observations import Cluster, Nodes, Proof
from netdoctor.cluster.secret import Secret
from netdoctor.facts.runs import Run, State

COUNT: Final = 1024
RANKS: Final = 8
SECONDS: Final = 60.0
MEMORY: Final = 300.0  # MB
SECRET: Final = Secret(Proof.TOKEN, b"a token of the measurement, no secret")
RUN: Final = "bench"
LIMITS: Final = dict.fromkeys(SUBJECTS, 120.0)
PING: Final = 0.5


def rows() -> Iterator[Row]:
    got = meet(COUNT)
    yield row("nodes.meeting", got["seconds"], "s", None, f"<= {SECONDS:g} s, {COUNT} nodes", got["seconds"] <= SECONDS)
    yield row("nodes.memory of node 0", got["megabytes"], "MB", None, f"<= {MEMORY:g} MB", got["megabytes"] <= MEMORY)
    yield row(
        "nodes.connections of a node", got["tried"], "", None, f"<= {sample.CONNECTIONS}", got["tried"] <= sample.CONNECTIONS
    )


def meet(count: int) -> dict[str, float]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "bench.nodes", str(count), str(port)]
    node0 = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        clients = Clients(count, port)
        clients.live(node0)
        out, _ = node0.communicate(timeout=60)
    finally:
        node0.kill()
    if node0.returncode:
        raise RuntimeError(f"node 0: {node0.returncode}")
    got: dict[str, float] = json.loads(out)
    return got


def address(node: int) -> str:
    return f"127.{1 + node // 62500}.{node // 250 % 250}.{1 + node % 250}"


# What a node with eight GPUs tells


def part(subject: str, node: int, count: int) -> dict[str, Any]:
    host = f"gpu{node:05}"
    if subject == "place":
        links = [[f"eth{n}", f"10.{n}.{node // 250}.{node % 250 + 1}", 16, 9000] for n in range(10)]
        return {"space": "one machine", "gloo": ["eth0", address(node)], "nccl": None, "links": links, "own": []}
    if subject == "reach":
        return {**{str(n): "" for n in sample.others(node, count)}, "takes": {"gloo": {}, "nccl": {}}}
    if subject == "ready":
        traits = {"torch": "2.9.1+cu129", "nccl": "2.27.5", "driver": "570.86.15", "netdoctor": "0.1.0", "env": "read"}
        traits |= {f"env NCCL_VARIABLE_{n}": f"value {n}" for n in range(30)} | {f"mtu eth{n}": "9000" for n in range(10)}
        return {"ranks": RANKS, "backend": "gloo", "cannot": "", "traits": traits, "via": "torch"}
    if subject == "result":
        events = [
            {"event": "phase", "rank": r, "t": 2.0 + r, "phase": p} for r in range(RANKS) for p in ("import", "init", "done")
        ]
        events += [
            {"event": "size", "rank": r, "t": 3.0, "bytes": 4096 << n, "seconds": 0.1 + n / 7}
            for r in range(RANKS)
            for n in range(15)
        ]
        events += [
            {"event": "verified", "rank": r, "t": 3.0, "bytes": 4096 << n, "wrong": 0} for r in range(RANKS) for n in range(15)
        ]
        flows = {f"10.0.{n // 250}.{n % 250 + 1}": [1 << 28, 1.5 + n, 1 << 28, n] for n in range(2 * RANKS)}
        return {"events": events, "cut": None, "flows": flows, "control": [400, 0, 0.0001, 1448, [], [], 0]}
    return {"host": host, "netdoctor": "0.1.0", "boot": f"{node:016x}"}


class Told(Receiver):
    """Checks every frame, and reads what all are told once."""

    known: ClassVar[dict[bytes, bytes]] = {}

    def _unpacked(self, body: bytes) -> bytes:
        if body not in self.known:
            said = read_first(super()._unpacked(body))["say"]
            if said == "pong":
                return body
            self.known[body] = json.dumps({"say": said}).encode()
        return self.known[body]


class Client:
    """One node but for its work."""

    def __init__(self, node: int, count: int, port: int, probes: int) -> None:
        self.node, self.count, self.probes = node, count, probes
        self.socket = socket.socket()
        self.socket.bind((address(node), 0))
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))
        self.join = {"say": "join", "protocol": PROTOCOL, "node": node, "nodes": count, "run": RUN, "nonce": nonce()}
        self.join["proof"] = SECRET.proof.value
        self.waiting, self.begun, self.done = bytearray(first_line(self.join)), False, False
        self.frames: Told | None = None
        self.sender: Sender | None = None

    def say(self, message: dict[str, Any]) -> None:
        assert self.sender is not None
        body = Body(message)
        self.waiting += self.sender.frame(body) + body.data

    def read(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError(f"node {self.node} was hung up on")
        if self.frames is None:
            challenge = read_first(data)
            keys = Keys(SECRET, self.join, challenge["nonce"])
            self.sender, self.frames = Sender(keys.up), Told(keys.down, MAX_ANSWER)
            self.say({"say": "here", "data": {**part("join", self.node, self.count), "port": self.probes}})
            return
        for message in self.frames.feed(data):
            if message["say"] in SUBJECTS:
                at = SUBJECTS.index(message["say"]) + 1
                self.done = at == len(SUBJECTS)
                if not self.done:
                    self.say({"say": SUBJECTS[at], "data": part(SUBJECTS[at], self.node, self.count)})


class Clients:
    def __init__(self, count: int, port: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        key = SECRET.derive(PROTOCOL, "probe", RUN)
        self.servers = {node: ProbeServer(node, key) for node in sample.others(0, count)}
        _until_listening(port)
        probes = {node: server.port for node, server in self.servers.items()}
        self.clients = [Client(node, count, port, probes.get(node, 2000)) for node in range(1, count)]

    def live(self, node0: subprocess.Popen[str]) -> None:
        """Until node 0 has told all of them everything."""
        selector = selectors.DefaultSelector()
        for one in self.clients:
            selector.register(one.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
        left, pinged = set(self.clients), time.monotonic()
        while left and node0.poll() is None:
            for key, mask in selector.select(0.1):
                one: Client = key.data
                if mask & selectors.EVENT_READ:
                    one.read()
                    if one.done:
                        left.discard(one)
                        selector.unregister(one.socket)
                        continue
                if one.waiting:
                    del one.waiting[: one.socket.send(one.waiting)]
                selector.modify(one.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if one.waiting else 0), one)
            if time.monotonic() - pinged > PING:
                pinged = time.monotonic()
                for one in self.clients:
                    if one.sender is not None and not one.waiting and not one.done:
                        one.say({"say": "ping", "t": pinged})
                        selector.modify(one.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
        for server in self.servers.values():
            server.close()


def _until_listening(port: int) -> None:
    while socket.socket().connect_ex(("127.0.0.1", port)):
        time.sleep(0.05)


def node_0(count: int, port: int) -> None:
    from netdoctor.checks.allreduce_nodes import allreduce_nodes
    from netdoctor.model import Status

    begun = time.monotonic()
    nodes = Nodes(count, 0, "127.0.0.1", port, run=RUN)
    member = Member(nodes, LIMITS, 60.0, SECRET)
    member.open()
    member.join(part("join", 0, count), begun + 60)
    heard = Cluster(nodes, proof=SECRET.proof)
    joined, tried = dict[int, Any](), dict[int, Any]()
    for subject in SUBJECTS:
        if subject == "reach":
            tried, _ = member.reach(joined, heard.endpoints)
            if any(tried.values()):
                raise RuntimeError(f"not reached: {tried}")
        if subject == "result":
            made = combine.experiments(heard)
            if isinstance(made, str):
                raise RuntimeError(made)
            heard = replace(heard, first_ranks=combine.first_ranks(made))
        if subject != "join":
            member.send(subject, data=part(subject, 0, count))
        heard, data = messages.take(heard, subject, member.wait(subject, time.monotonic() + 120))
        del member.received[subject]
        if subject == "join":
            joined = data
    heard = combine.combine(heard, made, data, Run(made[0], State.FINISHED))
    faults = [one for one in allreduce_nodes(heard) if one.status is Status.FAIL]
    if heard.gone or len(heard.hosts) != count:
        raise RuntimeError(f"{len(heard.hosts)} of {count} came; gone: {dict(list(heard.gone.items())[:3])}")
    json.dumps(heard.section())
    seconds = time.monotonic() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "megabytes": memory, "tried": len(tried), "faults": len(faults)}), flush=True)
    member.close()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        node_0(int(sys.argv[1]), int(sys.argv[2]))
    else:
        print(json.dumps({**meet(int(os.environ.get("COUNT", COUNT))), "count": int(os.environ.get("COUNT", COUNT))}))
