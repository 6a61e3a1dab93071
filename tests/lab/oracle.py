"""What may happen to findings when evidence is lost, and when one thing is broken: nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from netdoctor.model import Finding, Status


def worse(before: Iterable[Finding], after: Iterable[Finding]) -> list[str]:
    """How `after`, made from less evidence, breaks the promise; [] where it keeps it.

    Per subject no status may appear but unknown, and what is gone must have left an unknown that was not there before: its
    own, or one that speaks for the whole check.
    """
    before, after = tuple(before), tuple(after)
    had, have = _by_subject(before), _by_subject(after)
    broken = []
    for subject, statuses in have.items():
        known = had.get(subject, Counter())
        broken += [f"{subject}: {status.value} appears" for status in statuses - known if status is not Status.UNKNOWN]
    said = {(f.subject, f.message) for f in before}
    new = {f.subject for f in after if f.status is Status.UNKNOWN and (f.subject, f.message) not in said}
    for subject, statuses in had.items():
        gone = statuses - have.get(subject, Counter())
        if gone and not new:
            broken += [f"{subject}: {status.value} is gone without a word" for status in gone]
    return broken


def _by_subject(findings: Iterable[Finding]) -> dict[str, Counter[Status]]:
    out: dict[str, Counter[Status]] = {}
    for finding in findings:
        out.setdefault(finding.subject, Counter())[finding.status] += 1
    return out
