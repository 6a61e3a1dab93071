"""From where on a figure lies so far from its like that chance does not explain it: robust statistics of small samples."""

from __future__ import annotations

from typing import Final

SIGMAS: Final = 5.0  # of 30,000 values (10,000 nodes × 3 metrics) of a normal distribution 0.01 lie beyond
MAD_TO_SIGMA: Final = 1.4826  # for a normal distribution: 1 / Φ⁻¹(3/4)
SMALL: Final = 3.0  # a small sample's MAD is far too small by chance: the demand grows as 1 + 3/n


def beyond(spread: float, number: int, least: float) -> float:
    """By how much of the median a figure must differ, of a sample of `number` whose standard deviation is `spread` of it."""
    return max(least, SIGMAS * spread * (1 + SMALL / number))
