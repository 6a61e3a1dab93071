"""Traits that differ between nodes: versions, NCCL variables and the rest of `traits`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from netdoctor.compare.majority import N, Sides
from netdoctor.compare.traits import NOT_SET, Family, family, title


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


def differences(told: Iterable[Alike[N]]) -> Iterator[Difference[N]]:
    """Every trait that has more than one value."""
    every = list(told)
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
