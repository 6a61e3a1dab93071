"""Healthy machines that differ from the recorded ones by what they are for: zero fails on each, and healthy where it says so.

A row of data/healthy_variations.yaml is a variation and the machines of fixtures/hosts (with a machine.yaml) that have it::

    - variation: a job of one GPU
      machines: [dgx-h100, aws-p5]
      change: {"host.environment.CUDA_VISIBLE_DEVICES": "0"}    # as Machine.with_changes takes it
      config: {job.nodes: 1}                                      # the configuration, by dotted keys
      exit: 0                                                     # optional: the verdict's code, where it is another
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

TABLE = pathlib.Path(__file__).parent / "data" / "healthy_variations.yaml"
WRONG = (Status.FAIL, Status.ERROR)


def rows() -> Iterator[Any]:
    for row in table(TABLE):
        for name in row["machines"]:
            yield pytest.param(name, row, id=f"{name}: {row['variation']}")


@pytest.mark.parametrize(("name", "row"), list(rows()))
def test_nothing_is_called_wrong(name: str, row: dict[str, Any]) -> None:
    machine = composed.Composed(name, row.get("change"), row.get("config"))
    report = fixtures.report(machine.snapshot())
    found = [f"{one.check} {one.subject}: {one.message}" for one in report.findings(*WRONG)]
    assert found == []
    open_ones = [f"{one.check} {one.subject}: {one.message}" for one in report.findings(Status.UNKNOWN) if one.blocking]
    assert report.verdict.exit_code == row.get("exit", 0), (report.verdict.text, open_ones)


def test_there_are_enough() -> None:
    assert len(list(rows())) >= 80
    assert {name for row in rows() for name in row.values[:1]} == set(composed.NAMES)
