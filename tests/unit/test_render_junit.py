"""JUnit: every check a case, never green where the exit code is not 0."""

import shlex
import sys
import xml.etree.ElementTree as Xml
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from netdoctor.cli import deliver, env, fleet, log, setup
from netdoctor.cli.options import Options
from netdoctor.model import CheckResult, Report
from netdoctor.policy import Seen
from netdoctor.report import formats
from netdoctor.report.junit import render, setup_failed
from tests.support.facts.reports import DRAWN, ERROR, EVERY, PASS, check, report, reports


def suite_of(text: str) -> Xml.Element:
    root = Xml.fromstring(text.encode("utf-8"))
    (suite,) = root
    cases = suite.findall("testcase")
    assert suite.get("tests") == str(len(cases))
    for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.get(attribute) == str(len([c for c in cases if c.find(kind) is not None]))
    return suite


def outcomes(one: Report) -> dict[str, str]:
    out = {}
    for case in suite_of(render(one)).findall("testcase"):
        kind = next((child.tag for child in case if child.tag != "system-out"), "passed")
        out[f"{case.get('classname')}.{case.get('name')}".removeprefix("netdoctor.")] = kind
    return out


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("healthy", {"net.port_range": "passed", "net.tcp_buffers": "passed", "cpu.numa_affinity": "skipped"}),
        ("healthy with unknowns", {"net.port_range": "passed", "allreduce.run": "skipped"}),
        ("below the threshold", {"net.port_range": "passed", "rdma.gpudirect": "skipped"}),
        ("waived", {"net.port_range": "passed", "net.socket_ifname": "skipped"}),
        (
            "unhealthy",
            {
                "net.port_range": "passed",
                "net.socket_ifname": "failure",
                "rdma.gpudirect": "skipped",
                "cpu.numa_affinity": "skipped",
                "allreduce.run": "skipped",
                "site.own": "error",
            },
        ),
        ("inconclusive", {"net.port_range": "passed", "allreduce.run": "error"}),
        ("a check broke", {"net.port_range": "passed", "site.own": "error"}),
        ("audit that saw nothing", {"allreduce.run": "skipped"}),
        ("interrupted", {"net.port_range": "passed", "allreduce.run": "skipped", "run": "failure"}),
        ("interrupted and unhealthy", {"net.socket_ifname": "failure", "allreduce.run": "skipped", "run": "failure"}),
        ("nothing ran", {"run": "failure"}),
        ("a check without findings", {"net.port_range": "passed", "a.b": "error"}),
    ],
)
def test_every_verdict(name: str, expected: dict[str, str]) -> None:
    assert outcomes(EVERY[name]) == expected


def test_every_verdict_is_covered() -> None:
    marks = test_every_verdict.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == set(EVERY)


@pytest.mark.parametrize("profile", ["audit", "prolog"])
@pytest.mark.parametrize("broken", [ERROR, check("a.b")])
def test_where_the_exit_code_is_0_nothing_is_red(profile: str, broken: CheckResult) -> None:
    """Neither profile stops anybody for a check that broke; a CI that stops for a red case would."""
    one = report(PASS, broken, profile=profile)
    assert one.verdict.exit_code == 0
    assert outcomes(one) == {"net.port_range": "passed", broken.id: "skipped"}


def test_reasons_are_there() -> None:
    text = render(EVERY["waived"])
    assert "waived: docker0 is the data network here (until 2026-12-31)" in text
    assert "fail below the threshold: " in render(EVERY["below the threshold"])
    assert "unknown: no torch that is the job" in render(EVERY["healthy with unknowns"])
    assert "one NUMA node with CPUs: /sys was read" in render(EVERY["healthy"])
    assert "with NCCL_SOCKET_IFNAME=ib0 11.2 GB/s: 4.1 times" in render(EVERY["unhealthy"])


def test_a_required_check_that_did_not_run_is_red() -> None:
    assert outcomes(report(PASS, seen=Seen(True, True, False)))["run"] == "failure"


def test_a_run_that_died_in_set_up_is_a_failed_case() -> None:
    suite = suite_of(setup_failed("config.yaml:3: unknown key\x1b[2J & <more>"))
    (case,) = suite.findall("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "config.yaml:3: unknown key & <more>"


@pytest.mark.slow
@DRAWN
@given(reports())
def test_hostile_strings_are_well_formed_and_never_green(one: Report) -> None:
    suite = suite_of(render(one))
    names = [c.get("name") for c in suite.findall("testcase")]
    assert names[: len(one.checks)] == [c.id.rpartition(".")[2] for c in one.checks]
    assert (int(suite.get("failures", "0")) + int(suite.get("errors", "0")) > 0) == (one.verdict.exit_code != 0)


@pytest.fixture
def no_junitparser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "junitparser", None)  # as Python has it where an import is known to fail


@pytest.mark.usefixtures("no_junitparser")
@pytest.mark.parametrize(
    "refused",
    [
        lambda: deliver.check(Options(format="junit")),
        lambda: deliver.check(Options(output="report.xml")),
    ],
)
def test_without_the_library_nothing_is_looked_at(refused: Callable[[], None]) -> None:
    with pytest.raises(setup.UsageError, match=r"the format junit needs junitparser: .* -m pip install junitparser"):
        refused()
    deliver.check(Options(format="json", output="report.json"))


@pytest.mark.usefixtures("no_junitparser")
def test_the_command_that_installs_it_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/home/a user/venv/bin/python3")
    command = formats.lacking("junit").partition(": ")[2]
    assert shlex.split(command) == ["/home/a user/venv/bin/python3", "-m", "pip", "install", "junitparser"]


@pytest.mark.usefixtures("no_junitparser")
def test_other_commands_say_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.log").write_text("")
    codes = [
        env.run(Options(format="junit")),
        log.run(Options(format="junit"), [str(tmp_path / "x.log")]),
        fleet.run(Options(format="junit", quiet=True), [str(tmp_path)]),
        deliver.refuse(setup.UsageError("something else"), Options(output=str(tmp_path / "out.xml"))),
    ]
    assert codes == [2] * 4 and capsys.readouterr().err.count("-m pip install junitparser") == 4
    assert not (tmp_path / "out.xml").exists()
