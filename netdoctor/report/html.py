"""The report as one HTML file: verdict, checks, then of a node bus bandwidth over size, transports, topology, inventory, and of
other commands what their section shows.

Of a node no script at all: the page's policy allows none.  Works from a disk without a network, and prints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from netdoctor.model import STATUS_ORDER, CheckResult, Command, Finding, Page, Quantity, Report, Status, size_text
from netdoctor.report import plots
from netdoctor.report.page import esc, page
from netdoctor.report.values import WRONG, groups, headline, others, shown, some, why

_STYLE: Final = """
.check{border:1px solid var(--line);border-radius:6px;margin:.5rem 0;padding:.1rem .9rem}
.check.fail{border-left:5px solid var(--fail)}
.check.unknown{border-left:5px solid #c98a00}.check.error{border-left:5px solid var(--errink)}
.check summary{padding:.45rem 0;cursor:pointer}.check .id{display:inline-block;min-width:13rem;font-weight:600}
dl{display:grid;grid-template-columns:8rem 1fr;gap:.25rem 1rem;margin:.3rem 0 .8rem;font-size:.92rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
"""
_NAMES: Final = {
    "driver": "NVIDIA driver",
    "cuda_driver": "CUDA of the driver",
    "kernel": "kernel",
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
    name = _name(report)
    part = report.section.page() if report.section is not None else Page()
    body = "".join(
        (
            '<main id="report">\n',
            f'<h1>{esc(name)}</h1>\n<p class="soft">{esc(_about(report))}</p>\n',
            f'<p class="verdict {esc(report.verdict.status)}">{esc(report.verdict.text)}</p>\n',
            f"<p><b>This report is not whole:</b> {esc(report.partial)}</p>\n" if report.partial else "",
            "<h2>Checks</h2>\n",
            *(_check(c) for c in sorted(report.checks, key=lambda c: c.status not in WRONG)),
            *_runs(report),
            _topology(report.inventory),
            _inventory(report.inventory),
            part.body,
            "</main>\n",
            part.beside,
        )
    )
    return page(f"netdoctor: {name}", body, style=_STYLE + part.style, script=part.script)


def _name(report: Report) -> str:
    if report.command is not Command.PREFLIGHT:
        return f"{report.command} report"
    host = report.identity.get("host")
    return host if isinstance(host, str) and host else "a node without a name"


def _about(report: Report) -> str:
    parts = [f"netdoctor {report.tool_version}"]
    if report.command is not Command.PREFLIGHT:
        return " · ".join((*parts, f"profile {report.profile}", report.section.about() if report.section else ""))
    seen, kernel = report.vantage, report.identity.get("kernel")
    if isinstance(node := report.identity.get("node"), str):
        parts.append(f"node {node}")
    if isinstance(kernel, str):
        parts.append(f"Linux {kernel}")
    place = shown(seen.get("kind", "an unknown place"))
    runtime = seen.get("runtime")
    parts.append(f"seen from: {place}" + (f" ({shown(runtime)})" if isinstance(runtime, str) else ""))
    parts.append(f"profile {report.profile}")
    if isinstance(time := report.volatile.get("time"), str):
        parts.append(time)
    if isinstance(why := seen.get("why_not"), str) and why:
        parts.append(f"not the job's own view: {why}")
    return " · ".join(parts)


def _tag(word: str) -> str:
    return f'<span class="tag {esc(word)}">{esc(word)}</span>'


def _check(check: CheckResult) -> str:
    wrong = [f for f in check.findings if f.status in WRONG]
    waived = check.status is Status.FAIL and all(f.waived for f in wrong if f.status is Status.FAIL)
    severity = check.severity
    tags = _tag("waived" if waived else check.status.value)
    tags += f" {_tag(severity.value)}" if severity and not waived and check.status is Status.FAIL else ""
    found = groups(sorted(check.findings, key=_order))
    told = "".join(_finding(check, f, subjects) for f, subjects in found[:_MOST])
    told += f"<p>… and {len(found) - _MOST:,} more, in --format json</p>" if len(found) > _MOST else ""
    opened = " open" if wrong else ""
    return (
        f'<details class="check card {check.status.value}"{opened}><summary><span class="id">{esc(check.id)}</span> {tags} '
        f"{esc(headline(check))}</summary>{told}</details>\n"
    )


def _order(finding: Finding) -> int:
    """What is wrong first, as `STATUS_ORDER` has it."""
    return STATUS_ORDER.index(finding.status)


def _finding(check: CheckResult, finding: Finding, subjects: list[str]) -> str:
    rows: list[tuple[str, str]] = [
        ("status", _tag(finding.status.value)),
        ("subject", esc(some(subjects))),
        ("what", esc(finding.message)),
        ("waived", esc(finding.waived or "")),
        ("expected", esc(finding.expected or "")),
        ("evidence", _pairs(finding.evidence)),
        ("nodes", esc(some(others(finding)))),
        ("why", esc(why(check, finding)) if finding.status is Status.FAIL else ""),
        ("measured", _pairs(finding.measured)),
        ("cost", esc(finding.cost.summary) if finding.cost else ""),
        ("mend", esc(finding.fix.summary) if finding.fix else ""),
        ("", _commands(finding.fix.commands) if finding.fix else ""),
        ("to last", _commands(finding.fix.persistent) if finding.fix else ""),
        ("next" if finding.status is Status.FAIL else "find out", esc(finding.how or "")),
        ("note", "<br>".join(esc(note) for note in finding.notes)),
    ]
    return "<dl>" + "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in rows if text) + "</dl>"


def _pairs(values: Mapping[str, Any]) -> str:
    return "<br>".join(f'<span class="soft">{esc(name)}</span> {esc(shown(value))}' for name, value in values.items())


def _commands(commands: Iterable[str]) -> str:
    text = "\n".join(commands)
    return f"<pre>{esc(text)}</pre>" if text else ""


def _runs(report: Report) -> Iterator[str]:
    figures = report.volatile.get("runs")
    if not report.runs:
        return
    yield "<h2>All-reduce</h2>\n"
    for number, run in enumerate(report.runs):
        figure = figures[number] if isinstance(figures, list | tuple) and number < len(figures) else {}
        yield from _run(run, figure if isinstance(figure, Mapping) else {}, _limit(report) if number == 0 else None)


def _run(run: Mapping[str, Any], figure: Mapping[str, Any], limit: float | None) -> Iterator[str]:
    backend, ranks, device, path = (shown(run.get(key)) for key in ("backend", "ranks", "device", "path"))
    title = f"{backend}, {ranks} ranks on {device}, path {path}"
    verified = {True: "data right", False: "DATA WRONG"}.get(run.get("verified"), "data not compared")  # type: ignore[arg-type]
    yield f"<h3>{esc(title)}</h3><p>{esc(shown(run.get('state')))}, {verified}"
    yield f": {esc(figure['reason'])}</p>\n" if figure.get("reason") else "</p>\n"
    points = sorted(_points(figure.get("busbw_gb_s")))
    if points:
        label = f"bus bandwidth over message size, {size_text(points[0][0])} to {size_text(points[-1][0])}"
        without = f'<p class="soft small">{esc(plots.why_not())}</p>'
        yield f"<figure>{plots.curve(points, limit, 'GB/s', label) or without}</figure>\n"
        yield _figures(points, dict(_points(figure.get("latency_s"))), limit)
    rows = [
        ("transports", shown(run["transports"]) if run.get("transports") else ""),
        ("torch", shown(run.get("torch") or "")),
        ("NCCL", shown(run.get("nccl") or "")),
        (
            "system CPU",
            f"{figure['system_cpu_per_gb']:.3g} s per GB" if isinstance(figure.get("system_cpu_per_gb"), float) else "",
        ),
    ]
    yield "<dl>" + "".join(f"<dt>{label}</dt><dd>{esc(text)}</dd>" for label, text in rows if text) + "</dl>\n"


def _figures(points: list[tuple[int, float]], latency: Mapping[int, float], limit: float | None) -> str:
    rows = "".join(
        f'<tr><td>{size_text(size)}</td><td class="num">{speed:.3g} GB/s</td>'
        f'<td class="num">{f"{latency[size] * 1e6:.3g} µs" if size in latency else ""}</td></tr>'
        for size, speed in points
    )
    told = f"<p>limit of the path {limit:.3g} GB/s</p>" if limit else ""
    head = '<tr><th>size</th><th class="num">bus bandwidth</th><th class="num">time of one</th></tr>'
    return (
        f"<details{' open' if plots.why_not() else ''}><summary>figures</summary>{told}"
        f"<table><thead>{head}</thead><tbody>{rows}</tbody></table></details>\n"
    )


def _points(values: Any) -> Iterator[tuple[int, float]]:
    for size, value in values.items() if isinstance(values, Mapping) else ():
        if str(size).isdecimal() and isinstance(value, int | float) and value > 0:
            yield int(size), float(value)


def _limit(report: Report) -> float | None:
    """What the path can carry, as the bandwidth check found it."""
    for check in report.checks:
        if check.id == "allreduce.bandwidth":
            for finding in check.findings:
                for name, value in (*finding.measured.items(), *finding.evidence.items()):
                    if "limit" in name:
                        number = value.value if isinstance(value, Quantity) else value
                        if isinstance(number, int | float) and not isinstance(number, bool) and number > 0:
                            return float(number)
    return None


def _topology(inventory: Mapping[str, Any]) -> str:
    """GPUs and HCAs by NUMA node and PCIe root."""
    devices = inventory.get("pci")
    if not isinstance(devices, list | tuple) or not devices:
        return ""
    names = {shown(g.get("pci")): f"GPU {g.get('index')}" for g in _objects(inventory.get("gpus"))}
    names |= {shown(n.get("pci")): str(n.get("name")) for n in _objects(inventory.get("nics"))}
    nodes: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for one in _objects(devices):
        numa = one.get("numa_node")
        column = f"NUMA node {numa}" if isinstance(numa, int) and numa >= 0 else "NUMA node not said"
        address = shown(one.get("address"))
        kind = "gpu" if one.get("kind") == "gpu" else "nic"
        nodes[column][shown(one.get("root"))].append((kind, names.get(address, address)))
    columns = "".join(
        f'<div class="numa"><b>{esc(column)}</b>'
        + "".join(
            f'<div class="root"><span class="soft small">{esc(root)}</span>'
            + "".join(f'<span class="device {kind}">{esc(name)}</span>' for kind, name in devices)
            + "</div>"
            for root, devices in sorted(roots.items())
        )
        + "</div>"
        for column, roots in sorted(nodes.items())[:16]
    )
    return f'<h2>Topology</h2>\n<div class="topology">{columns}</div>\n'


def _objects(values: Any) -> Iterator[Mapping[str, Any]]:
    yield from (v for v in values if isinstance(v, Mapping)) if isinstance(values, list | tuple) else ()


def _inventory(inventory: Mapping[str, Any]) -> str:
    rows = []
    for key, label in _NAMES.items():
        if key not in inventory:
            continue
        value = inventory[key]
        if isinstance(value, list | tuple):
            text = "<br>".join(esc(shown(one)) for one in value) or "none"
        elif isinstance(value, Mapping) and "unavailable" not in value:
            text = "<br>".join(f'<span class="soft">{esc(k)}</span> {esc(shown(v))}' for k, v in value.items()) or "none"
        else:
            text = esc(shown(value))
        rows.append(f'<tr><td>{label}</td><td class="small">{text}</td></tr>')
    return (
        f"<details><summary><b>Inventory</b></summary><table><tbody>{''.join(rows)}</tbody></table></details>\n" if rows else ""
    )
