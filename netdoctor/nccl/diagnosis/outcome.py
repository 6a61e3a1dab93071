"""How the job of a log ended, before why: finished, failed, ended by somebody, or not ended in this log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from netdoctor.model import Word, record
from netdoctor.nccl.diagnosis.kinds import BY_ITSELF, ORIGINS, SIGNS, Role, kind
from netdoctor.nccl.diagnosis.went_on import After, after, before, echoing, order, worked_on
from netdoctor.nccl.log import whose
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording


class Ending(Word):
    """What the log shows of the end."""

    FINISHED = "finished"
    FAILED = "failed"
    ENDED = "ended by somebody"
    OPEN = "not in this log"  # it runs still, hangs, or the log was cut off

    @property
    def told(self) -> str:
        """Behind "the job"."""
        return "has no end in this log" if self is Ending.OPEN else str(self.value)


@record
class Outcome:
    """How it ended, and the lines that show it."""

    ending: Ending
    how: str
    events: tuple[Event, ...] = ()


def ends(log: LogFacts) -> tuple[Event, ...]:
    """Orders to end, the scheduler's and the user's, but those after which the job was started again."""
    last = (
        e
        for e in log.of("ended")
        if log.up_at.get(e.file, 0) <= e.last and not (worked_on(log, e) or _of_a_server(log, e) or _given_back(log, e))
    )
    return tuple(sorted(last, key=order))


def _of_a_server(log: LogFacts, e: Event) -> bool:
    """Whether it is the signal by which a server ended its own children, when it had come up and was told to end."""
    asked = any("asked" in f.data and f.file == e.file and f.line < e.line for f in log.of("finished"))
    up = any(f.file == e.file and f.line < e.line for f in log.of("serving"))
    return asked and up and e.data.get("why", "CANCELLED").upper() in _SIGNALS


def _given_back(log: LogFacts, e: Event) -> bool:
    """Whether salloc only says what becomes of its allocation when the command in it is done (src/salloc/salloc.c)."""
    return e.data.get("why") == "revoked" and any(f.file == e.file and f.last < e.line for f in good_ends(log))


def outcome(log: LogFacts) -> Outcome:
    failed = [e for e in log.above_info(*SIGNS) if _stopped(log, e) and not _leaving(log, e)]
    orders = ends(log)
    if orders and not any(before(e, orders[0]) for e in failed if e.kind != "trouble"):
        decides = _deciding(orders)
        why = decides.data.get("why", "CANCELLED").upper()
        shown = orders[:1] if decides is orders[0] else (orders[0], decides)
        return Outcome(Ending.ENDED, _ENDED.get(why, f"it was ended from outside: {why}"), shown)
    if failed:
        return Outcome(Ending.FAILED, kind(failed[0].kind).how, tuple(failed[:1]))
    # That a process took itself down says least of how it did.
    finished = sorted(good_ends(log), key=lambda e: "closed" not in e.data)
    if finished or log.busbw is not None:
        return Outcome(Ending.FINISHED, "it ran to its end", tuple(finished[-1:]))
    how = "the log breaks off in the middle of a line" if log.unended else "it runs still, or the log was cut off"
    return Outcome(Ending.OPEN, how)


def _deciding(orders: Sequence[Event]) -> Event:
    """Of several orders the one that tells most: a scheduler's word says who sent a signal, and slurmstepd's of the job may
    give the reason that its word of the step before leaves out."""
    said = next((e for e in orders if e.data.get("why", "CANCELLED").upper() not in _SIGNALS), orders[0])
    if "why" in said.data:
        return said
    return next((e for e in orders if e.data.get("why", "").upper() in _SLURMS), said)


def _of_a_part(log: LogFacts, e: Event) -> bool:
    """A bar that is full may be an epoch's, and a communicator that was taken apart one of several."""
    if "one" in e.data:  # of as many as its launcher started, or as there are in this log
        exits, started = [one for one in log.of("finished") if "one" in one.data], _started(log)
        left = sum(one.count for one in exits)
        return left < started if started else not (_as_many_as_a_node_has(log, left) and not any(one.nodes for one in exits))
    if "destroyed" not in e.data:
        return "bar" in e.data or of_one_rank(log, e)
    return sum(one.count for one in log.of("finished") if "destroyed" in one.data) < log.comms_complete


def _started(log: LogFacts) -> int:
    """How many processes there are, by their launcher or by NCCL; 0 where neither says so."""
    told = sum(int(s.data["n"]) for s in log.of("spawned"))  # each node's launcher of its own
    return told or log.nranks or len(log.ranks)


_OF_A_NODE: Final = frozenset({8, 16})  # 4 may be half of them


def _as_many_as_a_node_has(log: LogFacts, processes: int) -> bool:
    """Whether a launcher whose start is not in the log has told of all its processes: it tells of each, and ends without a
    further word (DeepSpeed's launch.py of its launcher).  One that is missing leaves no such number."""
    return processes in _OF_A_NODE and max((rank for _, rank in log.work), default=-1) < processes


def of_one_rank(log: LogFacts, e: Event) -> bool:
    """Whether an end is that of a rank beyond the first, in a log of others too: the first speaks for all, as programs print
    what is of the job on rank 0 alone.  What c10 says on the way out each rank says of itself, when all is done."""
    if Wording.OF_C10.within(e.text):
        return False
    own = {*e.ranks, *(() if e.rank is None else (e.rank,)), *whose.spoken_of(e.text.encode())}
    said = own | log.left
    if 0 in said or not own:
        return False
    alone = len(said) == 1 and {rank for _, rank in log.work} <= said and not log.nranks  # a file of this rank's own
    return not alone and not len(said) >= _started(log) > 0


