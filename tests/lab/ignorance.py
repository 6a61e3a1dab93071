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

from netdoctor import engine
from netdoctor.absence import is_evidence
from netdoctor.model import Unavailable
from netdoctor.plugins import needs
from tests.lab import fixtures
from tests.lab.oracle import worse

WHYS: Final = tuple(Unavailable(kind, "taken away") for kind in ("absent", "denied", "timed out", "not recorded"))


def by_fact(have: dict[str, Any]) -> Iterator[str]:
    """What breaks when one fact is missing: ``CHECK without FACT (KIND): …``."""
    before = fixtures.findings(have)
    for fact in have:
        for why in WHYS:
            lost = have | {fact: why}
            for spec in fixtures.specs():
                if any(need.type.__name__ == fact for need in needs(spec)):
                    for bad in worse(before[spec.id], engine.judge(spec, lost)):
                        yield f"{spec.id} without {fact} ({why.kind}): {bad}"


def by_answer(slug: str, questions: tuple[str, ...] | None = None) -> list[str]:
    """What breaks when one answer is missing: ``SLUG CHECK without QUESTION (KIND): …``."""
    taken = fixtures.snapshot(slug)
    before = fixtures.findings(fixtures.facts_of(taken))
    out = []
    for question, answer in taken.answers.items():
        if questions is not None and question not in questions:
            continue
        for why in WHYS:
            if isinstance(answer, Unavailable) and answer.kind == why.kind:
                continue
            if why.kind == "absent" and is_evidence(question):
                continue
            after = fixtures.findings(fixtures.facts_of(fixtures.without(taken, question, why)))
            out += [
                f"{slug} {check} without {question} ({why.kind}): {bad}"
                for check, found in before.items()
                for bad in worse(found, after[check])
            ]
    return out


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
