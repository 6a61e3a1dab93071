"""A rank that is not its node's first waits for that one's verdict, and says so where nobody is there to give it."""

from __future__ import annotations

import os
import uuid

import pytest

from netdoctor.cli import run
from netdoctor.process import signals

GAVE_UP = "netdoctor: this node's local rank 0 did not come within 1 s: no verdict"


@pytest.fixture(autouse=True)
def _task_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell that kept a step's variables, of a step of its own; every wait of this module is over at once."""
    said = {
        "JOB_ID": uuid.uuid4().hex,
        "STEP_ID": "0",
        "PROCID": "3",
        "LOCALID": "3",
        "NTASKS": "8",
        "NNODES": "1",
        "NODEID": "0",
    }
    for name, value in said.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(run, "COME", 1.0)
    monkeypatch.setattr(run, "TOLD", 0.0)
    monkeypatch.setattr(run, "EVERY", 0.0)
    monkeypatch.setattr(signals, "restore", lambda: None)


def test_a_rank_without_a_first_one_says_for_whom_it_waits(capfd: pytest.CaptureFixture[str]) -> None:
    assert run.ask_doctor(quiet=False) == 4
    *others, waits, gave_up = capfd.readouterr().err.splitlines()
    assert len(others) > 1, "it goes on saying so"
    assert waits.startswith("netdoctor: local rank 3 (by slurm) waits for local rank 0 of this node, which is not there; ")
    assert waits.endswith("One process a node is enough: srun --ntasks-per-node=1")
    assert gave_up == GAVE_UP


def test_quiet_leaves_the_waiting_out(capfd: pytest.CaptureFixture[str]) -> None:
    assert run.ask_doctor(quiet=True) == 4
    assert capfd.readouterr().err == f"{GAVE_UP}\n"


@pytest.mark.slow
def test_a_verdict_that_comes_is_not_talked_about(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TOLD", 60.0)
    with run.waited_for(1) as door:
        run.tell_ranks(3, 1, door)
        assert run.ask_doctor(quiet=False) == 3
    assert capfd.readouterr().err == ""
    assert os.environ["SLURM_LOCALID"] == "3"


def test_one_that_looks_for_ever_is_not_waited_for(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOOK", 0.1)
    with run.waited_for(1):
        assert run.ask_doctor(quiet=True) == 4
    assert capfd.readouterr().err == "netdoctor: this node's local rank 0 has looked for more than 0.1 s\n"
