"""How the job of a log went: a pass needs a good end or clear progress, and no trouble that nothing explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import spoken
from netdoctor.nccl.diagnosis.hypothesis import author
from netdoctor.nccl.diagnosis.kinds import TROUBLE
from netdoctor.nccl.diagnosis.network import fallback, sockets_between_nodes
from netdoctor.nccl.diagnosis.outcome import Ending, Outcome, closed, good_ends, of_one_rank, summary
from netdoctor.nccl.diagnosis.rdma import left_out, unopened
from netdoctor.nccl.diagnosis.unexplained import alleges, last_words, unexplained
from netdoctor.nccl.diagnosis.waiting import which
from netdoctor.nccl.diagnosis.went_on import After, after, before, on_the_way_out, order, overcome, printed
from netdoctor.nccl.log import closing
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import STEPS, Event, Level, LogFacts
from netdoctor.nccl.log.wordings import Wording
from netdoctor.textsafe import listed

_SWITCHED_OFF: Final = "NCCL_IB_DISABLE=1: data between the nodes goes over TCP; where they have RDMA adapters, unset it"
_NO_DEVICE: Final = (
    "NET/IB : No device found: data between the nodes goes over TCP; where they have RDMA adapters, the job does not see them "
    "(netdoctor preflight --only rdma.dev_infiniband, in its container)"
)
_END: Final = 25  # lines at the end of a log in which a program says that it is done
_BEHIND: Final = 100  # lines behind a good end that are still of its program's leaving; 50 are the most of 18 real logs
_LINES: Final = 12  # that are shown verbatim
_REQUESTS: Final = 3  # kinds of failed requests that are told
_PLACES: Final = 4  # where threads stood
_LATER: Final = "sacct -j <job> -o State,ExitCode,Elapsed,Timelimit; kubectl get events; the program's last checkpoint"
_NEXT: Final = "run it again with NCCL_DEBUG=INFO and keep the output of every rank (NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log)"
_WRONG: Final = "netdoctor preflight --only allreduce.run, on every node: its sums are verified; then learning rate and data"
_TRANSPORT: Final = "run it again with NCCL_DEBUG=INFO: it says which transport each channel takes, and what forbids one"
_RUNS: Final = "whether the job runs still, and if not, its exit status: squeue, sacct, kubectl get pod; dmesg | grep -i oom"
_LESS: Final = "what became of the rest: that line, and that machine's kernel log (dmesg); netdoctor preflight, on every node"
_UNITS: Final = "systemctl status <unit>; journalctl -u <unit>; then the exit status of the job: squeue, sacct, kubectl get pod"
_ORPHANED: Final = "Python's resource tracker, which outlives its program, cleaned up after it"
_FULL: Final = "a bar of the program's is full; whether that was the end, the log does not say"
_STANDS: Final = "py-spy dump --pid <rank>; netdoctor ras   # while it runs: which rank is behind"
# Minutes.  torch lets a collective wait for 10 (NCCL) or 30 (any other back end): constants.py, default_pg_timeout.
SILENCE: Final = 30
_STANDS_STILL: Final = 10  # minutes: the patience that torch has with a collective of NCCL's
# GB/s.  NCCL counts 6 for the slowest link between sockets (QPI_BW, src/graph/topo.h) and 3 for four lanes of PCIe 3.0
# (width * speed / 80, src/graph/topo.cc); 2 leaves a third of that for what copying costs.
_SLOW: Final = 2.0
# nccl-tests counts 2 (n - 1) / n of what it sends: 0 for n = 1 (src/all_reduce.cu, AllReduceGetBw).
_ONE_RANK: Final = (
    "nccl-tests ran to its end with one rank: nothing was sent between GPUs, and its bus bandwidth is 0 by definition; tasks "
    "of a launcher that each do so do not know of each other (built without MPI, or for another PMI than the launcher's)"
)
_RANKS: Final = (
    "how many ranks its header lists; make MPI=1; srun --mpi=list; or one process for several GPUs: all_reduce_perf -g 8"
)
_BEGUN: Final = "NCCL told no more than its version, as where a first communicator is begun: nothing shows that it came up"
_RAN: Final = re.compile(r"ran for (\d{1,12}) milliseconds")  # ProcessGroupNCCL.cpp, checkTimeout


def went(log: LogFacts, end: Outcome, explained: bool) -> Finding:
    """`explained`: another finding says what failed."""
    finding = _went(log, end, explained)
    return replace(finding, notes=(*finding.notes, *_requests(log))) if not explained else finding


def _requests(log: LogFacts) -> Iterator[str]:
    """What requests to a server ended in, which answers the next one, and what somebody caught: no end of the job, and no
    secret either."""
    for e in _handled(log)[:_REQUESTS]:
        times = "a request" if e.count == 1 else f"{e.count} requests"
        yield f"{times} to a server ended in an exception of its own ({e.where}): {e.text[:200]}"
    for e in log.of("bad_answer")[:_REQUESTS]:
        times = "a request" if e.count == 1 else f"{e.count} requests"
        yield f"a server answered {times} with an error ({e.where}): HTTP {e.data.get('code')}, {e.data.get('what')}"
    for e in [e for e in log.of("exception") if printed(log, e)][:_REQUESTS]:
        yield f"an exception was caught and printed{_times(e)}, and the program went on ({e.where}): {e.text[:200]}"


def _times(e: Event) -> str:
    return "" if e.count == 1 else f" {e.count} times"


def _handled(log: LogFacts) -> list[Event]:
    """Those that came of others stand for them."""
    handled = log.of("handled")
    causes = {(e.file, e.data.get("cause")) for e in handled}
    return [e for e in handled if (e.file, str(e.line)) not in causes]


def _went(log: LogFacts, end: Outcome, explained: bool) -> Finding:
    evidence: dict[str, Any] = {"outcome": end.ending.value, "how": end.how}
    trouble = () if explained else unexplained(log, end)
    if trouble and all(after(log, e) is After.UNTOLD for e in trouble):
        text = _untold(log, trouble)
        if end.ending is Ending.ENDED:
            text = f"{end.how}; before it, {text}"
        return _unknown(text, author(trouble), {**evidence, "lines": _verbatim(trouble)}, "the end of every rank's own log")
    if trouble:
        text = f"{_headline(end)}, and no rule explains {_these(len(trouble))}"
        # "secondary": a rank's call to its own proxy thread failed; without NCCL_DEBUG that last word is all that NCCL leaves.
        if not any(e.kind not in {"generic", "torch_echo", "secondary"} and not summary(e) for e in trouble):
            text = f"{_headline(end)}, and the lines that say why are not in this log"
        kinds = {e.kind for e in trouble}
        told = _TOLD.get(next(iter(kinds))) if len(kinds) == 1 else None
        text, how = told(trouble[0]) if told is not None else (text, _NEXT)
        if kinds == {"last_words"} and all(closing.in_words(e.text.encode()) for e in trouble):
            text = "the program says that its training is over, and takes it back, or its own count has not come to its end"
        return _unknown(text, author(trouble), {**evidence, "lines": _verbatim(trouble)}, how)
    if explained:
        return Finding(Status.PASS, f"{_headline(end)}: the log shows why", "job", evidence=evidence, check="log")
    if end.ending is Ending.FAILED:
        return _unknown(f"{_headline(end)}, and the log does not say why", "job", evidence, _NEXT)
    if end.ending is Ending.OPEN and log.silence >= SILENCE and not log.of("serving"):
        text = f"the last sign of work is {log.silence} minutes older than the last line, and no end is in this log"
        return _unknown(text, "job", evidence, _STANDS)
    quiet = _quiet(log, end, evidence)
    asked = quiet.status is Status.PASS and end.ending is not Ending.FINISHED and log.many_nodes is not False
    if asked and (name := unopened(log)):
        text = f"the RDMA device {name} cannot be opened, and whether there is another this log does not show"
        return _unknown(text, "job", evidence, _TRANSPORT)
    if quiet.status is Status.PASS and not log.came_up and (where := _unused(log)) is not None:
        text = f"it may have worked without its GPU, whose driver is too old for this torch: {where}"
        return _unknown(text, "job", evidence, _LESS)
    if quiet.status is Status.PASS and log.written is False:
        quiet = _unwatched(log, end, quiet, evidence)
    return replace(quiet, notes=(*quiet.notes, *left_out(log), *_over_sockets(log)))


def _over_sockets(log: LogFacts) -> Iterator[str]:
    """That data leaves the nodes by sockets is no fault where there is nothing else, which the log cannot tell."""
    if not (log.many_nodes and sockets_between_nodes(log)):
        return
    if log.env.get("NCCL_IB_DISABLE") == "1":
        yield _SWITCHED_OFF
    elif log.no_ib_device and not any(fallback(log)):
        yield _NO_DEVICE


def _lessened(e: Event) -> tuple[str, str]:
    less = "the CPU, for want of a GPU" if "cpu" in e.data else "fewer than it was to have"
    if "chosen" in e.data:
        return "by its own words its device is the CPU; whether that was meant the log does not say", _LESS
    if "sum" in e.data:
        less = "a file whose checksum is not what it was to be"
    if "scratch" in e.data:
        return "by its own words it started anew: the checkpoint could not be read", _LESS
    if "gloo" in e.data:
        less = "Gloo, which moves data by the CPU, for want of NCCL"
    return f"by its own words it went on with {less}", _LESS


def _no_number(e: Event) -> tuple[str, str]:
    what = "gradient" if "gradient" in e.data else e.data.get("quantity", "loss")
    text = f"the {what} is no number from this line on: the program's arithmetic, or a collective that gave wrong data"
    return text, _WRONG


def _unit(e: Event) -> tuple[str, str]:
    name = e.data.get("unit", "of the node")
    return f"systemd says that the unit {name} failed; whether it has to do with the job the log does not say", _UNITS


# What such lines mean where there are no others, and where to look: they say by themselves what is wrong, or not of what.
_TOLD: Final[Mapping[EventKind, Callable[[Event], tuple[str, str]]]] = {
    "lessened": _lessened,
    "no_number": _no_number,
    "unit": _unit,
}


def _untold(log: LogFacts, trouble: Sequence[Event]) -> str:
    """What such lines may mean after which somebody went on."""
    if requests := _handled(log):
        many = sum(e.count for e in requests)
        failed = f"{'a request' if many == 1 else f'{many} requests'} to a server failed, and it answered on"
        return f"{failed}: {requests[0].text[:200]} ({requests[0].where})"
    if all(printed(log, e) for e in trouble):
        return (
            f"{_these(len(trouble))} tell of what was caught and printed; whether the program did its work the log does not say"
        )
    return f"{_these(len(trouble))} may have ended a rank: work went on after it, and whose the log does not say"


def _unwatched(log: LogFacts, end: Outcome, quiet: Finding, evidence: Mapping[str, Any]) -> Finding:
    """What a log of which nothing is bad may be called where no process writes it any more."""
    if end.ending is Ending.OPEN:
        if (there := _all_there(log, end)) is not None:
            return replace(quiet, message=there)
        if any(e.last >= log.good.get(e.file, 0) for e in log.of("orphaned")):
            text = f"{quiet.message}; but {_ORPHANED}, and no end of it is in this log: it was killed, or left in a hurry"
            return _unknown(text, "job", evidence, _RUNS)
        if alone := [e for e in log.of("finished") if of_one_rank(log, e)]:
            text = f"{quiet.message}; but the end of one rank alone is in this log, and not that of the job"
            return _unknown(text, "job", {**evidence, "lines": _verbatim(alone)}, _RUNS)
        # A process that was killed, or whose node is gone, leaves just such a log.
        text = f"{quiet.message}; but the log ends without an end, and no process here still writes it"
        return _unknown(text, "job", evidence, _RUNS)
    if (more := _goes_on(log, end)) > _BEHIND:
        text = f"the log goes on for {more} lines behind a good end: what began there has neither work nor an end in this log"
        return _unknown(text, "job", evidence, _RUNS)
    return quiet


def _goes_on(log: LogFacts, end: Outcome) -> int:
    """Lines behind the last good end and the last sign of work, of one file."""
    if end.ending is not Ending.FINISHED or not end.events or len(log.files) != 1:
        return 0
    return log.lines - max(*log.good.values(), *(e.last for e in log.of("finished")), 0)


def not_told(end: Outcome) -> Finding:
    """After something that need not have stopped the job: nothing shows that it went on."""
    text = f"{_headline(end)}: after what is named above, nothing shows that it went on"
    return _unknown(text, "job", {"outcome": end.ending.value, "how": end.how}, _NEXT)


def no_log() -> Finding:
    """Of texts in which nothing happens: what they say of errors is of no job."""
    text = "this is no log of a job: its lines are sentences, and none begins with a time, a level, a rank or a process"
    return _unknown(text, "job", {}, "the job's own output, with NCCL_DEBUG=INFO")


def _verbatim(events: Sequence[Event]) -> list[str]:
    return [
        f"{e.where}: {e.text[:400]}" + (f" (and {e.count - 1} more like it)" if e.count > 1 else "") for e in events[:_LINES]
    ]


def _these(number: int) -> str:
    return "this line" if number == 1 else f"these {number} lines"


def _headline(end: Outcome) -> str:
    if end.ending is Ending.OPEN:
        return f"how the job ended is not in this log ({end.how})"
    return f"the job {'failed' if end.ending is Ending.FAILED else 'did not fail'}: {end.how}"


def _unknown(text: str, subject: str, evidence: Mapping[str, Any], how: str) -> Finding:
    return Finding(Status.UNKNOWN, text, subject, evidence=evidence, how=how, check="log")


def _quiet(log: LogFacts, end: Outcome, evidence: dict[str, Any]) -> Finding:
    """Nothing failed, as far as the log goes."""
    if end.ending is Ending.ENDED:  # what it would have come to, nobody can tell
        told = {**evidence, "shown": _verbatim(end.events)}
        return _unknown(f"{end.how}{_before_it(log, end)}{_behind_it(log, end)}{_stood(end)}", "job", told, _LATER)
    if not log.lines:
        return _unknown("the log is empty", "job", evidence, "the job's own output, with NCCL_DEBUG=INFO")
    if (
        end.ending is Ending.FINISHED
        and log.busbw_peak is not None
        and log.busbw_peak < _SLOW
        and not (log.many_nodes or log.workstation)
    ):
        return _slow(log, log.busbw_peak, evidence)
    if (done := _work_done(log, end) or _came(log, end)) is not None:
        return Finding(Status.PASS, done, evidence=evidence, notes=spoken.notes(log), check="log")
    if not log.nccl_lines:
        full = any("bar" in e.data for e in log.of("finished"))
        text = _FULL if full else _BEGUN if log.nccl_version else "there is no line of NCCL in this log"
        how = "NCCL_DEBUG=INFO" + ("; the logs of the other nodes, of that moment" if log.nccl_version else "")
        return _unknown(text, "job", evidence, _RUNS if full else how)
    if Level.INFO not in log.levels and end.ending is not Ending.FINISHED:
        return _unknown("the log is too terse to tell: it has no INFO line", "job", evidence, "NCCL_DEBUG=INFO")
    if log.libibverbs_missing and sockets_between_nodes(log) and log.many_nodes and not log.workstation:
        text = "data between the nodes goes over TCP; without libibverbs nobody could look for RDMA devices"
        return _unknown(text, "job", evidence, "netdoctor preflight --only rdma.dev_infiniband, on such a node")
    if log.comms_started > log.comms_complete and not log.rings:
        lost = log.comms_started - log.comms_complete
        text = f"{lost} communicators of {log.comms_started} were started and not finished in this log{_missing(log)}"
        return _unknown(text, "job", evidence, "the logs of the other ranks; netdoctor ras while the job hangs")
    if not log.came_up:
        text = "the log ends before a communicator is set up"
        return _unknown(text, "job", evidence, "the rest of the log, with NCCL_DEBUG=INFO")
    if end.ending is Ending.OPEN and not (log.good or log.algorithms):
        text = "communicators were set up; whether the job went on, and how it ended, is not in this log"
        return _unknown(text, "job", evidence, "the rest of the log; what the program prints of its steps")
    kinds = sorted({t.split("/")[0] + ("/" + t.split("/")[1] if t.startswith("NET") else "") for t in log.transports})
    state = "; it ran to its end" if end.ending is Ending.FINISHED else ""
    text = "communicators were set up and nothing failed" + (f"; transports: {', '.join(kinds)}" if kinds else "") + state
    if log.transports:
        evidence["transports"] = dict(log.transports)
    return Finding(Status.PASS, text, evidence=evidence, notes=spoken.notes(log), check="log")


def _slow(log: LogFacts, peak: float, evidence: Mapping[str, Any]) -> Finding:
    if log.nranks == 1 or not (peak or log.nranks):
        return _unknown(_ONE_RANK, "job", evidence, _RANKS)
    text = f"it ran to its end; {peak:.4g} GB/s is less than any path between GPUs of one node carries"
    text += ", and whether these are of several nodes the log does not say" if log.many_nodes is None else ""
    return _unknown(text, "job", evidence, _TRANSPORT)


def _before_it(log: LogFacts, end: Outcome) -> str:
    """What went wrong before somebody ended a job, as far as it is no reason to name, and how long nothing was done; nothing
    where no line tells of any: that none failed, a log does not show."""
    said = list[str]()
    done = [e for e in good_ends(log) if "left" not in e.data and all(before(e, o) for o in end.events)]
    if done:
        said.append(f"before it, the program had said that it was done ({done[-1].where}): what it did behind that did not end")
    quiet = log.silence
    if not done and quiet >= _STANDS_STILL and not log.of("serving"):
        said.append(f"its last sign of work is {quiet} minutes older than the log's last line: it may have stood still")
    handled, answers = _handled(log), log.of("bad_answer")
    for kinds in ((*log.of("exception", "raised", "oom"), *handled), answers, log.of(*TROUBLE)):
        earlier = {(e.file, e.line): e for e in kinds if any(before(e, o) for o in end.events) and "interrupted" not in e.data}
        alleged = [e for e in sorted(earlier.values(), key=order) if alleges(log, e)]
        if alleged := [e for e in alleged if e.kind != "trouble" or not overcome(log, e)]:
            break
    if alleged:
        requests = all(e.kind in {"handled", "bad_answer"} for e in alleged)
        first, went = alleged[0], "a server answered on" if requests else "the job went on"
        more = f", and {len(alleged) - 1} more such lines" if len(alleged) > 1 else ""
        said.append(f"before it, something failed and {went}: {first.text[:200]} ({first.where}{more})")
    stood = [e for e in log.of("stands") if "place" in e.data and any(before(e, o) for o in end.events)]
    if places := dict.fromkeys(f"in {e.data.get('within', '?')} ({e.data['place']}:{e.data['at']})" for e in stood):
        said.append(f"before it, Python's faulthandler found threads {listed(list(places), _PLACES)}")
    return "".join(f"; {one}" for one in said)


def _stood(end: Outcome) -> str:
    """At what a program stood that showed no work since, as where one of several tests began and did not go on."""
    said = next((e.data["stood"] for e in end.events if "stood" in e.data), "")
    return f"; the last that was said before it: {said}" if said else ""


def _behind_it(log: LogFacts, end: Outcome) -> str:
    """Ranks that torch's watchdogs ended behind such an order: they had waited as long as it says, perhaps from before it."""
    late = tuple(e for e in log.of("watchdog") if all(before(o, e) for o in end.events))
    if not late:
        return ""
    waited = _RAN.search(late[0].text)
    long = f" for {int(waited[1]) // 1000} s" if waited else ""
    told = f"; behind it, ranks had waited{long} in a collective until torch's watchdog ended them{which(late)}"
    return told + ": the order may have ended the peer that they waited for, or have come to a job that stood still already"


