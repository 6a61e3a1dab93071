"""Severity by cost: one rule, and what all fails together leave a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.causes import cost
from netdoctor.causes.results import result
from netdoctor.model import Cost, Finding, Loss, Quantity, Severity, Status

BAD, SLOWER, NOTE = Severity.CRITICAL, Severity.WARNING, Severity.INFO


@pytest.mark.parametrize(
    ("share", "needed", "expected"),
    [
        (1.0, True, BAD),
        (0.10, True, BAD),
        (0.0999, True, SLOWER),
        (None, True, SLOWER),  # might
        (1.0, None, SLOWER),  # nothing says whether the job needs it
        (1.0, False, NOTE),
        (0.0, True, NOTE),
    ],
)
def test_the_rule(share: float | None, needed: bool | None, expected: Severity) -> None:
    assert cost.severity(Loss(share, "", needed)) is expected


@pytest.mark.parametrize(
    ("loss", "left", "formula"),
    [
        (cost.less(50, 400, "Gb/s"), 0.125, "50 of 400 Gb/s"),
        (cost.less(400, 200, "Gb/s"), 1.0, "400 of 200 Gb/s"),
        (cost.sockets(25, 400), 0.0625, "25 of 400 Gb/s"),
        (cost.sockets(400, 400), 0.5, "half"),
        (cost.sockets(), 0.5, "half"),
        (cost.staged(), 0.5, "half"),
    ],
)
def test_formulas(loss: Loss, left: float, formula: str) -> None:
    assert loss.share == pytest.approx(1 - left)
    assert formula in loss.formula


def fails(*losses: Loss | None) -> list[Finding]:
    return [Finding(Status.FAIL, "x", str(n), loss=loss) for n, loss in enumerate(losses)]


def test_the_slowest_part_sets_the_pace() -> None:
    rails = cost.less(1, 8, "rails")
    found = cost.outlook([result("a.b", "", "link_degraded", fails(cost.less(1, 2, "links"), rails, cost.MIGHT))])
    assert found is not None
    assert found.text == "a job here would communicate at about 12 % of what this node can do (estimated): a.b"


def test_what_stops_a_job_leaves_nothing() -> None:
    found = cost.outlook([result("a.b", "", "mtu", fails(None)), result("c.d", "", "mtu", fails(cost.less(1, 8, "rails")))])
    assert found is not None
    assert found.text == "a job here would not start, would hang or would get wrong data: a.b"


def test_nothing_is_said_of_what_is_waived_or_perhaps_not_needed() -> None:
    waived = replace(Finding(Status.FAIL, "x"), waived="known (until 2030-01-01)")
    perhaps = fails(cost.less(1, 8, "rails", needed=None), cost.less(1, 8, "rails", needed=False), cost.MIGHT)
    right = Finding(Status.PASS, "x", loss=cost.STOPS)
    assert cost.outlook([result("a.b", "", "link_degraded", [waived, right, *perhaps])]) is None


@pytest.mark.parametrize(
    ("tried", "expected", "left"),
    [
        (Cost("1 GB/s; with X 8 GB/s", Quantity(1), Quantity(8), 8.0, True), BAD, 0.1),
        (Cost("does not finish; with X 8 GB/s", None, Quantity(8), None, True), BAD, 0.0),
        (Cost("8 GB/s; with X 8 GB/s", Quantity(8), Quantity(8), 1.0, False), SLOWER, None),
        (Cost("8 GB/s; with X 1 GB/s: slower", Quantity(8), Quantity(1), 0.125, True), SLOWER, None),
        (Cost("no time"), SLOWER, None),
    ],
)
def test_what_was_measured_counts_for_more(tried: Cost, expected: Severity, left: float | None) -> None:
    one = result("a.b", "", "numa_affinity", [replace(Finding(Status.FAIL, "x"), cost=tried)])
    judged = replace(one, findings=tuple(map(cost.measured, one.findings)))
    found = cost.outlook([judged])
    assert judged.severity is expected
    assert (found and found.left) == left
    assert found is None or not left or "measured" in found.text
