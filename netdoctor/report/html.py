"""The report as one HTML file.

Of a node: verdict, cost and first step in one box; what is wrong, folded as in text; the picture (topology with the state of
each device, bus bandwidth over size); then all checks and the inventory, closed.  Of other commands: verdict, checks, and what
their section shows.  Of a node no script at all: the policy of the page allows none.  Works without a network, and prints.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from netdoctor.model import STATUS_ORDER, CheckResult, Command, Finding, Quantity, Report, Status, count, size_text
from netdoctor.model.section import Markup, Page
from netdoctor.report import blocks, fold, plots
from netdoctor.report.page import el, lines, markup, page, table, tag, tr
from netdoctor.report.values import (
    MOST_NAMES,
    WRONG,
    Row,
    excused,
    fails,
    groups,
    headline,
    identity,
    others,
    outlook,
    points,
    rows,
    runs,
    shown,
    spoken,
    view,
)
from netdoctor.textsafe import listed

_STYLE: Final = """
.check{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:.1rem .9rem}
.check.fail{border-left:5px solid var(--fail)}
.check.unknown{border-left:5px solid #c98a00}.check.error{border-left:5px solid var(--errink)}
.check summary{padding:.45rem 0;cursor:pointer}.check .id{display:inline-block;min-width:13rem;font-weight:600}
dl{display:grid;grid-template-columns:8rem 1fr;gap:.25rem 1rem;margin:.3rem 0 .8rem;font-size:.92rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
@media (max-width:600px){dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}.check .id{min-width:0;margin-right:.4rem}}
"""
_NAMES: Final = {
    "driver": "NVIDIA driver",
    "cuda_driver": "CUDA of the driver",
    "kernel": "kernel",
    "iommu": "IOMMU of GPUs and HCAs",
    "imex": "IMEX",
    "shm": "/dev/shm",
    "torch": "torch",
    "nccl": "NCCL",
    "nccl_interface": "NCCL's interface",
    "nccl_variables": "NCCL variables",
    "sysctls": "sysctls",
    "links": "network interfaces",
    "gpus": "GPUs",
    "nics": "RDMA devices",
}

_MOST: Final = 500  # findings of one check that are shown; what a fleet of thousands has more of is in the JSON


def render(report: Report) -> str:
    """The whole document."""
    name = identity(report)[0] if report.command is Command.PREFLIGHT else f"{report.command} report"
    part = report.section.page() if report.section is not None else Page()
    checks = (_check(c, report.command) for c in sorted(report.checks, key=lambda c: c.status not in WRONG))
    if report.command is Command.PREFLIGHT:
        rest = markup(
            _topology(report),
            _wrong(report),
            _runs(report),
            el("details", el("summary", el("b", f"All {count(len(report.checks), 'check')}")), checks),
            _inventory(report.inventory),
        )
    else:
        rest = markup(part.lead, el("h2", "Checks"), checks)
    body = markup(
        el("h1", name),
        el("p", " · ".join(_about(report)), css="soft"),
        el("div", _head(report), css=f"verdict {report.verdict.status}"),
        rest,
        part.body,
    )
    whole = markup(el("main", body, id="report"), part.beside)
    return page(f"netdoctor: {name}", whole, style=_STYLE + part.style, script=part.script)


def _head(report: Report) -> Iterator[Markup]:
    """What is wrong, what it costs, what to do: what is read in ten seconds."""
    yield el("p", report.verdict.text)
    if report.partial:
        yield el("p", f"this report is not whole: {report.partial}")
    step = fold.first_step(report)
    if worst := (step.of if step else None) or next(iter(fails(report.checks)), None):
        whose = f" ({listed(others(worst), 3)})" if others(worst) else ""
        yield el("p", el("b", worst.check), f": {spoken(worst)}{whose}", css="worst")
    if ahead := outlook(report):
        yield el("p", ahead)
    if step:
        yield markup(el("p", step.words), el("pre", step.command)) if step.command else el("p", step.words)


def _wrong(report: Report) -> Iterator[Markup]:
    found = blocks.wrong(report.checks)
    if found:
        yield el("h2", "What is wrong" if any(b.first.status is Status.FAIL for b in found) else "What could not be told")
    for block in found[:_MOST]:
        finding = block.first
        yield el(
            "details",
            el(
                "summary",
                (el("span", ", ".join(block.checks[:3]), css="id"), " "),
                (tag("waived" if finding.waived else finding.status.value), " "),
                (tag(finding.severity.value), " ") if finding.severity and finding.status is Status.FAIL else "",
                block.text,
            ),
            [el("p", one) for one in block.each],
            _table(*_shown(blocks.told(block))),
            css=f"check card {finding.status.value}",
            open=finding.status is Status.FAIL and not finding.waived,
        )
    if len(found) > _MOST:
        yield el("p", f"… and {len(found) - _MOST:,} more, in --format json")


def _about(report: Report) -> Iterator[str]:
    yield f"netdoctor {report.tool_version}"
    if report.command is Command.PREFLIGHT:
        time = report.volatile.get("time")
        yield from (*identity(report)[1:], *view(report), *([time] if isinstance(time, str) else []), *fold.scope(report))
    else:
        yield f"profile {report.profile}"
        if report.section is not None:
            yield report.section.about()


def _check(check: CheckResult, command: Command) -> Markup:
    waived, severity = excused(check), check.severity
    found = groups(sorted(check.findings, key=lambda f: STATUS_ORDER.index(f.status)))
    return el(
        "details",
        el(
            "summary",
            (el("span", check.id, css="id"), " ", tag("waived" if waived else check.status.value), " "),
            (tag(severity.value), " ") if severity and not waived and check.status is Status.FAIL else "",
            headline(check),
        ),
        (_finding(finding, subjects) for finding, subjects in found[:_MOST]),
        el("p", f"… and {len(found) - _MOST:,} more, in --format json") if len(found) > _MOST else "",
        css=f"check card {check.status.value}",
        open=command is not Command.PREFLIGHT and any(f.status in WRONG for f in check.findings),
    )


def _finding(finding: Finding, subjects: list[str]) -> Markup:
    return _table(
        ("status", tag(finding.status.value)),
        ("subject", listed(subjects, MOST_NAMES)),
        ("what", finding.message),
        *_shown(rows(finding)),
    )


def _shown(told: Iterable[Row]) -> Iterator[tuple[str, str]]:
    return ((r.label, el("pre", "\n".join(r.parts)) if r.commands else lines(r.parts)) for r in told)


def _table(*pairs: tuple[str, str]) -> Markup:
    return el("dl", ((el("dt", label), el("dd", text)) for label, text in pairs if text))


def _runs(report: Report) -> Iterator[Markup]:
    made = [_run(run, figure, _limit(report) if number == 0 else None) for number, (run, figure) in enumerate(runs(report))]
    if not made:
        return
    yield el("h2", "All-reduce")
    yield from (el("p", line) for line in fold.ran(report))
    yield made[0]
    if len(made) > 1:
        yield el("details", el("summary", f"{count(len(made) - 1, 'more run')}, one by one"), made[1:])


def _run(run: Mapping[str, Any], figure: Mapping[str, Any], limit: float | None) -> Markup:
    backend, ranks, device, path = (shown(run.get(key)) for key in ("backend", "ranks", "device", "path"))
    many = f"{ranks} rank" + ("" if ranks == "1" else "s")  # another's report: anything may stand there
    verified = {True: "data right", False: "DATA WRONG"}.get(run.get("verified"), "data not compared")  # type: ignore[arg-type]
    reason = f": {shown(figure['reason'])}" if figure.get("reason") else ""
    speeds = points(figure.get("busbw_gb_s"))
    cpu = figure.get("system_cpu_per_gb")
    return markup(
        el("h3", f"{backend}, {many} on {device}, path {path}"),
        el("p", f"{shown(run.get('state'))}, {verified}{reason}"),
        _speeds(speeds, dict(points(figure.get("latency_s"))), limit) if speeds else "",
        _table(
            ("transports", shown(run["transports"]) if run.get("transports") else ""),
            ("torch", shown(run.get("torch") or "")),
            ("NCCL", shown(run.get("nccl") or "")),
            ("system CPU", f"{cpu:.3g} s per GB" if isinstance(cpu, float) else ""),
        ),
    )


def _speeds(speeds: list[tuple[int, float]], latency: Mapping[int, float], limit: float | None) -> Markup:
    label = f"bus bandwidth over message size, {size_text(speeds[0][0])} to {size_text(speeds[-1][0])}"
    without = plots.why_not()
    body = (
        tr(size_text(size), f"{speed:.3g} GB/s", f"{latency[size] * 1e6:.3g} µs" if size in latency else "")
        for size, speed in speeds
    )
    return markup(
        el("figure", plots.curve(speeds, limit, "GB/s", label) or el("p", without, css="soft small")),
        el(
            "details",
            el("summary", "figures"),
            el("p", f"limit of the path {limit:.3g} GB/s") if limit else "",
            table(tr("size", "bus bandwidth", "time of one", cell="th"), body, css="figures"),
            open=bool(without),
        ),
    )


def _limit(report: Report) -> float | None:
    """What the path of the first run can carry, as the bandwidth check found it."""
    for finding in report.findings():
        limit = finding.measured.get("limit") if (finding.check, finding.subject) == ("allreduce.bandwidth", "node") else None
        if isinstance(limit, Quantity) and limit.value > 0:
            return limit.value
    return None


def _topology(report: Report) -> Markup:
    """GPUs with their NVLinks and HCAs with their ports, by NUMA node and PCIe root; those in red that a fail names."""
    inventory = report.inventory
    states = {shown(d.get("pci")): _state(d) for key in ("gpus", "nics") for d in _objects(inventory.get(key))}
    names = {shown(g.get("pci")): f"GPU {g.get('index')}" for g in _objects(inventory.get("gpus"))}
    names |= {shown(n.get("pci")): str(n.get("name")) for n in _objects(inventory.get("nics"))}
    bad = {word for f in fails(report.checks) for word in re.split(r"[^\w:.]+", f.subject.replace("GPU ", "GPU"))}
    nodes: dict[str, dict[str, list[Markup]]] = defaultdict(lambda: defaultdict(list))
    for device in _objects(inventory.get("pci")):
        numa, address = device.get("numa_node"), shown(device.get("address"))
        column = f"NUMA node {numa}" if isinstance(numa, int) and numa >= 0 else "NUMA node not said"
        kind = "gpu" if device.get("kind") == "gpu" else "nic"
        name = names.get(address, address)
        signs = {name.replace(" ", ""), address, f"GPU{address}"}
        css = f"device {kind} bad" if signs & bad or any(word.startswith(f"{name}:") for word in bad) else f"device {kind}"
        state = el("span", states[address], css="state") if states.get(address) else ""
        nodes[column][shown(device.get("root"))].append(el("span", name, state, css=css))
    if not nodes:
        return Markup()
    columns = (
        el(
            "div",
            el("b", column),
            (el("div", el("span", root, css="soft small"), made, css="root") for root, made in sorted(roots.items())),
            css="numa",
        )
        for column, roots in sorted(nodes.items())[:16]
    )
    return markup(el("h2", "Topology"), el("div", columns, css="topology"))


def _state(device: Mapping[str, Any]) -> str:
    """What is known of its links: of a GPU those that are up, of an HCA's ports their rate, or why they carry nothing."""
    links, up = device.get("nvlinks"), device.get("nvlinks_up")
    if isinstance(links, int) and isinstance(up, int) and links:
        return f"{up}/{links} NVLinks"
    ports = [
        f"{rate:g} Gb/s"
        if port.get("state") == "ACTIVE" and isinstance(rate, int | float)
        else shown(port.get("state")).lower()
        for port in _objects(device.get("ports"))
        for rate in (port.get("rate_gbps"),)
    ]
    return ", ".join(ports[:4])


def _objects(values: Any) -> Iterator[Mapping[str, Any]]:
    yield from (v for v in values if isinstance(v, Mapping)) if isinstance(values, list | tuple) else ()


def _inventory(inventory: Mapping[str, Any]) -> Markup:
    small = (
        (label, el("div", _value(inventory[key]) or "none", css="small")) for key, label in _NAMES.items() if key in inventory
    )
    body = [tr(*cells) for cells in small]
    return el("details", el("summary", el("b", "Inventory")), el("table", el("tbody", body))) if body else Markup()


def _value(value: Any) -> Markup:
    if isinstance(value, list | tuple):
        return lines(shown(item) for item in value)
    if isinstance(value, Mapping) and "unavailable" not in value:
        return lines((el("span", str(key), css="soft"), " ", shown(item)) for key, item in value.items())
    return markup(shown(value))
