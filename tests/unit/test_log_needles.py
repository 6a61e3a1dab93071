"""Every alternative of every message family can be reached: one of the family's needles is in it.

A line is looked at by a pattern only where it holds one of its needles (`Pattern.needles`); an alternative without one is never
found, whatever the pattern says.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from netdoctor.nccl.log import last_words
from netdoctor.nccl.log.pattern import Pattern
from netdoctor.nccl.log.patterns import PATTERNS

try:
    from re import _parser as sre  # type: ignore[attr-defined]  # from Python 3.11
except ImportError:
    import sre_parse as sre

_MOST = 2000  # strings of one pattern
_OF_CATEGORY = {"CATEGORY_DIGIT": "7", "CATEGORY_WORD": "w", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "x"}


def _one(items: list[tuple[object, object]]) -> str:
    """A character of a set."""
    kind, value = items[0]
    if str(kind) == "LITERAL":
        return chr(int(str(value)))
    if str(kind) == "RANGE":
        assert isinstance(value, tuple)
        return chr(value[0])
    return _OF_CATEGORY.get(str(value), "~")  # a negated set, too: a sign that no family asks for


def _strings(tree: object) -> list[str]:
    """Strings that a pattern matches: one for each way through its alternatives, optional parts left out and put in."""
    found = [""]
    for kind, value in tree:  # type: ignore[attr-defined]
        found = [a + b for a, b in itertools.islice(itertools.product(found, _part(str(kind), value)), _MOST)]
    return list(dict.fromkeys(found))


def _part(kind: str, value: object) -> list[str]:  # type: ignore[type-arg]
    if kind == "LITERAL":
        return [chr(int(str(value)))]
    if kind in {"ANY", "NOT_LITERAL"}:
        return ["~"]
    assert isinstance(value, tuple | list) or kind in {"AT", "GROUPREF"}
    if kind == "IN":
        return [_one(value)]  # type: ignore[arg-type]
    if kind in {"MAX_REPEAT", "MIN_REPEAT"}:
        least, most, inner = value  # type: ignore[misc]
        inside = _strings(inner)
        return [s * least for s in inside] if least else ["", *(inside if most == 1 else [])]
    if kind == "SUBPATTERN":
        return _strings(value[-1])  # type: ignore[index]
    if kind == "BRANCH":
        return [s for way in value[1] for s in _strings(way)]  # type: ignore[index]
    return [""]  # what takes no room: anchors, assertions; a group again


def ways(pattern: Pattern) -> list[str]:
    """A line for each way through a pattern."""
    return _strings(sre.parse(pattern.regex.pattern.decode("latin-1"), re.IGNORECASE))


def _unreachable(pattern: Pattern) -> Iterator[str]:
    for text in ways(pattern):
        if not any(needle in text.encode("latin-1").lower() for needle in pattern.needles):  # as the parser: by bytes
            yield text


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: f"{p.kind}-{p.needles[0].decode()[:20]}")
def test_every_alternative_holds_a_needle(pattern: Pattern) -> None:
    assert list(_unreachable(pattern))[:8] == []


def test_an_alternative_without_a_needle_is_seen() -> None:
    broken = Pattern("store", (b"client socket",), r"client socket timed out|connect\(\) timed out")
    assert list(_unreachable(broken)) == ["connect() timed out"]


@pytest.mark.parametrize(("letters", "whole"), [("_ILL_LETTERS", "_ILL"), ("_HINT_LETTERS", "_HINTS")])
def test_no_bad_word_lacks_the_letters_that_it_is_looked_for_by(letters: str, whole: str) -> None:
    pattern = getattr(last_words, whole).pattern.decode("latin-1")
    lines = [text.encode("latin-1").lower() for text in _strings(sre.parse(pattern, re.IGNORECASE))]
    assert len(lines) > 20
    assert [line for line in lines if getattr(last_words, letters).search(line) is None] == []
