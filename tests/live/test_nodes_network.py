"""A few rows of the network part of the fault lab (all: python -m tests.lab hosts): what the nodes see when they meet."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from tests.lab import hosts
from tests.lab.hosts_rows import ROWS

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hosts in namespaces"),
]
FEW = (
    "a firewall drops what a host dials, but for the meeting's port",
    "a switch port drops what is above 1500, and the hosts have 9000: seen before anything runs",
    "an address of another host as a second one",
    "two versions of netdoctor",
)


@pytest.mark.parametrize("fault", FEW)
def test_the_host_at_fault_is_named(fault: str) -> None:
    row = next(row for row in ROWS if row.fault == fault)
    if missing := [name for name in row.needs if not shutil.which(name)]:
        pytest.skip(f"there is no {', '.join(missing)}")
    outcome = hosts.one(row, HEALTHY, time.monotonic())
    assert (outcome.missing, outcome.disturbed) == ((), ())


HEALTHY: dict[object, dict[int, hosts.Report]] = {}  # what healthy hosts say, of the first test
