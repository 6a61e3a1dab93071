"""A pod's termination message: at most 4096 bytes, the verdict first, then what is wrong and what mends it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from netdoctor.model import Finding, Fix, Report, Severity, Status
from netdoctor.report.termination import render
from tests.support.facts.reports import DRAWN, check, report, reports

FIX = Fix("widen the range", ("sysctl -w net.ipv4.ip_local_port_range='30000 65535'",))
BAD = Finding(Status.FAIL, "11 ports", "listeners", severity=Severity.CRITICAL, fix=FIX)


def test_it_says_what_is_wrong_and_what_mends_it() -> None:
    lines = render(report(check("net.port_range", BAD, cause="bootstrap_ports"))).splitlines()
    assert lines[0] == "netdoctor: unhealthy: bootstrap_ports (net.port_range)"
    assert lines[1] == f"fail net.port_range: listeners: 11 ports; mend: widen the range: {FIX.commands[0]}"
    assert len(lines) == 2


def test_healthy_is_one_line() -> None:
    assert "\n" not in render(report(check("net.port_range", Finding(Status.PASS, "wide"))))


def test_inconclusive_names_what_could_not_tell_and_the_way() -> None:
    lost = Finding(Status.UNKNOWN, "not read", how="run it as root")
    text = render(report(check("net.port_range", lost), profile="strict"))
    assert "inconclusive" in text.splitlines()[0]
    assert "unknown net.port_range: not read; find out: run it as root" in text


def test_what_does_not_fit_is_counted() -> None:
    many = [check(f"site.check{n}", Finding(Status.FAIL, "m" * 300, severity=Severity.CRITICAL)) for n in range(40)]
    text = render(report(*many))
    assert len(text.encode()) <= 4096
    shown = len(re.findall(r"^fail ", text, re.MULTILINE))
    assert text.endswith(f"\n… and {40 - shown} more")


@pytest.mark.slow
@DRAWN
@given(reports())
def test_it_keeps_its_size_and_holds_no_control_characters(one: Report) -> None:
    for limit in (4096, 700):
        text = render(one, limit=limit)
        assert len(text.encode("utf-8")) <= limit
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
    assert text.startswith("netdoctor: ")
