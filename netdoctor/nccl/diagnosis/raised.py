"""Exceptions that nobody caught: the one that ended a program, what it came of and came to, and what was raised before."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.cuda_failures import MAP
from netdoctor.nccl.diagnosis.errnos import refused
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught, whose
from netdoctor.nccl.diagnosis.kinds import SIGNS
from netdoctor.nccl.diagnosis.went_on import After, after, before, echoing, of_launcher, order, overcome
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

READ = Fix("mend the program there")
_TEST = Fix("see what that test compares: the program's own result, or what it expects")
_ARGUMENTS = Fix("give the program arguments that this version of it knows", ("python <program> --help",))
_STORAGE = Fix(
    "make room in the file system that the program writes to, or mount it again", ("df -h <folder>; df -i <folder>; quota -s",)
)
NEWER = Fix(
    "install a torch (and NCCL) that was built for this GPU", ("python -c 'import torch; print(torch.cuda.get_arch_list())'",)
)
_REFUSED: Final = re.compile(r": error: |^Error: |^Could not ")  # argparse's, click's, Hydra's
_COMPLAINTS: Final = 2
_OFTEN: Final = 3  # once or twice it may be a warning of how a program starts
_STREAMS: Final = "/torch/nn/parallel/_functions.py"  # _get_stream: a list as long as torch.cuda.device_count()
_NUMBERS: Final = re.compile(r"\d+")
_INSTALLED: Final = re.compile(r"^.{0,400}(?:(?:site|dist)-packages|/lib(?:64)?/python\d[\d.]*)/")
_MORE: Final = 3  # other exceptions that are named beside the first
_UNBOUND: Final = re.compile(r"(?P<file>[^\s/:']{1,100}\.so[.\d]*): undefined symbol")  # ld.so's words (elf/dl-lookup.c)


def exceptions(log: LogFacts) -> Iterator[Hypothesis]:
    """What ended a program: the first exception, unless it only says that another rank is gone."""
    raised = [_rejoined(log, e) for e in sorted(log.of("exception"), key=order)]
    # A message that quotes another exception says no more than that.
    quotes = {(e.file, e.data["quoted"]) for e in log.of("exception", "raised") if "quoted" in e.data}
    own = [e for e in raised if not echoing(e) and (e.file, str(e.line)) not in quotes]
    stopped = [e for e in own if after(log, e) is After.STOPPED]
    # The job worked on after an earlier one: it was caught, or of a run before the last.
    first = next(iter(stopped), next(iter(own), None))
    if first is None or _left_of_another(log, own):
        yield from _nameless(log, () if own else raised)
        return
    first, watcher = _watched(log, own, first)
    again = _again(own, first)
    if again is not None and first.count > 1 and "printed" not in again.data and _apart(again, first):
        # A script's earlier step, which failed each time, and a later one that found nothing of it.
        first, again = again, None
    last = _outermost(raised, first)
    first, inner = (last, first) if "instead" in last.data and len(last.text) > len(first.text) else (first, None)
    said, fault, cause, fix = first.text[:400], Fault.EXCEPTION, "rank_died", _mend(first, last)
    if Wording.NOT_COMPILED.within(first.text):
        cause, fix = "cuda_driver_mismatch", NEWER
    # What the file system says stands in the exception, or in the one before it (torch.save reports it as its own).
    full = next((e for e in (*raised, *log.of("trouble")) if Wording.STORAGE.within(e.text)), None)
    if full is not None:
        said, fix, fault = full.text[:200], _STORAGE, Fault.STORAGE
    confidence = Confidence.LIKELY_PLUS if first.data.get("type") else Confidence.QUIET_MINUS
    if any(before(e, first) for e in log.above_info("watchdog", "duplicate_gpu", "shm_full", "nvls_bind", "no_interface")):
        confidence = Confidence.OPEN_MINUS  # something went wrong before
    unloaded = _unloaded(log, first)
    if unloaded is not None:
        fix = Fix(_BUILT, ("python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.version.hip)'",))
    alike = tuple(e for e in stopped if _place(e) == _place(first) and e.data.get("type") == first.data.get("type")) or (first,)
    who = whose(log, alike)
    text = f"{_ended(first, last, who, printed=watcher is not None)}: {said or 'the log breaks off'}{_statement(first)}"
    if full is None and (why := refused(first.text, last.text, first.data.get("raiser", ""))) is not None:
        cause, fix, fault = why.cause, why.fix, why.fault
        text = f"{why.text}; {text}"
    elif first.data.get("type") == "IndexError" and _STREAMS in first.data.get("deep", ""):
        cause, fix = "device_mapping", MAP
        text = f"{who if who != 'job' else 'a rank'} takes a GPU beyond those that it sees; {text}"
    if unloaded is not None:
        text = f"{unloaded.data['library']} is not there, without which {unloaded.data['module']} was not loaded; {text}"
    text += _with(first, last, inner, watcher, again)
    told = {id(e): e for e in (unloaded, first, full, last, inner, watcher, again) if e is not None}
    others = _others((*stopped, *own), tuple(told.values()))
    notes = (
        *(f"not ready to the end: {name}" for name in caught((first,), "awaited")),
        *(f"also raised: {_named(e)}" for e in others[:_MORE]),
        *(
            f"also: {e.text[:200]} ({e.where})"
            for e in log.of("trouble")
            if Wording.COMPLAINT.within(e.text) and before(first, e)
        ),
        *_said_before(log, first),
    )
    lines = (*told.values(), *(e for e in others[:1] if e in stopped and first not in stopped))
    yield Hypothesis(cause, confidence, text, lines, fix, notes=notes, fault=fault, subject=None if who == "job" else who)


def _with(first: Event, last: Event, inner: Event | None, watcher: Event | None, again: Event | None) -> str:
    """What stands beside the exception that is told first."""
    text = f"; it came to {_named(last)}" if last is not first else ""
    text += f"; raised in place of {_named(inner)}" if inner is not None else ""
    text += f"; who had started it says: {_named(watcher)}" if watcher is not None else ""
    return text + (f"; before it, {again.count} times: {_named(again)}" if again is not None else "")


_BUILT: Final = "install a build of it for this torch and its CUDA or ROCm: it looks for another's libraries"
# torch's words of what an extension would have registered: torch/csrc/jit/python/script_init.cpp, torch/_ops.py, ATen
_UNREGISTERED: Final = re.compile(
    r"Tried to instantiate class '(?P<name>\w+)\.|'_OpNamespace' '(?P<name2>\w+)' object has no attribute"
    r"|No such operator (?P<name3>\w+)::|operator (?P<name4>\w+)::\w+ does not exist|similar ops to (?P<name5>\w+)::"
)


def _unloaded(log: LogFacts, first: Event) -> Event | None:
    """The extension whose class or operator is not registered, and that could not be loaded before, as a warning said."""
    found = _UNREGISTERED.search(first.text)
    name = next(filter(None, found.groups()), "") if found else ""
    said = (e for e in log.of("unloaded") if before(e, first) and e.data.get("module", "").rpartition(".")[2] == name)
    return next(said, None) if name else None


_WATCH: Final = 500  # lines between what a process says last and the word of whoever looks for it now and then
_NEAR: Final = 60  # lines, in which the ranks of a node print the same traceback at once
_REPEATED: Final = re.compile(r"(?P<said>.{12,300}?)(?:: ?)?(?P=said)")


def _rejoined(log: LogFacts, e: Event) -> Event:
    """With its message, where ranks that write one file at once have torn the line apart: another rank's is whole."""
    kind = e.data.get("type", "")
    rest = e.text.strip().removeprefix(kind).removeprefix(": ")
    if not kind or (rest and not rest.endswith(kind)):
        return e
    whole = (t for t in log.of("trouble") if t.data.get("what") == kind and t.file == e.file and abs(t.line - e.line) <= _NEAR)
    said = next((t.text for t in whole if t.text.startswith(f"{kind}: ") and len(t.text) > len(kind) + 2), None)
    if said is None:
        return e
    message = said[len(kind) + 2 :]
    once = _REPEATED.match(message)
    return replace(e, text=f"{kind}: {once['said'] if once else message}")