def _work_done(log: LogFacts, end: Outcome) -> str | None:
    """What a log that says nothing of NCCL's start shows of work: a good end, or steps."""
    if end.ending is Ending.FINISHED and any("right" in e.data for e in log.of("finished")) and not log.came_up:
        expected = "what this machine can do, the log does not say"
        speed = f"; whether {log.busbw:.4g} GB/s is {expected}" if log.busbw is not None else ""
        return f"nccl-tests ran to its end, and its values are right{speed}"
    steps = max(map(len, log.work.values()), default=0)
    if log.nccl_lines:  # of the middle of a log, or of a version alone
        told = log.came_up or log.comms_started or steps < STEPS
        return None if told else "the program makes progress; no line of NCCL's tells of a communicator's start"
    whole = ("whole" in e.data or ("left" not in e.data and log.good.get(e.file, 0) > 0) for e in end.events)
    if end.ending is Ending.FINISHED and any(whole):
        return "the program ran to its end; no line is NCCL's"
    return "the program makes progress; no line is NCCL's" if steps == STEPS else None


def _came(log: LogFacts, end: Outcome) -> str | None:
    """Signs of a job that did what it was for, where none of them is a step: nothing in the log alleges anything."""
    whole = end.ending is Ending.FINISHED and not closed(end) and not log.nccl_lines
    alleged = any(
        not (on_the_way_out(log, e) or (whole and overcome(log, e))) for e in (*log.of(*TROUBLE), *last_words(log, end))
    )
    if alleged or (log.comms_started > log.comms_complete and not log.rings):
        return None
    serving = log.of("serving")
    if serving:
        return "the server came up, and nothing failed after it"
    return _all_there(log, end)


