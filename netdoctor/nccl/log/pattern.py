"""`Pattern`: how a message family is found in a line, whatever form it comes in.

A family is written once, without what stands around it: NCCL's prefix, torch's ``Last error:``, a launcher's mark, JSON's
quotes.  `parser` takes those away or searches past them, so that every family is known in every form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

from netdoctor.model import record
from netdoctor.nccl.log.event_kinds import EventKind

ERRNO: Final = r"(?P<errno>[A-Za-z][A-Za-z /\-]{3,60})"
APOSTROPHE: Final = r"(?:['`]|\xe2\x80[\x98\x99])?"  # as printed, as a forum or a word processor made of it (UTF-8), or lost
# The begin of a line of a program, behind what launchers and collectors of logs put there, and its end.
BEGIN: Final = (
    r"^(?:\[(?:rank|default)\d+\]: ?|\(\w+ pid=[^)]*\) ?| *\d{1,7}: |\[(?:\d+,)?\d+\]<\w+>:|\[pod/[^\]]*\] ?"
    r"|\S+ std(?:err|out) F |(?:[a-z][\w\-]*\d[\w.\-]*|localhost|\d{1,3}(?:\.\d{1,3}){3}): "
    r"|ERROR \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]+:\d+\] )*"
)
END: Final = r"(?: \[repeated \d+x across cluster\]){0,2} *$"  # Ray may count what it counted
QUOTE: Final = r"(?:['\"`]|\xe2\x80[\x98\x99\x9c\x9d])?"


_Tree = dict[int, "_Tree"]


def any_of(words: Iterable[bytes]) -> re.Pattern[bytes]:
    """What finds any of these."""
    return re.compile(alternatives(words))


def alternatives(words: Iterable[bytes]) -> bytes:
    """A tree of their letters, twenty times as fast as a search for each of 400 words."""
    root: _Tree = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[-1] = {}
    return _tree(root)


def _tree(node: _Tree) -> bytes:
    if -1 in node:  # a word that begins with a shorter one is found by that
        return b""
    ways = [re.escape(bytes([letter])) + _tree(rest) for letter, rest in sorted(node.items())]
    return ways[0] if len(ways) == 1 else b"(?:" + b"|".join(ways) + b")"


@record
class Pattern:
    """`needles`: lower-case; a line that has none of them is not looked at further.

    A log has few of some 300 families, and to compile all took a fifth of the start: each is when a line has its needle.
    """

    kind: EventKind
    needles: tuple[bytes, ...]
    text: str
    named: tuple[str, ...] = ()
    follow: int = 0  # lines after it that may belong to it
    each: bool = False  # every such line is an event of its own: what tells them apart stands below it

    @functools.cached_property
    def regex(self) -> re.Pattern[bytes]:
        return re.compile(self.text.encode(), re.IGNORECASE)

    @functools.cached_property
    def key(self) -> tuple[str, ...]:
        """Groups whose values tell events of one kind apart, alternatives (`signal2`) included."""
        return tuple(group for group in self.regex.groupindex if group.rstrip("0123456789") in self.named)


def row(kind: EventKind, needles: str, regex: str, key: str = "", follow: int = 0, *, each: bool = False) -> Pattern:
    return Pattern(kind, tuple(n.encode() for n in needles.split("|")), regex, tuple(key.split()), follow, each)
