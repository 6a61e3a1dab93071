"""The judge of the faults between hosts: what must be said, and what must not."""

from __future__ import annotations

from typing import Any

from tests.lab.hosts import compare
from tests.lab.hosts_rows import NODES, ROWS, Row, nodes

BUFFERS = "net.tcp_buffers"


def report(*findings: tuple[str, str, str, str]) -> dict[str, Any]:
    """(check, subject, status, cause)"""
    checks: dict[str, list[dict[str, str]]] = {}
    for check, subject, status, cause in findings:
        one = {"subject": subject, "status": status, "cause": cause, "message": f"{subject} {cause}", "severity": "critical"}
        checks.setdefault(check, []).append(one)
    return {"checks": [{"id": id, "findings": found} for id, found in checks.items()]}


FINE = report((NODES, "h1", "pass", ""), (BUFFERS, "eth0", "pass", ""))
SHUT = report((NODES, "h1", "fail", "firewall_connect"), (BUFFERS, "eth0", "pass", ""))
ROW = Row("x", (nodes("h1", "firewall_connect"),), hosts=2)


def test_what_every_report_must_say() -> None:
    healthy = {0: FINE, 1: FINE}
    assert compare(ROW, healthy, {0: SHUT, 1: SHUT}) == ((), ())
    assert compare(ROW, healthy, {0: SHUT, 1: FINE})[0] == ("node 1: allreduce.nodes fail firewall_connect h1",)
    assert compare(Row("x", ()), healthy, healthy) == ((), ())


def test_a_report_that_is_missing_is_no_match() -> None:
    only = Row("x", (nodes("h1", "firewall_connect", by=(0, 1)),), hosts=2)
    assert compare(only, {0: FINE, 1: FINE}, {0: SHUT})[0] == ("node 1: allreduce.nodes fail firewall_connect h1",)


def test_another_cause_host_or_severity_is_no_match() -> None:
    for row in (Row("x", (nodes("h1", "mtu"),)), Row("x", (nodes("h2", "firewall_connect"),))):
        missing, disturbed = compare(row, {0: FINE}, {0: SHUT})
        assert missing and disturbed
    mild = Row("x", ROW.said, severity="warning")
    assert compare(mild, {0: FINE}, {0: SHUT})[0] == ("node 0: severity warning, not critical",)


def test_what_else_changes_is_disturbed() -> None:
    low = report((NODES, "h1", "fail", "firewall_connect"), (BUFFERS, "eth0", "unknown", ""))
    assert compare(ROW, {0: FINE}, {0: low})[1] == ("net.tcp_buffers (node 0) eth0: pass -> unknown",)
    assert compare(Row("x", ROW.said, also=(BUFFERS,)), {0: FINE}, {0: low})[1] == ()
    more = report((NODES, "h1", "fail", "firewall_connect"), (NODES, "h0", "fail", "hang"), (BUFFERS, "eth0", "pass", ""))
    assert len(compare(ROW, {0: FINE}, {0: more})[1]) == 1
    assert compare(Row("x", ROW.said, may=(nodes("h0", "hang"),)), {0: FINE}, {0: more}) == ((), ())


def test_every_row_has_its_own_name_and_its_own_hosts() -> None:
    assert len({row.fault for row in ROWS}) == len(ROWS)
    for row in ROWS:
        numbers = {n for said in row.said for n in said.by or ()} | {*row.variables, *row.absent, *row.late, *row.when}
        assert numbers <= set(range(row.hosts)), row.fault