def tests(log: LogFacts) -> Iterator[Hypothesis]:
    """Tests of the program's that failed, by a runner's own words."""
    failed = tuple(e for e in sorted(log.of("test_failed"), key=order) if after(log, e) is After.STOPPED)
    if not failed:
        return
    names = list(dict.fromkeys(e.data["name"] for e in failed if "name" in e.data))
    text = f"{len(names)} tests of the program failed" if len(names) > 1 else "a test of the program failed"
    text += f": {', '.join(names[:_MORE])}{' …' if len(names) > _MORE else ''}" if names else ""
    told = next((e for e in failed if "name" in e.data), failed[0])
    said = told.data.get("said") or told.text.partition(told.data.get("name", told.text))[2]
    text += f" ({said.strip()[:200]})" if said.strip() else ""
    known = log.above_info("cuda", "oom", "kernel_assert", "generic", "watchdog", "exception")
    confidence = Confidence.EFFECT if known else Confidence.LIKELY
    yield Hypothesis("other", confidence, text, failed[:6], _TEST, fault=Fault.EXCEPTION)


def before_a_wait(log: LogFacts) -> Iterator[Hypothesis]:
    """An exception that some ranks printed and went on after, with what they had left out: the others wait for them until
    a watchdog ends these, many minutes later."""
    waited = min(log.above_info("watchdog"), key=order, default=None)
    if waited is None or log.of("exception"):
        return
    said = tuple(
        e
        for e in sorted((*log.of("trouble"), *log.of("last_words")), key=order)
        if before(e, waited) and Wording.NAMES_AN_EXCEPTION.within(e.text) and not echoing(e) and after(log, e) is After.STOPPED
    )
    if said:
        times = f" ({said[0].count} times)" if said[0].count > 1 else ""
        text = f"an exception was printed{times} before ranks waited in vain: {said[0].text[:300]}; who left out a collective"
        text += " there leaves the others waiting in it"
        who = whose(log, said)
        yield Hypothesis("rank_died", Confidence.LIKELY_MINUS, text, said[:4], READ, subject=who, fault=Fault.EXCEPTION)


