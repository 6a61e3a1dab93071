"""Evidence taken away, piece by piece: no finding becomes pass or skip, none disappears, no fail becomes anything but unknown.

Per fact in `make test` (tests/unit/test_ignorance.py), per recorded answer here.  Where absence is evidence, the table
in `tests/lab/absence.py` says so; only an answer that is absent, of a question that is named there, may do more than lose.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import time
from collections.abc import Iterable, Iterator
from multiprocessing.pool import Pool
from typing import Any, Final

from netdoctor import engine, policy
from netdoctor.api import CheckSpec
from netdoctor.facts import presence, registry
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.model import Unavailable
from netdoctor.plugins import needs
from netdoctor.snapshot.snapshot import Snapshot
from tests.lab import faults, fixtures
from tests.lab.absence import is_evidence
from tests.lab.oracle import worse

SEED: Final = os.environ.get("SEED", "1")
ANSWERS: Final = "60"  # of each faulted machine; 0: all
WHYS: Final = tuple(Unavailable(kind, "taken away") for kind in ("absent", "denied", "timed out", "not recorded"))


def by_fact(have: dict[str, Any], check: str | None = None, whys: Iterable[Unavailable] = WHYS) -> Iterator[str]:
    """What breaks when one fact is missing: ``CHECK without FACT (KIND): …``; of one check or all."""
    specs = [spec for spec in fixtures.specs() if check in (None, spec.id)]
    before, required = {spec.id: engine.judge(spec, have) for spec in specs}, _required(have)
    for fact in have:
        for why in whys:
            lost = have | {fact: why}
            for spec in specs:
                if any(need.type.__name__ == fact for need in needs(spec)):
                    for bad in worse(before[spec.id], engine.judge(spec, lost)):
                        yield f"{spec.id} without {fact} ({why.kind}): {bad}"
            for bad in _excused(required, lost):
                yield f"without {fact} ({why.kind}): {bad}"


def by_answer(slug: str, questions: tuple[str, ...] | None = None) -> list[str]:
    """What breaks when one answer is missing: ``SLUG CHECK without QUESTION (KIND): …``."""
    taken = fixtures.snapshot(slug)
    return _without(slug, taken, taken.answers if questions is None else questions, fixtures.specs())


def by_fault(number: int, limit: int | None = None) -> tuple[list[str], int, int]:
    """The same of a faulted machine: every fact, and of the answers that count `limit` drawn by seed (None: all).

    Those count that a check may use which the fault reaches, by a fact that it changes: everything else is as on the healthy
    machine.  What breaks, how many answers were taken away, and how many count.
    """
    fault = faults.every()[number]
    taken, healthy = fault.after(), fixtures.facts_of(fault.before())
    have, asked = _facts_and_questions(taken)
    specs = tuple(s for s in fixtures.specs() if any(have.get(n) != healthy.get(n) for n in _needed(s)))
    questions = sorted({q for spec in specs for fact in _needed(spec) for q in asked.get(fact, ())} & taken.answers.keys())
    chosen = questions
    if limit is not None and limit < len(questions):
        chosen = random.Random(f"{SEED} {fault.name}").sample(questions, limit)
    found = [f"{fault.name}: {line}" for line in by_fact(have)]
    return [*found, *_without(fault.name, taken, chosen, specs)], len(chosen), len(questions)


def _required(have: dict[str, Any]) -> frozenset[str]:
    return policy.required("gate", presence.seen(have))


def _excused(required: frozenset[str], lost: dict[str, Any]) -> list[str]:
    """What a profile no longer requires of a machine of which less is known: its verdict could only be better."""
    return [f"{name} is not required" for name in sorted(required - _required(lost))]


def _needed(spec: CheckSpec) -> frozenset[str]:
    """The facts that a check is made from, at first or second hand."""
    own = [need.type.__name__ for need in needs(spec)]
    return frozenset(own).union(registry.closure(own))


def _without(name: str, taken: Snapshot, questions: Iterable[str], specs: Iterable[CheckSpec]) -> list[str]:
    """Only what an answer reaches is made again: the facts whose probes asked it, and the checks that need one that changed."""
    have, asked = _facts_and_questions(taken)
    before, required = {spec.id: engine.judge(spec, have) for spec in specs}, _required(have)
    out = []
    for question in questions:
        answer = taken.answers[question]
        touched = tuple(fact for fact, those in asked.items() if question in those)
        for why in WHYS:
            if isinstance(answer, Unavailable) and answer.kind == why.kind:
                continue
            if why.kind == "absent" and is_evidence(question):
                continue
            lost = _again(have, touched, fixtures.without(taken, question, why))
            out += [f"{name} without {question} ({why.kind}): {x}" for x in _excused(required, lost)]
            for spec in specs:
                if any(lost[n.type.__name__] != have[n.type.__name__] for n in needs(spec)):
                    after = engine.judge(spec, lost)
                    out += [f"{name} {spec.id} without {question} ({why.kind}): {x}" for x in worse(before[spec.id], after)]
    return out


def _facts_and_questions(taken: Snapshot) -> tuple[dict[str, Any], dict[str, frozenset[str]]]:
    """All facts, and what the probe of each asked."""
    have: dict[str, Any] = dict(taken.runs)
    asked: dict[str, frozenset[str]] = {}
    for name in registry.closure(engine.wanted(fixtures.specs())):
        host = RecordingHost(ReplayHost(taken.answers))
        have[name] = registry.make(host, name, have)
        asked[name] = frozenset(host.answers)
    return have, asked


def _again(have: dict[str, Any], names: tuple[str, ...], taken: Snapshot) -> dict[str, Any]:
    """`have` with these facts, and those made from them, made again."""
    lost, host, changed = dict(have), ReplayHost(taken.answers), set(names)
    for name, source in registry.SOURCES.items():
        if name in lost and (name in changed or changed & set(source.after)):
            lost[name] = registry.make(host, name, lost)
            changed.add(name)
    return lost


def main() -> int:
    """Every machine, every answer; then every fault, every fact, and answers drawn by seed; on all CPUs."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        return max(_machines(pool), _faulted(pool))


def _machines(pool: Pool) -> int:
    begin = time.monotonic()
    work = []
    for slug in fixtures.slugs():
        asked = tuple(fixtures.snapshot(slug).answers)
        work += [(slug, asked[n : n + 40]) for n in range(0, len(asked), 40)]
    found = [line for part in pool.starmap(by_answer, work) for line in part]
    found += [f"{slug} {line}" for slug in fixtures.slugs() for line in by_fact(fixtures.facts_of(fixtures.snapshot(slug)))]
    for line in found:
        print(line)
    answers = sum(len(asked) for _, asked in work)
    print(
        f"ignorance: {answers} answers of {len(fixtures.slugs())} machines, {len(WHYS)} ways each, "
        f"{len(found)} broken promises, {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    return 1 if found else 0


def _faulted(pool: Pool) -> int:
    begin, limit = time.monotonic(), int(os.environ.get("ANSWERS", ANSWERS)) or None
    done = []
    for one in pool.imap_unordered(functools.partial(by_fault, limit=limit), range(len(faults.every()))):
        done.append(one)
        for line in one[0]:
            print(line, flush=True)
    found = [line for lines, _, _ in done for line in lines]
    print(
        f"ignorance: {sum(n for _, n, _ in done)} of {sum(n for _, _, n in done)} answers of {len(done)} faulted machines "
        f"(seed {SEED}), {len(WHYS)} ways each, and every fact: {len(found)} broken promises, "
        f"{time.monotonic() - begin:.0f} s",
        flush=True,
    )
    return 1 if found else 0
