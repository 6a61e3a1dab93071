"""What became of a process after a line of trouble: whether it went on, by its own words, by others', or nobody can tell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final

from netdoctor.nccl.diagnosis.kinds import KINDS, Retry, kind
from netdoctor.nccl.log.facts import STEPS, Event, LogFacts
from netdoctor.nccl.log.wordings import Wording


def order(e: Event) -> tuple[str, str, int]:
    return e.at or "~", e.file, e.line


def before(a: Event, b: Event) -> bool | None:
    """Whether `a` happened before `b`; None where the log does not tell."""
    if a.file == b.file:
        return a.line < b.line
    return a.at < b.at if a.at and b.at else None


class After(Enum):
    """What became of the process that a line of trouble is about."""

    WENT_ON = auto()  # it worked on, or what it tried came about
    STOPPED = auto()  # nothing shows that it went on
    UNTOLD = auto()  # somebody worked on, and the log does not say who


_ITS_OWN = frozenset(("exception", "raised", "oom", "wrong_data", "xid", "lessened"))  # another's good end says nothing of it


def after(log: LogFacts, e: Event) -> After:
    """Whether the job went on after it, by its own words: the rank's further work, a new communicator, a good end."""
    retry = kind(e.kind).retry
    if retry is Retry.STEP:
        return After.WENT_ON if _a_number_again(log, e) else After.STOPPED
    # torchrun's agent, or pytest, speaks for what it had started: not for an agent that gave up, nor for what nobody caught.
    spoken = e.kind not in _ITS_OWN and not log.of("elastic")
    if spoken and any("whole" in f.data and f.file == e.file and f.last > e.last for f in log.of("finished")):
        return After.WENT_ON
    if {"unplaced", "waits"} & e.data.keys() and _placed(log, e):
        return After.WENT_ON
    if e.kind == "node_silent" and _answered(log, e):
        return After.WENT_ON
    if e.kind == "mount" and (told := _server(log, e)) is not None:
        return told
    if on_the_way_out(log, e) or _interrupted(log, e) or _well_again(log, e):
        return After.WENT_ON
    if retry is Retry.NEVER:
        return After.STOPPED
    if _of_the_script(log, e) or _outlived(log, e):
        return After.WENT_ON
    followed = _by_what_followed(log, e, retry)
    return (
        After.UNTOLD
        if followed is After.WENT_ON and any(lost(log, e) for lost in (context_lost, _final, broke_off))
        else followed
    )


def _placed(log: LogFacts, e: Event) -> bool:
    """Whether the pod that waited was started after it, or one whose name no line tells."""
    later = (f for f in log.of("placed") if f.file == e.file and f.last > e.last)
    return any(f.data.get("pod", e.data.get("pod")) == e.data.get("pod", f.data.get("pod")) for f in later)


def _answered(log: LogFacts, e: Event) -> bool:
    """Of a node that did not answer its scheduler: the scheduler's word that it does again."""
    again = (o for o in log.of("node_silent") if "over" in o.data and o.file == e.file and o.last >= e.last)
    return any(o.data.get("host") == e.data.get("host") for o in again)


def context_lost(log: LogFacts, e: Event) -> bool:
    """Whether no call of CUDA's works in that process any more, so that no work and no good end is its own; one that was
    started anew has another."""
    return Wording.CONTEXT_LOST.within(e.text) and log.up_at.get(e.file, 0) <= e.last


def _final(log: LogFacts, e: Event) -> bool:
    """Whether a launcher says what became of a task: it has ended, whatever others wrote before it and is printed after it."""
    told = e.kind == "died" and ("task" in e.data or Wording.NOTICED.within(e.text))
    return told and log.up_at.get(e.file, 0) <= e.last


