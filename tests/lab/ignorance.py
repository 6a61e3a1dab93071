"""Evidence taken away, piece by piece: no finding becomes pass or skip, none disappears, no fail becomes anything but unknown.

Per fact in `make check` (tests/unit/test_ignorance.py), per recorded answer here.  Where absence is evidence, netdoctor says so
in `netdoctor/absence.py`; only an answer that is absent, of a question that is named there, may do more than lose.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from netdoctor import engine, facts
from netdoctor.absence import is_evidence
from netdoctor.host import RecordingHost, ReplayHost
from netdoctor.model import Unavailable
from netdoctor.plugins import needs
from netdoctor.snapshot import Snapshot
from tests.lab import fixtures
from tests.lab.oracle import worse

WHYS: Final = tuple(Unavailable(kind, "taken away") for kind in ("absent", "denied", "timed out", "not recorded"))


def by_fact(have: dict[str, Any], check: str | None = None) -> Iterator[str]:
    """What breaks when one fact is missing: ``CHECK without FACT (KIND): …``; of one check or all."""
    specs = [spec for spec in fixtures.specs() if check in (None, spec.id)]
    before = {spec.id: engine.judge(spec, have) for spec in specs}
    for fact in have:
        for why in WHYS:
            lost = have | {fact: why}
            for spec in specs:
                if any(need.type.__name__ == fact for need in needs(spec)):
                    for bad in worse(before[spec.id], engine.judge(spec, lost)):
                        yield f"{spec.id} without {fact} ({why.kind}): {bad}"


def by_answer(slug: str, questions: tuple[str, ...] | None = None) -> list[str]:
    """What breaks when one answer is missing: ``SLUG CHECK without QUESTION (KIND): …``.

    Only what an answer reaches is made again: the facts whose probes asked it, and the checks that need one that changed.
    """
    taken = fixtures.snapshot(slug)
    have, asked = _facts_and_questions(taken)
    before = fixtures.findings(have)
    out = []
    for question in taken.answers if questions is None else questions:
        answer = taken.answers[question]
        touched = tuple(fact for fact, those in asked.items() if question in those)
        for why in WHYS:
            if isinstance(answer, Unavailable) and answer.kind == why.kind:
                continue
            if why.kind == "absent" and is_evidence(question):
                continue
            lost = _again(have, touched, fixtures.without(taken, question, why))
            for spec in fixtures.specs():
                if any(lost[n.type.__name__] != have[n.type.__name__] for n in needs(spec)):
                    after = engine.judge(spec, lost)
                    out += [f"{slug} {spec.id} without {question} ({why.kind}): {x}" for x in worse(before[spec.id], after)]
    return out


def _facts_and_questions(taken: Snapshot) -> tuple[dict[str, Any], dict[str, frozenset[str]]]:
    """All facts, and what the probe of each asked."""
    have: dict[str, Any] = dict(taken.runs)
    asked: dict[str, frozenset[str]] = {}
    for name in facts.closure(engine.wanted(fixtures.specs())):
        host = RecordingHost(ReplayHost(taken.answers))
        have[name] = facts.make(host, name, have)
        asked[name] = frozenset(host.answers)
    return have, asked


def _again(have: dict[str, Any], names: tuple[str, ...], taken: Snapshot) -> dict[str, Any]:
    """`have` with these facts, and those made from them, made again."""
    lost, host, changed = dict(have), ReplayHost(taken.answers), set(names)
    for name, source in facts.SOURCES.items():
        if name in lost and (name in changed or changed & set(source.after)):
            lost[name] = facts.make(host, name, lost)
            changed.add(name)
    return lost


def main() -> int:
    """Every machine, every answer, on all CPUs."""
    begin = time.monotonic()
    work = []
    for slug in fixtures.slugs():
        asked = tuple(fixtures.snapshot(slug).answers)
        work += [(slug, asked[n : n + 40]) for n in range(0, len(asked), 40)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        found = [line for part in pool.starmap(by_answer, work) for line in part]
    for line in found:
        print(line)
    answers = sum(len(asked) for _, asked in work)
    print(f"ignorance: {answers} answers of {len(fixtures.slugs())} machines, {len(WHYS)} ways each, "
          f"{len(found)} broken promises, {time.monotonic() - begin:.0f} s")  # fmt: skip
    return 1 if found else 0
