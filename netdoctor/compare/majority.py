"""Which of several values most nodes have.  Without a clear majority nobody is blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from netdoctor.model import Finding, count, record
from netdoctor.textsafe import listed

N = TypeVar("N", int, str)  # how the caller names a node

# What a rule found, and which nodes are to blame; none: it cannot be told which.
Fault = tuple[Finding, tuple[N, ...]]

# Of an upgrade that is half done, 48 against 47 nodes, the 47 are not at fault; three of five are a majority.
CLEAR: Final = 0.6


def clear_majority(counts: Mapping[str, int], unknown: int = 0) -> str | None:
    """The value that three fifths have, unless those that could not tell might make another one as frequent."""
    ordered = sorted(counts.values(), reverse=True)
    if not ordered or ordered[0] < CLEAR * sum(ordered) or (len(ordered) > 1 and ordered[0] <= ordered[1] + unknown):
        return None
    return next(value for value, number in counts.items() if number == ordered[0])


@record
class Sides(Generic[N]):
    """Which nodes have which value; of `unknown` nodes it could not be read."""

    values: Mapping[str, Sequence[N]]
    unknown: int = 0

    @property
    def majority(self) -> str | None:
        """None: no value has a clear majority."""
        return clear_majority({value: len(nodes) for value, nodes in self.values.items()}, self.unknown)

    def without(self, value: str | None) -> list[tuple[str, Sequence[N]]]:
        """The other values with their nodes, the most frequent first."""
        others = [pair for pair in self.values.items() if pair[0] != value]
        return sorted(others, key=lambda pair: (-len(pair[1]), pair[0]))

    def text(self, name: Callable[[N], str]) -> str:
        """``2.27.5 on 4 nodes (n0, n1, n2 and 1 more); 2.21.5 on n5``"""
        sides = self.without(None)
        texts = [f"{value} on {_named([name(node) for node in nodes])}" for value, nodes in sides[:8]]
        more = f"; {len(sides) - 8:,} more values" if len(sides) > 8 else ""
        return "; ".join(texts) + more

    def undecided(self, what: str, name: Callable[[N], str]) -> str:
        return f"{what} differs without a majority, so nobody is blamed: {self.text(name)}"


def _named(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{count(len(names), 'node')} ({listed(names, 3)})"


def sides(values: Iterable[tuple[N, str]]) -> Sides[N]:
    """Of (node, value), in their order."""
    found: dict[str, list[N]] = {}
    for node, value in values:
        found.setdefault(value, []).append(node)
    return Sides(found)