def _by_what_followed(log: LogFacts, e: Event, retry: Retry) -> After:
    if printed(log, e):
        return _after_printed(log, e)
    good = [
        f for f in log.of("finished") if f.file == e.file and f.last > e.last and _of_all(log, f, e) and _vouches(log, f, e)
    ]
    if _up_again(log, e) or any(not _fell(e) or f.rank is None or e.rank in {f.rank, *f.ranks} for f in good):
        return After.WENT_ON
    silent = After.UNTOLD if good else After.STOPPED
    if log.good.get(e.file, 0) <= e.last:
        return silent
    if retry is Retry.AT_ONCE or log.nranks == 1 or Wording.OF_THE_SCRIPT.within(e.text):
        return After.WENT_ON
    if _of_a_request(log, e) or _served(log, e):
        return After.WENT_ON
    work = {rank: lines for (file, rank), lines in log.work.items() if file == e.file}
    if e.rank in work:
        return After.WENT_ON if work[e.rank][-1] > e.last else silent
    return _others(work, e)


def broke_off(log: LogFacts, e: Event) -> bool:
    """Whether it ended a program amid its work, and nobody takes that on: what follows it is another's, as of the evaluation
    that a script starts behind the training."""
    if log.counts.get((e.file, e.amid), 0) > e.last or _up_again(log, e):
        return False
    others = _others_work(log, e)
    if e.kind == "died":
        return others
    if e.kind == "exception":
        return (e.amid > 0 or others) and bool(
            e.data.get("program")
        )  # one before all work may be a script's that looks what there is
    if e.kind != "oom":
        return False
    raised = [r for r in log.of("raised") if r.file == e.file and e.last in {r.line, r.last} and "file" in r.data]
    amid = e.amid > 0 or others
    uncaught = any("printed" not in r.data and r.data.get("program") and (amid or "below" not in r.data) for r in raised)
    return uncaught or (not raised and amid and Wording.LAST_OF_A_TRACEBACK.within(e.text))


def _others_work(log: LogFacts, e: Event) -> bool:
    """Whether the first work behind it is none of the program's that worked before: an evaluation, behind which nothing is
    trained, or steps that begin again."""
    trained = log.trained.get(e.file, 0)
    evaluated = 0 < trained <= e.last < log.good.get(e.file, 0)
    return evaluated or any(0 < at <= e.last < then for at, then in log.anew.get(e.file, ()))


def _up_again(log: LogFacts, e: Event) -> bool:
    """Whether a communicator was set up after it.  All of its ranks take part in that; where the log shows which these are, a
    rank that is none of them has ended: others were still at theirs.  A rank without its proxy's thread comes up all the same:
    nobody connects to it before the first collective."""
    if e.kind == "polled":
        return False
    of_its_rank = log.up_of.get((e.file, -1 if e.rank is None else e.rank)) if kind(e.kind).ends_process else None
    return min(log.up_at.get(e.file, 0), sys.maxsize if of_its_rank is None else of_its_rank) > e.last


def _after_printed(log: LogFacts, e: Event) -> After:
    """What somebody caught did no harm where many steps follow, or the end of the work; of what comes time and again, and of a
    script's own word that it is done, nobody knows."""
    ends = (f for f in log.of("finished") if f.file == e.file and f.last > e.last and _vouches(log, f, e))
    done = e.count < _OFTEN and any("bar" in f.data or not {"left", "closed"} & f.data.keys() for f in ends)
    return After.WENT_ON if done or worked_on(log, e) else After.UNTOLD


def _vouches(log: LogFacts, finished: Event, e: Event) -> bool:
    """Whether a good end shows that it went on after `e`.  "Training finished" a script says also behind a program that died:
    such words need work behind it, and no mere evaluation."""
    return "words" not in finished.data or (log.trained.get(e.file) or log.good.get(e.file, 0)) > e.last


def _server(log: LogFacts, e: Event) -> After | None:
    """Of a file system's server: its own word that it is back; or that something waits on, whatever ranks print meanwhile."""
    server = e.data.get("server")
    if "over" in e.data or any(
        "over" in m.data and m.data.get("server") == server and m.file == e.file and m.last > e.last for m in log.of("mount")
    ):
        return After.WENT_ON
    waited = log.of("blocked", "watchdog", "heartbeat", "barrier", "stalled")
    return After.STOPPED if any(before(e, w) for w in waited) else None


def recovered(log: LogFacts, e: Event) -> Event | None:
    """Of an adapter: the driver's own word that it is well again."""
    same = (o for o in log.of("async_event") if "over" in o.data and o.file == e.file and o.last >= e.last)
    return next((o for o in same if all(o.data.get(name) == e.data.get(name) for name in ("host", "dev"))), None)