def _said_before(log: LogFacts, first: Event) -> Iterator[str]:
    """What the program complained of before, in words that no family knows: what it came to may be all that was raised."""
    said: dict[str, list[Event]] = {}
    for e in log.of("last_words"):
        if before(e, first) and not Wording.TRACEBACK.within(e.text):
            said.setdefault(_NUMBERS.sub("", e.text), []).append(e)
    for alike in [told for told in said.values() if len(told) >= _OFTEN][:_COMPLAINTS]:
        yield f"said before it time and again: {alike[0].text[:200]} ({alike[0].where})"


# torch's mark of a rank's own stderr: what stands behind it alone is the last line of a traceback that lost its frames.
_MARKED: Final = re.compile(r"\[rank\d{1,7}\]: (?:\w+\.)*\w*(?:Error|Exception): \S")


def _left_of_another(log: LogFacts, own: Sequence[Event]) -> bool:
    """Whether a rank's exception is there by its last line, where all that others show of theirs breaks off before it."""
    alone = None if any(e.data.get("type") for e in own) else _without_traceback(log)
    return alone is not None and _MARKED.match(alone[0].text) is not None


def _nameless(log: LogFacts, raised: Sequence[Event]) -> Iterator[Hypothesis]:
    """Where no traceback is the program's own: the line of an exception without one, or what others raised of it."""
    if not raised and (asserted := _asserted(log)):
        said = _ASSERTED.search(asserted[0].text)
        text = "torch's own assertion failed, as the program printed without a traceback"
        text += f"{f', {many} times' if (many := sum(e.count for e in asserted)) > 1 else ''}: {said[0] if said else ''}"
        who = _RANK.search(asserted[0].text) if many == 1 else None
        subject = f"rank {who[1]}" if who else whose(log, asserted)
        yield Hypothesis("rank_died", Confidence.LIKELY_PLUS, text, asserted, _ASKED, fault=Fault.EXCEPTION, subject=subject)
    elif not raised and (alone := _without_traceback(log)) is not None:
        text, fix, sure = "the program ended by an exception of its own, whose traceback is not in this log", READ, False
        if _REFUSED.search(alone[1]):  # the exit code with which a launcher knows its ranks says no more (argparse: 2)
            text, fix, sure = "the program refused its command line and did not start", _ARGUMENTS, True
        confidence = Confidence.LIKELY_PLUS if sure else Confidence.LIKELY_MINUS
        yield Hypothesis("rank_died", confidence, f"{text}: {alone[1]}", alone[:1], fix, fault=Fault.EXCEPTION)
    if raised and not (log.above_info("generic") and all(map(of_launcher, raised))):
        kind = raised[0].data.get("type", "an exception")
        inner = kind.partition("(")[2].rstrip(")")
        text = f"{kind}: what it says is that another process or connection is gone"
        if inner:  # ray.exceptions.RayTaskError(ValueError): the task's own traceback is behind it, or in its worker's log
            text = f"a task of Ray failed with {inner}: its worker's log, or the lines after this one, say why"
        yield Hypothesis("rank_died", Confidence.EFFECT_MINUS, text, tuple(raised[:4]))


