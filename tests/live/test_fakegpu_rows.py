"""Live preflights on machines that are not there: every check finds its faults, and healthy machines have none.

Here one fault a check; `make lab` walks all of them, and eight shapes with every NCCL.
"""

from __future__ import annotations

import collections
import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.fakegpu import doctor, endtoend, logs, namespace, nodes, shapes
from tests.fakegpu.rows import ROWS, Row
from tests.lab import fixtures
from tests.support.machines import libnccl

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.nccl,
    pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: limits and sysctls of the machine's namespaces"),
]
# These speak of the kernel alone, or hold a node against a file: live_rows.py and live_expected.py of tests/lab have them live.
NOT_OF_GPUS = {"net.tcp_buffers", "hardware.site", "hardware.past"}
LEAST = 3


def first_of_each() -> list[Row]:
    return list({row.check: row for row in reversed(ROWS)}.values())


def test_every_check_of_gpus_has_three_faults() -> None:
    have = collections.Counter([row.check for row in ROWS] + [nodes.CHECK] * len(nodes.ROWS))
    checks = {spec.id for spec in fixtures.specs()} - NOT_OF_GPUS | {nodes.CHECK}  # which a preflight does not have
    assert {id: have[id] for id in checks if have[id] < LEAST} == {}
    assert set(have) <= checks
    names = [row.fault for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def lab() -> Iterator[endtoend.Lab]:
    with endtoend.Lab() as made:
        yield made


@pytest.mark.parametrize("row", first_of_each(), ids=lambda row: f"{row.check}: {row.fault}")
def test_a_fault_is_found(row: Row, lab: endtoend.Lab) -> None:
    assert not endtoend.missed(row, lab.faulty(row))
    assert not lab.healthy(row).fails


@pytest.mark.parametrize("old", [True, False], ids=["before 2.28", "from 2.28"])
@pytest.mark.parametrize("name", shapes.SLICE)
def test_a_healthy_machine_has_no_fault(name: str, old: bool) -> None:
    version = libnccl.both()[0 if old else 1].parts[-5]
    with doctor.job(version) as python:
        assert shapes.look(version, name, python)["wrong"] == []


def test_nodes(tmp_path: pathlib.Path) -> None:
    row = nodes.ROWS[0]
    assert not nodes.missed(row, nodes.look(row, tmp_path))


@pytest.mark.parametrize("name", logs.SLICE)
def test_a_log_made_to_order_names_its_cause(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FOLDER", tmp_path)
    version = libnccl.both()[0].parts[-5]
    made = logs.make(version, name, "INFO of more")
    assert {one.form for one in made} == {"files", "srun"}
    assert {logs.score(one).verdict for one in made} <= {"named", "nothing"}
    if name == logs.SLICE[0]:
        healthy = logs.make(version, name, "INFO of more", healthy=True)
        assert {logs.score(one).verdict for one in healthy} == {"nothing"}
