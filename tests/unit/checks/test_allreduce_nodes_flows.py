"""allreduce.nodes: what TCP counted while the ranks ran, beside a control of each way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.cluster import network
from netdoctor.cluster.observations import Cluster, Endpoints, Flow, OwnAddress
from netdoctor.facts.runs import AllReduce, Control, RankResult, Run, State
from tests.support.facts import cluster, common_run
from tests.unit.checks.test_allreduce_nodes import fails, findings

GB = 1 << 30


def carried_by(carried: dict[tuple[int, int], Flow], count: int = 3, seconds: float = 6.0, **controls: Any) -> Cluster:
    """After a run in which TCP carried this from node to node."""
    flows: dict[int, dict[str, Flow]] = {}
    for (a, b), flow in carried.items():
        flows.setdefault(a, {})[f"10.0.0.{b + 1}"] = flow
    # A way on which much was sent again lost packets of the control as well, unless `controls` says more.
    lossy = {a for (a, b), flow in carried.items() if flow.again and b == (a + 1) % count}
    seen = {n: Control(400, 20 if n in lossy else 0, 1e-4, 1448, own=2e9) for n in range(count)}
    ranks = tuple(RankResult(n, "done", collective_seconds=seconds) for n in range(count))
    return cluster(
        count,
        endpoints={n: Endpoints(f"s{n}", {}, (OwnAddress("eth0", f"10.0.0.{n + 1}", 24, 1500),)) for n in range(count)},
        flows=flows,
        controls=controls.get("controls", seen),
        run=common_run(Run(AllReduce("gloo", count), State.FINISHED, ranks=ranks)),
    )


def ring(*busy: float, again: int = 0) -> dict[tuple[int, int], Flow]:
    """One GiB from each node to the next, in so many seconds."""
    return {(n, (n + 1) % len(busy)): Flow(GB, seconds, GB + again, again) for n, seconds in enumerate(busy)}


@pytest.mark.parametrize(
    ("carried", "expected"),
    [
        (ring(0.7, 0.6, 0.9), {}),
        (ring(0.7, 5.0, 5.5), {"h2": "straggler"}),
        (ring(0.7, 0.7, 5.5), {"h2 to h0": "straggler"}),
        (ring(5.5, 5.2, 5.6), {}),  # all alike
        (ring(2.0, 5.0, 5.5), {}),  # not much more than twice
        (ring(0.01, 0.1, 0.1), {}),  # nobody waited for that
        ({**ring(0.7, 0.7, 0.7), (2, 1): Flow(50_000, 5.0, 50_000, 0)}, {}),  # a few bytes say nothing
        (ring(0.7, 5.5), {"h1 to h0": "straggler"}),
        ({}, {}),
    ],
)
def test_who_is_slower_than_the_others(carried: dict[tuple[int, int], Flow], expected: dict[str, str]) -> None:
    assert fails(carried_by(carried)) == expected


def test_slow_data_that_nobody_waited_for_is_no_fault() -> None:
    assert fails(carried_by(ring(0.7, 5.0, 5.5), seconds=60.0)) == {}


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ({}, {}),
        ({(1, 2): GB // 1000}, {}),
        ({(1, 2): GB // 50}, {"h1 to h2": "link_degraded"}),
        ({(1, 2): GB // 50, (2, 3): GB // 50}, {"h2": "link_degraded"}),
        ({(0, 1): GB // 50, (2, 3): GB // 50}, {"h0 to h1": "link_degraded", "h2 to h3": "link_degraded"}),
    ],
)
def test_who_loses_packets(again: dict[tuple[int, int], int], expected: dict[str, str]) -> None:
    carried = {pair: Flow(GB, 0.7, GB, again.get(pair, 0)) for pair in ring(1, 1, 1, 1)}
    assert fails(carried_by(carried, count=4)) == expected


@pytest.mark.parametrize(
    "controls",
    [{}, {n: Control(400, 0, 1e-4, 1448) for n in range(4)}, {3: Control(400, 20)}],
    ids=["none", "clean", "another way"],
)
def test_what_tcp_sends_again_under_load_is_no_loss(controls: dict[int, Control]) -> None:
    """At start-up TCP fills the way until a queue overflows; only a control that never does so shows a loss."""
    carried = {pair: Flow(GB, 0.7, GB, GB // 50 if pair == (1, 2) else 0) for pair in ring(1, 1, 1, 1)}
    assert fails(carried_by(carried, count=4, controls=controls)) == {}


FAST, SLOW = (1.1e9, 0.8e9, 1.0e9), (2e7, 3e7, 2e7)


@pytest.mark.parametrize(
    ("plain", "wide", "found"),
    [
        (SLOW, FAST, {"h1 to h2, buffers": "tcp_tuning"}),
        (FAST, FAST, {}),
        (FAST, SLOW, {}),  # the kernel's grow beyond what a socket may ask for
        ((2e7, 3e7, 5e8), FAST, {}),  # not every time
        (SLOW[:2], FAST, {}),
        ((), (), {}),
    ],
)
def test_buffers_are_judged_by_what_they_cost(plain: tuple[float, ...], wide: tuple[float, ...], found: dict[str, str]) -> None:
    seen = {1: Control(400, 0, 1e-4, 1448, plain, wide, 2e9)}
    assert fails(carried_by(ring(1, 1, 1), controls=seen)) == found


def test_what_loss_and_buffers_cost() -> None:
    carried = {pair: Flow(GB, 0.7, GB, GB // 10 if pair == (1, 2) else 0) for pair in ring(1, 1, 1)}
    seen = {1: Control(400, 40, 1e-4, 1448, SLOW, FAST, 2e9)}
    losses = {one.subject: one.loss for one in findings(carried_by(carried, controls=seen)) if one.loss}
    lost, narrow = losses["h1 to h2"], losses["h1 to h2, buffers"]
    assert lost.share == pytest.approx(1 - 1.22 * 1448 / (1e-4 * 0.1**0.5) / 2e9, abs=1e-3)
    assert narrow.share == pytest.approx(1 - 2e7 / 1e9)
    assert lost.measured and narrow.measured


def test_an_address_of_several_nodes_is_nobodys() -> None:
    one = Endpoints("", {}, (OwnAddress("eth0", "10.0.0.1", 24, 1500),))
    assert network.flows(replace(carried_by(ring(0.7, 5.0, 5.5)), endpoints=dict.fromkeys(range(3), one))) == {}
