"""The fleet's part of an HTML page: overview, heat map of nodes × checks, drift, distributions, a page per node.

Works from a disk without a network and prints without scripts; the one script only filters and opens a node's page.  Healthy
nodes of a large fleet are folded by kind, so that the page stays quick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from netdoctor.compare.traits import title as trait_title
from netdoctor.fleet.drift import Drift
from netdoctor.fleet.nodes import Node, NodeState, ProblemKind
from netdoctor.fleet.outliers import METRICS, Distribution
from netdoctor.fleet.read import KINDS
from netdoctor.fleet.report import Fleet
from netdoctor.model import Page, count
from netdoctor.report import plots
from netdoctor.report.page import asset, data_block, esc

FOLD: Final = 300  # more nodes than this: the good ones are folded
MOST_NAMES: Final = 40
_ORDER: Final = {"bad": 0, "missing": 1, "flaky": 2, "unknown": 3, "good": 4}
_GLYPH: Final = {"p": "✓", "f": "✗", "s": "–", "u": "?", "e": "!", "x": "\u00a0"}
_KEY: Final = (("p", "pass"), ("f", "fail"), ("u", "unknown"), ("e", "error"), ("s", "does not apply"), ("x", "no report"))
_EFFECT: Final = {"busbw": "lower is worse", "latency": "higher is worse", "init": "higher is worse"}


def page(fleet: Fleet) -> Page:
    """What of a fleet stands on its page beside the findings."""
    ordered = sorted(fleet.nodes, key=lambda n: (_ORDER[n.state], n.group if n.group is not None else -1, n.name))
    links = {node.name: number for number, node in enumerate(ordered)}
    body = (_head(fleet), _drift(fleet, links), _outliers(fleet, links), _heat(fleet, ordered), _problems(fleet))
    beside = '<article id="node" class="hidden"></article>\n' + data_block("data", _data(fleet, ordered))
    return Page("".join(body), beside, asset("netdoctor.report", "fleet.css"), asset("netdoctor.report", "fleet.js"))


def _head(fleet: Fleet) -> str:
    have = fleet.accounting
    tiles = [f'<div class="tile"><b>{have["given"]:,}</b><span>given</span></div>']
    for place, state in enumerate(NodeState):
        some = " some" if have[state] else ""
        tiles.append(f'<span class="op">{"=" if place == 0 else "+"}</span>')
        tiles.append(f'<div class="tile {state}{some}"><b>{have[state]:,}</b><span>{state}</span></div>')
    kinds = "".join(
        f'<tr><td>{esc(g.name)}</td><td class="num">{len(g.members):,}</td>'
        f'<td class="num">{sum(n.state == NodeState.GOOD for n in g.members):,}</td></tr>'
        for g in fleet.groups
    )
    notes = "".join(f"<li>{esc(note)}</li>" for note in fleet.notes)
    return (
        f'<div class="tiles">{"".join(tiles)}</div>\n'
        + (
            '<h2>Kinds of nodes</h2><table><thead><tr><th>hardware</th><th class="num">nodes</th><th class="num">good</th>'
            f"</tr></thead><tbody>{kinds}</tbody></table>\n"
            if kinds
            else ""
        )
        + (f"<h2>Notes</h2><ul>{notes}</ul>\n" if notes else "")
    )


def _name(name: str, links: dict[str, int]) -> str:
    return f'<a href="#n{links[name]}">{esc(name)}</a>' if name in links else esc(name)


def _names(names: Iterable[str], links: dict[str, int]) -> str:
    every = list(names)
    more = f" and {len(every) - MOST_NAMES:,} more" if len(every) > MOST_NAMES else ""
    return ", ".join(_name(n, links) for n in every[:MOST_NAMES]) + more


def _tag(word: str | None) -> str:
    return f'<span class="tag {esc(word)}">{esc(word)}</span>' if word else ""


def _drift(fleet: Fleet, links: dict[str, int]) -> str:
    if not fleet.drift:
        return ""
    rows = "".join(_drift_row(fleet, row, links) for row in fleet.drift)
    return (
        '<h2>Drift</h2>\n<p class="soft">What differs within one kind of nodes. '
        "Without a clear majority nobody is blamed.</p>\n"
        '<table id="drift"><thead><tr><th>severity</th><th>what</th><th>most have</th><th>who differs</th><th>kind</th></tr>'
        f"</thead><tbody>{rows}</tbody></table>\n"
    )


def _drift_row(fleet: Fleet, row: Drift, links: dict[str, int]) -> str:
    decided = row.majority is not None
    mark = _tag(row.family.severity.value) if decided else _tag("undecided")
    unknown = f'<br><span class="soft small">{row.sides.unknown:,} could not tell</span>' if row.sides.unknown else ""
    most = (
        f'<span class="value">{esc(row.majority)}</span><br><span class="soft small">{count(row.agreeing, "node")}</span>'
        if decided
        else '<span class="soft">no clear majority</span>'
    )
    sides = []
    for value, nodes in row.values[:8]:
        who = _names(nodes, links) if decided else f'<span class="soft">{count(len(nodes), "node")}</span>'
        sides.append(f'<div><span class="value">{esc(value)}</span>: <span class="names">{who}</span></div>')
    if len(row.values) > 8:
        sides.append(f'<div class="soft">… and {len(row.values) - 8:,} more values</div>')
    return (
        f"<tr><td>{mark}</td><td>{esc(row.title)}</td><td>{most}{unknown}</td><td>{''.join(sides)}</td>"
        f'<td class="soft small">{esc(fleet.groups[row.group].name)}</td></tr>'
    )


def _outliers(fleet: Fleet, links: dict[str, int]) -> str:
    if not fleet.distributions:
        return ""
    first = [d for d in fleet.distributions if d.metric == "busbw" and len(d.values) > 1]
    rest = [d for d in fleet.distributions if d.metric != "busbw" and len(d.values) > 1]
    figures = "".join(_figure(fleet, d, links) for d in first)
    more = "".join(_figure(fleet, d, links) for d in rest)
    opened = " open" if any(d.outliers for d in rest) else ""
    return (
        "<h2>Bus bandwidth</h2>\n"
        + (f'<p class="soft small">{esc(plots.why_not())}</p>\n' if plots.why_not() else "")
        + (figures or '<p class="soft">No report has a finished all-reduce to compare.</p>')
        + (f"<details{opened}><summary>Latency and init time</summary>{more}</details>\n" if more else "")
    )


def _figure(fleet: Fleet, dist: Distribution, links: dict[str, int]) -> str:
    metric = METRICS[dist.metric]
    scaled = [v * metric.scale for v, _ in dist.values]
    outliers = [(o.value * metric.scale, o.node) for o in dist.outliers]
    group = fleet.groups[dist.group].name
    rows = "".join(
        f"<li>{_name(o.node, links)}: {o.value * metric.scale:.3g} {esc(metric.unit)}, {o.of_best:.0%} of the best, "
        f"{o.sigmas:.0f} σ from the median</li>"
        for o in dist.outliers[:MOST_NAMES]
    )
    facts = f"{count(len(dist.values), 'node')}, {_EFFECT[dist.metric]}"
    facts += f", median {dist.median * metric.scale:.3g}, best {dist.best * metric.scale:.3g} {metric.unit}"
    facts += "" if dist.judged else ", too few to judge"
    facts += f", {dist.missing:,} without this figure" if dist.missing else ""
    picture = plots.histogram(scaled, outliers, dist.median * metric.scale, metric.unit, f"{metric.title}, {group}")
    return (
        f"<figure><figcaption><b>{esc(group)}</b>: {esc(metric.title)} ({esc(dist.what)}) "
        f'<span class="soft">{esc(facts)}</span></figcaption>{picture}{f"<ul>{rows}</ul>" if rows else ""}</figure>\n'
    )


def _heat(fleet: Fleet, ordered: list[Node]) -> str:
    turned = "".join(
        f'<th class="turn"><span>{esc(name)}</span></th>' for name in (*fleet.node_checks, "compared", "bus bandwidth")
    )
    head = f"<thead><tr><th>node</th><th>state</th>{turned}</tr></thead>"
    medians = {(d.group, d.what): d.median for d in fleet.distributions if d.metric == "busbw"}
    fold = len(ordered) > FOLD
    rows: list[str] = []
    folded: dict[int, list[str]] = defaultdict(list)
    for number, node in enumerate(ordered):
        row = _row(fleet, number, node, medians)
        if fold and node.state == NodeState.GOOD and node.group is not None:
            folded[node.group].append(row)
        else:
            rows.append(row)
    key = " ".join(f'<span class="key {css}">{_GLYPH[css]}</span> {word}' for css, word in _KEY)
    options = "".join(f"<option>{state}</option>" for state in NodeState)
    more = "".join(
        f'<details class="good"><summary>{len(members):,} good: {esc(fleet.groups[group].name)}</summary>'
        f'<table class="heat">{head}<tbody>{"".join(members)}</tbody></table></details>\n'
        for group, members in sorted(folded.items())
    )
    return (
        "<h2>Nodes and checks</h2>\n"
        f'<p class="small">{key}</p>\n<div class="tools noprint"><input id="filter" type="search" placeholder="node name" '
        f'aria-label="node name"><select id="state" aria-label="state"><option value="">every state</option>{options}</select>'
        '<span id="left" class="soft"></span></div>\n'
        + (f'<table class="heat" id="heat">{head}<tbody>{"".join(rows)}</tbody></table>\n' if rows else "")
        + more
    )


def _row(fleet: Fleet, number: int, node: Node, medians: dict[tuple[int, str], float]) -> str:
    run = node.run
    if run is None:
        letters = "x" * len(fleet.node_checks)
    elif run.checks == fleet.node_checks:
        letters = run.statuses
    else:
        have = dict(zip(run.checks, run.statuses, strict=True))
        letters = "".join(have.get(name, "x") for name in fleet.node_checks)
    cells = "".join(f'<td class="{c}">{_GLYPH[c]}</td>' for c in letters)
    blamed = sum(counts for _, counts in node.blamed)
    mark = "p" if run else "x"
    compared = f'<td class="f">{blamed}</td>' if blamed else f'<td class="{mark}">{_GLYPH[mark]}</td>'
    return (
        f'<tr data-s="{node.state}"><th><a href="#n{number}">{esc(node.name)}</a></th>'
        f'<td class="w">{_tag(node.state)}</td>{cells}{compared}{_speed(node, medians)}</tr>\n'
    )


def _speed(node: Node, medians: dict[tuple[int, str], float]) -> str:
    """The share of its kind's median, in the same colours as the checks."""
    if node.run is not None and node.group is not None:
        for key, value in node.run.metrics.items():
            metric, _, what = key.partition("|")
            if metric == "busbw" and medians.get((node.group, what)):
                share = value / medians[node.group, what]
                return f'<td class="{"f" if share < 0.85 else "u" if share < 0.9 else "p"}">{share:.0%}</td>'
    return f'<td class="x">{_GLYPH["x"]}</td>'


