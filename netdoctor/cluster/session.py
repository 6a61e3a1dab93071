"""One node's part in an all-reduce across nodes, from the first connection to the common verdict.  Never raises."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor import __version__
from netdoctor.allreduce import plan, verdict
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.allreduce.runner import LIMITS
from netdoctor.allreduce.watch import NodePart
from netdoctor.cluster import combine, messages, network
from netdoctor.cluster.connectivity import control_of, elsewhere
from netdoctor.cluster.control import told
from netdoctor.cluster.endpoints import endpoints_data
from netdoctor.cluster.fabric import beyond
from netdoctor.cluster.member import MeetingError, Member
from netdoctor.cluster.observations import Cluster, Endpoints, Fault, Gone, Miss, Nodes
from netdoctor.cluster.secret import Secret
from netdoctor.cluster.tcp_stats import Sampler
from netdoctor.cluster.waiting import Teller
from netdoctor.compare.traits import Family, Trait, traits
from netdoctor.facts import layers
from netdoctor.facts.intent import Intent
from netdoctor.facts.inventory import inventory
from netdoctor.facts.registry import of
from netdoctor.facts.runs import AllReduce, Baseline, Caller, Control, Obstacle, Reason, State, TorchFacts
from netdoctor.model import Kind, Unavailable, count, record
from netdoctor.process.proc import boot_id
from netdoctor.textsafe import line
from netdoctor.variables.catalogue import is_default

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session

WAIT: Final = 120.0  # seconds for all nodes to come: pods and job steps start within a minute or two of each other
BUDGET: Final = 300.0  # seconds for the run
SILENCE: Final = 20.0  # seconds without a sign of life (they come twice a second) until a node counts as silent
LOOK: Final = 60.0  # to look at the node: children.PATIENCE, and some slack
REACH: Final = 15.0  # three tries that time out, one after the other, and some slack
_STALLS: Final = ("rendezvous", "init", "first", "timed", "verify", "done")


@record
class Limits:
    """Seconds.  `stall` replaces the runner's limits for everything that waits for other ranks."""

    wait: float = WAIT
    stall: float | None = None
    budget: float = BUDGET

    def runner(self) -> dict[str, float]:
        return {} if self.stall is None else dict.fromkeys(_STALLS, self.stall)

    def silence(self) -> float:
        return SILENCE if self.stall is None else max(2.0, min(SILENCE, self.stall))

    def of_subjects(self) -> dict[str, float]:
        ready = LIMITS["spawn"] + LIMITS["import"] + LIMITS["facts"]
        return {"join": self.wait, "place": LOOK, "reach": REACH, "ready": ready, "result": self.budget + 30.0}


