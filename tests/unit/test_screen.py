"""A terminal of 80 columns and 24 lines: what is right folds until a healthy node is one screen; -v tells it all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from netdoctor.model import Finding, Fix, Health, Report, Status
from netdoctor.report.html import render as page
from netdoctor.report.text import render
from tests.lab import fixtures
from tests.support.facts.reports import check, report
from tests.support.machines import composed

LINES = 24 - 2  # the command and the prompt


def of(slug: str) -> Report:
    return fixtures.report(fixtures.snapshot(slug))


@pytest.mark.slow
@pytest.mark.parametrize("slug", ["dgx-h100", "gb200-nvl72", "pod-with-devices"])
def test_a_healthy_node_is_one_screen(slug: str) -> None:
    one = of(slug)
    assert one.verdict.status is Health.HEALTHY and not [*one.findings(Status.UNKNOWN)]
    lines = render(one, width=80).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= 80
    told = " ".join(render(one, width=80).split())
    for each in one.checks:  # every one by its name
        area, _, last = each.id.partition(".")
        assert each.id in told or re.search(rf"\b{area}: [^;]*\b{last}\b", told), each.id
    whole = render(one, verbose=True)
    skipped = [each for each in one.checks if each.status is Status.SKIP]
    assert len(skipped) > 3 and all(each.findings[0].message in whole for each in skipped)


def test_few_are_told_with_words_and_many_by_name() -> None:
    few = [check(f"a.pass{n}", Finding(Status.PASS, f"right {n}")) for n in range(3)]
    few += [check(f"b.skip{n}", Finding(Status.SKIP, f"reason {n}")) for n in range(3)]
    more = [check("c.pass", Finding(Status.PASS, "right 3")), check("d.skip", Finding(Status.SKIP, "reason 3"))]
    mixed = check("e.mixed", Finding(Status.PASS, "right", "x"), Finding(Status.SKIP, "no", "y"))
    text = render(report(*few), width=80)
    assert "pass     a  pass0, pass1, pass2" in text and "skip     b.skip1: reason 1" in text and "-v" not in text
    text = render(report(*few, *more, mixed), width=80)
    assert "pass     a: pass0, pass1, pass2; c.pass; e.mixed\n" in text
    assert "skip     b: skip0, skip1, skip2; d.skip: each for its own reason (-v)\n" in text
    assert "reason 1" in render(report(*few, *more), verbose=True) and "reason 1" in page(report(*few, *more))
    assert render(report(*few, *more, mixed)).split() == text.split()  # into a file as on a screen


def test_a_reason_that_several_share_is_told() -> None:
    bare = [check(f"gpu.{n}", Finding(Status.SKIP, "no GPU: PCI was read")) for n in "abc"]
    own = [check(f"own.{n}", Finding(Status.SKIP, f"reason {n}")) for n in range(5)]
    text = render(report(*own, *bare), width=80)
    assert "skip     gpu.a, gpu.b, gpu.c: no GPU: PCI was read\n" in text
    assert "skip     own: 0, 1, 2, 3, 4: each for its own reason (-v)\n" in text


def test_an_unknown_in_nobody_s_way_says_what_to_do() -> None:
    doubt = Finding(
        Status.UNKNOWN, "Gloo takes 127.0.1.1", evidence={"address": "127.0.1.1"}, how="say job.nodes", fix=Fix("name bond0")
    )
    one = report(check("net.socket_ifname", doubt), check("a.b", Finding(Status.PASS, "right")))
    text = render(one, width=80)
    assert "mend      name bond0" in text and "find out  say job.nodes" in text and "evidence" not in text
    for whole in (render(one, width=80, verbose=True), render(one), page(one)):
        assert "address: 127.0.1.1" in whole
    asked = replace(one, checks=(replace(one.checks[0], findings=(replace(doubt, blocking=True, check="net.socket_ifname"),)),))
    assert "evidence  address: 127.0.1.1" in render(asked, width=80)


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "value"), [("NCCL_SOCKET_IFNAME", "ens99"), ("GLOO_SOCKET_IFNAME", "eth99")])
def test_an_interface_that_is_not_there_is_one_block(variable: str, value: str) -> None:
    """nccl.environment and net.socket_ifname find it: one cause and one mend."""
    machine = composed.Composed("cpu-node", {f"host.environment.{variable}": value})
    text = render(fixtures.report(machine.snapshot()), width=100)
    assert text.count("FAIL ") == 1 and text.count("     mend ") == 1
    assert f"export {variable}={'=' * variable.startswith('NCCL')}eth0" in text
