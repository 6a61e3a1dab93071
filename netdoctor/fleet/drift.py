"""Drift: the nodes of one kind that differ from most of it.  Without a majority nobody is blamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from netdoctor.compare.traits import NOT_SET, family, title
from netdoctor.fleet.groups import Group
from netdoctor.fleet.nodes import Node
from netdoctor.model import Severity

# Of an upgrade that is half done, 48 against 47 nodes, the 47 are not at fault; three of five are a majority.
CLEAR: Final = 0.6


def clear_majority(counts: Mapping[str, int], unknown: int = 0) -> str | None:
    """The value that three fifths have, unless those that could not tell might make another one as frequent."""
    ordered = sorted(counts.values(), reverse=True)
    if not ordered or ordered[0] < CLEAR * sum(ordered) or (len(ordered) > 1 and ordered[0] <= ordered[1] + unknown):
        return None
    return next(value for value, number in counts.items() if number == ordered[0])


@dataclass(slots=True)
class Drift:
    """One trait that differs within one group."""

    group: int
    trait: str
    title: str
    cause: str
    severity: Severity
    majority: str | None  # None: no value has a clear majority, so nobody is blamed
    values: list[tuple[str, list[str]]] = field(default_factory=list)  # (value, nodes), the most frequent first
    agreeing: int = 0  # nodes with the majority's value (not listed in `values`)
    unknown: int = 0  # nodes whose value could not be read: neither agreeing nor differing

    @property
    def blamed(self) -> list[tuple[str, str]]:
        """(node, value) of everybody who differs from a majority."""
        return [] if self.majority is None else [(n, value) for value, nodes in self.values for n in nodes]


def drift(groups: list[Group]) -> list[Drift]:
    """Every trait that differs within a group: decided rows first, the worst first."""
    rows = [row for index, group in enumerate(groups) if len(group.members) > 1 for row in _rows(index, group)]
    rows.sort(key=lambda r: (r.majority is None, -r.severity.rank, r.group, r.trait))
    return rows


def _rows(index: int, group: Group) -> list[Drift]:
    # Traits are shared objects: equal nodes are counted at once.
    alike: dict[tuple[int, bool], tuple[Mapping[str, str], list[Node]]] = {}
    variables: set[str] = set()
    for node in group.members:
        if node.run is not None:
            key = (id(node.run.traits), node.run.env_read)
            alike.setdefault(key, (node.run.traits, []))[1].append(node)
    for traits, _ in alike.values():
        variables.update(name for name in traits if name.startswith("env "))
    counts: dict[str, dict[str, int]] = {}
    for (_, env_read), (traits, nodes) in alike.items():
        for name, value in traits.items():
            have = counts.setdefault(name, {})
            have[value] = have.get(value, 0) + len(nodes)
        if env_read:
            for name in variables - traits.keys():
                have = counts.setdefault(name, {})
                have[NOT_SET] = have.get(NOT_SET, 0) + len(nodes)
    rows = []
    for name, have in counts.items():
        if len(have) > 1:
            rows.append(_row(index, group, name, have, alike))
    return rows


def _row(
    index: int,
    group: Group,
    name: str,
    have: dict[str, int],
    alike: dict[tuple[int, bool], tuple[Mapping[str, str], list[Node]]],
) -> Drift:
    known = sum(have.values())
    majority = clear_majority(have, len(group.members) - known)
    kind = family(name)
    row = Drift(index, name, title(name), kind.cause, kind.severity, majority, unknown=len(group.members) - known)
    nodes: dict[str, list[str]] = {}
    for (_, env_read), (traits, members) in alike.items():
        value = traits.get(name, NOT_SET if env_read and name.startswith("env ") else None)
        if value is None:
            continue
        if value == majority:
            row.agreeing += len(members)
        else:
            nodes.setdefault(value, []).extend(n.name for n in members)
    row.values = sorted(((v, sorted(n)) for v, n in nodes.items()), key=lambda pair: (-len(pair[1]), pair[0]))
    return row
