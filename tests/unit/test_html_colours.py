"""The colours of the pages, light and dark: words are read on what lies behind them (WCAG 2.2, 1.4.3: 4.5 to 1)."""

import re
from functools import reduce

import pytest

from netdoctor.report import html
from netdoctor.report.page import asset
from tests.support.facts.reports import EVERY

LEAST = 4.5
CSS = asset("page.css") + asset("fleet.css") + html._STYLE
DARK = reduce(str.__add__, re.findall(r"@media \(prefers-color-scheme:dark\)\{(.*?\})\}", CSS, re.DOTALL))
LIGHT = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", CSS)


def variables(css: str) -> dict[str, str]:
    return dict(re.findall(r"(--\w+):(#\w+)", css))


def light_of(colour: str) -> float:
    """The relative luminance of WCAG."""
    digits = colour[1:] if len(colour) > 4 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    less, more = sorted(map(light_of, (one, other)))
    return (more + 0.05) / (less + 0.05)


def pairs() -> list[tuple[str, str, str]]:
    """(selector, colour of words, colour behind them), as the sheets have them; of a rule that names one, ink or paper."""
    out = [("body", "var(--soft)", "var(--paper)"), ("body", "var(--blue)", "var(--paper)")]
    for selector, rule in re.findall(r"([^{}@]+)\{([^{}]*)\}", LIGHT):
        said = dict(part.split(":", 1) for part in rule.split(";") if ":" in part)
        behind, words = said.get("background"), said.get("color")
        if (behind or words) and ":root" not in selector and "img" not in selector:
            out.append((selector.strip(), words or "var(--ink)", behind or "var(--paper)"))
    return [pair for pair in out if all(re.fullmatch(r"var\(--\w+\)|#\w+", colour) for colour in pair[1:])]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_read_on_what_lies_behind_them(scheme: str) -> None:
    known = variables(LIGHT) | (variables(DARK) if scheme == "dark" else {})
    own = dict(re.findall(r"(\.[\w.]+)\{background:(#\w+)", DARK)) if scheme == "dark" else {}
    found = pairs()
    assert len(found) > 25 and len(variables(DARK)) > 10
    low = {}
    for selector, words, behind in found:
        colours = [known.get(c[4:-1], c) for c in (words, own.get(selector, behind))]
        if contrast(*colours) < LEAST:
            low[selector] = (colours, round(contrast(*colours), 2))
    assert low == {}


def test_what_is_wider_than_the_page_moves_in_its_own_frame() -> None:
    assert re.search(r"\.heat\{[^}]*overflow-x:auto", CSS)


@pytest.mark.slow
def test_runs_behind_the_first_are_folded() -> None:
    from dataclasses import replace

    one = EVERY["healthy"]
    bad = replace(one, runs=(*one.runs * 3, {**one.runs[0], "verified": False}), volatile={"runs": one.volatile["runs"] * 4})
    page = html.render(bad)
    at = page.index("3 more runs, one by one")
    assert page.index("DATA WRONG") < at < page.rindex("DATA WRONG")
