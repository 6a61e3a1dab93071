"""How the job of a log went: a pass needs a good end or clear progress, and no trouble that nothing explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis.hypothesis import author
from netdoctor.nccl.diagnosis.outcome import Ending, Outcome, before, overcome
from netdoctor.nccl.log.facts import Event, EventKind, Level, LogFacts

_LINES: Final = 12  # that are shown verbatim
# Lines that say that something failed.
_TROUBLE: Final[tuple[EventKind, ...]] = (
    *("warning", "trail", "trouble", "generic", "exception", "died", "elastic", "actor_died", "watchdog", "heartbeat"),
    *("torch_echo", "cuda", "completion", "async_event", "modify_qp", "secondary", "peer_closed", "ofi_any", "stranger"),
)
_NEXT: Final = "run it again with NCCL_DEBUG=INFO and keep the output of every rank (NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log)"


def went(log: LogFacts, end: Outcome, explained: bool) -> Finding:
    """`explained`: another finding says what failed."""
    evidence: dict[str, Any] = {"outcome": end.ending.value, "how": end.how}
    trouble = () if explained else unexplained(log, end)
    if trouble:
        lines = [f"{e.where}: {e.text[:400]}" + (f" (and {e.count - 1} more like it)" if e.count > 1 else "") for e in trouble]
        text = f"{_headline(end)}, and no rule explains {_these(len(trouble))}"
        if not any(e.kind not in {"generic", "torch_echo"} for e in trouble):
            text = f"{_headline(end)}, and the lines that say why are not in this log"
        return _unknown(text, author(trouble), {**evidence, "lines": lines[:_LINES]}, _NEXT)
    if explained:
        return Finding(Status.PASS, f"{_headline(end)}: the log shows why", "job", evidence=evidence, check="log")
    if end.ending is Ending.FAILED:
        return _unknown(f"{_headline(end)}, and the log does not say why", "job", evidence, _NEXT)
    return _quiet(log, end, evidence)


def _these(number: int) -> str:
    return "this line" if number == 1 else f"these {number} lines"


def _headline(end: Outcome) -> str:
    if end.ending is Ending.OPEN:
        return f"how the job ended is not in this log ({end.how})"
    return f"the job {'failed' if end.ending is Ending.FAILED else 'did not fail'}: {end.how}"


def _unknown(text: str, subject: str, evidence: Mapping[str, Any], how: str) -> Finding:
    return Finding(Status.UNKNOWN, text, subject, evidence=evidence, how=how, check="log")


def unexplained(log: LogFacts, end: Outcome) -> tuple[Event, ...]:
    """Lines that say that something failed; not those that were overcome, nor what follows when somebody ends a job."""
    ordered = end.events[0] if end.ending is Ending.ENDED else None
    kinds = (*_TROUBLE, "last_words") if end.ending is Ending.OPEN else _TROUBLE
    found = [e for e in log.of(*kinds) if _alleges(log, e) and not overcome(log, e) and not (ordered and before(ordered, e))]
    finished = end.ending is Ending.FINISHED
    return tuple(sorted((e for e in found if not (finished and e.kind in _ON_LEAVING)), key=lambda e: (e.file, e.line)))


_ON_LEAVING: Final = frozenset({"peer_closed", "secondary", "trouble", "torch_echo"})


def _alleges(log: LogFacts, e: Event) -> bool:
    if e.mild or (e.kind == "ofi_any" and e.level is not Level.WARN):
        return False
    if e.kind == "trail":  # since 2.28 also on the way of a plugin that is tried and left: src/plugin/net.cc
        return not log.came_up or max(log.good.get(e.file, 0), log.up_at.get(e.file, 0)) < e.line
    return e.level is not Level.INFO


def _quiet(log: LogFacts, end: Outcome, evidence: dict[str, Any]) -> Finding:
    """Nothing failed, as far as the log goes."""
    if not log.nccl_lines:
        return _unknown("there is no line of NCCL in this log", "job", evidence, "NCCL_DEBUG=INFO")
    if Level.INFO not in log.levels and end.ending is not Ending.FINISHED:
        return _unknown("the log is too terse to tell: it has no INFO line", "job", evidence, "NCCL_DEBUG=INFO")
    if log.comms_started > log.comms_complete and not log.rings:
        lost = log.comms_started - log.comms_complete
        text = f"{lost} communicators of {log.comms_started} were started and not finished in this log{_missing(log)}"
        return _unknown(text, "job", evidence, "the logs of the other ranks; netdoctor ras while the job hangs")
    if not log.came_up:
        text = "the log ends before a communicator is set up"
        return _unknown(text, "job", evidence, "the rest of the log, with NCCL_DEBUG=INFO")
    if end.ending is Ending.ENDED and not any(
        line >= e.line for e in end.events for line in [max(log.good.get(e.file, 0), log.up_at.get(e.file, 0)) + _NEAR]
    ):
        text = f"{_headline(end)}; whether it worked until then the log does not show"
        return _unknown(text, "job", evidence, "what the job printed last; netdoctor ras while one runs")
    if end.ending is Ending.OPEN and not (log.good or log.algorithms):
        text = "communicators were set up; whether the job went on, and how it ended, is not in this log"
        return _unknown(text, "job", evidence, "the rest of the log; what the program prints of its steps")
    kinds = sorted({t.split("/")[0] + ("/" + t.split("/")[1] if t.startswith("NET") else "") for t in log.transports})
    state = {Ending.FINISHED: "; it ran to its end", Ending.ENDED: f"; {end.how}"}.get(end.ending, "")
    text = "communicators were set up and nothing failed" + (f"; transports: {', '.join(kinds)}" if kinds else "") + state
    if log.transports:
        evidence["transports"] = dict(log.transports)
    return Finding(Status.PASS, text, evidence=evidence, check="log")


_NEAR: Final = 200  # lines between the last sign of work and the order to end


def _missing(log: LogFacts) -> str:
    """Ranks of which no line is there."""
    seen = {rank for one in log.ranks for rank in one.ranks}
    if not log.nranks or not 0 < len(seen) < log.nranks <= 4096:
        return ""
    absent = sorted(set(range(log.nranks)) - seen)
    names = ", ".join(map(str, absent[:8]))
    return f"; of rank{'s' if len(absent) > 1 else ''} {names}{' …' if len(absent) > 8 else ''} there is no line"
