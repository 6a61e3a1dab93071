"""What netdoctor wrote, given to a command that reads something else: said, and never judged as what it is not."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable

import pytest

from netdoctor.cli import diagnose, env, log, preflight
from netdoctor.cli.options import Options
from netdoctor.config import documents
from netdoctor.process import given
from tests.support.clusters import fleets
from tests.support.sources import ROOT

SNAPSHOT = ROOT / "fixtures/hosts/cpu-node/snapshot.json"


@pytest.fixture
def report(tmp_path: pathlib.Path) -> pathlib.Path:
    """Of a node whose mend names a variable, as `netdoctor env` would read it out of a script."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps({**fleets.report("n1"), "mend": "export NCCL_IB_DISABLE=1"}, indent=2))
    return path


REFUSING: dict[str, Callable[[str], int]] = {
    "env": lambda path: env.run(Options(), [path]),
    "diagnose": lambda path: diagnose.run(Options(), path),
    "log": lambda path: log.run(Options(), [path]),
    "configuration": lambda path: preflight.preflight(Options(config=path)),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", REFUSING)
def test_a_report_is_named_and_who_reads_it(command: str, report: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert REFUSING[command](str(report)) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "report.json" in said.err and "a report of netdoctor: `netdoctor fleet report` reads it" in said.err


@pytest.mark.parametrize("command", [name for name in REFUSING if name != "diagnose"])
def test_a_snapshot_is_named_and_who_reads_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert REFUSING[command](str(SNAPSHOT)) == 2
    said = capsys.readouterr()
    assert not said.out and "a snapshot of netdoctor: `netdoctor diagnose` judges it" in said.err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "export A=1\n",
        '{"kind": "Pod"}',
        '{"schema": "other/1", "by": "netdoctor.report/1"}',
        '{"schema": "netdoctor.report/1"}\nNCCL INFO what the job said after its look\n',
        '{"schema": "netdoctor.report/1", "cut',
        '["netdoctor.report/1"]',
    ],
)
def test_what_is_no_whole_document_of_ours_is_read_as_it_is(text: str) -> None:
    assert documents.ours(text) is None


def test_a_document_of_ours_by_its_schema_wherever_it_stands() -> None:
    assert "fleet report" in str(documents.ours('\ufeff {"a": 1, "schema": "netdoctor.report/9"}'))
    assert documents.ours('{"schema": "netdoctor.env/1"}') == "a document of netdoctor (netdoctor.env/1)"


def test_a_schema_is_printed_without_control_characters() -> None:
    assert "\x08" not in str(documents.ours('{"schema": "netdoctor.s\\bapshot/1"}'))


def test_what_is_no_file_is_not_read_twice(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken out of a pipe is gone, and a log of gigabytes is read once."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rank0.log").write_text("step 1\n")
    monkeypatch.setattr(given, "text", None)
    assert log._no_log(str(tmp_path / "pipe")) is log._no_log(str(tmp_path / "rank0.log")) is None


def test_reports_beside_the_logs_of_a_folder_are_passed_over(
    report: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.log").write_text("step 1\n")
    assert report.parent == tmp_path
    log.run(Options(), [str(tmp_path)])
    assert "\nNCCL version not shown; 1 line, 0 messages of NCCL\n" in capsys.readouterr().out
