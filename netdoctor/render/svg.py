"""The few plots that reports need, as inline SVG of a few kilobytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from netdoctor.render.page import esc

WIDTH: Final = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 20, 26, 30


def _svg(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{esc(label)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, css: str = "plain", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{esc(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def nice(low: float, high: float, steps: int = 6) -> list[float]:
    """Round values from at most `low` to at least `high`."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / steps))
    step = next(step * m for m in (1, 2, 5, 10) if span / (step * m) <= steps)
    first = math.floor(low / step + 1e-9)
    return [n * step for n in range(first, math.ceil(high / step - 1e-9) + 1)]


@dataclass(frozen=True)
class _Bins:
    """A linear scale of `number` bins from `low` to `high`, and how high a bar of so many nodes is."""

    low: float
    high: float
    number: int
    counts: list[int]
    base: float

    def bin(self, value: float) -> int:
        return min(self.number - 1, int((value - self.low) / (self.high - self.low) * self.number))

    def x(self, value: float) -> float:
        return _LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - _LEFT - _RIGHT)

    def tall(self, nodes: int) -> float:
        """Pixels; one node among thousands must be seen."""
        return max(3.0, nodes / max(self.counts) * (self.base - _TOP)) if nodes else 0.0


def histogram(values: Sequence[float], outliers: Sequence[tuple[float, str]], median: float, unit: str, label: str) -> str:
    """How many nodes have which value.  Bars of outliers are red and named (the first few), the median is a dashed line."""
    ticks = nice(min(values), max(values))
    height, base, bins = 170, 140.0, 60 if len(values) >= 200 else 30
    scale = _Bins(ticks[0], ticks[-1] if ticks[-1] > ticks[0] else ticks[0] + 1, bins, [0] * bins, base)
    bad = [0] * bins
    for value in values:
        scale.counts[scale.bin(value)] += 1
    for value, _ in outliers:
        bad[scale.bin(value)] += 1
    wide = (WIDTH - _LEFT - _RIGHT) / bins
    parts = [_line(_LEFT, base, WIDTH - _RIGHT, base, "axis")]
    for place in range(bins):
        for number, css in ((scale.counts[place] - bad[place], "bar"), (bad[place], "out")):
            if number:
                up = scale.tall(number)
                parts.append(
                    f'<rect x="{_LEFT + place * wide + 0.5:.1f}" y="{base - up:.1f}" width="{wide - 1:.1f}" height="{up:.1f}" '
                    f'class="{css}"><title>{number}</title></rect>'
                )
    parts += [_text(scale.x(t), base + 16, f"{t:g}", "tick", "middle") for t in ticks]
    parts += [_text(WIDTH - _RIGHT, base + 29, unit, "tick", "end"),
              _text(_LEFT - 6, _TOP + 4, f"{max(scale.counts):,}", "tick", "end"),
              _line(scale.x(median), _TOP - 4, scale.x(median), base, "mid"),
              _text(scale.x(median), _TOP - 9, f"median {median:.3g} {unit}", "plain", "middle"),
              *_names(outliers, scale)]  # fmt: skip
    return _svg(WIDTH, height, f"{label}: {len(values)} nodes, {len(outliers)} outliers", parts)


def _names(outliers: Sequence[tuple[float, str]], scale: _Bins) -> Iterator[str]:
    """Names above the red bars where there is room."""
    taken: list[float] = []
    for value, name in sorted(outliers):
        at = scale.x(value)
        if all(abs(at - other) >= 110 for other in taken):
            taken.append(at)
            anchor = "start" if at < _LEFT + 50 else "end" if at > WIDTH - 70 else "middle"
            yield _text(at, scale.base - scale.tall(scale.counts[scale.bin(value)]) - 5, name[:22], "outtext", anchor)


def curve(points: Sequence[tuple[int, float]], limit: float | None, unit: str, label: str) -> str:
    """A figure over message size (logarithmic), with the limit of the path as a line where it is known."""
    height, base = 260, 260 - _BOTTOM
    sizes = [math.log2(size) for size, _ in points]
    ticks = nice(0.0, max([v for _, v in points] + ([limit] if limit else [])), 5)
    low, high = min(sizes), max(sizes) if max(sizes) > min(sizes) else min(sizes) + 1

    def at(size: float, value: float) -> tuple[float, float]:
        return (
            _LEFT + (size - low) / (high - low) * (WIDTH - _LEFT - _RIGHT),
            base - value / ticks[-1] * (base - _TOP),
        )

    parts = []
    for tick in ticks:
        _, y = at(low, tick)
        parts += [_line(_LEFT, y, WIDTH - _RIGHT, y, "axis"), _text(_LEFT - 6, y + 4, f"{tick:g}", "tick", "end")]
    every = max(1, len(points) // 8)
    parts += [
        _text(at(s, 0)[0], base + 16, size_text(size), "tick", "middle")
        for index, ((size, _), s) in enumerate(zip(points, sizes, strict=True))
        if index % every == 0
    ]
    parts.append(_text(4, 14, unit, "tick"))
    if limit:
        _, y = at(low, limit)
        parts += [_line(_LEFT, y, WIDTH - _RIGHT, y, "limit"),
                  _text(WIDTH - _RIGHT, y - 5, f"limit of the path {limit:.3g} {unit}", "outtext", "end")]  # fmt: skip
    dots = [at(s, value) for s, (_, value) in zip(sizes, points, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    parts.append(f'<polyline points="{path}" class="curve"/>')
    parts += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="dot"><title>{size_text(size)}: {value:.3g}</title></circle>'
        for (x, y), (size, value) in zip(dots, points, strict=True)
    ]
    return _svg(WIDTH, height, label, parts)


def size_text(size: int) -> str:
    """``64 MiB``."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):g} {unit}"
    return f"{size} B"


def boxes(columns: Sequence[tuple[str, Sequence[tuple[str, Sequence[tuple[str, str]]]]]], label: str) -> str:
    """NUMA nodes as columns, PCIe roots as boxes in them, devices as tiles: ``[(title, [(root, [(css, name)])])]``."""
    tile, gap, wide = 24, 6, 230
    parts: list[str] = []
    deepest = 0.0
    for place, (title, roots) in enumerate(columns):
        left, y = place * (wide + 24) + 8, 34.0
        parts.append(_text(left, 20, title))
        for root, devices in roots:
            rows = math.ceil(len(devices) / 2) or 1
            tall = rows * (tile + gap) + 26
            parts.append(f'<rect x="{left}" y="{y:.1f}" width="{wide}" height="{tall:.1f}" rx="4" class="box"/>')
            parts.append(_text(left + 8, y + 15, root, "tick"))
            for index, (css, name) in enumerate(devices):
                tx, ty = left + 8 + index % 2 * (wide / 2 - 4), y + 22 + index // 2 * (tile + gap)
                parts.append(f'<rect x="{tx:.1f}" y="{ty:.1f}" width="{wide / 2 - 12}" height="{tile}" rx="3" class="{css}"/>')
                parts.append(_text(tx + 6, ty + 16, name[:18]))
            y += tall + 8
        deepest = max(deepest, y)
    return _svg(len(columns) * (wide + 24) + 8, int(deepest) + 4, label, parts)