def _ended(e: Event, last: Event, who: str, *, printed: bool) -> str:
    """Whose exception it was, and where it was raised: at the program's own line, and in which library below it."""
    program = "the program" if who == "job" else who
    kind = e.data.get("type") or "whose name is beyond the end of the log,"
    how = "after it had printed an exception" if printed else "by an uncaught exception"
    ended = f"{program} ended {how}, {kind} at "
    library, outer = e.data.get("library"), last.data.get("library")
    if not library:
        below = f", raised in {_library(e.data['raiser'])} ({_short(e.data['deep'])})" if "raiser" in e.data else ""
        return f"{ended}{_place(e)}{below}"
    if outer is None and last is not e:
        return f"{ended}{_place(last)}, raised in {_library(library)} ({_short(_place(e))})"
    return f"{ended}{_place(e)}, in {_library(library)} alone"


def _library(name: str) -> str:
    return f"Python's {name}" if name.endswith(".py") else name


def _short(place: str) -> str:
    return _INSTALLED.sub("", place)


def _statement(e: Event) -> str:
    """The program's own statement that raised it, where it says little else."""
    told = e.data.get("told", "")
    return f"; its statement: {told}" if told and Wording.TERSE.within(e.text) and told not in e.text else ""


def _mend(e: Event, last: Event) -> Fix:
    """Nothing is to be mended in a library: what it was given may be."""
    if (unbound := _UNBOUND.search(e.text)) is not None:
        what = f"{unbound['file']} was built for other versions of what it loads (most often of torch): install one that fits"
        return Fix(what, ("python -c 'import torch; print(torch.__version__)'; ldd -r <the .so file>",))
    raiser = e.data.get("raiser") or e.data.get("library")
    if not raiser:
        return READ
    given = next((_place(x) for x in (e, last) if "library" not in x.data and x.data.get("file")), "")
    if raiser.endswith(".py"):  # Python's own
        return Fix(
            f"see what the program does at {given}, and what the message says of it" if given else "see what its message says"
        )
    if given:
        return Fix(f"see what {raiser} was given at {given}, and what its message asks for")
    return Fix(f"see what {raiser} was given: options, files, and the versions of what it works with")


def _again(own: Sequence[Event], first: Event) -> Event | None:
    """What was raised time and again before that which ended it: caught each time, or in another script, which a loop of the
    job's started before the one that failed as often for want of what the first should have left."""
    found = [e for e in own if e is not first and before(e, first) and e.text != first.text and e.count >= _twice(e, first)]
    return max(found, key=lambda e: e.count, default=None)


def _twice(e: Event, first: Event) -> float:
    """How often it must have been raised.  What nobody caught, of the same script or none, was of an earlier start."""
    if "caught" in e.data or (first.count > 1 and _apart(e, first)):
        return 2
    return _OFTEN if "printed" in e.data else math.inf


def _apart(a: Event, b: Event) -> bool:
    """Whether both are of scripts that are known, and not of one."""
    scripts = {a.data.get("program", ""), b.data.get("program", "")}
    return "" not in scripts and len(scripts) > 1


def _outermost(raised: Sequence[Event], first: Event) -> Event:
    """What Python says that it came to ("direct cause", "during handling")."""
    last = first
    for e in raised:
        if e.file == last.file and e.data.get("cause") == str(last.line) and e.text != first.text:
            last = e
    return last


# monarch's SupervisionError, of an actor of which only the driver's call is told (hyperactor's supervision)
_ACTOR_FAILED: Final = re.compile(r"(?i:\bactors?\b).{0,300}\b(?:has|have) failed\b", re.DOTALL)


def _watched(log: LogFacts, own: Sequence[Event], first: Event) -> tuple[Event, Event | None]:
    """What a process raised last of which another one says that it is gone, where that is no more than its exit code: a server
    that prints why it cannot start, and ends itself and its children (SGLang's _execute_server_warmup)."""
    of_actor = _ACTOR_FAILED.search(first.text) is not None
    watches = Wording.WATCHES.within(first.text) or of_actor
    others = [e for e in log.of("raised") if "file" in e.data and not echoing(e) and _ACTOR_FAILED.search(e.text) is None]
    known = sorted((*own, *others), key=order) if of_actor else own
    said = (e for e in reversed(known) if before(e, first) and first.line - e.last <= _WATCH and not overcome(log, e))
    told = next((e for e in said if not Wording.WATCHES.within(e.text)), None) if watches else None
    return (first, None) if told is None else (told, first)


