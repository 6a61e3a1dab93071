"""From hypotheses to findings: one a cause, the likeliest first, with the lines that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from netdoctor.causes import CAUSES
from netdoctor.causes.cost import MIGHT, STOPS
from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import (
    final,
    frameworks,
    gpu,
    network,
    program,
    ranks,
    rdma,
    registration,
    rendezvous,
    settings,
    sockets,
    software,
    spoken,
    surroundings,
    termination,
    told,
    waiting,
    xids,
)
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, Rule, author, everyone
from netdoctor.nccl.diagnosis.job import no_log, not_told, went
from netdoctor.nccl.diagnosis.kinds import Role, kind
from netdoctor.nccl.diagnosis.mends import amd, in_amds_words, mend
from netdoctor.nccl.diagnosis.outcome import Ending, Outcome, closed, follows, leaving, origin, outcome
from netdoctor.nccl.diagnosis.victims import without_victims
from netdoctor.nccl.diagnosis.went_on import After, after, before, order
from netdoctor.nccl.log.facts import Event, Level, LogFacts

RULES: Final[tuple[Rule, ...]] = (
    *(
        *gpu.RULES,
        *xids.RULES,
        *sockets.RULES,
        *rendezvous.RULES,
        *registration.RULES,
        *rdma.RULES,
        *network.RULES,
        *software.RULES,
        *ranks.RULES,
        *program.RULES,
    ),
    *(*frameworks.RULES, *surroundings.RULES, *spoken.RULES, *told.RULES, *final.RULES),
    *(*settings.RULES, *termination.RULES, *waiting.RULES),
)
_LINES: Final = 6  # lines of evidence a finding
_MAX: Final = 6  # findings that fail


def diagnose(log: LogFacts) -> tuple[Finding, ...]:
    """The findings of a log: fails (likeliest first), and how the job went: a pass, or what the log cannot tell."""
    first, *others = (no_log(),) if log.documents and len(log.documents) == len(log.files) else _findings(log)
    if log.runs > 1:
        note = f"a file holds the output of {log.runs} jobs or more, one after the other: this is of the last of them"
        first = replace(first, notes=(*first.notes, note, *_earlier(log)))
    return (first, *others)


def _earlier(log: LogFacts) -> Iterator[str]:
    """How the jobs before the last one of a file went."""
    firsts = (_findings(replace(run, written=False))[0] for run in log.earlier)
    for (status, message), times in Counter((f.status, f.message) for f in firsts).items():
        who = "an earlier one" if times == 1 else f"{times} earlier ones"
        ended = {Status.FAIL: " failed", Status.PASS: " went well"}.get(status, "")
        yield f"{who}{ended}: {message[:200]}"


def _findings(log: LogFacts) -> tuple[Finding, ...]:
    end = outcome(log)
    hypotheses = _story(log, end, (hypothesis for rule in RULES for hypothesis in rule(log)))
    explained = [h for h in hypotheses if not h.quiet]
    job = went(log, end, explained=bool(explained))
    if not hypotheses:
        return (job,)
    if end.ending is Ending.FINISHED:
        hypotheses = [_survived(h, end) for h in hypotheses]
    top = hypotheses[0]
    if not top.quiet and (end.ending is Ending.FAILED or _stood_still(log, end, top)):
        why = top.why or (None if CAUSES[top.cause].loss == STOPS else "the job ends with it")
        top = hypotheses[0] = replace(top, loss=STOPS, why=why)  # whoever's fault it is: the job did not do its work
    # A consequence is worth a finding of its own only where no cause is known.
    least = Confidence.EFFECT_MINUS if top.confidence <= Confidence.EFFECT_PLUS else Confidence.QUIET_MINUS
    fails = tuple(_finding(h, top, log) for h in [h for h in hypotheses if h.confidence >= least][:_MAX])
    # What costs speed explains no failure, and no trouble.
    stops = any(f.loss is not None and f.loss.severity is STOPS.severity for f in fails)
    if end.ending is Ending.ENDED and not stops:
        return (*fails, went(log, end, explained=False))  # what it lacked is known, not that it would have done its work
    open_question = job.status is not Status.PASS and (end.ending is Ending.FAILED or "lines" in job.evidence)
    if not open_question and _breaks_off(log, end, top) and not stops:
        return (*fails, not_told(end))  # else exit 0 would call a job well that nobody has seen go on
    return (*fails, job) if open_question else fails


def _survived(h: Hypothesis, end: Outcome) -> Hypothesis:
    """What came before a good end has stopped nothing, unless it is the result that is wrong."""
    loss = h.loss or CAUSES[h.cause].loss
    if (
        h.cause == "wrong_data"
        or closed(end)
        or not (h.events and end.events and all(before(e, end.events[-1]) for e in h.events))
    ):
        return h
    return replace(h, loss=min(loss, MIGHT, key=lambda one: one.severity.rank))


def _breaks_off(log: LogFacts, end: Outcome, h: Hypothesis) -> bool:
    """Whether a log without an end shows no work after what may have ended a rank, or kept it waiting."""
    ending = [e for e in h.events if kind(e.kind).role is not Role.OTHER or kind(e.kind).how or kind(e.kind).trouble]
    return end.ending is Ending.OPEN and bool(ending) and all(log.reached.get(e.file, 0) < e.last for e in ending)


def _stood_still(log: LogFacts, end: Outcome, h: Hypothesis) -> bool:
    """Whether a job whose end is not in the log stopped at these lines: warnings of NCCL's after which no work follows."""
    refused = [e for e in h.events if e.level is Level.WARN]
    return (
        end.ending is Ending.OPEN
        and h.confidence >= Confidence.LIKELY_MINUS
        and bool(refused)
        and all(log.reached.get(e.file, 0) < e.line for e in refused)
    )


