"""Real nodes that meet on this machine, each in a thread, for whoever attacks them (`tests.lab.meeting`)."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cluster import messages
from netdoctor.cluster.coordinator import SUBJECTS, Coordinator
from netdoctor.cluster.member import MeetingError, Member
from netdoctor.cluster.observations import Cluster, Nodes
from netdoctor.cluster.secret import Secret
from netdoctor.model import Status
from tests.unit.test_nodes_hostile import told
from tests.unit.test_nodes_strangers import TOKEN

SECONDS: Final = {"join": 8.0, "place": 5.0, "reach": 12.0, "ready": 5.0, "result": 5.0}
HELD: Final = 4 << 20  # bytes that node 0 may hold for all connections: three nodes' parts and what is told of them


@dataclass
class Meeting:
    """Real nodes on this machine, each in a thread, and what they knew in the end."""

    count: int = 3
    absent: tuple[int, ...] = ()  # played by the attacker
    secret: Secret = TOKEN
    master: str = "127.0.0.1"
    late: dict[int, float] = field(default_factory=dict)
    restarted: tuple[int, ...] = ()
    proxied: dict[int, int] = field(default_factory=dict)  # node -> the port that it dials
    seconds: dict[str, float] = field(default_factory=lambda: dict(SECONDS))
    heard: dict[int, Cluster] = field(default_factory=dict)
    wrong: dict[int, MeetingError] = field(default_factory=dict)
    held: int = 0  # the most bytes
    hub: Coordinator | None = None
    boards: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port: int = one.getsockname()[1]

    def hold(self, attack: Callable[[Meeting], None] | None = None) -> Meeting:
        members = {0: self._member(0)}
        members[0].open()
        self.hub = members[0].coordinator
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(over,), daemon=True)
        watching.start()
        if attack is not None:
            attack(self)
        members |= {n: self._member(n) for n in range(1, self.count) if n not in self.absent}
        threads = [threading.Thread(target=self._live, args=(n, one), daemon=True) for n, one in members.items()]
        for one in threads:
            one.start()
        for one in threads:
            one.join(90)
        over.set()
        watching.join()
        for number in sorted(members, reverse=True):
            members[number].close()
        return self

    def _member(self, node: int) -> Member:
        nodes = Nodes(self.count, node, self.master, self.proxied.get(node, self.port), run="lab")
        return Member(nodes, self.seconds, 20.0, self.secret)

    def _live(self, node: int, member: Member) -> None:
        time.sleep(self.late.get(node, 0.0))
        heard, begun = Cluster(member.nodes, proof=self.secret.proof), time.monotonic()
        try:
            if node:
                member.open()
            member.join({"host": f"h{node}"}, begun + self.seconds["join"])
            if node in self.restarted:
                assert member.line is not None
                member.line.close()
                time.sleep(0.2)
                member.join({"host": f"h{node}"}, begun + self.seconds["join"])
            joined: dict[int, Any] = {}
            for subject in SUBJECTS:
                if subject == "reach":
                    reached, _ = member.reach(joined, heard.endpoints)
                    member.send("reach", data={str(n): messages.miss_data(miss) for n, miss in reached.items()})
                elif subject == "place":
                    member.send(
                        "place",
                        data={"space": "lab", "gloo": ["lo", "127.0.0.1"], "links": [["lo0", f"10.0.0.{node}", 24, 1500]]},
                    )
                elif subject != "join":
                    member.send(subject, data=told()[subject])
                message = member.wait(subject, time.monotonic() + self.seconds[subject] + 20)
                self.boards.setdefault(node, {})[subject] = message
                heard, data = messages.take(heard, subject, message)
                joined = joined or data
        except MeetingError as error:
            self.wrong[node] = error
        self.heard[node] = heard

    def _watch(self, over: threading.Event) -> None:
        hub = self.hub
        assert hub is not None
        while not over.wait(0.005):
            lines = list(hub.lines.values())
            queued = {id(part.obj): len(part.obj) for line in lines for part in list(line.write)}
            read = sum(len(line.read) + (len(line.frames.buffer) if line.frames else 0) for line in lines)
            boards = sum(len(part) for board in list(hub.board.values()) for part in list(board.values()))
            self.held = max(self.held, read + boards + sum(queued.values()))

    def findings(self, node: int = 0) -> dict[str, Status]:
        return {f.subject: f.status for f in allreduce_nodes(self.heard[node])}

    def faults(self, honest: Sequence[int]) -> list[str]:
        """What is not as it should be for these nodes."""
        out = [f"node {n}: {error.kind}: {error}" for n, error in self.wrong.items() if n in honest]
        for node in honest:
            heard = self.heard.get(node)
            if heard is None or node in self.wrong:
                continue
            out += [f"node {node} misses {n}: {heard.gone[n].why}" for n in honest if n in heard.gone]
            out += [f"node {node}: {n} is {heard.hosts.get(n)}" for n in honest if heard.hosts.get(n) != f"h{n}"]
            out += [
                f"node {node}: {a} to {b}: {why}"
                for a in honest
                for b, why in heard.reach.get(a, {}).items()
                if why and b in honest
            ]
            text = json.dumps(heard.section(), ensure_ascii=False) + str(list(allreduce_nodes(heard)))
            out += [f"node {node}: {one!r} in its report" for one in "\x9b\x1b\u202e\u2066\x07" if one in text]
        if self.held > HELD:
            out.append(f"node 0 held {self.held} bytes")
        return out
