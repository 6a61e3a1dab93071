"""Traits that differ between nodes: versions, NCCL variables and the rest of `traits`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic

from netdoctor.causes.cost import less, smaller_frames
from netdoctor.compare.majority import Fault, N, Sides
from netdoctor.compare.traits import DOWN, Family, Trait, Traits
from netdoctor.model import Finding, Loss, Status, count, record


@record
class Alike(Generic[N]):
    """Nodes that told the same."""

    traits: Traits
    nodes: Sequence[N]


# Traits that count or rate like parts, as `traits` writes them: the figures of a value, what is made of them, and their name.
_PARTS: Final[Mapping[Family, tuple[re.Pattern[str], Callable[[list[float]], float], str]]] = {
    Family.NVLINKS: (re.compile(r"(\d+)"), min, "NVLinks of a GPU"),
    Family.NICS: (re.compile(r"(\d+) ×"), sum, "RDMA devices"),
    Family.PORTS: (re.compile(r"([\d.]+) Gb/s ACTIVE"), min, "Gb/s of the slowest port that is up"),
}


@record
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

    @property
    def loss(self) -> Loss:
        """What the least of the values takes from a job of all these nodes."""
        if self.family is Family.MTU and all(value.isdecimal() for value in self.sides.values):
            sizes = [int(value) for value in self.sides.values]
            return smaller_frames(min(sizes), max(sizes))
        if self.family not in _PARTS:
            return self.family.loss
        pattern, fold, what = _PARTS[self.family]
        have = [fold([float(number) for number in pattern.findall(value)] or [0]) for value in self.sides.values]
        return less(min(have), max(have), what) if min(have) < max(have) else self.family.loss

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
        return Finding(Status.FAIL, text, str(self.trait), None, kind.cause, expected, data, how=kind.how, loss=self.loss)


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
        difference = Difference(trait, Sides(values, unknown))
        # A port that most leave down is a spare one: whoever uses it has another role, not a fault.
        if trait.family is not Family.LINK_STATE or difference.majority != DOWN:
            yield difference
