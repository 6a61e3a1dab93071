"""The JSON report: valid by its schema whatever is in it, equal but for `volatile`, and whole."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from netdoctor.model import Finding, Quantity, Report, Severity, Status, plain
from netdoctor.report.json import data, render
from tests.support.facts.reports import DRAWN, EVERY, FAIL, PASS, check, report, reports

ELSEWHERE = ("measured", "cost", "loss", "nodes", "waived_by_name", "fix", "perhaps")  # or in another form
SCHEMA = json.loads((files("netdoctor") / "schemas" / "report-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def parsed(one: Report) -> Any:
    def no_constant(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(render(one), parse_constant=no_constant)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", EVERY)
def test_every_verdict_is_valid(name: str) -> None:
    VALIDATOR.validate(parsed(EVERY[name]))


@pytest.mark.slow
@DRAWN
@given(reports())
def test_hostile_strings_are_valid_and_clean(one: Report) -> None:
    text = render(one)
    document = parsed(one)
    VALIDATOR.validate(document)
    text.encode("utf-8")
    for bad in ("\x1b", "\x9b", "\u202e", "\x00", "\x07"):
        assert bad not in text


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_lost(name: str) -> None:
    one = EVERY[name]
    document = parsed(one)
    assert (document["profile"], document["partial"], document["tool_version"]) == (one.profile, one.partial, one.tool_version)
    said = plain(one.verdict)
    assert isinstance(said, dict)
    assert document["verdict"] == {name: said[name] for name in ("status", "exit_code", "text", "causes")}
    assert [c["id"] for c in document["checks"]] == [c.id for c in one.checks]
    written = [f for check in document["checks"] for f in check["findings"]]
    for finding, told in zip(one.findings(), written, strict=True):
        assert {k: v for k, v in plain(finding).items() if k not in ELSEWHERE} == {
            k: v for k, v in told.items() if k not in ("fingerprint", "loss", "fix")
        }
        assert told["fix"] == (finding.fix and {k: v for k, v in plain(finding.fix).items() if k != "tries"})
        assert ("loss" in told) is bool(finding.loss and finding.loss.partial)
        assert told["fingerprint"] == finding.fingerprint
        assert document["volatile"]["measured"].get(finding.fingerprint, {}) == plain(finding.measured)
    assert {k: v for k, v in document["volatile"].items() if k not in ("measured", "cost")} == plain(one.volatile)


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
    assert [document["volatile"]["measured"][one] for one in prints] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_numbers_without_a_json_word() -> None:
    one = report(check("a.b", Finding(Status.PASS, "m", measured={"x": float("nan"), "q": Quantity(float("inf"), "s")})))
    (measured,) = data(one)["volatile"]["measured"].values()
    assert measured == {"x": "nan", "q": {"value": "inf", "unit": "s"}}
