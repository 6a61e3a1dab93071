"""One node's part in an all-reduce across nodes, from the first connection to the common verdict.  Never raises."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor import __version__
from netdoctor.allreduce import plan, verdict
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.allreduce.runner import LIMITS
from netdoctor.allreduce.watch import NodePart
from netdoctor.cluster import combine, connectivity, endpoints
from netdoctor.cluster.combine import Heard
from netdoctor.cluster.connectivity import Fault
from netdoctor.cluster.member import Meeting, MeetingError
from netdoctor.cluster.membership import Nodes
from netdoctor.cluster.tcp_stats import Sampler
from netdoctor.facts.runs import AllReduce, Baseline, Obstacle, Reason, State
from netdoctor.model import Kind, Unavailable
from netdoctor.process.proc import boot_id
from netdoctor.textsafe import line

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session

WAIT: Final = 120.0  # seconds for all nodes to come: pods and job steps start within a minute or two of each other
BUDGET: Final = 300.0  # seconds for the run
SILENCE: Final = 20.0  # seconds without a sign of life (they come twice a second) until a node counts as silent
LOOK: Final = 60.0  # to look at the node: asking.PATIENCE, and some slack
REACH: Final = 15.0  # three tries that time out, one after the other, and some slack
_STALLS: Final = ("rendezvous", "init", "first", "timed", "verify", "done")


@dataclass(frozen=True)
class Limits:
    """Seconds.  `stall` replaces the runner's limits for everything that waits for other ranks."""

    wait: float = WAIT
    stall: float | None = None
    budget: float = BUDGET

    def runner(self) -> dict[str, float]:
        return {} if self.stall is None else dict.fromkeys(_STALLS, self.stall)

    def silence(self) -> float:
        return SILENCE if self.stall is None else max(2.0, min(SILENCE, self.stall))

    def meeting(self) -> dict[str, float]:
        ready = LIMITS["spawn"] + LIMITS["import"] + LIMITS["facts"]
        return {"join": self.wait, "place": LOOK, "reach": REACH, "ready": ready, "result": self.budget + 30.0}


