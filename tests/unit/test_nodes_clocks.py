"""Clocks: each node's by the kernel's word, and how far apart those of a meeting are."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from netdoctor.cluster import coordinator, messages
from netdoctor.cluster.member import Member, clock_of
from netdoctor.cluster.observations import Nodes, Proof
from netdoctor.facts import clock
from netdoctor.facts.inventory import inventory
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.host.helpers import clock as helper
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from tests.support.facts import cluster
from tests.support.machines import composed
from tests.unit.checks.test_allreduce_nodes import findings

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
KEPT = composed.CLOCK
LIMITS = {"join": 5.0, "place": 5.0, "reach": 5.0, "ready": 5.0, "result": 5.0}


# Between nodes


def every(*clocks: object, **more: Any) -> list[Finding]:
    """What a meeting of nodes that told this of their clocks says of them."""
    parts = {n: {"ranks": 1, "backend": "gloo", "traits": {}, "clock": one} for n, one in enumerate(clocks)}
    made = cluster(len(clocks), ready={n: messages.read_ready(one) for n, one in parts.items()}, **more)
    return [one for one in findings(made) if "clocks" in one.subject]


def told(*clocks: object, **more: Any) -> dict[str, Finding]:
    return {one.subject: one for one in every(*clocks, **more)}


def at(*seconds: float, within: float = 1e-4) -> list[list[float]]:
    return [[one, within] for one in seconds]


@pytest.mark.parametrize(
    "clocks",
    [
        at(0.0, 0.0),
        at(0.0, 0.002, -0.0004),  # NTP over a network
        at(0.0, 0.2, within=0.09),  # may be as near as NTP leaves them
        at(0.0, 299.0, -0.5),
        at(150.0, -149.0, within=0.4),
        [*at(0.0), [2, 0]],  # JSON has no floats of its own
    ],
)
def test_clocks_that_harm_nothing(clocks: list[object]) -> None:
    assert {name: one.status for name, one in told(*clocks).items()} == {"nodes, clocks": PASS}


@pytest.mark.parametrize(("ahead", "notes"), [(0.1, 0), (0.2, 1), (-60.0, 1)])
def test_logs_in_a_wrong_order_are_a_note(ahead: float, notes: int) -> None:
    (found,) = told(*at(0.0, ahead)).values()
    assert (found.status, len(found.notes), found.severity) == (PASS, notes, None)


@pytest.mark.parametrize(
    ("clocks", "subjects"),
    [
        (at(0.0, 301.0), {"nodes, clocks"}),  # of two nobody knows which
        (at(0.0, -86400.0, 0.01), {"h1, clocks"}),  # a day
        (at(0.0, 3600.0, 3600.01, 3600.0), {"h0, clocks"}),  # node 0 itself
        (at(0.0, 0.1, -7200.0, 0.2, 7200.0), {"h2, clocks", "h4, clocks"}),  # two, each another way
        (at(0.0, 0.1, 900.0, 900.1), {"nodes, clocks"}),
        (at(-200.0, 0.0, 200.0), {"nodes, clocks"}),  # a drift of each: none is far from most
        (at(0.0, -1.7e9, 0.0), {"h1, clocks"}),  # 1970
    ],
)
def test_clocks_that_are_apart(clocks: list[list[float]], subjects: set[str]) -> None:
    found = told(*clocks)
    assert {(name, one.status, one.cause) for name, one in found.items()} == {(name, FAIL, "clock") for name in subjects}
    assert {one.severity for one in found.values()} == {Severity.WARNING}
    assert not any(str(round(abs(row[0]))) in one.message for row in clocks[1:] for one in found.values() if row[0] > 301)


def test_slurm_starts_no_step_across_them() -> None:
    """Where the run went, whoever started it goes by something else than MUNGE's usual time to live."""
    slurm = Nodes(2, 0, "h0", 29400, launcher="slurm")
    (went,), (stopped,) = (told(*at(0, 400), nodes=slurm, **more).values() for more in ({}, {"run": None}))
    assert (went.severity, stopped.severity) == (Severity.WARNING, Severity.CRITICAL)
    (other,) = told(*at(0, 400), nodes=replace(slurm, launcher="torchrun"), run=None).values()
    assert other.severity is Severity.WARNING


def test_what_nobody_proved_is_unknown() -> None:
    assert {one.status for one in told(*at(0, 0, 9000), proof=Proof.NOTHING).values()} == {UNKNOWN}


@pytest.mark.parametrize(
    ("clocks", "statuses"),
    [
        ([*at(0.0), None], {UNKNOWN}),
        ([*at(0.0, 0.1), None], {UNKNOWN}),
        ([*at(0.0, 0.1, 4000.0), None], {UNKNOWN, FAIL}),
        ([None, None], {UNKNOWN}),
        (at(0.0, 250.0, within=80.0), {UNKNOWN}),  # the answer took minutes
        ([*at(0.0), [float("nan"), 0.1]], {UNKNOWN}),
        ([*at(0.0), [1e300, 1e300]], {UNKNOWN}),
        ([*at(0.0), [0.0, -1.0]], {UNKNOWN}),
        ([*at(0.0), ["0", 1]], {UNKNOWN}),
        ([*at(0.0), [True, 0]], {UNKNOWN}),
        ([*at(0.0), {"ahead": 0}], {UNKNOWN}),
    ],
)
def test_a_clock_that_was_not_measured_is_unknown(clocks: list[object], statuses: set[Status]) -> None:
    assert {one.status for one in every(*clocks)} == statuses


