"""Drift: the nodes of one kind that differ from most of it.  Without a majority nobody is blamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from netdoctor.compare.majority import Sides
from netdoctor.compare.versions import Alike, Difference, differences
from netdoctor.fleet.groups import Group


@dataclass(frozen=True)
class Drift(Difference[str]):
    """One trait that differs within one group, nodes by name."""

    group: int

    @property
    def blamed(self) -> list[str]:
        """Everybody who differs from a majority."""
        return [] if self.majority is None else [node for _, nodes in self.values for node in nodes]


def drift(groups: list[Group]) -> list[Drift]:
    """Every trait that differs within a group: decided rows first, the worst first."""
    rows = [row for index, group in enumerate(groups) if len(group.members) > 1 for row in _rows(index, group)]
    rows.sort(key=lambda r: (r.majority is None, -r.family.severity.rank, r.group, r.trait))
    return rows


def _rows(index: int, group: Group) -> Iterator[Drift]:
    # Traits are shared objects: equal nodes are compared at once.
    alike: dict[tuple[int, bool], tuple[Mapping[str, str], list[str]]] = {}
    for node in group.members:
        if node.run is not None:
            key = (id(node.run.traits), node.run.env_read)
            alike.setdefault(key, (node.run.traits, []))[1].append(node.name)
    for one in differences(Alike(traits, env_read, names) for (_, env_read), (traits, names) in alike.items()):
        values = {value: sorted(nodes) for value, nodes in one.sides.values.items()}
        yield Drift(one.trait, Sides(values, one.sides.unknown), index)