def _well_again(log: LogFacts, e: Event) -> bool:
    """Whether the job worked on, or came to its end, behind that word; which by itself is no trouble."""
    well = recovered(log, e) if e.kind == "async_event" else None
    if well is None or well is e:
        return well is e
    return log.good.get(e.file, 0) > well.last or any(f.file == e.file and f.last > well.last for f in log.of("finished"))


def _of_the_script(log: LogFacts, e: Event) -> bool:
    """Whether it is of the job's script, which started its tasks after it: a launcher that marks the lines of a task marks
    them all (srun --label, mpirun --tag-output), so one without its mark is no task's."""
    lacked = e.kind == "unstarted" and Wording.COMMAND_NOT_FOUND.within(e.text)
    if e.rank is not None or not (lacked or e.kind in {"exception", "raised"} or (e.kind == "trouble" and "what" in e.data)):
        return False
    # of a task that is a launcher of several ranks; a traceback is told without the mark, and its last line by itself with it
    if any(Wording.MARK_OF_A_TASK.within(o.text) for o in log.events if (o.file, o.line) == (e.file, e.line)):
        return False
    return any(o.line > e.last and o.file == e.file and Wording.MARK_OF_A_TASK.within(o.text) for o in log.events)


def _outlived(log: LogFacts, e: Event) -> bool:
    """Whether one process logged the same exception of one line time and again: it caught each, and went on to the next."""
    if e.kind == "trouble":
        return _same(log, e, lambda one: "caught" in one.data) and _same(log, e, _time_and_again, any)
    return e.kind in {"exception", "raised"} and _time_and_again(e)


def _same(log: LogFacts, e: Event, holds: Callable[[Event], bool], which: Callable[[Iterable[bool]], bool] = all) -> bool:
    """Of an exception's line by itself: whether what is known of the tracebacks of that name holds."""
    same = [o for o in log.of("exception", "raised") if o.file == e.file and o.data.get("type") == e.data.get("what", "")]
    return bool(same) and which(map(holds, same))


def _time_and_again(e: Event) -> bool:
    twice = 2  # may be once by a logger and once by Python, when it was raised again
    return "caught" in e.data and int(e.data.get("times", "1")) > twice


def _interrupted(log: LogFacts, e: Event) -> bool:
    """Whether it was being handled when somebody's Ctrl-C came."""
    held = "interrupted" in e.data
    return held or (e.kind == "trouble" and "what" in e.data and _same(log, e, lambda one: "interrupted" in one.data))


_OFTEN: Final = 3
_SPEAKS: Final = 5  # ordinary lines behind an exception that somebody caught; what it may say below itself is shorter
_ENDS: Final = tuple(k for k, row in KINDS.items() if row.ends_process and k not in {"exception", "raised"})


def printed(log: LogFacts, e: Event) -> bool:
    """Whether somebody caught an exception and printed it, and the program spoke on: no traceback from the bottom of a thread
    follows that says the same or another process's end, no signal and no launcher's word."""
    if "printed" not in e.data:
        return e.kind == "trouble" and _same(log, e, lambda one: printed(log, one))
    later = [o for o in log.of("exception", "raised", *_ENDS) if o.file == e.file and o.last > e.last]
    behind = [o for o in later if o.kind in {"exception", "raised"} and "printed" not in o.data]
    # What the program spoke on after time and again, it most likely outlived the last time too.
    least = 1 if e.outlived >= _OFTEN else _SPEAKS
    spoke_on = min([log.ordinary.get(e.file, 0), *(o.spoken for o in behind)]) - e.spoken >= least
    spoke_on = spoke_on or (not behind and worked_on(log, e))  # its steps tell how many of them failed
    ended = (o for o in later if o.kind in _ENDS)
    return spoke_on and not (
        any(after(log, o) is After.STOPPED for o in ended) or any("printed" not in o.data and echoing(o) for o in later)
    )


