"""Traits that differ between nodes: versions, NCCL variables and the rest of `traits`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from netdoctor.compare.majority import Fault, N, Sides
from netdoctor.compare.traits import NOT_SET, Family, family, title
from netdoctor.model import Finding, Status, count


@dataclass(frozen=True)
class Alike(Generic[N]):
    """Nodes that told the same."""

    traits: Mapping[str, str]
    variables_read: bool  # then a variable that is not among the traits is not set
    nodes: Sequence[N]

    def value(self, trait: str) -> str | None:
        """None: not read."""
        return self.traits.get(trait, NOT_SET if self.variables_read and trait.startswith("env ") else None)


@dataclass(frozen=True)
class Difference(Generic[N]):
    """A trait that has more than one value."""

    trait: str
    sides: Sides[N]

    @property
    def title(self) -> str:
        return title(self.trait)

    @property
    def family(self) -> Family:
        return family(self.trait)

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
        data = {"trait": self.trait, **evidence} | ({"could_not_tell": self.sides.unknown} if self.sides.unknown else {})
        return Finding(Status.FAIL, text, self.trait, kind.severity, kind.cause, expected, data, how=kind.how)


def differences(alike: Iterable[Alike[N]]) -> Iterator[Difference[N]]:
    """Every trait that has more than one value."""
    every = list(alike)
    for name in dict.fromkeys(name for one in every for name in one.traits):
        if len({one.value(name) for one in every} - {None}) < 2:
            continue
        values: dict[str, list[N]] = {}
        unknown = 0
        for one in every:
            if (value := one.value(name)) is None:
                unknown += len(one.nodes)
            else:
                values.setdefault(value, []).extend(one.nodes)
        yield Difference(name, Sides(values, unknown))
