"""`preflight --plan` tells beforehand what a preflight then runs."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from netdoctor.allreduce import choice, plan
from netdoctor.cli import main, plan as command
from netdoctor.facts.registry import of
from netdoctor.facts.runs import Caller, State
from netdoctor.model import Unavailable
from tests.lab import fixtures

RAN = [slug for slug in fixtures.slugs() if getattr(fixtures.snapshot(slug).runs.get("Baseline"), "run", None)]


@pytest.mark.parametrize("slug", RAN)
def test_what_is_foreseen_is_what_ran(slug: str) -> None:
    """From the recorded answers alone, against the runs that were recorded with them."""
    taken = fixtures.snapshot(slug)
    have = fixtures.facts_of(taken)
    ran = have["Baseline"].run
    if ran.state is State.NOT_STARTED:
        pytest.skip("nothing ran there")
    libraries, gpus = (of(have, name) for name in choice.NEEDS)
    library = choice.library(ran.via, libraries, gpus) if ran.via is Caller.NCCL else None
    answered = choice.foreseen(libraries, gpus, library if isinstance(library, str) else None)
    assert not isinstance(answered, Unavailable)
    assert plan.first_experiment(answered, of(have, "Intent")) == ran.experiment
    over = plan.over_the_path(answered, have)
    made = have["PathRun"].runs
    assert isinstance(over, Unavailable) == isinstance(made, Unavailable)
    if not isinstance(over, Unavailable):
        assert list(over) == [one.experiment for one in made]


def test_there_are_runs_to_foresee() -> None:
    assert len(RAN) >= 10


def planned(*arguments: str, **env: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main.app, ["preflight", "--plan", *arguments], env=env, catch_exceptions=False)
    return done.exit_code, re.sub(r"\s+", " ", done.stdout), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--no-allreduce",), "no all-reduce: --no-allreduce"),
        (("--profile", "prolog"), "no all-reduce: profile prolog runs nothing"),
        (("--only", "net.port_range"), "no all-reduce: no check that was asked for needs one"),
        (("--python", "/bin/true"), "no all-reduce: "),
    ],
)
def test_no_run_is_said_with_its_reason(arguments: tuple[str, ...], says: str) -> None:
    code, out, _ = planned(*arguments)
    assert code == 0 and says in out and out.startswith("What this preflight would do here; nothing of it was run: 1. look at")
    assert re.search(r"\d\. about 2 s on a healthy node $", out)


@pytest.mark.parametrize("arguments", [("-f", "json"), ("-o", "x.json"), ("--brief",)])
def test_a_plan_is_no_report(arguments: tuple[str, ...]) -> None:
    code, out, err = planned(*arguments)
    assert (code, out) == (2, "") and "--plan" in err


@pytest.mark.parametrize(("seconds", "text"), [(2, "2 s"), (60, "1 min"), (400, "6 min 40 s"), (59.7, "1 min")])
def test_times_read_well(seconds: float, text: str) -> None:
    assert command._time(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(512, "512 B"), (4096, "4 KiB"), (1 << 28, "256 MiB"), (1 << 30, "1 GiB")])
def test_sizes_read_well(size: int, text: str) -> None:
    assert command._size(size) == text
