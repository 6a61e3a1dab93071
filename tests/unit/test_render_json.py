"""The JSON report: valid by its schema whatever is in it, equal but for `volatile`, and read back."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from netdoctor.model import CheckResult, Finding, Quantity, Report, Severity, Status
from netdoctor.render.json import ReportError, data, loads, render
from tests.support.reports import EVERY, FAIL, PASS, check, report, reports

SCHEMA = json.loads((files("netdoctor") / "schemas" / "report-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SLOW = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=60)


def parsed(one: Report) -> Any:
    def no_constant(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(render(one), parse_constant=no_constant)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", EVERY)
def test_every_verdict_is_valid(name: str) -> None:
    VALIDATOR.validate(parsed(EVERY[name]))


@SLOW
@given(reports())
def test_hostile_strings_are_valid_and_clean(one: Report) -> None:
    text = render(one)
    document = parsed(one)
    VALIDATOR.validate(document)
    text.encode("utf-8")
    for bad in ("\x1b", "\x9b", "\u202e", "\x00", "\x07"):
        assert bad not in text


@SLOW
@given(reports())
def test_read_back_and_written_again_it_is_the_same(one: Report) -> None:
    text = render(one)
    assert render(loads(text)) == text


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_lost(name: str) -> None:
    one = EVERY[name]
    back = loads(render(one))
    assert (back.verdict, back.profile, back.partial, back.tool_version) == (
        one.verdict,
        one.profile,
        one.partial,
        one.tool_version,
    )
    assert [c.id for c in back.checks] == [c.id for c in one.checks]
    for mine, theirs in zip(one.findings(), back.findings(), strict=True):
        assert replace(mine, evidence={}, measured={}) == replace(theirs, evidence={}, measured={})
        assert mine.measured == theirs.measured
        assert mine.fingerprint == theirs.fingerprint
    assert back.volatile == one.volatile


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: d.update(extra=1),
        lambda d: d.pop("verdict"),
        lambda d: d.update(profile="gates"),
        lambda d: d["verdict"].update(exit_code=7),
        lambda d: d["checks"][1]["findings"][0].update(status="ok"),
        lambda d: d["checks"][1]["findings"][0].update(severity=None),
        lambda d: d["checks"][1]["findings"][0].update(waived="why", blocking=True),
        lambda d: d["checks"][0]["findings"][0].update(severity="info"),
        lambda d: d["checks"][1]["findings"][0].pop("fingerprint"),
        lambda d: d["checks"][1]["findings"][0]["fix"].update(more=1),
        lambda d: d["volatile"]["measured"].update(other={}),
        lambda d: next(iter(d["volatile"]["cost"].values())).update(before=3),
    ],
)
def test_the_schema_is_strict(break_it: Any) -> None:
    document = parsed(EVERY["unhealthy"])
    VALIDATOR.validate(document)
    break_it(document)
    assert not VALIDATOR.is_valid(document)


def test_what_is_measured_is_only_under_volatile() -> None:
    finding = FAIL.findings[0]
    other = replace(finding, measured={"busbw": Quantity(9.9, "GB/s"), "pid": 1}, cost=None)
    first, second = (
        data(report(PASS, replace(FAIL, findings=(f,)), volatile={"time": time}))
        for f, time in ((finding, "2026-06-15T10:00:00Z"), (other, "2027-01-01T00:00:00Z"))
    )
    assert first.pop("volatile") != second.pop("volatile")
    assert first == second


def test_measured_and_cost_lie_under_the_fingerprint() -> None:
    document = data(EVERY["unhealthy"])
    (finding,) = document["checks"][1]["findings"]
    volatile = document["volatile"]
    assert volatile["measured"][finding["fingerprint"]] == {"busbw": {"value": 2.7, "unit": "GB/s"}, "pid": 4711}
    assert volatile["cost"][finding["fingerprint"]]["ratio"] == 4.1
    assert volatile["runs"][0]["seconds"] == 1.5


def test_two_findings_of_one_fingerprint_keep_their_numbers() -> None:
    twins = [Finding(Status.FAIL, f"message {n}", measured={"n": n}, severity=Severity.INFO) for n in (1, 2, 3)]
    one = report(check("a.b", *twins))
    document = data(one)
    prints = [f["fingerprint"] for f in document["checks"][0]["findings"]]
    assert len(set(prints)) == 3
    assert prints[1] == f"{prints[0]}.2"
    assert [f.measured for f in loads(render(one)).findings()] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_numbers_without_a_json_word() -> None:
    one = report(check("a.b", Finding(Status.PASS, "m", measured={"x": float("nan"), "q": Quantity(float("inf"), "s")})))
    (measured,) = data(one)["volatile"]["measured"].values()
    assert measured == {"x": "nan", "q": {"value": "inf", "unit": "s"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "no schema"),
        ('{"schema": 3}', "no schema"),
        ('{"schema": "other/1"}', "no schema"),
        ('{"schema": "netdoctor.snapshot/1"}', "is not a report"),
        ('{"schema": "netdoctor.report/2"}', "newer netdoctor"),
        ('{"schema": "netdoctor.report/1"}', "missing or misshapen"),
    ],
)
def test_what_is_no_report_says_so(text: str, said: str) -> None:
    with pytest.raises(ReportError, match=said):
        loads(text)


def test_a_report_cut_anywhere_is_refused() -> None:
    text = render(EVERY["unhealthy"]).rstrip()
    for end in range(0, len(text), 97):
        with pytest.raises(ReportError):
            loads(text[:end])


@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_a_member_of_another_shape_is_refused_or_read(value: object) -> None:
    """Whatever one member is replaced by: a report or a ReportError, nothing else."""
    for path in (
        ("checks",),
        ("verdict",),
        ("volatile",),
        ("identity",),
        ("runs",),
        ("checks", 0),
        ("checks", 1, "findings", 0),
    ):
        document = json.loads(render(EVERY["unhealthy"]))
        at = document
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        try:
            got = loads(json.dumps(document))
        except ReportError:
            continue
        assert isinstance(got, Report)
        assert all(isinstance(c, CheckResult) for c in got.checks)