def good_ends(log: LogFacts) -> list[Event]:
    """Good ends of the whole."""
    return [e for e in _finished(log) if not _of_a_part(log, e)]


def closed(end: Outcome) -> bool:
    """Whether all that shows the end is that a process took itself down, which it does after a fault too."""
    return any("closed" in e.data for e in end.events)


def _finished(log: LogFacts) -> list[Event]:
    """Good ends: those after which work goes on were of a part of it."""
    return [e for e in log.of("finished") if not worked_on(log, e)]


def leaving(end: Outcome, e: Event) -> bool:
    """Whether a line is of the way out: after the program's own end, and of a kind that ranks print when others have left."""
    ends = [f for f in end.events if "left" not in f.data and before(f, e)]
    return end.ending is Ending.FINISHED and bool(ends) and kind(e.kind).leaving and e.kind not in {"raised", "trouble"}


def _stopped(log: LogFacts, e: Event) -> bool:
    return after(log, e) is After.STOPPED


def _leaving(log: LogFacts, e: Event) -> bool:
    """What ranks print of each other when they leave one after the other at the end."""
    at_the_end = kind(e.kind).leaving and e.kind != "trouble"  # which may be anything
    done = log.busbw is not None or any("closed" not in f.data for f in _finished(log))
    return at_the_end and done and not log.above_info("generic", "died", "elastic")


_FORCED: Final = "FORCING JOB TERMINATION"
_SIGNALS: Final = frozenset({"SIGTERM", "15", "TERMINATED", "FORCE TERMINATED", "SIGUSR1", "SIGUSR2", _FORCED})
_SLURMS: Final = frozenset({"TIME LIMIT", "PREEMPTION", "JOB REQUEUE", "DUE TO TIME LIMIT", "DUE TO PREEMPTION"})
_ENDED: Final = {
    "FAILED LIVENESS PROBE": "Kubernetes restarts its container: its liveness probe failed (asked too early, or no answer)",
    "FAILED STARTUP PROBE": "Kubernetes restarts its container: its startup probe failed (it takes longer than allowed)",
    "TIME LIMIT": "the scheduler ended it: its time limit",
    "DUE TO TIME LIMIT": "the scheduler ended it: its time limit",
    "TERM_RUNLIMIT": "the scheduler ended it: its time limit",
    "TIMEOUT: SENDING SIGNAL": "its script's own time limit ended it (timeout)",
    "WALLTIME": "the scheduler ended it: its time limit",
    "PREEMPTION": "the scheduler ended it: preempted",
    "DUE TO PREEMPTION": "the scheduler ended it: preempted",
    "PREEMPTED": "the scheduler ended it: preempted",
    "REVOKED": "the scheduler took the allocation back: its time limit, or its user",
    "CANCELLED": "the scheduler or its user cancelled it",
    "EVICTED": "Kubernetes evicted it",
    "LOW ON RESOURCE": "Kubernetes evicted it: its node was low on a resource",
    "EPHEMERAL LOCAL STORAGE": "Kubernetes evicted it: it wrote more than its limit of ephemeral storage",
    "EMPTYDIR VOLUME": "Kubernetes evicted it: it wrote more into a volume than the volume's limit",
    "DEADLINE": "its Job was active for longer than its deadline allows",
    "KEYBOARDINTERRUPT": "its user ended it (Ctrl-C)",
    "SIGINT": "its user ended it (Ctrl-C)",
    "2": "its user ended it (Ctrl-C)",
    "SIGHUP": "its terminal was closed (SIGHUP)",
    "1": "its terminal was closed (SIGHUP)",
    "SIGTERM": "it was asked to end (SIGTERM)",
    "15": "it was asked to end (SIGTERM)",
    "SIGUSR1": "it was told that its time is up, or to end (SIGUSR1)",
    "SIGUSR2": "it was told that its time is up, or to end (SIGUSR2)",
    "HANGUP": "its terminal was closed (SIGHUP)",
    "TERMINATED": "it was asked to end (SIGTERM)",
    "FORCE TERMINATED": "the scheduler ended it",
    _FORCED: "somebody ended it: srun was told to end at once (SIGTERM, or Ctrl-C twice), and killed its tasks",
    "SIGNAL KILLED": "somebody ended it: its step was killed on request (scancel, or srun that was told to end at once)",
}


def origin(log: LogFacts) -> Event | None:
    """The first fault that another rank's words may follow from."""
    found = [e for e in log.above_info(*ORIGINS) if _stopped(log, e) and not _late(e)]
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


def summary(e: Event) -> bool:
    """A launcher's last word, that something ended with an error: neither who nor how, so what was said before counts."""
    return e.kind == "died" and not e.data


def forced(log: LogFacts, e: Event) -> bool:
    """Whether srun killed a task since it was told itself to end at once (its job_force_termination): no line names memory."""
    if not e.killed_from_outside or any(Wording.OUT_OF_MEMORY.within(d.said) for d in log.of("died")):
        return False
    return any(o.data.get("why", "").upper() == _FORCED and before(o, e) for o in log.of("ended"))


def follows(first: Event | None, events: Iterable[Event]) -> bool:
    """Whether all these are echoes, or deaths that say nothing, and come after `first`."""
    events = tuple(events)
    return (
        first is not None
        and bool(events)
        and all((kind(e.kind).role in {Role.ECHO, Role.BOTH} or _late(e)) and before(first, e) for e in events)
    )


def failed_by_itself(log: LogFacts) -> bool:
    """Whether a rank failed by itself: network errors of other ranks may then be its consequence."""
    return bool(log.above_info(*BY_ITSELF)) or any(e.killed_from_outside for e in log.of("died"))