class Together:
    """`begin` as early as possible, `run` when the facts are there, `close` in any case."""

    def __init__(self, nodes: Nodes, limits: Limits, say: Callable[[str], None]) -> None:
        self.heard = Heard(nodes)
        self.limits, self.say = limits, say
        self.meeting = Meeting(nodes, limits.meeting(), limits.silence())
        self.begun = time.monotonic()
        self.beside: tuple[int, ...] = ()  # nodes of this run on this very machine
        self.coming = threading.Thread(target=self._come, name="netdoctor-coming", daemon=True)

    def close(self, why: str = "") -> None:
        self.meeting.close(why)

    def begin(self) -> None:
        """Open and come, beside whatever else this process does until `run`."""
        try:
            self.coming.start()
        except RuntimeError as error:
            self._no_thread(error)

    def _come(self) -> None:
        try:
            host = line(socket.gethostname(), 64)
            self.heard.hosts[self.heard.nodes.rank] = host
            self.meeting.open()
            self.meeting.join({"host": host, "netdoctor": __version__, "boot": _boot()}, self.begun + self.limits.wait)
        except MeetingError as error:
            self._without(error)
        except RuntimeError as error:
            self._no_thread(error)

    def run(self, session: Session | None, facts: Mapping[str, Any], traits: Mapping[str, Any]) -> Baseline | Unavailable:
        """The common run as this node's baseline.  `traits` are what the nodes are compared by."""
        if self.coming.ident is not None:
            self.coming.join()
        if self.heard.master is None:
            try:
                return self._run(session, facts, traits)
            except MeetingError as error:
                self._without(error)
        assert self.heard.master is not None
        kind, why = self.heard.master
        who = self.heard.nodes.rank if kind in (Fault.PORT_TAKEN, Fault.NO_LOCAL_PORT, Fault.NO_THREAD) else 0
        return Unavailable(Kind.OTHER_NODES, f"{self.heard.name(who)}: {why}")

    def _no_thread(self, error: RuntimeError) -> None:
        self._without(MeetingError(Fault.NO_THREAD, f"it cannot take part: {error}"))

    def _without(self, error: MeetingError) -> None:
        self.heard.master = (error.kind, str(error))

    def _wait(self, subject: str, seconds: float) -> dict[int, Any]:
        # Longer than the hub's own deadline: what is late there is told from there.
        end = time.monotonic() + seconds + self.meeting.silence
        return combine.hear(self.heard, subject, self.meeting.wait(subject, end))

    def _run(self, session: Session | None, facts: Mapping[str, Any], traits: Mapping[str, Any]) -> Baseline | Unavailable:
        limits = self.meeting.limits
        self.say("waiting for the other nodes")
        joined = self._wait("join", limits["join"])
        self.heard.seconds = time.monotonic() - self.begun
        if self.heard.gone:
            return Unavailable(self._lacking(), str(combine.experiments(self.heard)))
        self.meeting.say("place", data=endpoints.told(facts))
        self._wait("place", limits["place"])
        self.say("trying the other nodes")
        known = {n: said for n, said in joined.items() if isinstance(said, Mapping)}
        self.beside = beside(known, self.heard.nodes.rank)
        reached, taken = self.meeting.reach(known, self.heard.places)
        self.meeting.say("reach", data={**_told(reached), "takes": {kind: _told(one) for kind, one in taken.items()}})
        self._wait("reach", limits["reach"])
        self.meeting.say("ready", data=self._ready(session, facts, traits))
        self._wait("ready", limits["ready"])
        made = combine.experiments(self.heard)
        if isinstance(made, str) or session is None:
            return Unavailable(self._lacking(), str(made))
        self.say("all-reduce across the nodes")
        return self._reduce(session, made)

    def _lacking(self) -> Kind:
        return Kind.MISSING_NODE if self.heard.never & self.heard.gone.keys() else Kind.OTHER_NODES

    def _ready(self, session: Session | None, facts: Mapping[str, Any], traits: Mapping[str, Any]) -> dict[str, Any]:
        """What this node can run, or why it cannot."""
        said: dict[str, Any] = {"ranks": 0, "backend": "", "traits": dict(traits)}
        if session is None:
            return {**said, "cannot": "no Python of the job was found"}
        torch = session.facts(time.monotonic() + self.meeting.limits["ready"] - 10.0)
        if isinstance(torch, Unavailable):
            return {**said, "cannot": torch.detail or str(torch)}
        said["traits"] = {**said["traits"], "torch": torch.version, **({"nccl": torch.nccl} if torch.nccl else {})}
        one = plan.first_experiment(torch, Unavailable(Kind.NOT_READ))
        gpus = plan.gpus_of(torch)
        ranks = self.heard.nodes.ranks_per_node or (min(gpus, plan.MAX_RANKS) if one.backend == "nccl" else 1)
        if one.backend == "nccl":
            if ranks > gpus:
                return {**said, "cannot": f"{ranks} ranks are asked for, and torch sees {gpus} GPUs"}
            mine = AllReduce("nccl", ranks, "cuda", gpus=tuple(range(ranks)))
            if reason := plan.busy(facts, mine):
                return {**said, "cannot": reason.text}
        return {**said, "ranks": ranks, "backend": one.backend}

    def _reduce(self, session: Session, made: Mapping[int, AllReduce]) -> Baseline:
        nodes, meeting = self.heard.nodes, self.meeting
        world = sum(one.ranks for one in made.values())
        own = made[nodes.rank]
        deadline = time.monotonic() + self.limits.budget
        stopped = lambda: meeting.has("stop") or meeting.dead is not None  # noqa: E731
        port, host = 0, "127.0.0.1"
        if nodes.rank != 0:
            port, host = self._store(deadline), meeting.peer
        flows = Sampler()
        part = NodePart(self.heard.firsts[nodes.rank], world, host, port, lambda p: meeting.say("store", port=p), stopped)
        if nodes.rank != 0 and port == 0:
            mine = verdict.not_started(own, Reason(Obstacle.OTHER_NODE, "node 0 never began"))
        else:
            flows.start()
            mine = session.run(own, deadline, part=part)
            if mine.obstacle is Obstacle.LOCK and self.beside:
                mine = replace(mine, reason=shared(nodes.rank, self.beside), obstacle=Obstacle.SAME_MACHINE)
            if part.interruption is None and not part.events:  # not past its import, or no lock
                why, now = InterruptionKind.LOST, time.monotonic()
                part.interruption = Interruption(why, now, text=mine.reason, obstacle=mine.obstacle)
        told = {**combine.outgoing(part.events, part.interruption, meeting.offset), "flows": flows.stop()}
        meeting.say("result", data=told, failed=not mine.finished)
        try:
            parts = self._wait("result", self.limits.budget + 30.0)
        except MeetingError as error:
            self._without(error)
            self.heard.gone.setdefault(0, ("result", str(error)))
            parts = {nodes.rank: told}
        run = combine.combine(self.heard, made, parts, mine)
        self.heard.run = run
        return Baseline(run, session.python, own.backend == "nccl" and run.state != State.NOT_STARTED)

    def _store(self, deadline: float) -> int:
        """The port of the store, 0 where the run was over before there was one."""
        meeting = self.meeting
        with meeting.changed:
            while not meeting.has("store"):
                if meeting.has("stop") or meeting.dead is not None or time.monotonic() >= deadline:
                    return 0
                if time.monotonic() - meeting.last > meeting.silence:
                    return 0
                meeting.changed.wait(0.1)
        port = meeting.heard["store"].get("port")
        return port if type(port) is int and 0 < port < 65536 else 0


def _told(reached: Mapping[int, connectivity.Miss | None]) -> dict[int, Any]:
    return {node: connectivity.told(miss) for node, miss in reached.items()}


def beside(said: Mapping[int, Mapping[str, Any]], rank: int) -> tuple[int, ...]:
    """The other nodes that run on the kernel that this one runs on."""
    own = said.get(rank, {}).get("boot")
    return tuple(n for n in sorted(said) if n != rank and own and said[n].get("boot") == own)


def shared(rank: int, others: tuple[int, ...]) -> str:
    names = ", ".join(map(str, sorted((rank, *others))))
    return f"nodes {names} of this run are the same machine, and one netdoctor at a time has its lock"


def _boot() -> str:
    """A digest of this boot of this machine (random(4): boot_id); "" where it is not told."""
    boot = boot_id()
    return hashlib.sha256(boot.encode()).hexdigest()[:16] if boot else ""
