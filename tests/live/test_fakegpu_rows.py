"""Live preflights on machines that are not there: every check finds its faults, and healthy machines have none.

Here one fault a check; `make lab` walks all of them, and eight shapes with every NCCL.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.fakegpu import doctor, endtoend, logs, namespace, nodes, shapes
from tests.fakegpu.row import Row
from tests.fakegpu.rows import ROWS
from tests.support.machines import libnccl

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.nccl,
    pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: limits and sysctls of the machine's namespaces"),
]


def first_of_each() -> list[Row]:
    return list({row.check: row for row in reversed(ROWS)}.values())


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


# Jobs that die between two hosts: what the log says of it once led to another cause.
DIAGNOSES = {
    "RoCE meets InfiniBand": "env_misuse",
    "one rank on sockets": "transport_fallback_tcp",
    "GID beyond the table": "roce_gid",
    "no registration of GPU memory": "gdr_disabled",
}


@pytest.mark.parametrize(("name", "old"), [*((name, True) for name in DIAGNOSES), ("GID beyond the table", False)])
def test_what_a_job_between_hosts_died_of(
    name: str, old: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2.32.3 takes another GID for one that is beyond the table, and goes on."""
    monkeypatch.setattr(logs, "FOLDER", tmp_path)
    version = libnccl.both()[0 if old else 1].parts[-5]
    made = logs.make(version, name, "INFO")
    died = [one for one in made if not one.ended]
    goes_on = name == "GID beyond the table" and tuple(map(int, version.split("."))) >= (2, 31)
    assert died == ([] if goes_on else made)
    assert {logs.score(one).named[0] for one in died} <= {DIAGNOSES[name]}
