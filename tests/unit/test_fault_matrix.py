"""Every fault of fixtures/faults on its replayed machine: found, nothing else disturbed, mended by what is not so already.

At least five for every check.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from netdoctor import engine
from netdoctor.model import Fix, Status
from tests.fakegpu import rows as fakegpu
from tests.lab import container_rows, fixtures, ignorance, live, matrix, mends
from tests.lab.faults import Fault, every, golden, told
from tests.lab.row import Row
from tests.support.namespaces.dgx import Scene, Seen

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", every(), ids=lambda fault: f"{fault.expect['check']}: {fault.fault}")
def test_it_is_found_and_nothing_else_is_disturbed(fault: Fault) -> None:
    machine = fault.after()
    broken = fixtures.facts_of(machine)
    spec = next(one for one in fixtures.specs() if one.id == fault.expect["check"])
    found = engine.judge(spec, broken)
    assert told(found) == golden()[fault.name], "`make golden` writes it again; look at the diff"
    assert all(one.loss and one.severity is one.loss.severity for one in found if one.status is Status.FAIL)
    row = matrix.replay(fault, broken)
    assert row["found"], row["expected"]
    assert row["disturbed"] == []
    # Every way to lose a fact, and single answers: `make lab` (ignorance).
    lost = ignorance.by_fact(broken, fault.expect["check"], ignorance.WHYS[:2])
    assert list(lost) == [], "what is lost may only make unknown of it"
    fixes = [one.fix for one in found if one.status is Status.FAIL and one.fix]
    assert [command for fix in fixes for command in mends.idle(fix, machine.answers)] == [], "a mend that is so already"


def test_an_idle_command_is_seen() -> None:
    answers = {
        "file:/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "env:": {"NCCL_NET": "IB"},
        "dir:/sys/module": ["ib_uverbs"],
    }
    commands = (
        "sysctl -w net.ipv4.ip_local_port_range='32768 60999'",
        "export NCCL_NET=IB",
        "unset NCCL_P2P_DISABLE",
        "modprobe ib_uverbs",
    )
    assert tuple(mends.idle(Fix("", commands), answers)) == commands
    other = (
        "sysctl -w net.ipv4.ip_local_port_range='10000 60999'",
        "export NCCL_NET=Socket",
        "unset NCCL_NET",
        "modprobe ib-umad",
    )
    assert list(mends.idle(Fix("", other), answers)) == []


def test_every_check_has_its_faults() -> None:
    """A check without its rows is not finished."""
    have = Counter(fault.expect["check"] for fault in every())
    assert {spec.id: have[spec.id] for spec in fixtures.specs() if have[spec.id] < 5} == {}


def test_every_check_has_its_live_faults() -> None:
    """By a whole preflight: in namespaces, in containers, on GPUs and HCAs that are not there.
    Faults between hosts (tests/lab/hosts.yaml) come on top."""
    have = Counter(check for row in (*live.every(), *container_rows.ROWS) for check in row.expected)
    have += Counter(row.check for row in fakegpu.ROWS)
    assert {spec.id: have[spec.id] for spec in fixtures.specs() if have[spec.id] < 5} == {}


def test_live_rows_name_checks_and_are_told_apart() -> None:
    known = {spec.id for spec in fixtures.specs()}
    for rows in (live.every(), container_rows.ROWS):
        assert [fault for fault, count in Counter(row.fault for row in rows).items() if count > 1] == []
        assert all({*row.expected, *row.also} <= known and not {*row.expected} & {*row.also} for row in rows)


def seen(*findings: tuple[str, str, str], check: str = "rdma.gpudirect") -> Seen:
    """A report with findings (subject, status, message) of one check."""
    rows = [{"subject": a, "status": b, "message": c, "cause": "gdr_disabled"} for a, b, c in findings]
    return Seen(0, {"checks": [{"id": check, "findings": rows}]}, "")


@pytest.mark.parametrize(
    ("expected", "after", "found", "disturbed"),
    [
        ("fail", seen(("a", "fail", "x")), True, 0),
        ("fail gdr_disabled", seen(("a", "fail", "x")), True, 0),
        ("fail other", seen(("a", "fail", "x")), False, 0),
        ("unknown", seen(("a", "unknown", "y")), False, 0),  # as before
        ("unknown: new words", seen(("a", "unknown", "with new words")), True, 0),
        ("unknown: old words", seen(("a", "unknown", "old words")), False, 0),
        ("unknown: new words", seen(("a", "unknown", "with new words"), ("b", "skip", "x")), True, 1),  # less evidence, a skip
        ("fail", seen(("a", "fail", "x"), ("b", "skip", "x")), True, 0),
        ("fail", seen(("a", "pass", "x")), False, 1),  # a fault makes no pass of an unknown
        ("fail", seen(("a", "fail", "x"), ("b", "error", "x")), True, 1),  # nor a defect
        ("", seen(("a", "fail", "x")), True, 1),
    ],
)
def test_what_a_live_row_is_compared_with(expected: str, after: Seen, found: bool, disturbed: int) -> None:
    row = Row("f", Scene(), {"rdma.gpudirect": expected} if expected else {})
    got = live.compare(row, seen(("a", "unknown", "old words")), after)
    assert (got[0], len(got[1])) == (found, disturbed)


def test_what_cannot_run_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix, "OUTPUT", tmp_path / "fault-matrix.json")
    matrix.write([{"fault": "kept", "way": "replay", "expected": {}, "found": True, "disturbed": [], "seconds": 0.1}], "replay")
    row = Row("f", Scene(), {"allreduce.run": "fail"}, needs=("no-such-program",))
    assert live.told("live", [live.Outcome(row, "live", None, why=live.lacking(row))], whole=True) == 0
    assert "live: 1 faults: found 0, disturbed 0, not run 1 (no no-such-program)" in capsys.readouterr().out
    kept, written = json.loads(matrix.OUTPUT.read_text())
    assert kept["way"] == "replay" and written["found"] is None and written["why"] == "no no-such-program"
    shown = matrix.show([kept, written])
    assert "not run: live: f: no no-such-program" in shown and "replay: 1 faults: found 1" in shown


def test_faults_are_told_apart() -> None:
    names = Counter(fault.name for fault in every())
    assert [name for name, count in names.items() if count > 1] == []
    known = {spec.id for spec in fixtures.specs()}
    assert all({fault.expect["check"], *fault.also} <= known for fault in every())


def test_the_matrix_shows_a_miss_and_a_disturbance() -> None:
    row = {
        "fault": "f",
        "way": "replay",
        "expected": {"allreduce.run": "fail"},
        "found": False,
        "disturbed": ["torch.backend: x"],
    }
    shown = matrix.show([row])
    assert "replay: 1 faults: found 0, disturbed 1, not run 0" in shown and "!" in shown and "x" in shown.splitlines()[1]
