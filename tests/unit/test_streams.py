"""Standard streams that are closed, full, or left by their reader: each way once; every command is in tests/live."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live import test_streams as every
from tests.support.sources import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("command", "code", "where"), [("list", 1, ">/dev/full"), ("log /dev/null", 1, ">&-")])
def test_an_output_that_does_not_get_out(command: str, code: int, where: str) -> None:
    every.test_an_output_that_does_not_get_out(command, code, where)


def test_a_stderr_that_takes_nothing_ends_nothing() -> None:
    every.test_a_stderr_that_takes_nothing_ends_nothing("diagnose /nowhere/x.json", 2, "")


def test_a_reader_who_goes_away() -> None:
    every.test_a_reader_who_goes_away("list")


@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_a_slow_reader_behind_a_stream_that_does_not_wait(which: str) -> None:
    """O_NONBLOCK is of the description that others share (ssh, an event loop): the report is whole all the same."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    words = ["schema", "report"] if which == "stdout" else ["preflight", "--only", ",".join(["x" * 4000] * 8)]
    with theirs:
        process = subprocess.Popen([sys.executable, "-m", "netdoctor", *words], cwd=ROOT, **{which: theirs})  # type: ignore[call-overload]
        time.sleep(1.0)
    with ours, ours.makefile("rb") as stream:
        said = stream.read()
    assert process.wait(timeout=60) == (0 if which == "stdout" else 2)
    assert len(json.loads(said)) > 4 if which == "stdout" else b"Traceback" not in said and len(said) > 4000


def test_no_stdin() -> None:
    every.test_no_stdin()


def test_progress_does_not_enter_the_report_without_stderr() -> None:
    every.test_progress_does_not_enter_the_report_without_stderr()


def test_a_wrong_command_is_said_before_anything_is_looked_at() -> None:
    every.test_a_wrong_command_is_said_before_anything_is_looked_at("--host-root /nonexistent", "no such directory")


def test_a_snapshot_that_is_too_deep(tmp_path: Path) -> None:
    every.test_a_snapshot_that_is_too_deep(tmp_path, "[" * 100_000)


def test_variables_that_are_no_text() -> None:
    every.test_variables_that_are_no_text("text")


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    every.test_a_working_directory_that_is_gone(tmp_path)