def test_one_node_alone_has_no_other_clock() -> None:
    assert told(*at(0.0)) == told(None) == {}


def test_those_that_did_not_tell_might_decide() -> None:
    found = told(*at(0.0, 0.1, 900.0), None, None)
    assert {name for name, one in found.items() if one.status is FAIL} == {"nodes, clocks"}


def test_the_middle_of_a_round_trip_is_wrong_by_half_of_it() -> None:
    """Node 0's clock is 50 s behind; it answered 0.1 s after the question, or 0.1 s before the answer came, of 0.4 s."""
    for waited in (0.1, 0.3):
        measured = clock_of(here=1000.4, there=1000.0 + waited - 50.0, trip=0.4)
        assert measured is not None and abs(measured.ahead - 50.0) <= measured.within == 0.2
    assert clock_of(1000.0, None, 0.1) is clock_of(1000.0, "1000", 0.1) is clock_of(1000.0, float("inf"), 0.1) is None
    assert clock_of(1000.0, float("nan"), 0.1) is None


@pytest.mark.parametrize("ahead", [0.0, -4000.0, 86400.0])
def test_members_measure_node_0(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real meeting of two on this machine, of which node 0 tells another time of day."""
    there = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() - ahead)
    monkeypatch.setattr(coordinator, "time", there)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    members = [Member(Nodes(2, n, "127.0.0.1", port, run="x"), LIMITS, 5.0) for n in range(2)]
    try:
        for one in members:
            one.open()
            one.join({}, time.monotonic() + 5.0)
        end = time.monotonic() + 5.0
        while members[1].clock is None and time.monotonic() < end:
            time.sleep(0.01)
        measured = members[1].clock
    finally:
        for one in reversed(members):
            one.close()
    assert measured is not None and abs(measured.ahead - ahead) <= measured.within + 0.01 and 0 < measured.within < 1.0
    assert messages.read_ready({"clock": messages.clock_data(measured)}).clock == measured


# Of one node


def local(answer: Mapping[str, Any] | Answer, machine: str = "dgx-h100") -> Finding:
    made = composed.Composed(machine)
    made.host.answers["ask:clock"] = dict(answer) if isinstance(answer, Mapping) else answer
    (found,) = made.judged("node.clock")
    return found


@pytest.mark.parametrize(
    ("answer", "notes"),
    [
        (KEPT, 0),
        ({**KEPT, "status": 0x2107, "maxerror": 500}, 0),  # PPS
        ({**KEPT, "state": 1, "status": 0x2011}, 0),  # a leap second is due
        ({"state": 5, "status": 0x40, "maxerror": 16000000, "esterror": 16000000, "now": 1795479514}, 1),  # a container here
        ({**KEPT, "state": 5, "status": 0x2041}, 1),  # a daemon that lost its servers
        ({**KEPT, "state": 5, "status": 0x1000}, 0),  # of its hardware, which no job asks
        ({"status": {"unavailable": "denied", "detail": "adjtimex: Operation not permitted"}, "now": 1795479514}, 1),  # seccomp
        ({"status": {"unavailable": "unsupported", "detail": "adjtimex"}, "now": 1795479514}, 1),  # gVisor
        ({"status": "0", "now": 1795479514}, 1),
        ({"now": 1795479514}, 1),
    ],
)
def test_a_clock_that_stops_no_job(answer: Mapping[str, Any], notes: int) -> None:
    found = local(answer)
    assert (found.status, len(found.notes)) == (PASS, notes)


@pytest.mark.parametrize("now", [0, 86400, 946684800, 1577836800, 1735689599])
@pytest.mark.parametrize("status", [0x40, 0x2001, {"unavailable": "denied", "detail": "adjtimex"}])
def test_an_impossible_time_fails(now: int, status: object) -> None:
    found = local({**KEPT, "status": status, "now": now})
    assert (found.status, found.cause, found.loss and found.loss.severity) == (FAIL, "clock", Severity.WARNING)


@pytest.mark.parametrize(
    "answer",
    [
        Unavailable(Kind.DENIED, "adjtimex"),
        Unavailable(Kind.UNSUPPORTED, "adjtimex"),
        Unavailable(Kind.TIMED_OUT, ""),
        {"status": 0x2001},
        {"status": 0x2001, "now": "1795479514"},
        {"status": 0x2001, "now": True},
    ],
)
def test_a_clock_that_cannot_be_read_is_unknown(answer: Mapping[str, Any] | Answer) -> None:
    assert local(answer).status is UNKNOWN


def test_a_container_is_told_where_to_set_it() -> None:
    found = local({**KEPT, "now": 0}, "pod-with-devices")
    assert found.fix is not None and "node" in found.fix.summary


def test_this_kernel_answers() -> None:
    got = helper.answer({})
    assert isinstance(got, dict) and got["now"] > clock.WRITTEN
    if "state" in got:
        # TIME_ERROR, among others where nothing keeps the clock; the other bits are of PPS and of the hardware.
        assert 0 <= got["state"] <= 5 and (not got["status"] & clock.UNSYNC or got["state"] == 5)
        assert 0 <= got["maxerror"] <= 16_000_000  # NTP_PHASE_LIMIT, MAXPHASE of linux/timex.h


def test_the_fleet_compares_it() -> None:
    told = {0x2001: "kept in time", 0x40: "runs free"}
    for status, words in told.items():
        fact = clock.probe(ReplayHost({"ask:clock": {**KEPT, "status": status}}))
        assert inventory({"Clock": fact})["clock"] == words
    assert "unavailable" in str(inventory({})["clock"])
