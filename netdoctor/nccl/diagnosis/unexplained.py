"""Lines that say that something failed, and that nothing refutes: what no rule explains of them makes a job unknown."""

from __future__ import annotations

from netdoctor.nccl.diagnosis.kinds import TROUBLE, kind
from netdoctor.nccl.diagnosis.outcome import Ending, Outcome, closed
from netdoctor.nccl.diagnosis.went_on import After, after, before, broke_off, context_lost, overcome
from netdoctor.nccl.log import spoilt
from netdoctor.nccl.log.facts import Event, Level, LogFacts
from netdoctor.nccl.log.wordings import Wording


def unexplained(log: LogFacts, end: Outcome) -> tuple[Event, ...]:
    """Lines that say that something failed; not those that were overcome, nor what follows when somebody ends a job."""
    ordered = end.events[0] if end.ending is Ending.ENDED else None
    left = _all_left(log)
    untold = (e for e in log.of("oom") if broke_off(log, e))  # no other finding names it, for work of somebody's follows it
    found = [
        e
        for e in (*log.of(*TROUBLE), *last_words(log, end), *untold)
        if alleges(log, e)
        and not (left and Wording.ABORTED_ITSELF.within(e.text))
        and not overcome(log, e)
        and not (ordered and before(ordered, e))
        and not _refuted(log, e)
    ]
    refused = (e for e in log.of("service", "storage", "died", "oom") if any(_behind(f, e) for f in end.events))
    if end.ending is Ending.FINISHED:
        found.extend(e for e in refused if e not in found)
    finished = end.ending is Ending.FINISHED and not closed(end)
    if finished:
        found = [e for e in found if not _of_leaving(end, e) or context_lost(log, e) or after(log, e) is After.UNTOLD]
    return tuple(
        {(e.file, e.line): e for e in sorted(found, key=lambda e: (e.file, e.line, -len(e.text)), reverse=True)}.values()
    )[::-1]


def last_words(log: LogFacts, end: Outcome) -> tuple[Event, ...]:
    """What nobody knows counts where the log does not show the end, or comes behind one: it may be of what the job was for, as
    of a checkpoint that did not reach its place.  What the program itself calls an error counts also where it comes before
    the end of one process, or of a part; what no end undoes, always."""
    if end.ending is Ending.OPEN or closed(end):
        return log.of("last_words")
    ends = end.events if end.ending is Ending.FINISHED else ()
    return tuple(
        e
        for e in log.of("last_words")
        if spoilt.lasting(e.text.encode())
        or any(_behind(f, e) or ("left" in f.data and Wording.CALLED_AN_ERROR.within(e.text)) for f in ends)
    )


def _behind(f: Event, e: Event) -> bool:
    """Whether a line comes behind the last that tells of an end."""
    return before(f, e) is True and f.last < e.line


def _of_leaving(end: Outcome, e: Event) -> bool:
    """Whether a line says that something failed, and is of the way out: what ranks print of each other, not what a program, a
    script or a scheduler calls an error behind the end."""
    own = e.kind == "trouble" and not Wording.OF_A_RANK.within(e.data.get("what", "") or e.text)
    own = own or Wording.TERMINATES.within(e.text)
    return kind(e.kind).leaving and not (own and any(_behind(f, e) for f in end.events))


def _all_left(log: LogFacts) -> bool:
    """Whether all ranks of a communicator took it down, as torch does when a program leaves it to the interpreter's end: none
    had died, and a watchdog that had aborted it would say so."""
    told = [m for e in log.of("trouble") if (m := Wording.ABORTED_ITSELF.found(e.text))]
    return any({int(m["rank"]) for m in told if m["n"] == n} == set(range(int(n))) for n in {m["n"] for m in told})


def _refuted(log: LogFacts, e: Event) -> bool:
    """A warning of NCCL's, or of its plugin's, that no rule knows makes a job unknown: most are followed by an error.

    Only a result that was verified refutes it: nccl-tests compares every value on every rank after its last size, so that
    whatever was warned of before has stopped nothing and spoilt nothing.  A program that merely says that it is done has not
    looked.
    """
    if e.kind == "lessened" and "chosen" in e.data:
        # a communicator of NCCL's has a GPU; who asked for the CPU got what was meant
        return log.came_up or log.comms_started > 0 or bool(log.of("meant_cpu"))
    return e.kind == "warning" and any("right" in f.data and f.file == e.file and f.last > e.last for f in log.of("finished"))


def alleges(log: LogFacts, e: Event) -> bool:
    if e.mild or (e.kind == "ofi_any" and e.level is not Level.WARN):
        return False
    if e.kind == "trail":  # since 2.28 also on the way of a plugin that is tried and left: src/plugin/net.cc
        return not log.came_up or log.reached.get(e.file, 0) < e.line
    return e.level is not Level.INFO or e.kind == "trouble"  # "Abort COMPLETE" is an INFO line
