"""How the job of a log ended, before why: finished, failed, ended by somebody, or not ended in this log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from netdoctor.model import Word
from netdoctor.nccl.log.facts import Event, EventKind, LogFacts
from netdoctor.nccl.log.wordings import Wording


class Ending(Word):
    """What the log shows of the end."""

    FINISHED = "finished"
    FAILED = "failed"
    ENDED = "ended by somebody"
    OPEN = "not in this log"  # it runs still, hangs, or the log was cut off


@dataclass(frozen=True)
class Outcome:
    """How it ended, and the lines that show it."""

    ending: Ending
    how: str
    events: tuple[Event, ...] = ()


# Signs of a failed job, the one that says most about how it ended first.
_SIGNS: Final[tuple[tuple[EventKind, str], ...]] = (
    ("node_failed", "a node failed"),
    ("elastic", "torchrun names a rank that failed first"),
    ("died", "a process ended by a signal or with an exit code"),
    ("actor_died", "an actor of Ray died"),
    ("exception", "an exception that nobody caught"),
    ("watchdog", "torch's watchdog ended it: a collective timed out"),
    ("heartbeat", "torch's heartbeat monitor ended it: its watchdog was stuck"),
    ("torch_echo", "torch's watchdog ended it"),
    ("oom", "the memory of a GPU was used up"),
    ("cuda", "a CUDA call failed"),
    ("gloo_connect", "Gloo failed"),
    ("barrier", "a barrier timed out"),
    ("store", "the rendezvous failed"),
    ("generic", "NCCL returned an error"),
    ("secondary", "NCCL returned an error"),
    ("peer_closed", "a connection between ranks was closed"),
    ("trouble", "a program reports an error"),
)
# After these a program may go on: it retries, or it catches what was raised.
RETRIED: Final[frozenset[EventKind]] = frozenset(
    (
        *("store", "store_port", "connect", "connect_gave_up", "oom", "exception", "gloo_connect", "gloo_timeout"),
        *("peer_closed", "secondary", "trail", "barrier", "driver", "generic", "cuda", "torch_echo", "too_old"),
        *("died", "actor_died", "elastic", "descriptors", "threads", "trouble"),
    )
)
# Lines of work after what ended one rank: the others may print a few before they notice.
_CAUGHT: Final = 40
_ENDS_A_PROCESS: Final[frozenset[EventKind]] = frozenset(
    ("exception", "oom", "died", "actor_died", "elastic", "cuda", "generic")
)
_AT_ONCE: Final[frozenset[EventKind]] = frozenset(
    ("store", "store_port", "connect", "connect_gave_up", "trail", "driver", "too_old")
)


def order(e: Event) -> tuple[str, str, int]:
    return e.at or "~", e.file, e.line


def before(a: Event, b: Event) -> bool | None:
    """Whether `a` happened before `b`; None where the log does not tell."""
    if a.file == b.file:
        return a.line < b.line
    return a.at < b.at if a.at and b.at else None


def overcome(log: LogFacts, e: Event) -> bool:
    """Whether the job went on after it."""
    if e.kind not in RETRIED:
        return False
    margin = 0 if e.kind in _AT_ONCE else _CAUGHT
    # All ranks of a communicator take part in setting it up.
    last = max(log.good.get(e.file, 0) - margin, log.up_at.get(e.file, 0))
    return last > e.last or any(f.file == e.file and f.last > e.last for f in log.of("finished") if _of_all(f, e))


def _of_all(finished: Event, e: Event) -> bool:
    """Whether such an end shows that `e` did no harm: that one process leaves in good order says nothing of one that died."""
    return "left" not in finished.data or e.kind not in _ENDS_A_PROCESS


def ends(log: LogFacts) -> tuple[Event, ...]:
    """Orders to end: the scheduler's, the user's."""
    return tuple(sorted(log.of("ended"), key=order))


def outcome(log: LogFacts) -> Outcome:
    failed = [(how, e) for kind, how in _SIGNS for e in log.above_info(kind) if not overcome(log, e) and not _leaving(log, e)]
    orders = ends(log)
    if orders and not any(before(e, orders[0]) for _, e in failed if e.kind != "trouble"):
        why = orders[0].data.get("why", "CANCELLED")
        return Outcome(Ending.ENDED, _ENDED.get(why.upper(), f"it was ended from outside: {why}"), orders[:1])
    if failed:
        how, first = failed[0]
        return Outcome(Ending.FAILED, how, (first,))
    finished = [e for e in log.of("finished") if e.last + _CAUGHT > log.good.get(e.file, 0)]  # else of a part of the work
    if finished or log.busbw is not None:
        return Outcome(Ending.FINISHED, "it ran to its end", tuple(finished[-1:]))
    how = "the log breaks off in the middle of a line" if log.unended else "it runs still, or the log was cut off"
    return Outcome(Ending.OPEN, how)


def _leaving(log: LogFacts, e: Event) -> bool:
    """What ranks print of each other when they leave one after the other at the end."""
    at_the_end = e.kind in {"peer_closed", "secondary", "store", "torch_echo"}
    return (
        at_the_end and (log.busbw is not None or bool(log.of("finished"))) and not log.above_info("generic", "died", "elastic")
    )


_ENDED: Final = {
    "TIME LIMIT": "the scheduler ended it: its time limit",
    "DUE TO TIME LIMIT": "the scheduler ended it: its time limit",
    "TERM_RUNLIMIT": "the scheduler ended it: its time limit",
    "WALLTIME": "the scheduler ended it: its time limit",
    "PREEMPTION": "the scheduler ended it: preempted",
    "DUE TO PREEMPTION": "the scheduler ended it: preempted",
    "PREEMPTED": "the scheduler ended it: preempted",
    "CANCELLED": "the scheduler or its user cancelled it",
    "EVICTED": "Kubernetes evicted it",
    "LOW ON RESOURCE": "Kubernetes evicted it: its node was low on a resource",
    "KEYBOARDINTERRUPT": "its user ended it (Ctrl-C)",
    "SIGINT": "its user ended it (Ctrl-C)",
    "2": "its user ended it (Ctrl-C)",
    "SIGHUP": "its terminal was closed (SIGHUP)",
    "1": "its terminal was closed (SIGHUP)",
    "SIGTERM": "it was asked to end (SIGTERM)",
    "15": "it was asked to end (SIGTERM)",
    "TERMINATED": "it was asked to end (SIGTERM)",
    "FORCE TERMINATED": "the scheduler ended it",
}


# What a rank prints because another one has gone, was killed, or is late.
ECHOES: Final[frozenset[EventKind]] = frozenset(
    (
        *("peer_closed", "secondary", "connect", "connect_gave_up", "store", "store_get", "gloo_connect", "gloo_timeout"),
        *("barrier", "watchdog", "heartbeat", "torch_echo", "generic", "completion", "ofi_request", "elastic", "trouble"),
        *("trail", "warning", "order_differs", "sizes_differ"),
    )
)
_ORIGINS: Final[tuple[EventKind, ...]] = (
    *("ended", "node_failed", "exception", "oom", "actor_died", "died", "xid", "gpu_lost", "kernel_assert", "cuda"),
    *("duplicate_gpu", "shm_full", "tensor", "world_size", "driver", "nvls_bind", "too_old", "completion"),
)


def origin(log: LogFacts) -> Event | None:
    """The first fault that another rank's words may follow from."""
    found = [e for e in log.above_info(*_ORIGINS) if not overcome(log, e) and not _late(e)]
    return min(found, key=order, default=None)


_OWN_FAULT: Final = frozenset({"4", "10"})  # local protection, remote access: of memory, and not of a peer that is gone


def _late(e: Event) -> bool:
    """A death of which others are the reason, or that says nothing: an abort, an exit code, an exception about a lost peer."""
    if e.kind == "died":
        return not e.killed_from_outside and e.data.get("signal", "") not in {"11", "SIGSEGV", "7", "SIGBUS"}
    if e.kind == "completion":
        return e.data.get("status") not in _OWN_FAULT
    if e.kind == "exception":
        return echoing(e)
    return e.kind == "cuda" and Wording.SHUTTING_DOWN.within(e.text)


def echoing(e: Event) -> bool:
    """An exception that only says that another process or a connection is gone."""
    return Wording.ECHO_EXCEPTION.within(e.data.get("type", ""))


def follows(first: Event | None, events: Iterable[Event]) -> bool:
    """Whether all these are echoes, and come after `first`."""
    events = tuple(events)
    return first is not None and bool(events) and all(e.kind in ECHOES and before(first, e) for e in events)
