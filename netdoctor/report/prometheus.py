"""The fleet's report as a Prometheus text file, for node_exporter's textfile collector.  Needs the extra ``prometheus``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from netdoctor.fleet.nodes import NodeState, safe_name
from netdoctor.fleet.outliers import METRICS
from netdoctor.fleet.report import Fleet
from netdoctor.model import Report
from netdoctor.report.fleet_section import FleetSection

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def render(report: Report) -> str:
    """Text exposition format."""
    from prometheus_client import CollectorRegistry, generate_latest

    assert isinstance(report.section, FleetSection), "a format of fleets"
    registry = CollectorRegistry()
    registry.register(_Collector(report.section.fleet))
    return generate_latest(registry).decode()


class _Collector:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        yield from _families(self._fleet)


def _families(fleet: Fleet) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    def family(name: str, words: str, labels: tuple[str, ...]) -> Any:
        return GaugeMetricFamily(f"netdoctor_fleet_{name}", words, labels=labels)

    nodes = family("nodes", "Nodes by state; given is the sum of all.", ("state",))
    for state in NodeState:
        nodes.add_metric((state,), fleet.accounting[state])
    yield nodes
    good = family("node_good", "1 where the node is good, 0 where it is not.", ("node", "state"))
    unnamed = 0
    for node in fleet.nodes:
        if safe_name(node.name):
            good.add_metric((node.name, node.state), float(node.state == NodeState.GOOD))
        else:
            unnamed += 1
    yield good
    left = family("nodes_unnamed", "Nodes left out above: their names are no host names.", ())
    left.add_metric((), unnamed)
    yield left
    across = family("faults", "Faults between nodes, by cause.", ("cause",))
    for cause, number in sorted(_faults(fleet).items()):
        across.add_metric((cause,), number)
    yield across
    drift = family("drift_nodes", "Nodes that differ from the majority of their kind.", ("group", "trait"))
    for row in fleet.drift:
        if row.majority is not None:
            drift.add_metric((fleet.groups[row.group].name, str(row.trait)), len(row.blamed))
    yield drift
    median = family("median", "Median over the nodes of one kind.", ("group", "metric", "what", "unit"))
    slow = family("outliers", "Nodes that are outliers.", ("group", "metric", "what"))
    for dist in fleet.distributions:
        name, metric = fleet.groups[dist.group].name, METRICS[dist.metric]
        median.add_metric((name, dist.metric, dist.what, metric.unit), dist.median * metric.scale)
        slow.add_metric((name, dist.metric, dist.what), len(dist.outliers))
    yield from (median, slow)
    files = family("files", "Files that are no usable report, by kind.", ("kind",))
    for kind, number in sorted(Counter(p.kind for p in fleet.problems).items()):
        files.add_metric((kind,), number)
    yield files


def _faults(fleet: Fleet) -> Counter[str]:
    """Of the rules that compare two nodes; drift and outliers have figures of their own."""
    own = {"fleet.nodes", "fleet.drift", "fleet.outliers"}
    return Counter(f.cause or "other" for c in fleet.checks if c.id not in own for f in c.findings)