def on_the_way_out(log: LogFacts, e: Event) -> bool:
    """Whether a server that was told to end misses what it has just ended itself."""
    echo = e.kind in {"exception", "raised", "died", "trouble"} and (echoing(e) or Wording.CAUSE_ELSEWHERE.within(e.text))
    echo = echo or "proc" in e.data or e.kind == "last_words"
    return echo and any("asked" in f.data and f.file == e.file and f.line < e.line for f in log.of("finished"))


def _of_a_request(log: LogFacts, e: Event) -> bool:
    """Whether it befell one request of a server that had come up, and that answered others after it."""
    if e.kind not in {"exception", "raised"} and not e.data.get("what", "").endswith(("Error", "Exception")):
        return False
    came_up = any(f.file == e.file and f.line < e.line for f in log.of("serving"))
    return came_up and any(
        file == e.file and len(lines) == STEPS and lines[0] > e.last for (file, _), lines in log.work.items()
    )


def _served(log: LogFacts, e: Event) -> bool:
    """Whether a server came up behind what a program told, and answered requests, or went on to when it was of one request."""
    up = [f.line for f in log.of("serving") if f.file == e.file]
    return e.kind == "told" and (any(line > e.last for line in up) or ("prefill" in e.data and bool(up)))


def _others(work: Mapping[int, tuple[int, ...]], e: Event) -> After:
    """By what others did after it: a step needs every rank, so nobody takes many without the one that failed."""
    further = {rank for rank, lines in work.items() if len(lines) == STEPS and lines[0] > e.last}
    if not further:
        return After.STOPPED
    # Without a mark they may be several ranks' lines of one step.
    return After.UNTOLD if further == {-1} or _fell(e) else After.WENT_ON


def _fell(e: Event) -> bool:
    """Whether it may have ended the one rank that says it: what others print behind it may have waited in their buffers."""
    of = kind(e.kind)
    return e.rank is not None and of.retry is not Retry.AT_ONCE and (of.ends_process or e.kind == "trouble")


def _of_all(log: LogFacts, finished: Event, e: Event) -> bool:
    """Whether such an end shows that `e` did no harm: that one process leaves in good order says nothing of one that died."""
    if "closed" in finished.data or (e.kind == "died" and "task" in e.data):  # it closes also after a fault
        return False  # and srun says what a task came to when it has ended: what others print later was said before
    if "left" in finished.data and any(
        d.file == e.file and e.last <= d.line < finished.last for d in log.of("died", "elastic")
    ):
        return False  # a script's last word, behind a process that died
    if "left" in finished.data and "words" not in finished.data and Wording.RETRIES_SPENT.within(e.text):
        return False  # NCCL gave that connection up, whereupon a process leaves
    return not {"left", "whole"} & finished.data.keys() or not kind(e.kind).ends_process


def overcome(log: LogFacts, e: Event) -> bool:
    return after(log, e) is After.WENT_ON


def _a_number_again(log: LogFacts, e: Event) -> bool:
    """Of a loss that was none: whether it was one again in the steps that followed, not whether steps followed.  A step that
    the program skipped for it did no harm where others followed."""
    if "skipped" in e.data:
        return worked_on(log, e)
    lines = log.figures.get(e.file, ())
    return len(lines) == STEPS and lines[0] > e.last


def worked_on(log: LogFacts, e: Event) -> bool:
    return any(file == e.file and len(lines) == STEPS and lines[0] > e.last for (file, _), lines in log.work.items())


def echoing(e: Event) -> bool:
    """An exception that only says that another process or a connection is gone."""
    left = e.data.get("type") == "SystemExit" and Wording.SAYS_WHY.within(e.text)  # a program that ends itself, with a reason
    left = left or Wording.OF_A_CLIENT.within(e.data.get("type", ""))
    said = (not left and Wording.ECHO_EXCEPTION.within(e.data.get("type", ""))) or Wording.CAUSE_ELSEWHERE.within(e.text)
    return said or of_launcher(e)


def of_launcher(e: Event) -> bool:
    """A launcher's own traceback, also one that the log cuts: a process that it had started failed."""
    kind = e.data.get("type", "")
    return Wording.OF_A_LAUNCHER.within(kind) or (not kind and Wording.LAUNCHER_FILE.within(e.data.get("file", "")))
