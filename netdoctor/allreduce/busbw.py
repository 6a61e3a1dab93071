"""Bus bandwidth, and whether a change helps: interleaved pairs of the same all-reduce with and without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from netdoctor.model import Cost, Quantity

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session
    from netdoctor.facts.runs import AllReduce, Cure, Run

# Five pairs agree in sign by chance once in 16; the median beyond 10 % keeps that out.  With a spread of 6 % between runs (Gloo
# on a busy machine of two cores) fewer than 1 in 100 comparisons of equal runs pass both, and a true factor of 1.2 passes more
# than 9 times in 10 (a test simulates it).
PAIRS: Final = 5
BEYOND: Final = 1.10


def busbw(size: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth of an all-reduce in GB/s (1e9): bytes / time × 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9 if seconds > 0 else 0.0


def significant(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether interleaved pairs of bandwidths differ: at least five, all to one side, the median ratio beyond 10 %."""
    if len(before) != len(after) or len(before) < PAIRS or not all((*before, *after)):
        return False
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    middle = statistics.median(ratios)
    return (min(ratios) > 1 and middle > BEYOND) or (max(ratios) < 1 and middle < 1 / BEYOND)


def order(pairs: int) -> tuple[bool, ...]:
    """A B B A A B B A …: True is with the change.  A drift of the machine falls on both sides."""
    return tuple(side for n in range(pairs) for side in ((False, True) if n % 2 == 0 else (True, False)))


def compare(session: Session, cure: Cure, deadline: float, pairs: int = PAIRS) -> Cost:
    """What `cure` gains: runs at the largest size, interleaved, until `deadline` (time.monotonic).  Never raises."""
    size = max(cure.baseline.sizes)
    sides = (_short(cure.baseline, size), _short(cure.change, size))
    got: tuple[list[float], list[float]] = ([], [])
    begin = time.monotonic()
    for number, changed in enumerate(order(pairs)):
        if number and time.monotonic() + (time.monotonic() - begin) / number > deadline:
            return Cost(f"not measured: no time for {pairs} pairs of runs with and without {cure.label}")
        run = session.run(sides[changed], deadline, again=True)
        if not run.finished or run.verified is not True or size not in run.busbw:
            return _broken(session, cure, sides, run, changed, deadline, size)
        got[changed].append(run.busbw[size])
    before, after = (statistics.median(side) for side in got)
    ratio = statistics.median(b / a for a, b in zip(*got, strict=True))
    return cost(cure.label, before, after, ratio, significant(*got))


def cost(label: str, before: float, after: float, ratio: float, certain: bool) -> Cost:
    """The sentence for two measured bandwidths in GB/s."""
    first, second = Quantity(before, "GB/s"), Quantity(after, "GB/s")
    text = f"{first}; with {label} {second}"
    if certain:
        text += f": {ratio:.1f} times" if ratio >= 1 else f": {1 / ratio:.1f} times slower"
    else:
        text += ": no difference that stands out"
    return Cost(text, first, second, ratio, certain)


def _short(experiment: AllReduce, size: int) -> AllReduce:
    return replace(experiment, sizes=(size,))


def _broken(
    session: Session, cure: Cure, sides: tuple[AllReduce, AllReduce], run: Run, changed: bool, deadline: float, size: int
) -> Cost:
    """One side does not finish.  A change that makes it finish, twice, is proven; anything else is not."""
    if changed:
        return Cost(f"with {cure.label} the all-reduce did not finish: {run.reason or run.state}")
    failed = run.reason or run.state
    if run.state in ("failed", "hung"):
        tries = [session.run(sides[True], deadline, again=True) for _ in range(2)]
        if all(t.finished and t.verified is True and size in t.busbw for t in tries):
            after = Quantity(statistics.median(t.busbw[size] for t in tries), "GB/s")
            return Cost(f"does not finish ({failed}); with {cure.label} {after}", None, after, None, True)
    return Cost(f"not measured: {failed}")
