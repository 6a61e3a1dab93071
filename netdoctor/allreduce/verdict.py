"""What happened, made of the events that zygote and ranks sent: pure, so that recorded lines can be judged again."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeVar

from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.facts.runs import PHASES, AllReduce, NcclFacts, Obstacle, RankResult, Reason, Run, State, TorchFacts
from netdoctor.process import signals

Event = Mapping[str, Any]

# What a rank says when it lost a peer: it is a victim.  Gloo: transport/tcp/{pair,buffer,unbound_buffer}.cc; torch: TCPStore,
# FileStore; NCCL: ncclRemoteError, misc/socket.cc, "completion with status 5" (flushed) of net_ib.
_VICTIM: Final = (
    *("connection reset by peer", "connection closed by peer", "broken pipe", "connection refused", "socket closed"),
    *("closed by remote peer", "remote process exited", "remote peer", "ncclremoteerror", "connectfullmesh failed"),
    *("wait timeout", "timed out", "timeout", "so_error", "connection was closed", "work flushed", "status=5"),
    *("network is unreachable", "no route to host"),
)
# The kernel closes the sockets of a dying process before its parent can reap it, so a victim's cry comes first.
_ABRUPT_LEAD: Final = 1.0  # seconds
_TEARDOWN: Final = "done"


@dataclass
class Rank:
    """What is known of one rank."""

    rank: int
    pid: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    error: str = ""
    error_time: float | None = None
    exit: int | None = None
    exit_time: float | None = None
    sizes: dict[int, float] = field(default_factory=dict)
    verified: dict[int, int] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""  # of a run of several nodes
    interrupted: float | None = None  # when the runner began to end it: what comes later is the runner's own doing

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host})" if self.host else f"rank {self.rank}"

    @property
    def phase(self) -> str:
        return max(self.phases, key=PHASES.index, default="spawn")

    @property
    def order(self) -> int:
        return PHASES.index(self.phase)

    @property
    def done(self) -> bool:
        return self.phase == _TEARDOWN


def ranks_of(count: int, events: Iterable[Event]) -> list[Rank]:
    """The ranks of one run.  Events of an unknown shape are left out: ranks are other people's code."""
    ranks = [Rank(n) for n in range(count)]
    for event in events:
        number, kind = event.get("rank"), event.get("event")
        if not isinstance(number, int) or not 0 <= number < count:
            continue
        try:
            _tell(ranks[number], str(kind), event)
        except (KeyError, TypeError, ValueError):
            continue
    return ranks


def _tell(rank: Rank, kind: str, event: Event) -> None:
    if kind == "forked":
        rank.pid = int(event["pid"])
        rank.phases["spawn"] = min(float(event["t"]), *rank.phases.values(), float(event["t"]))
    elif kind == "phase" and event["phase"] in PHASES:
        rank.phases.setdefault(event["phase"], float(event["t"]))
    elif kind == "error":
        rank.error, rank.error_time = str(event["error"]), float(event["t"])
    elif kind == "exit":
        rank.exit, rank.exit_time = int(event["status"]), float(event["t"])
    elif kind == "size":
        rank.sizes[int(event["bytes"])] = float(event["seconds"])
    elif kind == "verified":
        size = int(event["bytes"])
        rank.verified[size] = rank.verified.get(size, 0) + int(event["wrong"])
    elif kind == "result":
        rank.result = event
    elif kind == "affinity":
        rank.affinity = event


def is_victim(error: str) -> bool:
    """Whether a rank's own words say that it lost, or never got, a peer."""
    return any(text in error.lower() for text in _VICTIM)


def first_failing(ranks: Sequence[Rank]) -> Rank | None:
    """The rank that failed by itself first; victims of another only where nobody failed by itself."""
    failed: list[tuple[bool, float, int, Rank]] = []
    for rank in ranks:
        time = rank.error_time if rank.error_time is not None else None if rank.done else rank.exit_time
        if time is None or (rank.interrupted is not None and time > rank.interrupted):
            continue
        if rank.error_time is not None:
            victim, lead = is_victim(rank.error), 0.0
        else:
            # SIGABRT is how torch's watchdog ends a rank that lost its peers (ProcessGroupNCCL.cpp): no lead for it.
            victim, lead = False, 0.0 if rank.exit == -signal.SIGABRT else _ABRUPT_LEAD
        failed.append((victim, time - lead, rank.rank, rank))
    return min(failed, key=lambda f: f[:3])[3] if failed else None


