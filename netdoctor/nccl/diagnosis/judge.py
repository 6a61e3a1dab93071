"""From hypotheses to findings: one a cause, the likeliest first, with the lines that show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from netdoctor.causes import CAUSES
from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import gpu, network, rdma, sockets, software, termination
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, Rule, author
from netdoctor.nccl.log.facts import Event, Level, LogFacts

RULES: Final[tuple[Rule, ...]] = (*gpu.RULES, *sockets.RULES, *rdma.RULES, *network.RULES, *software.RULES, *termination.RULES)
_LINES: Final = 6  # lines of evidence a finding
_MAX: Final = 6  # findings that fail


def diagnose(log: LogFacts) -> tuple[Finding, ...]:
    """The findings of a log: fails (likeliest first), what the log cannot tell, or a pass where it shows a healthy job."""
    hypotheses = _merged(hypothesis for rule in RULES for hypothesis in rule(log))
    if not hypotheses:
        return (_without_hypothesis(log),)
    top = hypotheses[0]
    # A consequence is worth a finding of its own only where no cause is known.
    least = Confidence.EFFECT_MINUS if top.confidence <= Confidence.EFFECT_PLUS else Confidence.QUIET_MINUS
    return tuple(_finding(h, top) for h in [h for h in hypotheses if h.confidence >= least][:_MAX])


def _merged(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """One hypothesis a cause: the likeliest, with the evidence of all that are as likely."""
    best: dict[str, Hypothesis] = {}
    for h in hypotheses:
        before = best.get(h.cause)
        if before is None:
            best[h.cause] = h
        elif h.confidence > before.confidence:
            best[h.cause] = replace(h, events=_union(h.events, before.events))
        else:
            best[h.cause] = replace(before, events=_union(before.events, h.events))
    return sorted(best.values(), key=lambda h: (-h.confidence, min((_order(e) for e in h.events), default=("~", "", 0))))


def _union(a: tuple[Event, ...], b: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple({id(e): e for e in (*a, *b)}.values())


def _order(e: Event) -> tuple[str, str, int]:
    return e.at or "~", e.file, e.line


def _finding(hypothesis: Hypothesis, top: Hypothesis) -> Finding:
    cause = CAUSES[hypothesis.cause]
    events = sorted(hypothesis.events, key=_order)
    evidence: dict[str, Any] = {
        "confidence": hypothesis.confidence.word,
        "lines": [
            f"{e.where}: {e.text[:300]}" + (f" (and {e.count - 1} more like it)" if e.count > 1 else "")
            for e in _spread(events)
        ],
    }
    if hypothesis.shown:
        evidence["shown"] = list(hypothesis.shown)
    if events:
        evidence |= _origin(events)
    if hypothesis is not top:
        evidence["alternative"] = True
    look = hypothesis.how or (f"netdoctor preflight --only {','.join(cause.look)}" if cause.look else None)
    if hypothesis.how and cause.look:
        look = f"{hypothesis.how}; netdoctor preflight --only {','.join(cause.look)}"
    severity = hypothesis.severity or cause.severity
    if hypothesis is not top:  # another reading of what the first finding shows is no worse than it
        severity = min(severity, top.severity or CAUSES[top.cause].severity, key=lambda s: s.rank)
    return Finding(
        Status.FAIL,
        hypothesis.message,
        hypothesis.subject or (author(events) if events else "job"),
        severity,
        hypothesis.cause,
        evidence=evidence,
        how=look,
        why=hypothesis.why or cause.costs,
        notes=hypothesis.notes,
        fix=hypothesis.fix,
        check="log",
    )


def _spread(events: list[Event]) -> list[Event]:
    """The first line of every kind, then further ones, in the order of the log."""
    events = _once(events)
    firsts: dict[str, Event] = {}
    for e in events:
        firsts.setdefault(e.kind, e)
    chosen = [*firsts.values(), *(e for e in events if e is not firsts[e.kind])][:_LINES]
    return sorted(chosen, key=lambda e: (e.file, e.line))


def _once(events: list[Event]) -> list[Event]:
    """One event a message: a message may be of several kinds, and one line may hold the messages of several writers."""
    kept: dict[tuple[str, int], list[Event]] = {}
    for e in sorted(events, key=lambda e: (-len(e.text), -e.count)):
        same = kept.setdefault((e.file, e.line), [])
        if not any(other.text.startswith(e.text) for other in same):
            same.append(e)
    return [e for e in events if any(e is other for other in kept[e.file, e.line])]


def _origin(events: list[Event]) -> Mapping[str, Any]:
    """The process that failed first, and the others that print the same."""
    out: dict[str, Any] = {}
    first = events[0]
    if first.rank is not None:
        out["rank"] = first.rank
    if first.host:
        out["host"] = first.host
    if first.at:
        out["first_at"] = first.at
    ranks = {e.rank for e in events if e.rank is not None}
    hosts = {e.host for e in events if e.host}
    if len(ranks) > 1:
        out["ranks"] = sorted(ranks)[:64]
    if len(hosts) > 1:
        out["hosts"] = sorted(hosts)[:64]
    return out


def _without_hypothesis(log: LogFacts) -> Finding:
    """No rule yields anything: the log shows a job that came up, or it does not show enough."""
    failed = log.above_info("generic")
    if failed:
        return Finding(
            Status.UNKNOWN,
            "NCCL failed, and the lines that say why are not in this log",
            author(failed),
            evidence={"lines": [f"{e.where}: {e.text[:300]}" for e in failed[:_LINES]]},
            how="run it again with NCCL_DEBUG=INFO and keep the output of every rank (NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log)",
            check="log",
        )
    if not log.nccl_lines:
        return Finding(Status.UNKNOWN, "there is no line of NCCL in this log", how="NCCL_DEBUG=INFO", check="log")
    if Level.INFO not in log.levels:
        return Finding(Status.UNKNOWN, "the log is too terse to tell: it has no INFO line", how="NCCL_DEBUG=INFO", check="log")
    if log.comms_started > log.comms_complete and not log.rings:
        lost = log.comms_started - log.comms_complete
        text = f"{lost} communicators of {log.comms_started} were started and not finished in this log"
        return Finding(Status.UNKNOWN, text, how="the logs of the other ranks; netdoctor ras while the job hangs", check="log")
    if not log.came_up:
        return Finding(
            Status.UNKNOWN,
            "the log ends before a communicator is set up",
            how="the rest of the log, with NCCL_DEBUG=INFO",
            check="log",
        )
    kinds = sorted({t.split("/")[0] + ("/" + t.split("/")[1] if t.startswith("NET") else "") for t in log.transports})
    text = "communicators were set up and nothing failed" + (f"; transports: {', '.join(kinds)}" if kinds else "")
    return Finding(Status.PASS, text, evidence={"transports": dict(log.transports)} if log.transports else {}, check="log")
