"""Drift: the nodes of one kind that differ from most of it.  Without a majority nobody is blamed."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.compare.majority import Sides
from netdoctor.compare.traits import Traits
from netdoctor.compare.versions import Alike, Difference, differences
from netdoctor.fleet.groups import Group
from netdoctor.model import record


@record
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
    rows.sort(key=lambda r: (r.majority is None, -r.loss.severity.rank, r.group, str(r.trait)))
    return rows


def _rows(index: int, group: Group) -> Iterator[Drift]:
    # Traits are shared objects: equal nodes are compared at once.
    alike: dict[int, tuple[Traits, list[str]]] = {}
    for node in group.members:
        if node.run is not None:
            alike.setdefault(id(node.run.traits), (node.run.traits, []))[1].append(node.name)
    for one in differences(Alike(traits, names) for traits, names in alike.values()):
        values = {value: sorted(nodes) for value, nodes in one.sides.values.items()}
        yield Drift(one.trait, Sides(values, one.sides.unknown), index)
