"""What libraries, launchers, daemons and the kernel say in plain words: each is known, and harmless where the job went on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.told import MEANS
from netdoctor.nccl.log.parser import parse_text
from netdoctor.nccl.log.told_patterns import PATTERNS

ROWS = [
    line.split(" | ", 3)
    for line in (Path(__file__).parent / "data" / "log_told.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
WORK = "".join(f"step {n}/100 loss 2.{n}\n" for n in range(1, 101))
DONE = "Training completed in 2:12:01\n"


def findings(text: str) -> tuple[Finding, ...]:
    return diagnose(replace(parse_text(text), written=False))


@pytest.mark.parametrize(("group", "cause", "words", "log"), [pytest.param(*row, id=row[0]) for row in ROWS])
def test_what_is_told_is_known(group: str, cause: str, words: str, log: str) -> None:
    text = log.replace("\\n", "\n") + "\n"
    assert any(group in e.data for e in parse_text(text).of("told", "told_node"))
    first = findings(text)[0]
    assert (first.status, first.cause) == (Status.FAIL, cause)
    assert words in first.message


@pytest.mark.parametrize("log", [pytest.param(row[3], id=row[0]) for row in ROWS])
def test_what_is_told_and_overcome_is_no_fault(log: str) -> None:
    text = log.replace("\\n", "\n") + "\n"
    assert Status.FAIL not in {f.status for f in findings(text + WORK + DONE)}


def test_each_group_has_a_meaning_and_an_example() -> None:
    groups = {name for p in PATTERNS if p.kind in {"told", "told_node"} for name in p.regex.groupindex} - {"host"}
    assert groups == MEANS.keys() == {row[0] for row in ROWS}


def test_what_a_node_says_behind_the_end_is_no_fault_of_the_job() -> None:
    assert Status.FAIL not in {f.status for f in findings(WORK + DONE + "[8.1] mlx5_core 0000:81:00.0 ens1: Link down\n")}
