"""Losing a fact never makes a pass, a skip, or silence."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from tests.lab import fixtures, ignorance
from tests.lab.oracle import worse

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("slug", fixtures.slugs())
def test_on_machines_of_answers(slug: str) -> None:
    """In two ways; in all of them: `make lab`."""
    assert list(ignorance.by_fact(fixtures.facts_of(fixtures.snapshot(slug)), whys=ignorance.WHYS[:2])) == []


P, F, S, U = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ([("a", P)], [("a", U)], False),
        ([("a", P)], [("a", P)], False),
        ([("a", P)], [("node", U)], False),
        ([("a", F)], [("a", U)], False),
        ([("a", F)], [("a", F)], False),
        ([("a", P)], [("a", S)], True),
        ([("a", S)], [("a", P)], True),
        ([("a", U)], [("a", P)], True),
        ([("a", F)], [("a", P)], True),
        ([("a", P)], [("a", F)], True),
        ([("a", F)], [], True),
        ([("a", F), ("b", U)], [("b", U)], True),
        ([("a", P)], [("b", P), ("a", U)], True),
    ],
)
def test_the_oracle_itself(before: list[tuple[str, Status]], after: list[tuple[str, Status]], broken: bool) -> None:
    def findings(rows: list[tuple[str, Status]]) -> list[Finding]:
        return [Finding(status, f"{subject} is {status.value}", subject) for subject, status in rows]

    assert bool(worse(findings(before), findings(after))) is broken
