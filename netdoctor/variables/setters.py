"""Statements of bash that set variables and are no assignments (bash(1), SHELL BUILTIN COMMANDS)."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from netdoctor.model import record
from netdoctor.variables.shell_tokens import Word

_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_LET: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)\s*(.*?)\s*\Z", re.DOTALL)


@record
class Target:
    """What a statement sets; no name: that is only known when it runs, no value: likewise."""

    word: Word
    name: str | None
    value: str | None = None
    branch: bool = False  # it may keep what it was


def _named(word: Word, value: str | None = None) -> Target:
    known = not word.opaque and _IDENTIFIER.match(word.text)
    return Target(word, known.group() if known else None, value)


def _printf(words: list[Word]) -> list[Target] | None:
    if len(words) < 4 or words[1].text != "-v":
        return None
    plain = len(words) == 4 and not words[3].opaque and not re.search(r"[%\\]", words[3].text)
    return [_named(words[2], words[3].text if plain else None)]


def _operands(words: list[Word], with_argument: str) -> list[Word]:
    """The operands behind the options, of which those of `with_argument` take one."""
    i = 1
    while i < len(words) and re.match(r"-.", words[i].text) and words[i].text != "--":
        i += 2 if words[i].text[-1] in with_argument else 1
    return words[i + (i < len(words) and words[i].text == "--") :]


def _read(words: list[Word]) -> list[Target]:
    array = [_named(after) for word, after in pairwise(words) if re.match(r"-\w*a\Z", word.text)]
    return array + [_named(word) for word in _operands(words, "adinNptu") if not word.text.startswith("/")]


def _mapfile(words: list[Word]) -> list[Target]:
    return [_named(word) for word in _operands(words, "dnOsuCc")[:1]]


def _getopts(words: list[Word]) -> list[Target]:
    return [_named(word) for word in words[2:3]]


def _let(words: list[Word]) -> list[Target]:
    targets = []
    for word in words[1:]:
        for part in re.split(r"[;,]", word.text):
            if match := _LET.match(part):
                number = re.fullmatch(r"\d+", match[2]) and "=" in part.replace(match[1], "", 1).lstrip()[:1]
                targets.append(Target(word, match[1], match[2] if number else None))
    return targets


SETTERS: Final[dict[str, Callable[[list[Word]], list[Target] | None]]] = {
    "printf": _printf,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "getopts": _getopts,
    "let": _let,
}


def allexport(words: list[Word], now: bool) -> bool:
    """``set -a``, ``-ea``, ``-o allexport``, and + for what ends it."""
    for before, word in pairwise(words):
        if word.text == "allexport" and before.text in ("-o", "+o"):
            now = before.text == "-o"
        elif re.match(r"[-+][A-Za-z]*a", word.text):
            now = word.text.startswith("-")
    return now


def defaults(word: Word) -> list[Target]:
    """``${NAME:=VALUE}`` sets it where it is not set."""
    literal = re.compile(r"[^\"'\\$`]*\Z")
    return [Target(word, name, value if literal.match(value) else None, branch=True) for name, value in word.sets]


def loop(words: list[Word]) -> list[Target]:
    """``for NAME in …``: every value in its turn."""
    name, listed = words[0].text, words[2:] if len(words) > 1 and words[1].text == "in" else []
    if not _IDENTIFIER.fullmatch(name):
        return []
    found = [Target(word, name, None if word.opaque else word.text, branch=i > 0) for i, word in enumerate(listed)]
    return found or [Target(words[0], name)]