def _problems(fleet: Fleet) -> str:
    if not fleet.problems:
        return ""
    by_kind: dict[ProblemKind, list[str]] = defaultdict(list)
    for problem in fleet.problems:
        by_kind[problem.kind].append(problem.file + (f" ({problem.detail})" if problem.detail else ""))
    out = ["<h2>Files that are no report</h2>\n"]
    for kind, files in sorted(by_kind.items()):
        items = "".join(f"<li>{esc(file)}</li>" for file in files[:500])
        items += f"<li>… and {len(files) - 500:,} more</li>" if len(files) > 500 else ""
        out.append(f"<details><summary>{count(len(files), 'file')}: {esc(KINDS[kind])}</summary><ul>{items}</ul></details>\n")
    return "".join(out)


def _data(fleet: Fleet, ordered: list[Node]) -> dict[str, Any]:
    """What the pages of single nodes are made of; equal parts of nodes are given once."""
    orders: dict[tuple[str, ...], int] = {}
    pool: dict[int, int] = {}
    traits: list[list[list[str]]] = []
    differs: dict[str, list[str]] = defaultdict(list)
    for row in fleet.drift:
        for name in row.blamed:
            differs[name].append(row.title)
    medians = {(d.group, f"{d.metric}|{d.what}"): d.median for d in fleet.distributions}
    nodes = []
    for node in ordered:
        one: dict[str, Any] = {"name": node.name, "state": node.state, "group": node.group}
        extra = {"reasons": node.reasons, "notes": node.notes, "differs": differs.get(node.name)}
        one |= {key: value for key, value in extra.items() if value}
        run = node.run
        if run is not None:
            one["order"] = orders.setdefault(run.checks, len(orders))
            one["checks"] = run.statuses
            if id(run.traits) not in pool:
                pool[id(run.traits)] = len(traits)
                traits.append([[trait_title(name), value] for name, value in run.traits.items()])
            one["traits"] = pool[id(run.traits)]
            one["files"] = [run.file, *(f"{r.file} (older)" for r in node.older)]
            if run.items:
                one["items"] = [[i.check, i.subject, i.status, i.severity or "", i.cause, i.message] for i in run.items]
            if run.omitted:
                one["omitted"] = run.omitted
            one["figures"] = list(_figures(node, medians))
        nodes.append(one)
    return {"groups": [g.name for g in fleet.groups], "orders": list(orders), "traits": traits, "nodes": nodes}


def _figures(node: Node, medians: dict[tuple[int, str], float]) -> Iterator[list[str]]:
    assert node.run is not None
    for key, value in node.run.metrics.items():
        name, _, what = key.partition("|")
        metric = METRICS[name]
        median = medians.get((node.group, key)) if node.group is not None else None
        yield [
            f"{metric.title} ({what})",
            f"{value * metric.scale:.3g} {metric.unit}",
            "" if median is None else f"{median * metric.scale:.3g} {metric.unit}",
        ]