def busbw(size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth of an all-reduce in GB/s (1e9): bytes / time × 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9 if seconds > 0 else 0.0


def build(
    experiment: AllReduce,
    events: Sequence[Event],
    interruption: Interruption | None,
    *,
    facts: TorchFacts | NcclFacts | None = None,
    import_seconds: float | None = None,
    hosts: Mapping[int, str] = MappingProxyType({}),
) -> Run:
    """The run that these events tell of.  `interruption` is None where every rank ended by itself.

    `hosts` are those of the ranks, where they are on several nodes.
    """
    ranks = ranks_of(experiment.ranks, events)
    for rank in ranks:
        rank.host = hosts.get(rank.rank, "")
    if interruption is not None:
        for rank in ranks:
            rank.interrupted = interruption.times[rank.rank] if interruption.times else interruption.time
    state, reason, blamed = _state(ranks, interruption, first_failing(ranks))
    every = [r.sizes for r in ranks]
    latency = {s: max(t[s] for t in every) for s in experiment.sizes if all(s in t for t in every)}
    wrong = any(count for r in ranks for count in r.verified.values())
    compared = all(size in r.verified for r in ranks for size in experiment.sizes)
    moved = sum(int(r.result.get("bytes_moved", 0)) for r in ranks)
    results = tuple(_result(r) for r in ranks)
    return Run(
        experiment,
        state,
        reason,
        verified=False if wrong else True if compared and state == State.FINISHED else None,
        ranks=results,
        blamed=blamed,
        busbw={s: busbw(s, t, experiment.ranks) for s, t in latency.items()},
        latency=latency,
        import_seconds=import_seconds,
        **_of_facts(facts),
        obstacle=_obstacle(interruption) if state in (State.NOT_STARTED, State.UNFINISHED) else None,
        mapped=tuple(sorted({path for r in results for path in r.mapped})),
        system_cpu_per_gb=sum(r.system_cpu for r in results) / (moved / 1e9) if moved and state == State.FINISHED else None,
    )


def not_started(experiment: AllReduce, reason: Reason, facts: TorchFacts | NcclFacts | None = None, **more: Any) -> Run:
    """A run of which no rank came past import."""
    return Run(experiment, State.NOT_STARTED, reason.text, obstacle=reason.obstacle, **_of_facts(facts), **more)


def _of_facts(facts: TorchFacts | NcclFacts | None) -> dict[str, Any]:
    if isinstance(facts, NcclFacts):
        return {"nccl_version": facts.nccl}
    known = facts or TorchFacts()
    return {
        "torch": facts,
        "torch_version": known.version,
        "nccl_version": known.nccl,
        "cuda_available": known.cuda_available,
        "backends": known.backends,
        "backends_nccl": known.backends_nccl,
    }


def _obstacle(interruption: Interruption | None) -> Obstacle:
    return (interruption.obstacle or interruption.kind.obstacle) if interruption else Obstacle.LOST


def _state(
    ranks: Sequence[Rank], interruption: Interruption | None, culprit: Rank | None
) -> tuple[State, str, tuple[int, ...]]:
    if culprit is not None:
        return State.FAILED, _why(culprit), (culprit.rank,)
    if all(r.done for r in ranks):
        late = [r for r in ranks if r.exit not in (0, None)]
        return State.FINISHED, "; ".join(f"{_end(r)} after its work was done" for r in late if interruption is None), ()
    interruption = interruption or Interruption(InterruptionKind.LOST, 0.0, text="the ranks ended without a word")
    slowest = min(ranks, key=lambda r: r.order)
    where = f"{slowest.name} in phase {slowest.phase}"
    held = interruption.kind is InterruptionKind.STALLED and any(not ranks[n].done for n in interruption.stopped)
    if slowest.order <= PHASES.index("import") and not held:
        return State.NOT_STARTED, interruption.text or f"{where} when the time was over", ()
    if interruption.kind != InterruptionKind.STALLED or (slowest.phase == "device" and not held):
        return State.UNFINISHED, interruption.text or f"{where} when the time was over", ()
    blamed = _missing(ranks, interruption)
    named = ", ".join(ranks[n].name for n in blamed)
    what = _WAITS_IN.get(slowest.phase, "a collective")
    text = f"no progress in {what} for {interruption.seconds:.0f} s"
    if not named:
        return State.HUNG, f"{text}: all ranks are inside", ()
    fate = "never arrived" if blamed != interruption.stopped else "is stopped" if len(blamed) == 1 else "are stopped"
    return State.HUNG, f"{text}: {named} {fate}", blamed


_WAITS_IN: Final = {
    **{phase: f"phase {phase}" for phase in ("spawn", "import", "device")},
    "rendezvous": "the rendezvous",
    "init": "initialisation",
}


def _missing(ranks: Sequence[Rank], interruption: Interruption) -> tuple[int, ...]:
    """Ranks that the others wait for; () when all are inside.

    A stopped process is what nothing gets past.  Else those behind, but for one that is inside its collective: its peers
    end theirs as soon as their own parts have come, so a victim may be a collective, and even a phase, behind the others.
    """
    waiting = {r.rank: r for r in ranks if not r.done}
    if stopped := tuple(n for n in interruption.stopped if n in waiting):
        return stopped
    phases = {n: r.order for n, r in waiting.items()}
    if min(phases.values()) < PHASES.index("first"):
        return _behind(phases)
    entered = {n: interruption.entered[n] if n < len(interruption.entered) else 0 for n in waiting}
    outside = tuple(n for n in waiting if n < len(interruption.left) and interruption.left[n] == entered[n])
    if 0 < len(outside) < len(ranks):
        return outside
    # Collectives on a GPU are begun without waiting for the one before: there, ranks can be further apart.
    behind = tuple(n for n in _behind(entered) if max(entered.values()) > entered[n] + 1)
    return behind or tuple(n for n in interruption.blocked if n in waiting)


def _behind(place: Mapping[int, int]) -> tuple[int, ...]:
    behind = tuple(n for n, at in place.items() if at == min(place.values()))
    return behind if len(behind) < len(place) else ()


def _why(rank: Rank) -> str:
    return f"{rank.name} in phase {rank.phase}: {rank.error}" if rank.error else f"{_end(rank)} in phase {rank.phase}"


def _end(rank: Rank) -> str:
    if rank.exit is not None and rank.exit < 0:
        return f"{rank.name} {signals.ended(rank.exit)}"
    return f"{rank.name} exited with status {rank.exit}"


def _result(rank: Rank) -> RankResult:
    ours = rank.interrupted is not None and rank.exit_time is not None and rank.exit_time > rank.interrupted  # we ended it
    times: list[tuple[str, float]] = [(p, rank.phases[p]) for p in PHASES if p in rank.phases]
    spans = {p: round(end - begin, 6) for (p, begin), (_, end) in pairwise(times)}
    result = rank.result
    return RankResult(
        rank.rank,
        rank.phase,
        error=rank.error,
        exit=None if ours and rank.exit != 0 else rank.exit,
        wrong=sum(rank.verified.values()),
        seconds=dict(rank.sizes),
        phase_seconds=spans,
        system_cpu=float(result.get("system_cpu", 0.0)),
        user_cpu=float(result.get("user_cpu", 0.0)),
        mapped=tuple(str(p) for p in result.get("mapped", ())),
        affinity=tuple(rank.affinity.get("main", ())),
        thread_affinity=tuple(rank.affinity.get("thread", ())),
        collective_seconds=float(result.get("collective_seconds", 0.0)),
        gpu=str(result.get("gpu", "")),
        link_speed=float(result.get("link_speed", 0.0)),
    )


_ASKED: Final[Mapping[type, str]] = {TorchFacts: "torch", NcclFacts: "libnccl and the driver"}
Facts = TypeVar("Facts", TorchFacts, NcclFacts)


def facts_of(kind: type[Facts], events: Iterable[Event]) -> Facts:
    """What was answered; what was not reached keeps its default, and `error` says that something ended it."""
    known = frozenset(one.name for one in fields(kind))
    got: dict[str, Any] = {}
    ended: int | None = None
    for event in events:
        if event.get("event") == "fact":
            got.update({k: v for k, v in event.items() if k in known})
        elif event.get("event") == "facts":
            ended = event.get("status")
    if ended and not got.get("error"):
        got["error"] = f"the child that asks {_ASKED[kind]} {signals.ended(ended)}"
    return kind(**got)
