"""The fleet's part of an HTML page: who is not good and why, heat map of nodes × checks, drift, distributions, a page per node.

Works from a disk without a network and prints without scripts; the one script only filters and opens a node's page.  Healthy
nodes of a large fleet are folded by kind, so that the page stays quick.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from netdoctor.fleet.drift import Drift
from netdoctor.fleet.nodes import Figure, Node, NodeState, ProblemKind
from netdoctor.fleet.outliers import METRICS, Distribution
from netdoctor.fleet.read import KINDS
from netdoctor.fleet.report import Fleet
from netdoctor.model import count
from netdoctor.model.section import Markup, Page
from netdoctor.report import plots
from netdoctor.report.page import asset, data_block, el, markup, table, tag, tr
from netdoctor.report.values import MOST_NAMES

FOLD: Final = 300  # more nodes than this: the good ones are folded
_ORDER: Final = {"bad": 0, "missing": 1, "flaky": 2, "unknown": 3, "good": 4}
_GLYPH: Final = {"p": "✓", "f": "✗", "s": "–", "u": "?", "e": "!", "x": "\u00a0"}
_CELL: Final = {letter: el("td", glyph, css=letter) for letter, glyph in _GLYPH.items()}
_KEY: Final = (("p", "pass"), ("f", "fail"), ("u", "unknown"), ("e", "error"), ("s", "does not apply"), ("x", "no report"))
_LAST_NUMBER: Final = re.compile(r"(.*?)(\d{0,9})(\D*)", re.DOTALL | re.ASCII)
_EFFECT: Final = {"busbw": "lower is worse", "latency": "higher is worse", "init": "higher is worse"}


def page(fleet: Fleet) -> Page:
    """What of a fleet stands on its page beside the findings."""
    ordered = sorted(fleet.nodes, key=lambda n: (_ORDER[n.state], n.group if n.group is not None else -1, n.name))
    links = {node.name: number for number, node in enumerate(ordered)}
    body = markup(_heat(fleet, ordered), _head(fleet), _drift(fleet, links), _outliers(fleet, links), _problems(fleet))
    beside = markup(el("article", id="node", css="hidden"), data_block("data", _data(fleet, ordered)))
    return Page(body, markup(_lead(fleet, ordered, links)), beside, asset("fleet.css"), asset("fleet.js"))


def _lead(fleet: Fleet, ordered: list[Node], links: dict[str, int]) -> Iterator[Markup]:
    have = fleet.accounting
    tiles = [_tile(have["given"], "given", "tile")]
    for place, state in enumerate(NodeState):
        tiles.append(el("span", "+" if place else "=", css="op"))
        tiles.append(_tile(have[state], state, f"tile {state}" + (" some" if have[state] else "")))
    yield el("div", tiles, css="tiles")
    wrong = [node for node in ordered if node.state != NodeState.GOOD]
    if wrong:
        rows = (tr(_name(node.name, links), tag(node.state), "; ".join(node.reasons[:3]) or "-") for node in wrong[:FOLD])
        yield el("h2", "Nodes that are not good")
        yield table(tr("node", "state", "why", cell="th"), rows, id="wrong")
    if len(wrong) > FOLD:
        yield el("p", f"… and {len(wrong) - FOLD:,} more, in the table of nodes and checks")
    if len(ordered) > 1:
        yield el("h2", "All nodes by name")
        yield el("div", _map(ordered, links), css="map")


def _map(ordered: Iterable[Node], links: dict[str, int]) -> Iterator[Markup]:
    """A square a node, a row for those whose names differ in their last number alone: mostly a rack, or a pool."""
    rows: dict[str, list[tuple[int, str, Node]]] = defaultdict(list)
    for node in ordered:
        address = node.name.replace(".", "").isdecimal()
        first, dot, domain = (node.name, "", "") if address else node.name.partition(".")
        before, number, after = _LAST_NUMBER.fullmatch(first).groups()  # type: ignore[union-attr]
        rows[f"{before}{'…' if number else ''}{after}{dot}{domain}"].append((int(number or 0), number, node))
    for name, nodes in sorted(rows.items()):
        squares = (
            el("a", number or "·", href=f"#n{links[node.name]}", css=node.state, title=f"{node.name}: {node.state}")
            for _, number, node in sorted(nodes, key=lambda row: (row[0], row[2].name))
        )
        yield el("div", el("span", name, css="soft small"), el("div", squares))


def _head(fleet: Fleet) -> Iterator[Markup]:
    if fleet.groups:
        kinds = (
            tr(g.name, f"{len(g.members):,}", f"{sum(n.state == NodeState.GOOD for n in g.members):,}") for g in fleet.groups
        )
        yield el("h2", "Kinds of nodes")
        yield table(tr("hardware", "nodes", "good", cell="th"), kinds, css="figures")
    if fleet.notes:
        yield el("h2", "Notes")
        yield _list(fleet.notes)


def _tile(number: int, word: str, css: str) -> Markup:
    return el("div", el("b", f"{number:,}"), el("span", word), css=css)


def _list(items: Iterable[str]) -> Markup:
    return el("ul", (el("li", item) for item in items))


def _name(name: str, links: dict[str, int]) -> Markup:
    return el("a", name, href=f"#n{links[name]}") if name in links else markup(name)


def _names(names: Sequence[str], links: dict[str, int]) -> Markup:
    more = len(names) - MOST_NAMES
    shown = [(", " if number else "", _name(name, links)) for number, name in enumerate(names[:MOST_NAMES])]
    return markup(shown, f" and {more:,} more" if more > 0 else "")


def _drift(fleet: Fleet, links: dict[str, int]) -> Markup:
    if not fleet.drift:
        return Markup()
    head = tr("severity", "what", "most have", "who differs", "kind", cell="th")
    about = "What differs within one kind of nodes. Without a clear majority nobody is blamed."
    rows = (_drift_row(fleet, row, links) for row in fleet.drift)
    return markup(el("h2", "Drift"), el("p", about, css="soft"), table(head, rows, id="drift"))


def _drift_row(fleet: Fleet, row: Drift, links: dict[str, int]) -> Markup:
    decided = row.majority is not None
    most = el("span", "no clear majority" if row.majority is None else row.majority, css="value" if decided else "soft")
    agreeing = (el("br"), el("span", count(row.agreeing, "node"), css="soft small")) if decided else ""
    unknown = (el("br"), el("span", f"{row.sides.unknown:,} could not tell", css="soft small")) if row.sides.unknown else ""
    sides = [
        el(
            "div",
            (el("span", value, css="value"), ": "),
            el("span", _names(nodes, links) if decided else count(len(nodes), "node"), css="names" if decided else "soft"),
        )
        for value, nodes in row.values[:8]
    ]
    if len(row.values) > 8:
        sides.append(el("div", f"… and {len(row.values) - 8:,} more values", css="soft"))
    kind = el("span", fleet.groups[row.group].name, css="soft small")
    return tr(tag(row.loss.severity.value if decided else "undecided"), row.title, (most, agreeing, unknown), sides, kind)


def _outliers(fleet: Fleet, links: dict[str, int]) -> Iterator[Markup]:
    if not fleet.distributions:
        return
    shown = [d for d in fleet.distributions if len(d.values) > 1]
    first = [_figure(fleet, d, links) for d in shown if d.metric == "busbw"]
    rest = [d for d in shown if d.metric != "busbw"]
    yield el("h2", "Bus bandwidth")
    if plots.why_not():
        yield el("p", plots.why_not(), css="soft small")
    yield from first or [el("p", "No report has a finished all-reduce to compare.", css="soft")]
    if rest:
        summary = el("summary", "Latency and init time")
        yield el("details", summary, (_figure(fleet, d, links) for d in rest), open=any(d.outliers for d in rest))


def _figure(fleet: Fleet, dist: Distribution, links: dict[str, int]) -> Markup:
    metric = METRICS[dist.metric]
    scaled = [v * metric.scale for v, _ in dist.values]
    outliers = [(o.value * metric.scale, o.node) for o in dist.outliers]
    group = fleet.groups[dist.group].name
    rows = [
        markup(
            _name(o.node, links),
            f": {o.value * metric.scale:.3g} {metric.unit}, {o.of_best:.0%} of the best, {o.sigmas:.0f} σ from the median",
        )
        for o in dist.outliers[:MOST_NAMES]
    ]
    facts = f"{count(len(dist.values), 'node')}, {_EFFECT[dist.metric]}"
    facts += f", median {dist.median * metric.scale:.3g}, best {dist.best * metric.scale:.3g} {metric.unit}"
    facts += "" if dist.judged else ", too few to judge"
    facts += f", {dist.missing:,} without this figure" if dist.missing else ""
    return el(
        "figure",
        el("figcaption", el("b", group), f": {metric.title} ({dist.what}) ", el("span", facts, css="soft")),
        plots.histogram(scaled, outliers, dist.median * metric.scale, metric.unit, f"{metric.title}, {group}"),
        _list(rows) if rows else "",
    )


def _heat(fleet: Fleet, ordered: list[Node]) -> Iterator[Markup]:
    titles = (*fleet.node_checks, "compared", "bus bandwidth")
    head = el("tr", el("th", "node"), el("th", "state"), (el("th", el("span", name), css="turn") for name in titles))
    medians = {(d.group, d.what): d.median for d in fleet.distributions if d.metric == "busbw"}
    rows: list[Markup] = []
    folded: dict[int, list[Markup]] = defaultdict(list)
    for number, node in enumerate(ordered):
        row = _row(fleet, number, node, medians)
        if len(ordered) > FOLD and node.state == NodeState.GOOD and node.group is not None:
            folded[node.group].append(row)
        else:
            rows.append(row)
    yield el("h2", "Nodes and checks")
    yield el("p", ((el("span", _GLYPH[css], css=f"key {css}"), f" {word} ") for css, word in _KEY), css="small")
    yield el(
        "div",
        el("input", id="filter", type="search", placeholder="node name", aria_label="node name"),
        el(
            "select",
            el("option", "every state", value=""),
            (el("option", state) for state in NodeState),
            id="state",
            aria_label="state",
        ),
        el("span", id="left", css="soft"),
        css="tools noprint",
    )
    if rows:
        yield table(head, rows, css="heat", id="heat")
    for group, members in sorted(folded.items()):
        summary = el("summary", f"{len(members):,} good: {fleet.groups[group].name}")
        yield el("details", summary, table(head, members, css="heat"), css="good")


def _row(fleet: Fleet, number: int, node: Node, medians: dict[tuple[int, str], float]) -> Markup:
    run = node.run
    if run is None:
        letters = "x" * len(fleet.node_checks)
    elif run.checks == fleet.node_checks:
        letters = run.statuses
    else:
        have = dict(zip(run.checks, run.statuses, strict=True))
        letters = "".join(have.get(name, "x") for name in fleet.node_checks)
    blamed = sum(counts for _, counts in node.blamed)
    return el(
        "tr",
        el("th", el("a", node.name, href=f"#n{number}")),
        el("td", tag(node.state), css="w"),
        [_CELL[letter] for letter in letters],
        el("td", str(blamed), css="f") if blamed else _CELL["p" if run else "x"],
        _speed(node, medians),
        data_s=node.state,
    )


def _speed(node: Node, medians: dict[tuple[int, str], float]) -> Markup:
    """The share of its kind's median, in the same colours as the checks."""
    if node.run is not None and node.group is not None:
        for (metric, what, _), value in node.run.metrics.items():
            if metric == "busbw" and medians.get((node.group, what)):
                share = value / medians[node.group, what]
                return el("td", f"{share:.0%}", css="f" if share < 0.85 else "u" if share < 0.9 else "p")
    return _CELL["x"]


