"""Recorded and composed machines: zero fails on healthy ones, goldens, and nothing of the recorder in them."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import socket

import pytest

from netdoctor.model import Status
from netdoctor.snapshot import dumps
from tests.lab import fixtures
from tests.support.composed import HOSTS

SLUGS = fixtures.slugs()


def test_there_are_enough() -> None:
    assert len(SLUGS) >= 10 and set(HOSTS) <= set(SLUGS)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_healthy_machine_has_no_fail_of_any_severity(slug: str) -> None:
    report = fixtures.report(fixtures.snapshot(slug))
    assert not report.findings(Status.FAIL, Status.ERROR)
    assert report.verdict.exit_code == (HOSTS[slug]().exit_code if slug in HOSTS else 0)


@pytest.mark.parametrize("slug", SLUGS)
def test_the_report_is_the_golden_one(slug: str) -> None:
    """`make golden` writes them again; look at the diff."""
    golden = json.loads((fixtures.HOSTS / slug / "report.json").read_text(encoding="utf-8"))
    assert fixtures.stable(fixtures.snapshot(slug)) == golden


@pytest.mark.parametrize("slug", HOSTS)
def test_the_builder_gives_what_is_committed(slug: str) -> None:
    """`python -m tests.lab compose` writes them again, with every question that the probes ask now."""
    assert (fixtures.HOSTS / slug / "snapshot.json").read_text(encoding="utf-8") == dumps(HOSTS[slug]().snapshot())


@pytest.mark.parametrize("slug", SLUGS)
def test_where_it_comes_from_is_said(slug: str) -> None:
    said = (fixtures.HOSTS / slug / "PROVENANCE.md").read_text(encoding="utf-8")
    assert said.startswith(f"# {slug}\n") and ("Composed" in said or "Recorded" in said)


def test_nothing_of_the_recorder_is_in_any_file() -> None:
    """Paths, user, host name of whoever runs this; on the machine where a recording was made this is the test that bites."""
    here = {str(fixtures.ROOT), str(pathlib.Path.home()), socket.gethostname(), pwd.getpwuid(os.getuid()).pw_name}
    telling = {word for word in here if len(word) > 3 and word not in ("/root", "root", "localhost")}
    for path in fixtures.HOSTS.glob("*/*"):
        content = path.read_text(encoding="utf-8")
        assert not [word for word in telling if word in content], path