def _story(log: LogFacts, end: Outcome, hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """One story: what was overcome is left out, what follows from the first fault counts as its effect, and of a job that
    failed what only costs speed comes last."""
    first = origin(log)
    ordered = end.ending is Ending.ENDED
    kept = []
    for h in hypotheses:
        if h.events and all(after(log, e) is not After.STOPPED for e in h.events):
            continue  # `job` says what nobody can tell
        if h.events and all(leaving(end, e) for e in h.events):
            continue
        if follows(first, h.events):
            if ordered:
                continue
            h = replace(h, confidence=min(h.confidence, Confidence.EFFECT))
        kept.append(h)
    best = _merged(kept)
    if end.ending is Ending.FAILED:
        best.sort(key=lambda h: h.quiet)
    return without_victims(best) if best else []


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
    return sorted(best.values(), key=lambda h: (-h.confidence, min((order(e) for e in h.events), default=("~", "", 0))))


def _union(a: tuple[Event, ...], b: tuple[Event, ...]) -> tuple[Event, ...]:
    return tuple({id(e): e for e in (*a, *b)}.values())


def _finding(hypothesis: Hypothesis, top: Hypothesis, log: LogFacts) -> Finding:
    cause = CAUSES[hypothesis.cause]
    events = sorted(hypothesis.events, key=order)
    evidence: dict[str, Any] = {
        "confidence": hypothesis.confidence.word,
        "lines": [
            f"{e.where}: {e.text[:300]}" + (f" (and {e.count - 1} more like it)" if e.count > 1 else "")
            for e in _spread(events)
        ],
    }
    if hypothesis.fault:
        evidence["fault"] = hypothesis.fault.value
    if hypothesis.shown:
        evidence["shown"] = list(hypothesis.shown)
    if events:
        evidence |= _origin(events)
    if hypothesis is not top:
        evidence["alternative"] = True
    look = hypothesis.how or (f"netdoctor preflight --only {','.join(cause.look)}" if cause.look else None)
    if hypothesis.how and cause.look:
        look = f"{hypothesis.how}; netdoctor preflight --only {','.join(cause.look)}"
    loss = hypothesis.loss or cause.loss
    if hypothesis is not top:  # another reading of what the first finding shows is no worse than it
        loss = min(loss, top.loss or CAUSES[top.cause].loss, key=lambda one: one.severity.rank)
    return Finding(
        Status.FAIL,
        in_amds_words(hypothesis.message) if amd(log) else hypothesis.message,
        hypothesis.subject or everyone(log, hypothesis.events) or (author(events) if events else "job"),
        cause=hypothesis.cause,
        evidence=evidence,
        loss=loss,
        how=in_amds_words(look) if look and amd(log) else look,
        why=hypothesis.why or cause.costs,
        notes=hypothesis.notes,
        fix=mend(hypothesis.fix, log, hypothesis.events),
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
