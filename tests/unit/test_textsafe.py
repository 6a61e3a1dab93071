"""Hostile strings come out harmless, and what was readable stays."""

import unicodedata

import pytest
from hypothesis import given, strategies as st

from netdoctor.fleet.nodes import safe_name
from netdoctor.textsafe import as_one, clean, line

NASTY = st.text(alphabet=st.one_of(st.sampled_from("\x1b\x9b\x9d[];m\\\x07\x90P_\u202e\u2028\n\t\r\ud800ab0"), st.characters()))


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("plain é × …", "plain é × …"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b]0;title\x07text", "text"),
        ("\x90a\x90b\x9cc", "ac"),  # a string ends where another begins, so that a run of \x90 takes no quadratic time
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$tx\x1b\\after", "after"),
        ("\x1b]0;never ends, evidence stays", "]0;never ends, evidence stays"),
        ("a\x1b", "a"),
        ("\x1bcreset", "reset"),
        ("one\r\ntwo\tthree", "one two three"),
        ("pass\u202elliaf", "passlliaf"),
        ("a\u2066b\u2069\u200b\ufeff", "ab"),
        ("nul\x00bel\x07del\x7f", "nulbeldel"),
        ("\udcff", ""),
    ],
)
def test_known_attacks(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


def test_lines_keeps_line_breaks_and_tabs() -> None:
    assert clean("a\r\nb\tc\u2028d\x1b[1m", lines=True) == "a\nb\tc\nd"


@given(NASTY, st.booleans())
def test_nothing_unsafe_is_left(text: str, lines: bool) -> None:
    out = clean(text, lines=lines)
    allowed = {"\n", "\t"} if lines else set()
    assert not [c for c in out if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} and c not in allowed]
    assert not [
        c for c in out if unicodedata.bidirectional(c) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    ]
    assert clean(out, lines=lines) == out
    assert len(out) <= len(text)
    out.encode("utf-8")


@pytest.mark.parametrize("name", ["node-17", "a", "gpu01.rack_2", "x" * 253])
def test_safe_names(name: str) -> None:
    assert safe_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", '"><script>', "../../x", "$(id)", "a b", "node\n", "é", "x" * 254])
def test_unsafe_names(name: str) -> None:
    assert not safe_name(name)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a b", "a b"), ("a\nb\x1b[1m\u202e", "a b"), ("x" * 11, "x" * 9 + "…"), ("\x00" * 40 + "far", ""), (None, ""), (5, "")],
)
def test_a_line_is_bounded_and_only_text(value: object, shown: str) -> None:
    assert line(value, 10) == shown


@pytest.mark.parametrize(
    ("texts", "one"),
    [
        (["/dev/u0 is shut; GPU3 (PIX)", "/dev/u2 is shut; GPU4 (PIX)"], "/dev/u{0,2} is shut; GPU{3,4} (PIX)"),
        ([f"eth{n}: down" for n in (10, 9, 11)], "eth{9..11}: down"),
        (["the same", "the same"], "the same"),
        (["GPU 0 is hot", "GPU 1 is hot"], ""),  # a bare number may be a figure
        (["80 % of it", "70 % of it"], ""),
        (["ens1f0 is down", "eno1 is down"], ""),
        (["mlx5_0 is down", "mlx5_0 is not there"], ""),
        (["disk00 is full", "disk01 is full"], ""),
        (["", ""], ""),
        ([], ""),
    ],
)
def test_texts_that_differ_in_names_alone_are_one(texts: list[str], one: str) -> None:
    assert as_one(texts) == one
