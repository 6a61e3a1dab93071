"""Across nodes: another node, or a stranger, that says anything at all costs nobody else the meeting or the verdict."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cluster import combine, messages
from netdoctor.cluster.coordinator import SUBJECTS
from netdoctor.cluster.observations import Cluster, Nodes, Proof, Refused
from netdoctor.facts.runs import AllReduce, Run, State
from netdoctor.model import Status

LIMITS = {**dict.fromkeys(SUBJECTS, 30.0)}
ANYTHING: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x1b[0m",
    "9" * 400,
    [],
    [[]],
    {},
    {"a": {}},
    [1e400],
)


# What other nodes say of the run


def events(ranks: int = 2) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for rank in range(ranks):
        out += [{"event": "forked", "rank": rank, "t": 1.0, "pid": 7}]
        out += [{"event": "phase", "rank": rank, "t": 2.0, "phase": phase} for phase in ("import", "init", "first", "done")]
        out += [{"event": "size", "rank": rank, "t": 3.0, "bytes": 4096, "seconds": 0.1}]
        out += [{"event": "verified", "rank": rank, "t": 3.0, "bytes": 4096, "wrong": 0}]
        out += [{"event": "error", "rank": rank, "t": 3.5, "error": "connection reset by peer"}]
        out += [
            {
                "event": "result",
                "rank": rank,
                "t": 4.0,
                "bytes_moved": 5,
                "system_cpu": 0.1,
                "user_cpu": 0.1,
                "collective_seconds": 1.0,
            }
        ]
        out += [{"event": "exit", "rank": rank, "t": 5.0, "status": 0}]
    return out


def part() -> dict[str, Any]:
    cut = {
        "kind": "stalled",
        "time": 4.0,
        "seconds": 3.0,
        "text": "x",
        "entered": [1, 2],
        "left": [1, 1],
        "stopped": [0],
        "blocked": [1],
    }
    return {"events": events(), "cut": cut}


CLOCKS = "nodes, clocks"


def told() -> dict[str, Any]:
    """What a node says about each subject."""
    return {
        "join": {"host": "h1", "address": "10.0.0.2", "port": 5},
        "place": {"space": "s", "gloo": ["eth0", "10.0.0.2"], "nccl": None, "links": [["eth0", "10.0.0.2", 24, 1500]]},
        "reach": {"0": "", "takes": {"gloo": {"0": "refused"}, "nccl": {}}},
        "ready": {
            "ranks": 2,
            "backend": "gloo",
            "cannot": "",
            "clock": [0.0, 0.001],
            "traits": {"torch": "2.9", "env": "read", "env NCCL_DEBUG": "x"},
        },
        "result": part(),
    }


def changed(value: Any, draw: random.Random) -> Any:
    """`value` with one place replaced by something else."""
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice(ANYTHING)
    if isinstance(value, dict):
        key = draw.choice(sorted(value))
        return {**value, key: changed(value[key], draw)}
    place = draw.randrange(len(value))
    return [*value[:place], changed(value[place], draw), *value[place + 1 :]]


def judged(good: dict[str, Any], other: dict[str, Any]) -> tuple[Cluster, Any]:
    """Node 0's verdict, where node 1 said `other`, as JSON brings it."""
    heard = Cluster(Nodes(2, 0, "h0", 29400), proof=Proof.TOKEN)
    for subject in SUBJECTS[:-1]:
        message = {"data": {"0": good[subject], "1": json.loads(json.dumps(other[subject]))}, "gone": {}, "refused": []}
        heard, _ = messages.take(heard, subject, message)
    made = combine.experiments(heard)
    if not isinstance(made, str):
        message = {"data": {"0": good["result"], "1": json.loads(json.dumps(other["result"]))}}
        heard, parts = messages.take(replace(heard, first_ranks=combine.first_ranks(made)), "result", message)
        heard = combine.combine(heard, made, parts, Run(made[0], State.FINISHED))
    return heard, made


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 6))
def test_whatever_another_node_says_there_is_a_verdict(seed: int, changes: int) -> None:
    draw = random.Random(seed)
    good, other = told(), told()
    for _ in range(changes):
        subject = draw.choice(SUBJECTS)
        other[subject] = changed(other[subject], draw)
    heard, made = judged(good, other)
    result = list(allreduce_nodes(heard))
    assert result
    said = json.dumps(heard.section()) + str(result)
    assert "\x1b" not in said and "\\u001b" not in said
    if isinstance(made, str):
        assert Status.PASS not in {f.status for f in result if f.subject != CLOCKS}  # compared before


@pytest.mark.parametrize(
    "rubbish",
    [
        {"event": []},
        {"event": "size", "bytes": 4096, "seconds": 10**400},
        {"event": "forked", "t": float("inf"), "pid": float("inf")},
        {"event": "result", "bytes_moved": "many"},
        {"event": "result", "system_cpu": "x", "collective_seconds": []},
        {"event": "exit", "status": 10**400, "t": 1.0},
    ],
)
def test_events_that_are_none_are_left_out(rubbish: dict[str, Any]) -> None:
    other = told()
    other["result"] = {"events": [*events(), {"rank": 0, "t": 9.0, **rubbish}], "cut": {"kind": "stalled", "time": 1e400}}
    heard, made = judged(told(), other)
    assert isinstance(made[0], AllReduce) and heard.run is not None and heard.run.ranks[2].rank == 2


def test_an_address_with_a_zone_of_any_text_is_clean_and_short() -> None:
    place = messages.read_endpoints({"gloo": ["eth0", f"fe80::1%\x1b[31m{'x' * 500}"]})
    assert place.listen["gloo"][1].isprintable() and len(place.listen["gloo"][1]) <= 64


@pytest.mark.parametrize(("state", "status"), [("finished", Status.PASS), ("hung", Status.UNKNOWN)])
def test_a_stranger_who_was_turned_away_costs_nobody_a_whole_run(state: str, status: Status) -> None:
    good = told()
    good["result"] = {"events": [e for e in events() if e["event"] != "error"], "cut": None}
    if state == "hung":
        good["result"]["events"] = [e for e in good["result"]["events"] if e["event"] in ("forked", "phase")][:4]
    heard, _ = judged(good, {**good, "place": {**good["place"], "space": ""}})
    heard = replace(heard, reach={0: {1: None}, 1: {0: None}}, refused=(Refused("10.9.9.9", "another job"),))
    found = {f.subject: f.status for f in allreduce_nodes(heard)}
    assert found == {"meeting": status, "h1": status, CLOCKS: Status.PASS}
