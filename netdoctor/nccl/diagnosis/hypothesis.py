"""`Hypothesis`, what a rule yields, and `means`, the rule of lines that mean the same whatever else is in the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import IntEnum, auto
from typing import Final

from netdoctor.model import Fix, Loss, Word, record
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import Event, LogFacts

_FEW: Final = 2  # ranks that are named one by one
_MANY: Final = 8


class Confidence(IntEnum):
    """How likely a hypothesis is the cause rather than one of its effects.  Only the order counts.

    The six levels have grades, as in a school: a rule that says two things of one line says with them which it believes more.
    """

    EFFECT_MINUS = auto()
    EFFECT = auto()  # what a rank prints when another one has gone
    EFFECT_PLUS = auto()
    QUIET_MINUS = auto()
    QUIET = auto()  # nothing failed: a setting or a transport that costs speed
    QUIET_PLUS = auto()
    OPEN_MINUS = auto()
    OPEN = auto()  # one of several causes that the log cannot tell apart
    OPEN_PLUS = auto()
    LIKELY_MINUS = auto()
    LIKELY = auto()
    LIKELY_PLUS = auto()
    STRONG_MINUS = auto()
    STRONG = auto()  # an error message that has one usual cause
    STRONG_PLUS = auto()
    CERTAIN = auto()  # NCCL names the cause itself

    @property
    def word(self) -> str:
        """The level as reports name it."""
        if self >= Confidence.STRONG:
            return "high"
        return "medium" if self >= Confidence.OPEN or self is Confidence.QUIET else "low"


class Fault(Word):
    """What failed, finer than its cause, where the cause's name does not say it."""

    EXCEPTION = "uncaught exception"
    GPU_MEMORY = "GPU memory exhausted"
    KERNEL = "illegal access or assert in a kernel"
    NO_NCCL = "torch built without NCCL"
    TOO_OLD = "NCCL or torch too old for the GPU"
    ARGUMENT = "argument error of the caller"
    EXHAUSTED = "threads or descriptors exhausted"
    RANKS = "wrong number of ranks"
    NO_LAUNCHER = "nccl-tests without MPI"
    HOST_MEMORY = "host memory exhausted"
    NODE = "node failed"
    STORAGE = "file system full or gone"
    SERVICE = "hub or object store refused"
    ECC = "memory error of a GPU"
    NO_GPU = "process sees no GPU"
    ENGINE = "engine of another build"
    LIBRARY = "a library's own error"


@record
class Hypothesis:
    """What may be wrong: a cause, how likely it is, and what shows it."""

    cause: str
    confidence: Confidence
    message: str
    events: tuple[Event, ...] = ()
    fix: Fix | Topic | None = None
    how: str | None = None  # what to look at next; None: the checks of the cause
    notes: tuple[str, ...] = ()
    loss: Loss | None = None  # what it takes; None: what its cause does
    shown: tuple[str, ...] = ()  # facts that show it, where no event does
    subject: str | None = None
    why: str | None = None  # what it costs here; None: what the cause costs
    fault: Fault | None = None

    @property
    def quiet(self) -> bool:
        """A setting or a transport that costs speed: nothing that could end a job."""
        return not self.events and self.confidence < Confidence.LIKELY_MINUS


Rule = Callable[[LogFacts], Iterator[Hypothesis]]


def means(kind: EventKind, *hypotheses: Hypothesis, info: bool = True, first: bool = False) -> Rule:
    """Lines of this kind mean this, whatever else is in the log; `{name}` in a message is what the line's pattern caught.

    `info`: also where NCCL printed them as INFO.  `first`: the first of them is all the evidence.
    """

    def rule(log: LogFacts) -> Iterator[Hypothesis]:
        events = log.of(kind) if info else log.above_info(kind)
        for h in hypotheses if events else ():
            text = h.message.format_map(defaultdict(lambda: "?", events[0].data))
            yield replace(h, message=text, events=events[:1] if first else events)

    return rule


def _named(data: Mapping[str, str]) -> str:
    """Whom a line names beside its writer: a GPU by its place on PCI, a task of Slurm, an actor of Ray, a pod, a node."""
    host = data.get("host") or data.get("ip", "")
    what = f"GPU {data['gpu']}" if data.get("xid") and data.get("gpu") else ""
    if "ip" in data:
        what = data.get("name", "")
        if not what and data.get("class"):  # of which there may be several
            what = f"{data['class']} (pid {data['pid']})" if data.get("pid") else data["class"]
    if data.get("task"):
        what = f"task {data['task']}"
    if host and "signal" in data and data.get("rank"):
        what = f"rank {data['rank']}"
    if data.get("proc"):
        what = data["proc"]
    if data.get("of"):
        what = f"rank {data['of']}"
    if data.get("local_rank"):
        what = f"local rank {data['local_rank']}"
    return f"{what} on {host}" if what and host else what or host


def caught(events: Iterable[Event], name: str) -> list[str]:
    """What the patterns of these events caught under this name, each once."""
    return list(dict.fromkeys(e.data[name] for e in events if e.data.get(name)))


def ranks_of(events: Iterable[Event]) -> list[int]:
    """The ranks that print these."""
    return sorted({r for e in events for r in (e.ranks or (() if e.rank is None else (e.rank,)))})


def named(ranks: str) -> str:
    """A list of ranks in few words: ``rank 3``, ``rank 1-7``, ``rank 2, 5``."""
    numbers = [int(one) for one in ranks.replace(",", " ").split()]
    if len(numbers) < _FEW:
        return f"rank {ranks}"
    first, last = numbers[0], numbers[-1]
    if len(numbers) > _FEW and last - first == len(numbers) - 1:
        return f"rank {first}-{last}"
    return f"rank {', '.join(map(str, numbers[:_MANY]))}" + (" …" if len(numbers) > _MANY else "")


def everyone(log: LogFacts, events: Iterable[Event]) -> str | None:
    """Where every rank of the job prints the like: none of them is singled out."""
    events = tuple(events)
    alike = [e for e in events if e.kind == events[0].kind]
    many = len(ranks_of(alike))
    return f"all {many} ranks" if many > 1 and many == log.nranks else None


def whose(log: LogFacts, events: Iterable[Event]) -> str:
    """The author of these, or the ranks that all say the same."""
    events = tuple(events)
    ranks = ranks_of(events)
    if len(ranks) < 2 or any(_named(e.data) for e in events[:1]):
        return author(events)
    together = ranks[-1] - ranks[0] == len(ranks) - 1
    listed = f"{ranks[0]}-{ranks[-1]}" if together else ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return everyone(log, events) or f"{len(ranks)} ranks ({listed})"


def author(events: Iterable[Event]) -> str:
    """The process that the first of these is about, or that printed it: ``rank 3 (node07)``."""
    for e in events:
        if about := _named(e.data):
            return about
        if e.rank is not None:
            return f"rank {e.rank} ({e.host})" if e.host else f"rank {e.rank}"
        if e.host:
            return e.host
    return "job"
