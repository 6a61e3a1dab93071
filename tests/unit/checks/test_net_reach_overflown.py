"""net.reach: the kernel said that its table of neighbours is full."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from tests.support.machines.composed import Composed

NOW = 3551000.0  # the machine's uptime
LINE = "neighbour: arp_cache: neighbor table overflow!"


def said(second: float, line: str = LINE) -> list[tuple[str, Status]]:
    machine = Composed("hgx-h100-roce", config={"job.nodes": 2, "vantage": "job"})
    log = {"source": "/dev/kmsg", "complete": True, "events": [], "system": [[second, line]], "left_out": 0}
    machine.host.answers["ask:kmsg"] = log
    assert not [one for one in machine.judged("node.system") if one.status is Status.FAIL]
    return [(one.subject, one.status) for one in machine.judged("net.reach") if one.subject.startswith("table of")]


def test_a_job_of_two_nodes_meets_it_too() -> None:
    assert said(NOW - 60) == [("table of neighbours", Status.FAIL)]
    assert said(NOW - 60, LINE.replace("arp", "ndisc")) == [("table of IPv6 neighbours", Status.FAIL)]


def test_the_clock_of_the_log_may_be_ahead() -> None:
    assert said(NOW + 400) == [("table of neighbours", Status.FAIL)]


@pytest.mark.parametrize("second", [NOW - 3601, 10.0, NOW + 2000])  # a limit may have been raised since; a container's uptime
def test_what_is_long_ago_may_be_mended(second: float) -> None:
    assert said(second) == []
