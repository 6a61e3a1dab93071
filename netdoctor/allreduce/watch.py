"""One run while it runs: whether it goes on, and when it must be ended."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from netdoctor.allreduce import verdict
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.allreduce.worker import Worker
from netdoctor.facts.runs import PHASES, AllReduce
from netdoctor.process import proc

GRACE: Final = 0.5  # seconds after a failure for the others to tell what they saw
POLL: Final = 0.25  # seconds between looks at the progress page
# Seconds in which a rank is seen in that state at every look while nothing moves: no phase is waited out for it.  A debugger
# stops for less; a driver that maps memory or reads a file sleeps uninterruptibly, but not at every look.
STILL: Final[dict[str, float]] = {"T": 5.0, "t": 5.0, "D": 15.0}  # proc(5)
_MAY_SLEEP: Final = ("spawn", "import", "device")  # files from a network, contexts of GPUs without persistence mode
SLOT: Final = 64  # bytes of a rank in the progress page (rank.py)


@dataclass
class NodePart:
    """This node's part of an experiment whose ranks are on several nodes, and what it left for a common verdict."""

    first: int  # global number of this node's first rank
    world: int  # ranks of all nodes
    host: str  # where rank 0 serves the store
    meeting: Mapping[
        str, Any
    ]  # where and by what the others meet rank 0: `port` of its store (0: rank 0 is here), `id` of NCCL
    served: Callable[[Mapping[str, Any]], None] = lambda _meeting: None  # rank 0, which is here, tells that
    stopped: Callable[[], bool] = lambda: False  # another node says that it is over
    events: tuple[Mapping[str, Any], ...] = ()
    interruption: Interruption | None = None


@dataclass
class Still:
    """Ranks that were found stopped, or in an uninterruptible wait, at every look since some moment."""

    since: dict[int, tuple[str, float]] = field(default_factory=dict)  # pid -> state letter, when it was first seen
    looked: float = 0.0

    def look(self, now: float, pids: Mapping[int, str]) -> bool:
        """Whether one of these (pid -> phase) is so for long enough.  Not looking for a while (suspended) proves nothing."""
        if now - self.looked > 4 * POLL:
            self.since.clear()
        self.looked = now
        seen = {pid: letter for pid, phase in pids.items() if (letter := proc.state(pid)) in STILL and _tells(letter, phase)}
        self.since = {
            pid: old if (old := self.since.get(pid, ("", now)))[0] == letter else (letter, now) for pid, letter in seen.items()
        }
        return any(now - begun > STILL[letter] for letter, begun in self.since.values())


def _tells(letter: str, phase: str) -> bool:
    return letter != "D" or phase not in _MAY_SLEEP


@dataclass
class Watch:
    """Looks at one run while it runs, until it ends or must be ended."""

    worker: Worker
    experiment: AllReduce
    number: int  # of the run, in its events
    at: int  # index of the worker's first event that may belong to it
    page: mmap.mmap  # the progress of the ranks: SLOT bytes each
    limits: Mapping[str, float]
    part: NodePart | None = None
    told: bool = False  # the other nodes know how to meet rank 0

    def events(self) -> list[dict[str, Any]]:
        return [e for e in self.worker.events[self.at :] if e.get("run") == self.number]

    def ended(self) -> bool:
        return any(e.get("event") == "ended" for e in self.events())

    def pids(self) -> list[int]:
        """Ranks that were forked and not reaped."""
        return [r.pid for r in verdict.ranks_of(self.experiment.ranks, self.events()) if r.pid and r.exit_time is None]

    def until_end(self, deadline: float | None) -> Interruption | None:
        """None when all ranks ended by themselves; else why they must be ended."""
        progressed, seen = time.monotonic(), (0, b"")
        stopped: float | None = None
        still = Still()
        while True:
            if self.worker.wait(self.ended, sooner(deadline, time.monotonic() + (POLL if self.part is None else POLL / 10))):
                return None
            now = time.monotonic()
            events = self.events()
            stopped = stopped or (now if self._other_nodes(events) else None)
            state = (len(events), bytes(self.page))
            if state != seen:
                progressed, seen = now, state
                still.since.clear()
            ranks = verdict.ranks_of(self.experiment.ranks, events)
            failed = [t for r in ranks for t in (r.error_time, None if r.done else r.exit_time) if t is not None]
            if failed and now > min(failed) + GRACE:
                return self._interrupt(InterruptionKind.FAILURE, now, ranks)
            # Not at once: the victims elsewhere know of a death sooner than those who reap the dead here.
            if stopped is not None and now > stopped + GRACE and not failed:
                return self._interrupt(InterruptionKind.FAILURE, now, ranks, text="another node ended the run")
            if self.worker.gone or self.worker.ended:
                text = f"the process that forks the ranks {self.worker.ended or 'ended'}"
                return self._interrupt(InterruptionKind.LOST, now, ranks, text=text)
            phase = min((r.phase for r in ranks), key=PHASES.index)
            living = {r.pid: r.phase for r in ranks if r.pid and r.exit_time is None}
            halted = now >= still.looked + POLL and still.look(now, living)
            if halted or now - progressed > self.limits[phase]:
                return self._interrupt(InterruptionKind.STALLED, now, ranks, now - progressed)
            if deadline is not None and now >= deadline:
                return self._interrupt(InterruptionKind.DEADLINE, now, ranks, now - progressed)

    def _other_nodes(self, events: list[dict[str, Any]]) -> bool:
        """Pass on how to meet rank 0 as soon as it is known; whether another node ended the run."""
        if self.part is None:
            return False
        if not self.told and (event := next((e for e in events if e.get("event") == "store"), None)):
            self.told = True
            self.part.served({key: event[key] for key in ("port", "id") if key in event})
        return self.part.stopped()

    def _interrupt(
        self, kind: InterruptionKind, now: float, ranks: list[verdict.Rank], seconds: float = 0.0, text: str = ""
    ) -> Interruption:
        counts = [struct.unpack_from("<QQ", self.page, SLOT * r.rank) for r in ranks]
        states = {r.rank: proc.state(r.pid) for r in ranks if r.pid}
        return Interruption(
            kind,
            now,
            seconds,
            entered=tuple(entered for entered, _ in counts),
            left=tuple(left for _, left in counts),
            stopped=tuple(n for n, state in states.items() if state in ("T", "t")),
            blocked=tuple(n for n, state in states.items() if state == "D"),
            text=text,
        )


def sooner(deadline: float | None, other: float) -> float:
    """The earlier of two moments; `deadline` None is no limit."""
    return other if deadline is None else min(deadline, other)
