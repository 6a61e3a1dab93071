"""Nodes that nobody here has: built otherwise by design, each healthy, and what is wrong with some of them is found.

A row of data/strange_nodes.yaml changes a machine of fixtures/hosts, as Composed takes it; its faults change
it once more, and name the check that must fail and the subject that it must name.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from netdoctor.model import Status
from tests.lab import fixtures
from tests.support.machines import composed
from tests.support.sources import table

pytestmark = pytest.mark.slow

ROWS: list[dict[str, Any]] = table(pathlib.Path(__file__).parent / "data" / "strange_nodes.yaml")


def faults() -> Iterator[Any]:
    for row in ROWS:
        for fault in row.get("faults", ()):
            yield pytest.param(row, fault, id=f"{row['node']}: {fault['fault']}")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["node"]))
def test_a_node_built_otherwise_is_healthy(row: dict[str, Any]) -> None:
    report = fixtures.report(composed.Composed(row["machine"], row["change"], row["config"]).snapshot())
    assert [f"{one.check} {one.subject}: {one.message}" for one in report.findings(Status.FAIL, Status.ERROR)] == []
    assert report.verdict.exit_code == 0, report.verdict.text


@pytest.mark.parametrize(("row", "fault"), list(faults()))
def test_what_is_wrong_with_it_is_found(row: dict[str, Any], fault: dict[str, Any]) -> None:
    changed = composed.Composed(row["machine"], {**row["change"], **fault["change"]}, row["config"])
    found = [(one.check, one.subject) for one in fixtures.report(changed.snapshot()).findings(Status.FAIL)]
    assert (fault["check"], fault["subject"]) in found


def test_there_are_enough() -> None:
    assert len(ROWS) >= 40 and len(list(faults())) >= 25
