"""A node's report as metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import parser

from netdoctor.model import Status
from netdoctor.report import formats
from tests.support.facts.reports import EVERY


def _read(name: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = parser.text_string_to_metric_families(formats.render(EVERY[name], "prometheus"))
    return {f.name: [(sample.labels, sample.value) for sample in f.samples] for f in families}


@pytest.mark.parametrize("name", EVERY)
def test_states_are_told_once_each(name: str) -> None:
    one, read = EVERY[name], _read(name)
    verdict: dict[str, Any] = {labels["status"]: value for labels, value in read["netdoctor_verdict"]}
    assert verdict == {word: float(word == one.verdict.status.value) for word in ("healthy", "unhealthy", "inconclusive")}
    assert read["netdoctor_look_whole"] == [({}, float(one.partial is None))]
    assert read["netdoctor_exit_code"] == [({}, float(one.verdict.exit_code))]
    told = {labels["check"]: labels["status"] for labels, value in read["netdoctor_check"] if value}
    assert told == {check.id: check.status.value for check in one.checks}
    failed = [f for c in one.checks for f in c.findings if f.status is Status.FAIL and not f.waived]
    assert sum(value for _, value in read["netdoctor_fails"]) == len(failed)


def test_what_was_measured_is_told_in_base_units() -> None:
    (labels, value), *rest = _read("healthy")["netdoctor_busbw_bytes_per_second"]
    assert (labels["backend"], labels["path"], labels["bytes"], value, rest) == ("gloo", "default", "67108864", 1.234e9, [])


def test_a_share_of_bandwidth_only_where_it_is_known() -> None:
    assert _read("healthy")["netdoctor_bandwidth_share"] == [({}, 1.0)]
    assert _read("unhealthy")["netdoctor_bandwidth_share"] == [({}, 0.0)]
    assert "netdoctor_bandwidth_share" not in _read("inconclusive")
