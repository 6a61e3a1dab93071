"""The report of a node or a fleet as Prometheus text, for node_exporter's textfile collector.  Needs the extra `prometheus`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from netdoctor.causes import cost
from netdoctor.fleet.nodes import NodeState, safe_name
from netdoctor.fleet.outliers import METRICS
from netdoctor.fleet.report import Fleet
from netdoctor.model import Health, Report, Status
from netdoctor.report.fleet_section import FleetSection
from netdoctor.report.values import fails, points, runs
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def render(report: Report) -> str:
    """Text exposition format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collector(report))
    return generate_latest(registry).decode()


class _Collector:
    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterable[Metric]:
        section = self._report.section
        yield from _families(section.fleet) if isinstance(section, FleetSection) else _node(self._report)


def _node(report: Report) -> Iterator[Any]:
    """The names that docs/report.md lists.  Whose metrics they are the collector says (`instance`)."""
    from prometheus_client.core import GaugeMetricFamily

    def family(name: str, words: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]) -> Any:
        metric = GaugeMetricFamily(f"netdoctor_{name}", words, labels=labels)
        for values, number in rows:
            metric.add_metric([clean(value) for value in values], number)
        return metric

    about = (report.tool_version, report.profile)
    yield family("report_info", "Always 1: what made this report.", ("version", "profile"), [(about, 1.0)])
    states = (((state.value,), float(report.verdict.status is state)) for state in Health)
    yield family("verdict", "1 at the verdict of the last look.", ("status",), states)
    yield family("exit_code", "Exit code of the last look.", (), [((), float(report.verdict.exit_code))])
    yield family("look_whole", "1 where the last look ran to its end.", (), [((), float(report.partial is None))])
    checks = (((c.id, state.value), float(c.status is state)) for c in report.checks for state in Status)
    yield family("check", "1 at the status of each check.", ("check", "status"), checks)
    failed = Counter((f.check, f.cause or "other", f.severity.value if f.severity else "") for f in fails(report.checks))
    yield family(
        "fails", "Fails that are not waived.", ("check", "cause", "severity"), [(k, float(n)) for k, n in failed.items()]
    )
    ahead = cost.outlook(report.checks)
    share = 1.0 if ahead is None else ahead.left
    if ahead is not None or report.verdict.status is Health.HEALTHY:  # nobody knows what an unseen node can do
        yield family("bandwidth_share", "What a job here would have of this node's bandwidth.", (), [((), share)])
    rates = []
    for run, figure in runs(report):
        if by_size := points(figure.get("busbw_gb_s")):
            labels = (str(run.get("backend")), str(run.get("path") or "default"), str(run.get("ranks")), str(by_size[-1][0]))
            rates.append((labels, by_size[-1][1] * 1e9))
    names = ("backend", "path", "ranks", "bytes")
    yield family("busbw_bytes_per_second", "Bus bandwidth of the all-reduce at its largest size.", names, rates)
    if isinstance(taken := report.volatile.get("time"), str):
        seconds = datetime.strptime(taken, "%Y-%m-%dT%H:%M:%S%z").timestamp()
        yield family("look_timestamp_seconds", "When the last look began.", (), [((), seconds)])


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
    return Counter(f.cause or "other" for f in fails(c for c in fleet.checks if c.id not in own))
