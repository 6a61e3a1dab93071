"""Whether a change helps: interleaved pairs of the same all-reduce with and without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from netdoctor.facts.runs import State
from netdoctor.model import Cost, Quantity, record

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session
    from netdoctor.facts.runs import Cure, Run

# (pairs, most): after so many pairs of runs it is looked at, and of all n × n comparisons of a run with and a run
# without the change at most so many may go against the rest (U of Mann and Whitney, Ann. Math. Statist. 18(1), 1947).
# That happens to equal sides with a probability of 0.43, 0.19, 0.18 and 0.19 %, whatever the spread is: together 1 % at
# most.  Where runs spread by 3 to 12 %, drift, or one in ten is far slower, a true factor of 1.25 is found more than 95
# times in 100: a simulation shows it (`python -m bench comparison`).
LOOKS: Final = ((6, 1), (9, 7), (14, 32), (21, 100))
PAIRS: Final = LOOKS[0][0]  # at least
BEYOND: Final = 1.10  # what is sure and smaller is no cure
NEAR: Final = 1.03  # of the median ratio: equal for all that a first look can tell, and more pairs would take the others' time


def overlap(before: Sequence[float], after: Sequence[float]) -> float:
    """How many of the comparisons of one side's values with the other's go against the rest; ties count half."""
    more = sum((a > b) + (a == b) / 2 for a in after for b in before)
    return min(more, len(before) * len(after) - more)


def middle(before: Sequence[float], after: Sequence[float]) -> float:
    """The median ratio of pairs, which a drift of the machine leaves alone."""
    return statistics.median(a / b for b, a in zip(before, after, strict=True))


def significant(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether interleaved pairs of bandwidths differ, as of the last look that so many pairs reach: hardly an overlap, and the
    median ratio beyond 10 %."""
    if len(before) != len(after) or not all((*before, *after)):
        return False
    pairs, most = max((look for look in LOOKS if look[0] <= len(before)), default=(0, -1))
    before, after = before[:pairs], after[:pairs]
    if not pairs or overlap(before, after) > most:
        return False
    ratio = middle(before, after)
    return not 1 / BEYOND <= ratio <= BEYOND


def decided(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether so many pairs are enough."""
    looks = [pairs for pairs, _ in LOOKS]
    if len(before) not in looks:
        return False
    near = len(before) == PAIRS and 1 / NEAR <= middle(before, after) <= NEAR
    return near or len(before) == looks[-1] or significant(before, after)


def order(pairs: int) -> tuple[bool, ...]:
    """A B B A A B B A …: True is with the change.  A drift of the machine falls on both sides."""
    return tuple(side for n in range(pairs) for side in ((False, True) if n % 2 == 0 else (True, False)))


def compare(session: Session, cure: Cure, deadline: float) -> Cost:
    """What `cure` gains: runs at the largest size, interleaved, until `deadline` (time.monotonic).  Never raises."""
    trial = _Trial(session, cure, deadline)
    got: tuple[list[float], list[float]] = ([], [])
    begin = time.monotonic()
    for number, changed in enumerate(order(LOOKS[-1][0])):
        if number % 2 == 0 and decided(*got):
            break
        if number and time.monotonic() + (time.monotonic() - begin) / number > deadline:
            break
        run = trial.run(changed)
        rate = trial.busbw(run)
        if rate is None:
            if not changed:
                return trial.without_baseline(run)
            return Cost(f"{cure.words} the all-reduce did not finish: {run.reason or run.state}")
        got[changed].append(rate)
    pairs = max((n for n, _ in LOOKS if n <= min(map(len, got))), default=0)
    if not pairs:
        return Cost(f"not measured: no time for {PAIRS} pairs of runs, as it is and {cure.words}")
    first, second = (side[:pairs] for side in got)
    return cost(
        cure.words, statistics.median(first), statistics.median(second), middle(first, second), significant(first, second)
    )


@record
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
                return Cost(f"does not finish ({failed}); {self.cure.words} {after}", None, after, None, True)
        return Cost(f"not measured: {failed}")


def cost(words: str, before: float, after: float, ratio: float, certain: bool) -> Cost:
    """The sentence for two measured bandwidths in GB/s."""
    first, second = Quantity(before, "GB/s"), Quantity(after, "GB/s")
    text = f"{first}; {words} {second}"
    if certain:
        text += f": {ratio:.1f} times" if ratio >= 1 else f": {1 / ratio:.1f} times slower"
    else:
        text += ": no difference that stands out"
    return Cost(text, first, second, ratio, certain)
