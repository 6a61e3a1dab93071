"""Speed and size, as ratios against a reference in the same run.  `make bench` prints them and writes build/bench.json.

A row is {name, value, unit, reference, ratio, goal, holds}: `reference` is what `value` is measured against (in the same
unit), `ratio` is value / reference, `goal` says what must hold, in words and numbers.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def row(name: str, value: float, unit: str, reference: float | None, goal: str, holds: bool) -> Row:
    """One figure; `reference` None where the goal is absolute."""
    ratio = value / reference if reference else None
    return {"name": name, "value": value, "unit": unit, "reference": reference, "ratio": ratio, "goal": goal, "holds": holds}


def seconds(command: Sequence[str], **options: Any) -> float:
    """Wall time of one run of a command that must succeed (exit 0, 3 or 4)."""
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, **options)
    took = time.perf_counter() - begin
    if done.returncode not in (0, 3, 4):
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr[-500:]!r}")
    return took


def interleaved(times: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Each measure `times` times, A B … A B …, so that a slow moment of the machine hits all of them."""
    out: list[list[float]] = [[] for _ in measures]
    for _ in range(times):
        for series, measure in zip(out, measures, strict=True):
            series.append(measure())
    return out


def at_most(name: str, value: Sequence[float], unit: str, reference: Sequence[float], limit: float) -> Row:
    """Medians: value ≤ limit × reference."""
    a, b = statistics.median(value), statistics.median(reference)
    return row(name, a, unit, b, f"<= {limit:g} x reference", a <= limit * b)