def problems(fleet: Fleet) -> list[tuple[ProblemKind, list[str]]]:
    """Files that are no report, each with what there is to say, by kind."""
    by_kind: dict[ProblemKind, list[str]] = defaultdict(list)
    for problem in fleet.problems:
        by_kind[problem.kind].append(problem.file + (f" ({problem.detail})" if problem.detail else ""))
    return sorted(by_kind.items())


def _problems(fleet: Fleet) -> Iterator[Markup]:
    if fleet.problems:
        yield el("h2", "Files that are no report")
    for kind, files in problems(fleet):
        more = [f"… and {len(files) - 500:,} more"] if len(files) > 500 else []
        yield el("details", el("summary", f"{count(len(files), 'file')}: {KINDS[kind]}"), _list((*files[:500], *more)))


def _data(fleet: Fleet, ordered: list[Node]) -> dict[str, Any]:
    """What the pages of single nodes are made of; equal parts of nodes are given once."""
    orders: dict[tuple[str, ...], int] = {}
    pool: dict[int, int] = {}
    traits: list[list[list[str]]] = []
    differs: dict[str, list[str]] = defaultdict(list)
    for row in fleet.drift:
        for name in row.blamed:
            differs[name].append(row.title)
    medians = {(d.group, Figure(d.metric, d.what, d.cpu)): d.median for d in fleet.distributions}
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
                traits.append([[trait.title, value] for trait, value in run.traits.values.items()])
            one["traits"] = pool[id(run.traits)]
            one["files"] = [run.file, *(f"{r.file} (older)" for r in node.older)]
            if run.items:
                one["items"] = [[i.check, i.subject, i.status, i.severity or "", i.cause, i.message] for i in run.items]
            if run.omitted:
                one["omitted"] = run.omitted
            one["figures"] = list(_own_figures(node, medians))
        nodes.append(one)
    return {"groups": [g.name for g in fleet.groups], "orders": list(orders), "traits": traits, "nodes": nodes}


def _own_figures(node: Node, medians: dict[tuple[int, Figure], float]) -> Iterator[list[str]]:
    assert node.run is not None
    for key, value in node.run.metrics.items():
        metric = METRICS[key.metric]
        median = medians.get((node.group, key)) if node.group is not None else None
        yield [
            f"{metric.title} ({key.what})",
            f"{value * metric.scale:.3g} {metric.unit}",
            "" if median is None else f"{median * metric.scale:.3g} {metric.unit}",
        ]
