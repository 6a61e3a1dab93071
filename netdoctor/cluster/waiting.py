"""Who is still waited for while the nodes of a run gather, and how long that goes on: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from netdoctor.cluster.observations import Nodes
from netdoctor.model import count

FIRST: Final = 3.0  # seconds until the first line: nodes that start together are together by then
EVERY: Final = 10.0
FRESH: Final = 0.5
MOST: Final = 8  # nodes that are named


class Gathering:
    """What the coordinator adds to its signs of life, twice a second to every node: worked out once for all of them."""

    def __init__(self) -> None:
        self._made, self._said = 0.0, dict[str, Any]()

    def told(self, present: Mapping[int, object], end: float, now: float) -> dict[str, Any]:
        """`present` has None for who is not there."""
        if now > self._made + FRESH:
            awaited = [number for number, there in present.items() if there is None]
            self._made, self._said = now, {"awaits": awaited[:MOST], "lacks": len(awaited)}
        return {**self._said, "left": max(round(end - now, 1), 0.0)}


class Teller:
    """`tick` as often as you like; it says through `progress` what changed, or that nothing did."""

    def __init__(self, nodes: Nodes, progress: Callable[[str], None], end: float) -> None:
        self.nodes, self.progress, self.end = nodes, progress, end
        self._next = time.monotonic() + FIRST

    def tick(self, said: Mapping[str, Any], trying: str) -> None:
        """`said`: node 0's last sign of life; `trying`: why there is none yet."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY
            if text := self._text(said, trying, now):
                self.progress(text)

    def _text(self, said: Mapping[str, Any], trying: str, now: float) -> str:
        if not said:  # it has no connection yet
            why = f": {trying}" if trying else ""
            return f"waiting for node 0 at {self.nodes.named()}{why}; {max(self.end - now, 0):.0f} s left"
        awaited, lacks, left = _read(said)
        names = [self._name(number) for number in awaited if number < self.nodes.count]
        if not names:
            return ""
        lacks = max(lacks, len(names))
        more = f" and {lacks - len(names):,} more" if lacks > len(names) else ""
        return f"waiting for {lacks:,} of {count(self.nodes.count, 'node')}: {', '.join(names)}{more}; {left:.0f} s left"

    def _name(self, number: int) -> str:
        names = self.nodes.names
        return f"node {number} ({names[number]})" if number < len(names) else f"node {number}"


def _read(said: Mapping[str, Any]) -> tuple[list[int], int, float]:
    """What node 0 said, as far as it has the shape."""
    rows, lacks, left = said.get("awaits"), said.get("lacks"), said.get("left")
    numbers = [n for n in rows[:MOST] if type(n) is int and n >= 0] if isinstance(rows, list) else []
    in_all = lacks if type(lacks) is int and 0 <= lacks < 1 << 20 else len(numbers)
    return numbers, in_all, left if isinstance(left, float) and 0 <= left < 1e6 else 0.0
