"""Drift: the nodes of one kind that differ from most of it.  Without a majority nobody is blamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from netdoctor.compare.versions import Alike, Difference, differences
from netdoctor.fleet.groups import Group
from netdoctor.model import Severity


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


def _rows(index: int, group: Group) -> Iterator[Drift]:
    # Traits are shared objects: equal nodes are compared at once.
    alike: dict[tuple[int, bool], tuple[Mapping[str, str], list[str]]] = {}
    for node in group.members:
        if node.run is not None:
            key = (id(node.run.traits), node.run.env_read)
            alike.setdefault(key, (node.run.traits, []))[1].append(node.name)
    told = [Alike(traits, env_read, names) for (_, env_read), (traits, names) in alike.items()]
    return (_row(index, one) for one in differences(told))


def _row(index: int, one: Difference[str]) -> Drift:
    sides, majority = one.sides, one.sides.majority
    others = [(value, sorted(nodes)) for value, nodes in sides.values.items() if value != majority]
    return Drift(
        index,
        one.trait,
        one.title,
        one.family.cause,
        one.family.severity,
        majority,
        sorted(others, key=lambda pair: (-len(pair[1]), pair[0])),
        0 if majority is None else len(sides.values[majority]),
        sides.unknown,
    )
