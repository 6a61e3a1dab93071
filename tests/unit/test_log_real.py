"""Real logs of jobs with one fault each, made on a real GPU (fixtures/logs): what ended them comes first."""

from __future__ import annotations

import csv
import json
import pathlib

import pytest

from netdoctor.cli import log
from netdoctor.cli.options import Options

FOLDER = pathlib.Path(__file__).parents[2] / "fixtures" / "logs" / "h200-torchrun"
with (FOLDER / "truth.tsv").open(encoding="utf-8", newline="") as file:
    TRUTH = list(csv.DictReader(file, delimiter="\t"))


def test_every_log_has_its_truth() -> None:
    assert {row["log"] for row in TRUTH} == {path.stem for path in FOLDER.glob("*.log")}


@pytest.mark.parametrize("row", TRUTH, ids=lambda row: row["log"])
def test_what_ended_it_comes_first(row: dict[str, str], capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    code = log.run(Options(format="json"), [str(FOLDER / f"{row['log']}.log")])
    report = json.loads(capsysbinary.readouterr().out)
    findings = [(f["status"], f["cause"], f["message"]) for check in report["checks"] for f in check["findings"]]
    fails = [cause for status, cause, _ in findings if status == "fail"]
    assert (code, fails[0] if fails else "-") == (int(row["exit"]), row["cause"]), findings
    assert row["words"] in findings[0][2], findings
