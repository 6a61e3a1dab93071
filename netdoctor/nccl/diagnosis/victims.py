"""What follows from the first finding, or says it again in other words: a note of it, and no finding beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.diagnosis.went_on import before, echoing, order
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import Event

# Causes that a story ends with, or that say no more than that something failed.
_SYMPTOMS: Final = frozenset({"rank_died", "hang", "other"})
# Lines of processes that end, or that wait for one that does not come.
_ECHOES: Final[frozenset[EventKind]] = frozenset(
    (
        *("died", "elastic", "actor_died", "raised", "generic", "secondary", "peer_closed", "torch_echo", "trail"),
        *("watchdog", "heartbeat", "barrier", "lagging", "enqueued", "stack", "gloo_timeout", "store_get"),
    )
)
_NOTES: Final = 2


def without_victims(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The likeliest, with what follows from it as notes, and what tells of something else."""
    top = hypotheses[0]
    if top.quiet or top.confidence < Confidence.LIKELY_MINUS:
        return list(hypotheses)
    kept, notes = [], list[str]()
    for h in hypotheses[1:]:
        if not _of_its_story(top, h):
            kept.append(h)
        elif h.subject not in {None, "job"} and not (h.cause == "rank_died" and h.confidence <= Confidence.EFFECT):
            notes.append(f"what follows from it: {h.message}")
    return [replace(top, notes=(*top.notes, *notes[:_NOTES])), *kept]


def _of_its_story(top: Hypothesis, h: Hypothesis) -> bool:
    """Whether a hypothesis rests on the first one's lines, and on lines of processes that ended or waited after them."""
    if h.cause not in _SYMPTOMS or not h.events or not top.events:
        return False
    shared = {id(e) for e in top.events}
    first = min(top.events, key=order)
    return all(id(e) in shared or _follows(first, e) for e in h.events)


def _follows(first: Event, e: Event) -> bool:
    echo = e.kind in _ECHOES or (e.kind == "exception" and echoing(e))
    return echo and not e.killed_from_outside and before(e, first) is not True
