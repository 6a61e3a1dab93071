"""Slow nodes: robust statistics within one group and one experiment, with a minimal effect."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from netdoctor.causes.cost import MIGHT, NOTHING
from netdoctor.compare.chance import MAD_TO_SIGMA, beyond
from netdoctor.fleet.groups import Group
from netdoctor.fleet.nodes import Figure
from netdoctor.model import Loss, record

FEWEST: Final = 3  # with two nodes nobody can say which one is wrong
ENOUGH: Final = 8  # fewer: see `_slow_of_few`
RANGES: Final = 3.0  # times the range of the others


@record
class Metric:
    """How nodes are compared by one figure."""

    title: str
    unit: str
    scale: float  # from the report's unit
    more_is_better: bool
    least: float  # minimal effect, as a share of the median
    floor: float  # the least spread that is believed, as a share of the median
    cause: str


METRICS: Final = {
    # Run-to-run spread of an all-reduce on one node is 1 to 3 %; 10 % is also where an A/B pair counts as different.
    "busbw": Metric("bus bandwidth", "GB/s", 1.0, True, 0.10, 0.02, "low_bandwidth"),
    # Small messages are scheduler-bound: the spread is several times that of the bandwidth.
    "latency": Metric("latency", "µs", 1e6, False, 0.50, 0.05, "straggler"),
    # NCCL's initialisation reads files and probes the topology: caches make it vary by tens of per cent.
    "init": Metric("init time", "s", 1.0, False, 1.00, 0.10, "straggler"),
}


@dataclass(frozen=True, slots=True)
class Outlier:
    node: str
    value: float
    of_median: float  # value / median
    of_best: float  # how much of the best node's speed: ≤ 1
    sigmas: float  # distance from the median in robust standard deviations


@dataclass(slots=True)
class Distribution:
    """One figure over one group."""

    group: int
    metric: str  # key into METRICS
    what: str  # for people: "nccl cuda ×8, 64 MiB"
    cpu: bool
    values: list[tuple[float, str]]  # (value, node), ascending
    median: float
    mad: float
    best: float
    outliers: list[Outlier]
    judged: bool  # False: too few nodes
    missing: int  # nodes of the group without this figure

    def loss(self, one: Outlier) -> Loss:
        """Of one of its outliers.  Latency and start-up are no bandwidth.  Ranks on CPUs measure what else the CPUs have to do:
        one healthy, busy machine is fast and 20 times slower within a minute.  That is told, and blames nobody."""
        if self.cpu:
            return NOTHING
        if not METRICS[self.metric].more_is_better:
            return MIGHT
        return Loss(max(0.0, 1 - one.of_median), "its own all-reduce against the median of its kind", measured=True)


def distributions(groups: list[Group]) -> list[Distribution]:
    """Every figure of every group, with its outliers."""
    out = []
    for index, group in enumerate(groups):
        have: dict[Figure, list[tuple[float, str]]] = defaultdict(list)
        for node in group.members:
            if node.run is not None:
                for key, value in node.run.metrics.items():
                    have[key].append((value, node.name))
        for key in sorted(have):
            values = sorted(have[key])
            out.append(_judge(index, key, values, len(group.members) - len(values)))
    return out


def _judge(index: int, figure: Figure, values: list[tuple[float, str]], missing: int) -> Distribution:
    metric = METRICS[figure.metric]
    numbers = [v for v, _ in values]
    median = statistics.median(numbers)
    mad = statistics.median(sorted(abs(v - median) for v in numbers))
    best = _best(numbers, metric.more_is_better)
    sigma = max(MAD_TO_SIGMA * mad, metric.floor * median)
    bound = beyond(sigma / median, len(values), metric.least)
    slow: list[tuple[float, str]] = []
    if len(values) >= ENOUGH:
        slow = [(v, node) for v, node in values if _worse(metric, v, median) > bound]
    elif len(values) >= FEWEST:
        slow = _slow_of_few(metric, values)
        rest = [v for v, node in values if (v, node) not in slow]
        sigma = max(rest[-1] - rest[0], metric.floor * median) if rest else sigma
    found = [
        Outlier(
            node,
            value,
            value / median,
            min(1.0, value / best if metric.more_is_better else best / value),
            abs(value - median) / sigma,
        )
        for value, node in slow
    ]
    found.sort(key=lambda o: (-o.sigmas, o.node))
    return Distribution(index, *figure, values, median, mad, best, found, len(values) >= FEWEST, missing)


def _worse(metric: Metric, value: float, than: float) -> float:
    """By how much of `than` it is worse; negative where it is better."""
    return (than - value if metric.more_is_better else value - than) / than


def _slow_of_few(metric: Metric, values: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """In a handful the MAD is made by the outlier itself: there a minority is slow that lies far outside the others' range."""
    ordered = values if metric.more_is_better else values[::-1]  # the worst first
    for number in range((len(values) - 1) // 2, 0, -1):
        rest = sorted(v for v, _ in ordered[number:])
        middle = statistics.median(rest)
        spread = (rest[-1] - rest[0]) / middle
        bound = max(beyond(metric.floor, len(values), metric.least), RANGES * spread)
        if all(_worse(metric, v, middle) > bound for v, _ in ordered[:number]):
            return list(ordered[:number])
    return []


def _best(ascending: list[float], more_is_better: bool) -> float:
    """The best value that one in twenty nodes reaches (of fewer than twenty: the best): a single wild value is not the mark."""
    skip = len(ascending) // 20
    return ascending[-1 - skip] if more_is_better else ascending[skip]
