"""Why a run was ended before its ranks ended by themselves."""

from __future__ import annotations

from netdoctor.facts.runs import Obstacle
from netdoctor.model import Word, record


class InterruptionKind(Word):
    """What made the runner end a run."""

    STALLED = "stalled"  # no progress for the limit of the phase
    DEADLINE = "deadline"
    FAILURE = "failure"  # another rank, or another node, had failed
    LOST = "lost"  # the process that forks the ranks ended

    @property
    def obstacle(self) -> Obstacle:
        return _OBSTACLES[self]


_OBSTACLES = {
    InterruptionKind.STALLED: Obstacle.TIME,
    InterruptionKind.DEADLINE: Obstacle.TIME,
    InterruptionKind.FAILURE: Obstacle.OTHER_NODE,
    InterruptionKind.LOST: Obstacle.LOST,
}


@record
class Interruption:
    """When and why the runner ended a run, and where each rank was then."""

    kind: InterruptionKind
    time: float  # time.monotonic
    seconds: float = 0.0  # since the last progress
    entered: tuple[int, ...] = ()  # collectives entered per rank, from the progress page
    left: tuple[int, ...] = ()  # and those left again: a rank that is inside one waits for others
    stopped: tuple[int, ...] = ()  # ranks that /proc shows stopped (T, t)
    blocked: tuple[int, ...] = ()  # or in an uninterruptible wait (D)
    text: str = ""
    obstacle: Obstacle | None = None  # None: that of its kind
    times: tuple[float | None, ...] = ()  # per rank, where each node ended its own; None: it ended by itself