def _others(raised: Sequence[Event], told: Sequence[Event]) -> list[Event]:
    """What else was raised after it, once a place: ranks raise the same."""
    found = {_place(e): e for e in reversed(raised) if not any(before(e, t) for t in told[:1])}
    for t in told:
        found.pop(_place(t), None)
    return sorted(found.values(), key=order)


def _named(e: Event) -> str:
    return f"{e.text[:160]} ({_place(e)}{f', {e.count} times' if e.count > 1 else ''})"


def _place(e: Event) -> str:
    within = f", line {e.data['within']} of what it executes there" if "within" in e.data else ""
    return f"{e.data.get('file') or '?'}:{e.data.get('at') or '?'}{within}"


# Python's own, of a mistake in a program: what libraries raise for what they met is of other types.
_MISTAKE: Final = re.compile(
    r"\b(?:Index|Key|Type|Attribute|ZeroDivision|Name|UnboundLocal|Value|NotImplemented|Assertion|FileNotFound|FileExists|IsADirectory"
    r"|NotADirectory|Permission|Import|ModuleNotFound|OS|Environment|JSONDecode|UnicodeDecode|Recursion|Lookup|Memory|Syntax|HTTP)"
    r"Error: .{1,200}"
    r"|\bRuntimeError: .{0,100}(?i:\bassert).{1,200}"
    r"|[\w.\-]+: error: .{1,200}|Error: (?:No such|Missing|Invalid value for|Got unexpected) .{1,200}"
    r"|Could not (?:override|append) .{1,200}|\[TensorRT-LLM\]\[ERROR\] Assertion failed: .{1,160}"
)
# Any other is the program's own where nothing else says what failed, but for those that carry another's words.
# Python prints the name of its own as it is, and that of others behind their module.
_ANY: Final = re.compile(
    r"(?P<type>\b(?:Runtime|System|Buffer|Overflow|FloatingPoint)Error|\bException|(?:\w+\.)+\w*(?:Error|Exception)): .{1,200}"
)
_OTHERS: Final = re.compile(r"Xla|Horovod|Lustre|Unavailable|Aborted|Internal|Rpc|Accelerator|Nccl|NCCL")
_FAILED: Final = tuple(k for k in SIGNS if k not in {"trouble", "raised", "exception"})


def _plain(e: Event) -> bool:
    """A launcher's word of an exit code, as any exception leaves it: not of a signal, nor of a kill from outside."""
    ended = e.kind in {"elastic", "died"} and "signal" not in e.data and "how" not in e.data
    return ended and e.data.get("code", "1") in {"1", "2"} and not e.killed_from_outside


_ASSERTED: Final = re.compile(r"(?:\S{1,80} )?INTERNAL ASSERT FAILED at .{1,300}")  # c10/util/Exception.h
_RANK: Final = re.compile(r"\b[Rr]ank[ :=]{1,2}(\d{1,7})\b.{0,200}INTERNAL ASSERT")
_ASKED: Final = Fix("see what the program asks of torch there; it is torch's own check that failed: try another version of it")
_EXITED: Final = re.compile(r"Exited with exit code \d")  # srun's word


def _asserted(log: LogFacts) -> tuple[Event, ...]:
    """Assertions of torch's that a program printed, where nothing but exit codes follows: no signal, and no other fault."""
    if any(not (_plain(e) or _EXITED.match(e.data.get("how", ""))) for e in log.above_info(*_FAILED)):
        return ()
    said = (e for e in sorted(log.of("trouble"), key=order) if Wording.ASSERTED_BY_C10.within(e.data.get("what", "")))
    told = tuple(e for e in said if after(log, e) is After.STOPPED and not (e.mild or Wording.OF_C10.within(e.text)))
    return told if any(before(told[0], e) for e in log.of("died", "elastic") if told) else ()


def _without_traceback(log: LogFacts) -> tuple[Event, str] | None:
    """The line of an exception that stands alone, where a log begins after its frames, or they were left out."""
    stopped = [e for e in sorted(log.of("trouble"), key=order) if "what" in e.data and after(log, e) is After.STOPPED]
    for e in stopped:
        if (said := _MISTAKE.search(e.text)) is not None:
            return e, said[0]
    if any(not _plain(e) for e in log.above_info(*_FAILED)):
        return None
    for e in stopped:
        said = _ANY.search(e.text)
        if said is not None and not (echoing(e) or _OTHERS.search(said["type"]) or Wording.ECHO_EXCEPTION.within(said["type"])):
            return e, said[0]
    return None
