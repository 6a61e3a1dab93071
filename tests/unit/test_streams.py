"""Standard streams that are closed, full, or left by their reader: each way once; every command is in tests/live."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import test_streams as every


@pytest.mark.parametrize(("command", "code", "where"), [("list", 1, ">/dev/full"), ("log /dev/null", 1, ">&-")])
def test_an_output_that_does_not_get_out(command: str, code: int, where: str) -> None:
    every.test_an_output_that_does_not_get_out(command, code, where)


def test_a_reader_who_goes_away() -> None:
    every.test_a_reader_who_goes_away("list")


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