def _all_there(log: LogFacts, end: Outcome) -> str | None:
    """What shows that a program did what it was for, or all of its last part."""
    failed = any(not on_the_way_out(log, e) for e in (*log.of(*TROUBLE), *log.of("raised")))
    told = ", and an error before did not keep it from that" if failed else ", and no line before tells of an error"
    said = log.of("hello")
    ranks = {e.data.get("rank") for e in said}
    if said and str(len(ranks)) == said[0].data.get("n") and len({e.data.get("n") for e in said}) == 1:
        return f"each of the {len(ranks)} ranks came and said so; no line tells of more"
    if len(log.files) == 1 and end.ending is Ending.FINISHED and any(log.lines - e.last < _END for e in good_ends(log)):
        return f"the program ended in good order{told}"
    if log.counted and not log.unended and log.lines - max(log.good.values(), default=0) < _END:
        return f"the program took {log.counted} steps by its own count{told}"
    return None


def _unused(log: LogFacts) -> str | None:
    """The line that says what keeps torch from its GPU, without which it works on: a communicator of NCCL's needs one."""
    return next((e.where for e in log.of("driver") if Wording.TOO_OLD.within(e.text)), None)


def _missing(log: LogFacts) -> str:
    """Ranks of which no line is there."""
    seen = {rank for one in log.ranks for rank in one.ranks}
    if not log.nranks or not 0 < len(seen) < log.nranks <= 4096:
        return ""
    absent = sorted(set(range(log.nranks)) - seen)
    names = ", ".join(map(str, absent[:8]))
    return f"; of rank{'s' if len(absent) > 1 else ''} {names}{' …' if len(absent) > 8 else ''} there is no line"
