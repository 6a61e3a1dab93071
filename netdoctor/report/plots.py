"""The plots of the HTML reports, drawn by matplotlib (the extra ``plots``) as SVG images within the page.

An image, not markup: matplotlib styles by attributes, which the page's policy forbids, and what is an image can neither run nor
fetch anything.  Without matplotlib a report has its figures as text, and says so.
"""

from __future__ import annotations

import base64
import io
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from netdoctor.model import count, size_text
from netdoctor.model.section import Markup
from netdoctor.report.page import el

WIDTH: Final = 7.6  # inches; 100 pixels each on the page
NEEDED: Final = "plots need matplotlib: pip install matplotlib"
_BLUE, _BAR, _RED, _SOFT, _LINE = "#2563a8", "#8fb3d9", "#c8321f", "#5b6675", "#d9dee5"
# On top of matplotlib's own defaults: a matplotlibrc of the user or of the working folder does not count.
_STYLE: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "netdoctor",
    "font.size": 8.5,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _SOFT,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.family": "sans-serif",
    "axes.unicode_minus": False,
}
_MOST_NAMES: Final = 6


@cache
def why_not() -> str:
    """Why nothing is drawn; "" where it can be.  Leaves no font cache behind."""
    before = os.environ.get("MPLCONFIGDIR")
    try:
        with tempfile.TemporaryDirectory(prefix="netdoctor-") as folder:
            os.environ["MPLCONFIGDIR"] = folder
            import matplotlib.backends.backend_svg
            import matplotlib.figure  # noqa: F401
    except Exception as error:  # noqa: BLE001 - the border: not there, built for another numpy, no place for a temporary file
        return NEEDED if isinstance(error, ModuleNotFoundError) else f"{NEEDED} ({type(error).__name__}: {error})"
    finally:
        if before is None:
            os.environ.pop("MPLCONFIGDIR", None)
        else:
            os.environ["MPLCONFIGDIR"] = before
    return ""


def _drawn(height: float, label: str, draw: Callable[[Any], None]) -> Markup:
    """`draw` on axes, as an <img>; "" where nothing can be drawn."""
    if why_not():
        return Markup()
    import matplotlib
    from matplotlib.figure import Figure

    parameters: Any = matplotlib.rcParams
    stream = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        parameters.update(_STYLE)
        figure = Figure(figsize=(WIDTH, height))
        # Fixed, not matplotlib's "constrained" layout: that draws everything three times.
        figure.subplots_adjust(left=0.7 / WIDTH, right=0.98, top=1 - 0.25 / height, bottom=0.5 / height)
        draw(figure.subplots())
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    source = f"data:image/svg+xml;base64,{data}"
    return el("img", alt=label, width=f"{WIDTH * 100:.0f}", height=f"{height * 100:.0f}", src=source)


def _word(text: str) -> str:
    """A word of other machines that every font has."""
    return text[:24].encode("ascii", "replace").decode("ascii")


def histogram(values: Sequence[float], outliers: Sequence[tuple[float, str]], median: float, unit: str, label: str) -> Markup:
    """How many nodes have which value.  Bars of outliers are red and named (the first few), the median is a dashed line."""
    drawn = [v for v in values if abs(v) < 1e15]  # JSON of other machines may say 1e308
    if not drawn:
        return Markup()
    named = [(value, name) for value, name in outliers if abs(value) < 1e15]
    bad = Counter(value for value, _ in named)
    good = list((Counter(drawn) - bad).elements())

    def draw(axes: Any) -> None:
        many = len(drawn) >= 200
        both = [good, list(bad.elements())]  # an outline each: a patch for every bar takes ten times as long
        axes.hist(both, bins=60 if many else 30, stacked=True, color=[_BAR, _RED], histtype="stepfilled")
        axes.axvline(median, linestyle="--", linewidth=1, color="#1c2430")
        axes.set_title(f"median {median:.3g} {unit}", fontsize=8.5, loc="right", color=_SOFT)
        axes.set_xlabel(unit)
        axes.set_ylabel("nodes")
        if many:  # one node among thousands must be seen
            axes.set_yscale("log")
            axes.set_ylim(bottom=0.5)
        else:
            axes.yaxis.get_major_locator().set_params(integer=True)
        _name(axes, named)

    beyond = f", {len(values) - len(drawn)} off the scale" if len(drawn) < len(values) else ""
    return _drawn(1.9, f"{label}: {count(len(values), 'node')}, {count(len(outliers), 'outlier')}{beyond}", draw)


def _name(axes: Any, outliers: Sequence[tuple[float, str]]) -> None:
    """Names above the red bars where there is room."""
    low, high = axes.get_xlim()
    taken: list[float] = []
    for value, name in sorted(outliers):
        at = (value - low) / ((high - low) or 1.0)
        if len(taken) < _MOST_NAMES and all(abs(at - other) > 0.16 for other in taken):
            taken.append(at)
            where = "left" if at < 0.1 else "right" if at > 0.9 else "center"
            axes.annotate(
                _word(name), (value, 0.45), xycoords=("data", "axes fraction"), ha=where, color=_RED, parse_math=False
            )


def curve(points: Sequence[tuple[int, float]], limit: float | None, unit: str, label: str) -> Markup:
    """A figure over message size (logarithmic), with the limit of the path as a line where it is known."""

    def draw(axes: Any) -> None:
        sizes = [math.log2(size) for size, _ in points]
        axes.plot(sizes, [value for _, value in points], color=_BLUE, marker="o", markersize=3.5, linewidth=1.8)
        every = max(1, len(points) // 8)
        axes.set_xticks(sizes[::every], [size_text(size) for size, _ in points[::every]])
        axes.set_ylabel(unit)
        axes.grid(axis="y", color=_LINE, linewidth=0.7)
        axes.set_ylim(0, max(limit or 0.0, *(value for _, value in points)) * 1.12)
        if limit:
            axes.axhline(limit, linestyle="--", linewidth=1, color=_RED)
            axes.annotate(
                f"limit of the path {limit:.3g} {unit}",
                (1, limit),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                color=_RED,
                parse_math=False,
            )

    return _drawn(2.6, label, draw)
