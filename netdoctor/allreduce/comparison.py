"""Whether a change helps: interleaved pairs of the same all-reduce with and without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from netdoctor.facts.runs import State
from netdoctor.model import Cost, Quantity

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session
    from netdoctor.facts.runs import Cure, Run

# Five pairs agree in sign by chance once in 16; the median beyond 10 % keeps that out.  With a spread of 6 % between runs (Gloo
# on a busy machine of two cores) fewer than 1 in 100 comparisons of equal runs pass both, and a true factor of 1.2 passes more
# than 9 times in 10 (a test simulates it).
PAIRS: Final = 5
BEYOND: Final = 1.10


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


def compare(session: Session, cure: Cure, deadline: float) -> Cost:
    """What `cure` gains: runs at the largest size, interleaved, until `deadline` (time.monotonic).  Never raises."""
    trial = _Trial(session, cure, deadline)
    got: tuple[list[float], list[float]] = ([], [])
    begin = time.monotonic()
    for number, changed in enumerate(order(PAIRS)):
        if number and time.monotonic() + (time.monotonic() - begin) / number > deadline:
            return Cost(f"not measured: no time for {PAIRS} pairs of runs with and without {cure.label}")
        run = trial.run(changed)
        rate = trial.busbw(run)
        if rate is None:
            if not changed:
                return trial.without_baseline(run)
            return Cost(f"with {cure.label} the all-reduce did not finish: {run.reason or run.state}")
        got[changed].append(rate)
    before, after = (statistics.median(side) for side in got)
    ratio = statistics.median(b / a for a, b in zip(*got, strict=True))
    return cost(cure.label, before, after, ratio, significant(*got))


@dataclass(frozen=True)
class _Trial:
    """The runs with and without one cure."""

    session: Session
    cure: Cure
    deadline: float

    @property
    def size(self) -> int:
        return max(self.cure.baseline.sizes)

    def run(self, changed: bool) -> Run:
        experiment = self.cure.change if changed else self.cure.baseline
        return self.session.run(replace(experiment, sizes=(self.size,)), self.deadline, again=True)

    def busbw(self, run: Run) -> float | None:
        """GB/s; None where the run does not count: not finished, or its data was wrong or not compared."""
        return run.busbw.get(self.size) if run.finished and run.verified is True else None

    def without_baseline(self, baseline: Run) -> Cost:
        """The baseline does not finish.  A cure that makes it finish, twice, is proven; anything else is not."""
        failed = baseline.reason or baseline.state
        if baseline.state in (State.FAILED, State.HUNG):
            rates = [self.busbw(self.run(changed=True)) for _ in range(2)]
            if (first := rates[0]) is not None and (second := rates[1]) is not None:
                after = Quantity(statistics.median((first, second)), "GB/s")
                return Cost(f"does not finish ({failed}); with {self.cure.label} {after}", None, after, None, True)
        return Cost(f"not measured: {failed}")


def cost(label: str, before: float, after: float, ratio: float, certain: bool) -> Cost:
    """The sentence for two measured bandwidths in GB/s."""
    first, second = Quantity(before, "GB/s"), Quantity(after, "GB/s")
    text = f"{first}; with {label} {second}"
    if certain:
        text += f": {ratio:.1f} times" if ratio >= 1 else f": {1 / ratio:.1f} times slower"
    else:
        text += ": no difference that stands out"
    return Cost(text, first, second, ratio, certain)
