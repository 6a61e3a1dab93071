"""`Pattern`: how a message family is found in a line, whatever form it comes in.

A family is written once, without what stands around it: NCCL's prefix, torch's ``Last error:``, a launcher's mark, JSON's
quotes.  `parser` takes those away or searches past them, so that every family is known in every form.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.nccl.log.facts import EventKind

ERRNO: Final = r"(?P<errno>[A-Za-z][A-Za-z /\-]{3,60})"
APOSTROPHE: Final = r"(?:['`]|\xe2\x80[\x98\x99])?"  # as printed, as a forum or a word processor made of it (UTF-8), or lost
QUOTE: Final = r"(?:['\"`]|\xe2\x80[\x98\x99\x9c\x9d])?"


class Pattern(NamedTuple):
    """`needles`: lower-case; a line that has none of them is not looked at further."""

    kind: EventKind
    needles: tuple[bytes, ...]
    regex: re.Pattern[bytes]
    key: tuple[str, ...] = ()  # groups whose values tell events of one kind apart
    follow: int = 0  # lines after it that may belong to it


def row(kind: EventKind, needles: str, regex: str, key: str = "", follow: int = 0) -> Pattern:
    return Pattern(
        kind,
        tuple(n.encode() for n in needles.split("|")),
        re.compile(regex.encode(), re.IGNORECASE),
        tuple(key.split()),
        follow,
    )
