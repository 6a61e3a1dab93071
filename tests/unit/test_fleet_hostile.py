"""Other machines' strings stay harmless in every format, and no report breaks that of the fleet."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from netdoctor.cli import fleet as command
from netdoctor.compare.traits import Family
from netdoctor.fleet.extract import Extract, MalformedReportError
from netdoctor.fleet.read import DEFECT
from netdoctor.fleet.report import Fleet
from netdoctor.report import formats, json as node_json, plots
from tests.support.clusters import fleets
from tests.unit.test_fleet_input import HOSTILE, look, put

pytestmark = pytest.mark.slow

# Hostile strings


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("hostile")
    for number, name in enumerate(HOSTILE, 1):
        doc = fleets.report(name, number=number)
        fleets.own_fail(doc, message=f"{name} </script><!--<script> {name}")
        doc["verdict"]["text"] = name
        doc["checks"][3]["id"] = name[:50]
        doc["checks"][3]["status"] = name[:50]
        doc["inventory"]["driver"] = name
        doc["inventory"]["sysctls"][name] = name
        doc["inventory"]["nccl_variables"][name] = name
        doc["inventory"]["links"][1]["name"] = name
        doc["inventory"]["gpus"][0]["name"] = name
        doc["runs"][0]["backend"] = name
        put(folder, f"{number}.json", doc)
    put(folder, 'a"><script>alert(2)</script>.json'.replace("/", "_"), "{")
    return look(folder, ["n1", '"><img src=x>', "\x1b[2J"])


def test_hostile_strings_in_text(hostile: Fleet) -> None:
    out = formats.render(command.report(hostile), "text")
    assert not set(out) & set(map(chr, [*range(10), *range(11, 32), *range(127, 160), 0x202E]))


def test_hostile_strings_in_json(hostile: Fleet) -> None:
    out = formats.render(command.report(hostile), "json")
    assert "\\u001b" not in out and len(json.loads(out)["nodes"]) == len(hostile.nodes)


def test_hostile_strings_in_html(hostile: Fleet) -> None:
    out = formats.render(command.report(hostile), "html")
    assert out.lower().count("<script") == 2 == out.lower().count("</script")  # the data and the page's own
    assert "<img" not in out and "<!--" not in out and "\x1b" not in out
    assert "default-src 'none'" in out and "unsafe" not in out


def test_hostile_strings_in_junit(hostile: Fleet) -> None:
    root = ElementTree.fromstring(formats.render(command.report(hostile), "junit"))
    cases = root.findall("testsuite/testcase")
    assert len([c for c in cases if c.get("classname", "").startswith("netdoctor.fleet.")]) == len(hostile.nodes)


def test_hostile_strings_in_prometheus(hostile: Fleet) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client")
    families = {f.name: f for f in parser.text_string_to_metric_families(formats.render(command.report(hostile), "prometheus"))}
    assert {s.labels["node"] for s in families["netdoctor_fleet_node_good"].samples} <= {n.name for n in hostile.nodes}
    assert families["netdoctor_fleet_nodes_unnamed"].samples[0].value >= 6
    states = {s.labels["state"]: s.value for s in families["netdoctor_fleet_nodes"].samples}
    assert sum(states.values()) == hostile.accounting["given"]


def test_hostile_names_are_on_no_list(hostile: Fleet) -> None:
    files, left_out = command.lists(hostile)
    assert files == {"passing_nodes.txt": "", "failing_nodes.txt": "n1\n"}
    assert "$(id)" in left_out and "../../x" in left_out


def test_names_that_look_like_options_are_on_no_list(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "a.json", fleets.report("-rf"))
    put(tmp_path, "b.json", fleets.report("..", number=2))
    put(tmp_path, "c.json", fleets.report("ok", number=3))
    assert command.lists(look(tmp_path))[0]["passing_nodes.txt"] == "ok\n"


# Anything at all


def _mutate(value: Any, draw: random.Random) -> Any:
    """`value` with one place replaced by something of another kind."""
    here = [None, True, -1, 1e308, float("nan"), "", "\x1b[0m", [], {}, [[]], {"unavailable": "x"}, "9" * 400, {"a": {}}]
    if draw.random() < 0.12 or not isinstance(value, dict | list) or not value:
        return draw.choice(here)
    if isinstance(value, dict):
        key = draw.choice(sorted(value))
        return {**value, key: _mutate(value[key], draw)}
    place = draw.randrange(len(value))
    return [*value[:place], _mutate(value[place], draw), *value[place + 1 :]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 12))
def test_no_report_breaks_the_fleets_report(seed: int, changes: int, tmp_path: pathlib.Path) -> None:
    draw = random.Random(seed)
    docs = [fleets.report(f"n{i}", number=i + 1) for i in range(3)]
    for _ in range(changes):
        place = draw.randrange(3)
        changed = _mutate(docs[place], draw)
        docs[place] = {**changed, "schema": "netdoctor.report/1"} if isinstance(changed, dict) else docs[place]
    for number, doc in enumerate(docs):
        put(tmp_path, f"n{number}.json", json.dumps(doc))
    fleet = look(tmp_path)
    assert not [p.detail for p in fleet.problems if DEFECT in p.detail]
    with pytest.MonkeyPatch.context() as patch:
        if seed % 20:  # the plots of a page take a third of a second
            patch.setattr(plots, "why_not", lambda: plots.NEEDED)
        assert all(formats.render(command.report(fleet), format) for format in formats.FORMATS)


def test_the_real_report_is_what_is_read(tmp_path: pathlib.Path) -> None:
    """A report as the engine's renderer writes it, not as a test imagines it."""
    from netdoctor.facts.inventory import inventory
    from netdoctor.model import CheckResult, Finding, Health, Report, Status, Verdict
    from tests.support import facts

    finding = Finding(Status.FAIL, "3 usable ports", check="net.port_range", cause="bootstrap_ports")
    report = Report(
        "0.1.0",
        {"host": "real", "kernel": "6.8"},
        {"kind": "host"},
        "audit",
        (CheckResult("net.port_range", "wide enough", "bootstrap_ports", (finding,)),),
        Verdict(Health.UNHEALTHY, 3, "UNHEALTHY"),
        runs=({"backend": "nccl", "device": "cuda", "ranks": 8, "path": "default", "state": "finished", "verified": True},),
        volatile={
            "time": fleets.TIME,
            "runs": [
                {"busbw_gb_s": {"67108864": 360.0}, "latency_s": {"4096": 25e-6}, "ranks": [{"phase_seconds": {"init": 1.5}}]}
            ],
        },
        inventory=inventory(facts.machine()),
    )
    run = Extract().run(json.loads(node_json.render(report)), "f", 0.0)
    assert (run.host, run.verdict, run.statuses, run.items[0].message) == ("real", "unhealthy", "f", "3 usable ports")
    assert {str(figure): value for figure, value in run.metrics.items()} == {
        "busbw|nccl cuda ×8, 64 MiB": 360.0,
        "latency|nccl cuda ×8, 4 KiB": 25e-6,
        "init|nccl cuda ×8": 1.5,
    }
    assert run.traits.of(Family.GPUS) == "8 × NVIDIA H100 80GB HBM3" and run.traits.of(Family.NCCL) == "2.27.5"
    assert run.nccl_if == ("ib0", "10.1.0.7", 24, 2044) and run.time == 1772352000.0
    with pytest.raises(MalformedReportError):
        Extract().run({}, "f", 0.0)
