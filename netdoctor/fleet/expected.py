"""What the site expects of every node, against their reports: a fault that all nodes share is still a fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from netdoctor.causes.cost import STOPS
from netdoctor.causes.results import own_result
from netdoctor.expectation.findings import CAUSES, About, loss_of
from netdoctor.expectation.model import Quantity, judged
from netdoctor.expectation.site import comparison
from netdoctor.facts.job import Expected
from netdoctor.fleet.nodes import Lack, Node
from netdoctor.model import CheckResult, Finding, Status, count

_WHOLE = frozenset({Quantity.GPUS, Quantity.THERE})  # a job that is given all of them does not start
_PARTS = About("parts", 0, needed=True)  # of how many it is one is not asked here


def lacks(expected: Expected, inventory: Mapping[str, Any]) -> tuple[Lack, ...]:
    """What one report shows to be less than the site expects, or does not show."""
    seen = judged(*_compared(expected, inventory))
    short = [
        Lack(
            one.expectation.subject,
            f"{one.text}, expected {one.expectation.text}",
            CAUSES.get(one.expectation.quantity, "odd_one_out"),
            STOPS if one.expectation.quantity in _WHOLE else loss_of(one, _PARTS),
        )
        for one in seen.shortfalls
    ]
    return (
        *short,
        *(
            Lack(one.expectation.subject, f"{one.expectation.quantity.title} could not be read: {one.why}")
            for one in seen.doubts
        ),
    )


def _compared(expected: Expected, inventory: Mapping[str, Any]) -> Any:
    found = comparison(expected, inventory, network=True)
    return found.parts, found.expectations


def result(nodes: Iterable[Node], *, asked: bool) -> Iterable[CheckResult]:
    """`fleet.expected`: a finding for each thing that is less, with all nodes that have it so; none where nothing is asked."""
    if not asked:
        return
    rows: dict[Lack, list[str]] = defaultdict(list)
    good = 0
    for node in nodes:
        for lack in node.run.lacks if node.run else ():
            rows[lack].append(node.name)
        good += node.run is not None and not node.run.lacks
    found = [
        _finding(lack, sorted(names))
        for lack, names in sorted(rows.items(), key=lambda row: (row[0].cause == "", -len(row[1])))
    ]
    if good:
        found.append(Finding(Status.PASS, f"{count(good, 'node')} as the site expects", "good nodes"))
    yield own_result("fleet.expected", found or [Finding(Status.UNKNOWN, "no node report was given")])


def _finding(lack: Lack, names: list[str]) -> Finding:
    subject = names[0] if len(names) == 1 else lack.subject
    words = f"{lack.subject}: {lack.text}" if len(names) == 1 else f"{count(len(names), 'node')}: {lack.text}"
    if not lack.cause:
        return Finding(Status.UNKNOWN, words, subject, nodes=tuple(names))
    evidence = {"nodes": len(names)}
    return Finding(Status.FAIL, words, subject, None, lack.cause, evidence=evidence, nodes=tuple(names), loss=lack.loss)
