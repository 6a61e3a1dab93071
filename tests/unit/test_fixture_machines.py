"""Recorded and composed machines: zero fails on healthy ones, and goldens.  Who recorded them: test_fixture_traces.py."""

from __future__ import annotations

import json

import pytest

from netdoctor.model import Status
from netdoctor.snapshot.snapshot import dumps
from tests.fakegpu import record
from tests.lab import fixtures
from tests.support.machines import composed

SLUGS = fixtures.slugs()


def test_there_are_enough() -> None:
    assert len(SLUGS) >= 10 and set(composed.NAMES) <= set(SLUGS)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_healthy_machine_has_no_fail_of_any_severity(slug: str) -> None:
    """One that was recorded with a fault has the fails of that fault."""
    golden = json.loads((fixtures.HOSTS / slug / "report.json").read_text(encoding="utf-8"))  # what it says now: below
    bad = (Status.FAIL, Status.ERROR)
    found = {(check["id"], one["subject"]) for check in golden["checks"] for one in check["findings"] if one["status"] in bad}
    taken = record.RECORDINGS.get(slug)
    assert found == (taken.fails if taken else set())
    own = composed.read(slug) if slug in composed.NAMES else taken
    assert golden["verdict"]["exit_code"] == (own.exit_code if own else 0)


@pytest.mark.parametrize("slug", record.RECORDINGS)
def test_what_a_fake_driver_answered_is_said_to_be_that(slug: str) -> None:
    said = (fixtures.HOSTS / slug / "PROVENANCE.md").read_text(encoding="utf-8")
    assert "a fake driver's answers" in said and f"machine {record.RECORDINGS[slug].machine}" in said


@pytest.mark.parametrize("slug", SLUGS)
def test_the_report_is_the_golden_one(slug: str) -> None:
    """`make golden` writes them again; look at the diff."""
    golden = json.loads((fixtures.HOSTS / slug / "report.json").read_text(encoding="utf-8"))
    assert fixtures.stable(fixtures.snapshot(slug)) == golden


@pytest.mark.slow
@pytest.mark.parametrize("slug", composed.NAMES)
def test_the_description_gives_what_is_committed(slug: str) -> None:
    """`python -m tests.lab compose` writes them again, with every question that the probes ask now."""
    assert (fixtures.HOSTS / slug / "snapshot.json").read_text(encoding="utf-8") == dumps(composed.read(slug).snapshot())


@pytest.mark.parametrize("slug", SLUGS)
def test_where_it_comes_from_is_said(slug: str) -> None:
    said = (fixtures.HOSTS / slug / "PROVENANCE.md").read_text(encoding="utf-8")
    assert said.startswith(f"# {slug}\n") and ("Composed" in said or "Recorded" in said)
