"""Ways of writing an assignment by which the shell sets nothing, or half of it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from netdoctor.variables.assignments import Problem, WritingRule, meant
from netdoctor.variables.shell_tokens import Word

_ALMOST: Final = re.compile(r"([A-Za-z_][\w.-]*)=")


def blank_at_equals(words: list[Word]) -> tuple[str, Word, Problem] | None:
    """``NAME = VALUE``: the shell takes three words for what was meant as one."""
    for i, (word, after) in enumerate(pairwise(words)):
        if after.text.startswith("=") and not word.opaque and (name := meant(word.text)):
            value = after.text[1:] or "".join(one.text for one in words[i + 2 : i + 3])
            text = f"blanks around =: the shell does not set it; {name}={value} is what was meant"
            return name, word, Problem(WritingRule.BLANK_AT_EQUALS, text)
    return None


def not_a_name(word: Word) -> tuple[str, Word, Problem] | None:
    """``export NCCL-DEBUG=INFO``."""
    match = _ALMOST.match(word.text)
    name = meant(re.sub(r"[.-]", "_", match[1])) if match else None
    if not match or not name or name == match[1]:
        return None
    return name, word, Problem(WritingRule.NOT_A_NAME, f"{match[1]} is no name of a variable: the shell sets nothing")


def cut_at_semicolon(before: list[Word], words: list[Word]) -> Problem | None:
    """The command that was meant as the rest of the list before it: ``NCCL_IB_HCA=mlx5_0;mlx5_1``."""
    name, equals, value = before[-1].text.partition("=")
    rest = words[0]
    if not (equals and meant(name) and value and len(words) == 1 and rest.glued) or before[-1].opaque:
        return None
    kind = re.match(r"[A-Za-z]+", value)
    alike = (kind and rest.text.startswith(kind.group()) and rest.text != value) or (":" in value and ":" in rest.text)
    if not alike:
        return None
    return Problem(WritingRule.CUT_AT_SEMICOLON, f"the shell ends the value at the semicolon: {rest.text!r} is a command")
