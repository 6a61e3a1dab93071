"""Some rows of the fault lab in every test run: live ones drawn by seed for each check, and the containers that found most.

`make lab` runs them all.  FAULT_SEED draws others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.lab import container_rows, live, live_fleet
from tests.lab.row import RUN, Row
from tests.support.clusters import containers
from tests.support.namespaces.dgx import machine
from tests.support.namespaces.overlay import can_overlay

pytestmark = [pytest.mark.live, pytest.mark.root, pytest.mark.nccl]
SEED = os.environ.get("FAULT_SEED", "4")
# Those that wait for something that hangs, stops or crawls take ten seconds and more.
SLOW = ("hang", "does not resolve", "the ranks stop", "400 Mbit/s", "4 KiB on the loopback", "of one CPU", "slow in every")
HARMLESS = 3
CONTAINERS = (
    "no RDMA device given",
    "denies (EPERM)",
    "another user and group (EACCES)",
    "64 KiB of locked memory",
    "every capability but CAP_IPC_LOCK dropped",
    "root of a user namespace inside",
    "/sys/bus/pci masked",
    "a root file system for reading only, in a run",
    "memory of which the ranks are killed",
    "six processes at most, in a run",
)


def drawn() -> list[Row]:
    """A row for each check, and some of what harms nothing."""
    draw = random.Random(SEED)
    rows = [row for row in live.every() if not any(word in row.fault for word in SLOW)]
    checks = sorted({check for row in rows for check in row.expected})
    taken: dict[str, Row] = {}
    for check in checks:
        own = [row for row in rows if check in row.expected]
        taken |= {row.fault: row for row in draw.sample(own, 1)}
    taken |= {
        row.fault: row for row in draw.sample([row for row in rows if not row.expected and RUN not in row.also], HARMLESS)
    }
    return list(taken.values())


def contained() -> list[Row]:
    rows = live.chosen(container_rows.ROWS, list(CONTAINERS))
    assert len(rows) == len(CONTAINERS)
    return rows


@pytest.fixture(scope="module")
def on_a_machine() -> Iterator[live.Lab]:
    if reason := can_overlay():
        pytest.skip(reason)
    with machine() as place:
        yield live.Lab("live", place)


@pytest.fixture(scope="module")
def in_containers() -> Iterator[live.Lab]:
    with containers.boxes() as place:
        yield live.Lab("container", place)


def judged(outcome: live.Outcome) -> None:
    if outcome.found is None:
        pytest.skip(outcome.why)
    assert outcome.good, str(outcome)


@pytest.mark.parametrize("row", drawn(), ids=lambda row: row.fault)
def test_live(row: Row, on_a_machine: live.Lab) -> None:
    judged(on_a_machine.outcome(row))


@pytest.mark.parametrize("row", random.Random(SEED).sample(live_fleet.FLEET_ROWS, 2), ids=lambda row: row.fault)
def test_what_all_nodes_of_a_fleet_share(row: live_fleet.Row, on_a_machine: live.Lab) -> None:
    assert not live_fleet.missed(row, on_a_machine.place)


@pytest.mark.parametrize("row", contained(), ids=lambda row: row.fault)
def test_in_a_container(row: Row, in_containers: live.Lab) -> None:
    judged(in_containers.outcome(row))
