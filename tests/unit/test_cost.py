"""Severity by cost: one rule, and what all fails together leave a job."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

import pytest

from netdoctor.causes import cost
from netdoctor.causes.results import result
from netdoctor.model import Cost, Finding, Loss, Quantity, Severity, Status
from tests.support.sources import ROOT, nodes

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
    assert Loss(share, "", needed).severity is expected


@pytest.mark.parametrize(
    ("loss", "left", "formula"),
    [
        (cost.less(50, 400, "Gb/s"), 0.125, "50 of 400 Gb/s"),
        (cost.less(400, 200, "Gb/s"), 1.0, "400 of 200 Gb/s"),
        (cost.sockets(25, 400), 0.0625, "25 of 400 Gb/s"),
        (cost.sockets(400, 400), 0.5, "half"),
        (cost.sockets(), 0.5, "half"),
        (cost.staged(), 0.5, "half"),
        (cost.roce_frames(1500, 9000), 92.6 / 98.0, "packets of 1024 bytes instead of 4096"),
        (cost.roce_frames(4200, 9000), 1.0, "4096 bytes a packet with both"),
        (cost.roce_frames(4191, 9000), 96.2 / 98.0, "packets of 2048 bytes instead of 4096"),
        (cost.infiniband_packets(2048, 4096), 98.7 / 99.4, "packets of 2048 bytes instead of 4096"),
        (cost.tcp_frames(1500, 9000), 94.1 / 99.0, "frames of 1500 bytes instead of 9000"),
        (cost.roce_frames(300, 1500), 0.0, "too small for RoCE"),
    ],
)
def test_formulas(loss: Loss, left: float, formula: str) -> None:
    assert loss.share == pytest.approx(1 - left)
    assert formula in loss.formula


# What reads a severity, or hands on one that a site's own check or another node's report made: nothing else names one.
READ_ONLY = {
    "model/__init__.py": "the rule",
    "api.py": "a site's own checks",
    "policy.py": "thresholds and words",
    "child.py": "a report as data",
    "cli/expect.py": "which fails count",
    "fleet/extract.py": "another node's report",
    "fleet/report.py": "another node's report",
}


def says_how_bad(node: ast.AST) -> bool:
    """``Severity.CRITICAL``, ``severity=…`` or the fourth argument of a Finding."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "Severity"
    if not isinstance(node, ast.Call):
        return False
    of_finding = node.args[3:4] if isinstance(node.func, ast.Name) and node.func.id == "Finding" else []
    given = [*of_finding, *(word.value for word in node.keywords if word.arg == "severity")]
    return any(not (isinstance(one, ast.Constant) and one.value is None) for one in given)


def sources() -> Iterator[str]:
    for path in (*(ROOT / "netdoctor").rglob("*.py"), *(ROOT / "checks").glob("*.py")):
        if any(says_how_bad(node) for node in nodes(path)):
            yield str(path.relative_to(ROOT)).removeprefix("netdoctor/")


def test_one_place_says_how_bad_a_fail_is() -> None:
    others = {name for name in sources() if not name.startswith("deploy/")} - READ_ONLY.keys()
    assert not others, "state a Loss: netdoctor.causes.cost makes the severity of it"
    assert says_how_bad(ast.parse("fail('x', severity=bad)").body[0].value)  # type: ignore[attr-defined]


def test_a_loss_counts_for_more_than_a_severity() -> None:
    said = Finding(Status.FAIL, "x", severity=SLOWER)
    found = result("a.b", "", "mtu", [said, replace(said, loss=cost.STOPS)]).findings
    assert [one.severity for one in found] == [SLOWER, BAD]


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


def test_a_bound_is_said_to_be_one() -> None:
    lost = cost.lost_packets(0.1, 1e-4, 1460, 2e9)
    found = cost.outlook([result("a.b", "", "link_degraded", fails(lost))])
    assert found is not None and found.bound
    assert found.text == "a job here would communicate at no more than 3 % of what this node can do (estimated): a.b"
