"""Whether the rule of the A/B runs (netdoctor/allreduce/comparison.py) keeps its promise: how often it takes equal runs for
different, and how often it finds a factor of 1.25, where bandwidths spread as those of real runs do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping

from bench import Row, row
from netdoctor.allreduce.comparison import LOOKS, decided, order, significant

TRIALS = 2000
FACTOR = 1.25
Draw = Callable[[], float]  # the next run's bandwidth, of a machine whose median is 1


def _spread(sigma: float) -> Callable[[random.Random], Draw]:
    """Gauss, as Gloo showed on two busy cores (6 %)."""
    return lambda dice: lambda: max(0.01, dice.gauss(1, sigma))


def _skewed(sigma: float) -> Callable[[random.Random], Draw]:
    return lambda dice: lambda: math.exp(dice.gauss(0, sigma))


def _stolen(sigma: float) -> Callable[[random.Random], Draw]:
    """Somebody else's work slows one run in ten to 60 %."""
    return lambda dice: lambda: max(0.01, dice.gauss(1, sigma)) * (0.6 if dice.random() < 0.1 else 1)


def _drifting(sigma: float, step: float) -> Callable[[random.Random], Draw]:
    """The machine warms up, or others come and go: a random walk under the spread."""

    def begin(dice: random.Random) -> Draw:
        at = [0.0]

        def draw() -> float:
            at[0] += dice.gauss(0, step)
            return math.exp(at[0] + dice.gauss(0, sigma))

        return draw

    return begin


MACHINES: Mapping[str, Callable[[random.Random], Draw]] = {
    "spread_3": _spread(0.03),
    "spread_6": _spread(0.06),
    "spread_10": _spread(0.10),
    "skewed_12": _skewed(0.12),
    "stolen": _stolen(0.06),
    "drifting": _drifting(0.06, 0.05),
}


def trial(draw: Draw, factor: float) -> tuple[bool, int]:
    """What the rule says of one machine on which the change gives `factor`, and after how many pairs."""
    got: tuple[list[float], list[float]] = ([], [])
    for number, changed in enumerate(order(LOOKS[-1][0])):
        if number % 2 == 0 and decided(*got):
            break
        got[changed].append(draw() * (factor if changed else 1))
    return significant(*got), len(got[0])


def share(machine: str, factor: float, trials: int = TRIALS, seed: int = 1) -> float:
    """How often the rule says that the change makes a difference."""
    dice = random.Random(seed)
    return sum(trial(MACHINES[machine](dice), factor)[0] for _ in range(trials)) / trials


def rows() -> Iterator[Row]:
    for machine in MACHINES:
        false, found = share(machine, 1.0), min(share(machine, FACTOR), share(machine, 1 / FACTOR))
        yield row(f"comparison.false.{machine}", false, "", None, "at most 0.01 of equal runs", false <= 0.01)
        yield row(f"comparison.found.{machine}", found, "", None, f"at least 0.95 at {FACTOR} times", found >= 0.95)
