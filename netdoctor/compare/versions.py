"""Traits that differ between nodes: versions, NCCL variables and the rest of `traits`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from netdoctor.compare.majority import Fault, N, Sides
from netdoctor.compare.traits import Family, Trait, Traits
from netdoctor.model import Finding, Status, count


@dataclass(frozen=True)
class Alike(Generic[N]):
    """Nodes that told the same."""

    traits: Traits
    nodes: Sequence[N]


@dataclass(frozen=True)
class Difference(Generic[N]):
    """A trait that has more than one value."""

    trait: Trait
    sides: Sides[N]

    @property
    def title(self) -> str:
        return self.trait.title

    @property
    def family(self) -> Family:
        return self.trait.family

    @property
    def majority(self) -> str | None:
        return self.sides.majority

    @property
    def agreeing(self) -> int:
        """Nodes with the majority's value."""
        return 0 if self.majority is None else len(self.sides.values[self.majority])

    @property
    def values(self) -> list[tuple[str, Sequence[N]]]:
        """Those of whoever differs from the majority, the most frequent first; without one every value."""
        return self.sides.without(self.majority)

    def faults(self, name: Callable[[N], str]) -> Iterator[Fault[N]]:
        most = self.majority
        if most is None:
            text = self.sides.undecided(self.title, name)
            yield self._finding(text, "the same on every node", values=dict(self.sides.values)), ()
            return
        usual = f"{count(self.agreeing, 'node')} have {most}"
        for value, nodes in self.values:
            text = f"{self.title}: {value}, where {usual}"
            yield self._finding(text, most, value=value, others=most), tuple(nodes)

    def _finding(self, text: str, expected: str, **evidence: object) -> Finding:
        kind = self.family
        data = {"trait": str(self.trait), **evidence} | ({"could_not_tell": self.sides.unknown} if self.sides.unknown else {})
        return Finding(Status.FAIL, text, str(self.trait), kind.severity, kind.cause, expected, data, how=kind.how)


def _each_its_own(trait: Trait, every: Sequence[Alike[N]]) -> bool:
    """Every node names interfaces that it has, and has none that others name: nodes whose interfaces have other names."""
    values = {one.traits.value(trait) for one in every} - {None}
    for one in every:
        if {value for value in values if value and trait.names_own(value, one.traits.links)} != {one.traits.value(trait)}:
            return False
    return True


def differences(alike: Iterable[Alike[N]]) -> Iterator[Difference[N]]:
    """Every trait that has more than one value."""
    every = list(alike)
    for trait in dict.fromkeys(trait for one in every for trait in one.traits.values):
        if len({one.traits.value(trait) for one in every} - {None}) < 2:
            continue
        if trait.names_interfaces and _each_its_own(trait, every):
            continue
        values: dict[str, list[N]] = {}
        unknown = 0
        for one in every:
            if (value := one.traits.value(trait)) is None:
                unknown += len(one.nodes)
            else:
                values.setdefault(value, []).extend(one.nodes)
        yield Difference(trait, Sides(values, unknown))
