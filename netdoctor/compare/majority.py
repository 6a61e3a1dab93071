"""Which of several values most nodes have.  Without a clear majority nobody is blamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

N = TypeVar("N")  # how the caller names a node

# Of an upgrade that is half done, 48 against 47 nodes, the 47 are not at fault; three of five are a majority.
CLEAR: Final = 0.6


def clear_majority(counts: Mapping[str, int], unknown: int = 0) -> str | None:
    """The value that three fifths have, unless those that could not tell might make another one as frequent."""
    ordered = sorted(counts.values(), reverse=True)
    if not ordered or ordered[0] < CLEAR * sum(ordered) or (len(ordered) > 1 and ordered[0] <= ordered[1] + unknown):
        return None
    return next(value for value, number in counts.items() if number == ordered[0])


@dataclass(frozen=True)
class Sides(Generic[N]):
    """Which nodes have which value; of `unknown` nodes it could not be read."""

    values: Mapping[str, Sequence[N]]
    unknown: int = 0

    @property
    def differ(self) -> bool:
        return len(self.values) > 1

    @property
    def majority(self) -> str | None:
        """None: no value has a clear majority."""
        return clear_majority({value: len(nodes) for value, nodes in self.values.items()}, self.unknown)

    @property
    def minority(self) -> list[N]:
        """Who differs from the majority; nobody where there is none."""
        most = self.majority
        return [] if most is None else [node for value, nodes in self.values.items() if value != most for node in nodes]


def sides(told: Iterable[tuple[N, str]]) -> Sides[N]:
    """Of (node, value), in their order."""
    values: dict[str, list[N]] = {}
    for node, value in told:
        values.setdefault(value, []).append(node)
    return Sides(values)
