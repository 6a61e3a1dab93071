"""The table of message families, and what is read off a line that is of one."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.log import nccl_patterns, program_patterns
from netdoctor.nccl.log.facts import EventKind
from netdoctor.nccl.log.pattern import Pattern

PATTERNS: Final = (*nccl_patterns.PATTERNS, *program_patterns.PATTERNS)


# What such a line is, another row may know better.
_ALONE: Final = frozenset({"trouble"})


def matching(text: bytes) -> tuple[Pattern, ...]:
    """The rows whose pattern is in this line."""
    low = text.lower()
    found = tuple(p for p in PATTERNS if any(n in low for n in p.needles) and p.regex.search(text))
    return found if len(found) == 1 else tuple(p for p in found if p.kind not in _ALONE)


# Details that stand elsewhere in the same message, or in a line after it.
_DETAILS: Final[dict[EventKind, tuple[bytes, ...]]] = {
    "completion": (
        rb"vendor[_ ]err[ =](?P<vendor>\d+)",
        rb"hca (?P<hca>[\w.\-]+)",
        rb"local ?Gids? ?<?(?P<local>[0-9a-fA-F:.]*::?[0-9a-fA-F:.]*)",
        rb"remote ?Gids? ?<?(?P<remote>[0-9a-fA-F:.]*::?[0-9a-fA-F:.]*)",
        rb"\((?P<side>Send|Recv)\)|req_type=(?P<side2>\w+)",
    ),
    "modify_qp": (
        rb"dev (?P<dev>[\w.\-]+)",
        rb"GID index (?P<index>\d+)",
        rb"local GID (?!index)(?P<local>[^\s,'\"]+)",
        rb"remote GID (?P<remote>[^\s,'\"]+)",
        rb"curr(?:ent)? state (?P<state>\w+)",
    ),
    "async_event": (rb"(?P<dev>[\w.\-]+:\d+) (?:[Gg]ot|async|GID|unknown)",),
    "gloo_connect": (rb"remote=\[?(?P<remote>[^\],\s]+)", rb"local=\[?(?P<local>[^\],\s]+)"),
    "gloo_address": (rb"[Uu]nable to find (?:address|interface) for:? ?\[?(?P<name>[^\]\s]+)",),
    "elastic": (rb"\brank +: (?P<rank>\d+)", rb"exitcode +: (?P<code>-?\d+)", rb"\bhost +: (?P<host>\S+)"),
    "register": (rb"(?P<errno>Cannot allocate memory|Bad address|Invalid argument|Operation not permitted)",),
    "store": (rb"(?:connect to|connecting to) \(?\[?(?P<peer>[\w.:\-]+)",),
}
_COMPILED: Final = {kind: tuple(re.compile(r) for r in regexes) for kind, regexes in _DETAILS.items()}


def details(kind: EventKind, text: bytes, match: re.Match[bytes] | None) -> dict[str, str]:
    """All named parts of a message that are there; names that end in a digit are alternatives of the name without it."""
    out: dict[str, str] = {}
    more = (regex.search(text) for regex in _COMPILED.get(kind, ()))
    for m in (match, *more):
        for name, value in m.groupdict().items() if m else ():
            if value:
                out.setdefault(name.rstrip("0123456789"), value.decode("utf-8", "replace").strip()[:300])
    return out
