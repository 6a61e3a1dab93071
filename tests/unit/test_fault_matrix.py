"""Every fault of fixtures/faults on its replayed machine: found, nothing else disturbed; at least five for every check."""

from __future__ import annotations

from collections import Counter

import pytest

from netdoctor import engine
from tests.lab import fixtures, ignorance, matrix
from tests.lab.faults import Fault, every, golden, told


@pytest.mark.parametrize("fault", every(), ids=lambda fault: f"{fault.expect['check']}: {fault.fault}")
def test_it_is_found_and_nothing_else_is_disturbed(fault: Fault) -> None:
    broken = fixtures.facts_of(fault.after())
    spec = next(one for one in fixtures.specs() if one.id == fault.expect["check"])
    assert told(engine.judge(spec, broken)) == golden()[fault.name], "`make golden` writes it again; look at the diff"
    row = matrix.replay(fault, broken)
    assert row["found"], row["expected"]
    assert row["disturbed"] == []
    assert list(ignorance.by_fact(broken, fault.expect["check"])) == [], "what is lost may only make unknown of it"


def test_every_check_has_its_faults() -> None:
    """A check without its rows is not finished."""
    have = Counter(fault.expect["check"] for fault in every())
    assert {spec.id: have[spec.id] for spec in fixtures.specs() if have[spec.id] < 5} == {}


def test_faults_are_told_apart() -> None:
    names = Counter(fault.name for fault in every())
    assert [name for name, count in names.items() if count > 1] == []
    known = {spec.id for spec in fixtures.specs()}
    assert all({fault.expect["check"], *fault.also} <= known for fault in every())


def test_the_matrix_shows_a_miss_and_a_disturbance() -> None:
    row = {
        "fault": "f",
        "way": "replay",
        "expected": {"allreduce.run": "fail"},
        "found": False,
        "disturbed": ["torch.backend: x"],
    }
    shown = matrix.show([row])
    assert "replay: 1 faults: found 0, disturbed 1, not run 0" in shown and "!" in shown and "x" in shown.splitlines()[1]