class ClusterSession:
    """One node's session: `begin` as early as possible, `run` when the facts are there, `close` in any case."""

    def __init__(self, nodes: Nodes, limits: Limits, progress: Callable[[str], None], secret: Secret | None = None) -> None:
        self.member = Member(nodes, limits.of_subjects(), limits.silence(), secret)
        self.cluster = Cluster(nodes, proof=self.member.secret.proof)
        self.limits, self.progress = limits, progress
        self.begun = time.monotonic()
        self.waiting = Teller(nodes, progress, self.begun + limits.wait)
        self.ports: dict[int, int] = {}  # where the nodes serve probes
        self.beside: tuple[int, ...] = ()  # nodes of this run on this very machine
        self.joining = threading.Thread(target=self._join, name="netdoctor-join", daemon=True)

    def close(self, why: str = "") -> None:
        self.member.close(why)

    def begin(self) -> None:
        """Listen and join, beside whatever else this process does until `run`."""
        try:
            self.joining.start()
        except RuntimeError as error:
            self._no_thread(error)

    def _join(self) -> None:
        try:
            host = line(socket.gethostname(), 64)
            self.cluster = replace(self.cluster, hosts={self.cluster.nodes.rank: host})
            self.member.open()
            nodes = self.cluster.nodes
            if nodes.rank == 0 and nodes.count > 1:
                self.cluster = replace(self.cluster, master_elsewhere=elsewhere(nodes.master))
            self.member.join({"host": host, "netdoctor": __version__, "boot": _boot()}, self.begun + self.limits.wait)
        except MeetingError as error:
            self._without(error)
        except RuntimeError as error:
            self._no_thread(error)

    def run(self, session: Session | None, facts: Mapping[str, Any]) -> Baseline | Unavailable:
        """The common run as this node's baseline.  `session` is None where no Python was found."""
        while self.joining.ident is not None and self.joining.is_alive():
            self.joining.join(0.1)
            self.waiting.tick(self.member.gathering, self.member.trying)
        if self.cluster.master is None:
            try:
                return self._run(session, facts)
            except MeetingError as error:
                self._without(error)
        assert self.cluster.master is not None
        kind, why = self.cluster.master
        who = self.cluster.nodes.rank if kind in (Fault.PORT_TAKEN, Fault.NO_LOCAL_PORT, Fault.NO_THREAD) else 0
        where = Kind.THIS_NODE if who == self.cluster.nodes.rank else Kind.OTHER_NODES
        return Unavailable(where, f"{self.cluster.name(who)}: {why}")

    def _no_thread(self, error: RuntimeError) -> None:
        self._without(MeetingError(Fault.NO_THREAD, f"it cannot take part: {error}"))

    def _without(self, error: MeetingError) -> None:
        self.cluster = replace(self.cluster, master=(error.kind, str(error)))

    def _wait(self, subject: str, seconds: float) -> dict[int, Any]:
        # Longer than the coordinator's own deadline: it names who was late.
        end = time.monotonic() + seconds + self.member.silence
        self.cluster, data = messages.take(self.cluster, subject, self.member.wait(subject, end))
        return data

    def _run(self, session: Session | None, facts: Mapping[str, Any]) -> Baseline | Unavailable:
        limits = self.member.limits
        self.progress("waiting for the other nodes")
        while not (member := self.member).received and not member.dead and time.monotonic() < member.last + member.silence:
            self.waiting.tick(member.gathering, member.trying)
            time.sleep(0.05)
        joined = self._wait("join", limits["join"])
        if self.cluster.gone:
            return Unavailable(self._lacking(), str(combine.experiments(self.cluster)))
        self.member.send("place", data=endpoints_data(facts))
        self._wait("place", limits["place"])
        self.progress("trying the other nodes")
        known = {n: part for n, part in joined.items() if isinstance(part, Mapping)}
        self.beside = beside(known, self.cluster.nodes.rank)
        self.ports = {n: port for n, part in known.items() if type(port := part.get("port")) is int and 0 < port < 65536}
        reached, taken = self.member.reach(known, self.cluster.endpoints)
        self.member.send("reach", data={**_misses(reached), "takes": {kind: _misses(one) for kind, one in taken.items()}})
        self._wait("reach", limits["reach"])
        self.member.send("ready", data=self._ready(session, facts))
        self._wait("ready", limits["ready"])
        made = combine.experiments(self.cluster)
        if isinstance(made, str) or session is None:
            return Unavailable(self._lacking(), str(made))
        self.cluster = replace(self.cluster, first_ranks=combine.first_ranks(made))
        self.progress("all-reduce across the nodes")
        return self._reduce(session, made)

    def _lacking(self) -> Kind:
        if self.cluster.never_came & self.cluster.gone.keys():
            return Kind.MISSING_NODE
        own = self.cluster.ready.get(self.cluster.nodes.rank)
        return Kind.THIS_NODE if own is not None and own.cannot and not self.cluster.gone else Kind.OTHER_NODES

    def _ready(self, session: Session | None, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What this node can run, or why it cannot."""
        own = traits(inventory(facts), __version__, is_default)
        ready: dict[str, Any] = {"ranks": 0, "backend": "", "traits": messages.trait_data(own)}
        ready["fabric"] = beyond(of(facts, "GpuHealth"))
        ready["clock"] = messages.clock_data(self.member.clock)
        if session is None:
            return {**ready, "cannot": "no Python of the job was found"}
        answered = session.answer(time.monotonic() + self.member.limits["ready"] - 10.0)
        if isinstance(answered, Reason):
            return {**ready, **_cannot(answered)}
        told = {Family.NCCL: answered.nccl, Family.TORCH: answered.version if isinstance(answered, TorchFacts) else ""}
        ran = {Trait(family): version for family, version in told.items() if version}
        ready["traits"] = messages.trait_data(replace(own, values={**own.values, **ran}))
        ready["via"] = session.via.value
        session.gpus = of(facts, "Intent").gpus or ()
        experiment = plan.first_experiment(answered, Intent())
        gpus = plan.gpus_of(answered)
        ranks = self.cluster.nodes.ranks_per_node or (min(gpus, layers.MAX_RANKS) if experiment.backend == "nccl" else 1)
        if experiment.backend == "nccl":
            if ranks > gpus:
                seen = "torch" if session.via is Caller.TORCH else "libcuda"
                return {**ready, "cannot": f"{count(ranks, 'rank')} asked for, and {seen} sees {count(gpus, 'GPU')}"}
            mine = AllReduce("nccl", ranks, "cuda", gpus=tuple(range(ranks)))
            if reason := plan.busy(facts, mine):
                return {**ready, **_cannot(reason)}
        return {**ready, "ranks": ranks, "backend": experiment.backend}

    def _reduce(self, session: Session, made: Mapping[int, AllReduce]) -> Baseline:
        nodes, member = self.cluster.nodes, self.member
        world = sum(one.ranks for one in made.values())
        own = made[nodes.rank]
        deadline = time.monotonic() + self.limits.budget
        stopped = lambda: "stop" in member.received or member.dead is not None  # noqa: E731
        meeting, host = ({"port": 0} if session.via is Caller.TORCH else {}), "127.0.0.1"
        if nodes.rank != 0:
            meeting, host = self._meeting(deadline), member.peer
        flows = Sampler()
        part = NodePart(
            self.cluster.first_ranks[nodes.rank], world, host, meeting, lambda told: member.send("store", **told), stopped
        )
        if nodes.rank != 0 and not meeting:
            mine = verdict.not_started(own, Reason(Obstacle.OTHER_NODE, "node 0 never began"))
        else:
            flows.start()
            mine = session.run(own, deadline, part=part)
            if mine.obstacle is Obstacle.LOCK and self.beside:
                mine = replace(mine, reason=shared(nodes.rank, self.beside), obstacle=Obstacle.SAME_MACHINE)
            if part.interruption is None and not part.events:  # not past its import, or no lock
                why, now = InterruptionKind.LOST, time.monotonic()
                part.interruption = Interruption(why, now, text=mine.reason, obstacle=mine.obstacle)
        result = {**messages.result_data(part.events, part.interruption, member.offset), "flows": (carried := flows.stop())}
        if mine.finished and nodes.count > 1:
            bulk = sum(sent for _, _, sent, _ in carried.values()) >= network.ENOUGH
            result["control"] = told(self._control(own.backend, bulk))
        member.send("result", data=result, failed=not mine.finished)
        try:
            parts = self._wait("result", self.limits.budget + 30.0)
        except MeetingError as error:
            self._without(error)
            self.cluster = replace(self.cluster, gone={0: Gone("result", str(error)), **self.cluster.gone})
            parts = {nodes.rank: result}
        met = combine.combine(self.cluster, made, parts, mine)
        run = met.run
        assert run is not None
        # The log stays with this node's own baseline: what the nodes say together rests on nothing that one of them has alone.
        self.cluster = replace(met, run=replace(run, log=None, log_text="", output=""))
        return Baseline(run, own.backend == "nccl" and run.state != State.NOT_STARTED)

    def _control(self, backend: str, bulk: bool) -> Control:
        """The way to the next node, with nothing else on it."""
        there = (self.cluster.nodes.rank + 1) % self.cluster.nodes.count
        place = self.cluster.endpoints.get(there, Endpoints()).listen.get(backend, ("", ""))[1]
        host = place or (self.member.peer if there == 0 else self.cluster.addresses.get(there, ""))
        port, own = self.ports.get(there), self.ports.get(self.cluster.nodes.rank, 0)
        mine = own, self.cluster.nodes.rank
        return control_of((host, port, there), mine, bulk, self.member.probe_key) if host and port else Control()

    def _meeting(self, deadline: float) -> dict[str, Any]:
        """How to meet the first rank; {} where the run was over before it was there."""
        member = self.member
        with member.changed:
            while "store" not in member.received:
                over = time.monotonic() >= min(deadline, member.last + member.silence)
                if over or "stop" in member.received or member.dead is not None:
                    return {}
                member.changed.wait(0.1)
        return messages.read_meeting(member.received["store"])


def _cannot(reason: Reason) -> dict[str, str]:
    return {"cannot": reason.text, "obstacle": reason.obstacle.value}


def _misses(reached: Mapping[int, Miss | None]) -> dict[int, Any]:
    return {node: messages.miss_data(miss) for node, miss in reached.items()}


def beside(joined: Mapping[int, Mapping[str, Any]], rank: int) -> tuple[int, ...]:
    """The other nodes that run on the kernel that this one runs on."""
    own = joined.get(rank, {}).get("boot")
    return tuple(n for n in sorted(joined) if n != rank and own and joined[n].get("boot") == own)


def shared(rank: int, others: tuple[int, ...]) -> str:
    names = ", ".join(map(str, sorted((rank, *others))))
    return f"nodes {names} of this run are the same machine, and one netdoctor at a time has its lock"


def _boot() -> str:
    """A digest of this boot of this machine (random(4): boot_id); "" where it is not told."""
    boot = boot_id()
    return hashlib.sha256(boot.encode()).hexdigest()[:16] if boot else ""
