"""A logger's record right above a traceback: whether it speaks of the exception, which the program has caught then."""

from __future__ import annotations

import re
from typing import Final

# A logger's whole record (time and level, or the level and the logger's name), right below which a handler puts the traceback
# of what the program has caught, also at its bottom; not where it says that it ends with it, as hooks for the uncaught do.  It
# speaks of the exception: by its type, its text or the names in it, as something that failed, or of how it goes on without.
# What it says of anything else ("slow batch") stood there by chance before an exception that nobody caught.
_RECORD: Final = re.compile(
    rb"(?:[\[(]?\d{4}[-/]\d\d[-/]\d\d[ T]|[\[(]?\d\d:\d\d:\d\d).{0,80}?\b(?:ERROR|WARN(?:ING)?)\b"
    rb"|(?:ERROR|WARNING):[\w.]{1,80}:|[WE](?:\d{4} |\d{4}-\d\d-\d\d )\d\d:\d\d:\d\d|(?:WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d"
)
_ENDS_WITH_IT: Final = re.compile(
    rb"\b(?:un(?:caught|handled|recoverable|expected)|fatal\w*|exit\w*|abort\w*|terminat\w*|crash\w*|giving up"
    rb"|shut\w* ?down|stopp\w*|(?:training|job|run|worker|rank|process|main|program|script)\b.{0,30}\b(?:failed|died|dies))\b",
    re.IGNORECASE,
)
_OF_IT: Final = re.compile(
    rb"\b(?:exceptions?|traceback|(?<!no )(?<!\b0 )errors?(?! (?:rate|bars?|count)\b)|failed|failure|failing|caught"
    rb"|continu(?:e|es|ing)|proceed(?:s|ing)?|go(?:es|ing) on|f(?:a|e)ll(?:s|ing)? ?back)\b(?!\W{0,4}0\b)",
    re.IGNORECASE,
)
_NAMES: Final = re.compile(rb"['\"]([^'\"]{3,200})['\"]")  # that an exception's text quotes
_SAID: Final = 4  # bytes of such a text that stands in others by more than chance


def record(above: bytes) -> bytes:
    """What the line above a traceback says, where it is such a record and no last one."""
    head = _RECORD.match(above)
    return above[head.end() :] if head is not None and _ENDS_WITH_IT.search(above) is None else b""


def speaks_of(record: bytes, kind: bytes, body: bytes) -> bool:
    """Whether what a logger's record says is about the exception of the traceback below it."""
    if not record:
        return False
    record, told = record.lower(), body.partition(b":")[2].strip().lower()
    names = {kind.rpartition(b".")[2].lower(), *_NAMES.findall(told)}
    names |= {told} if len(told) >= _SAID else set()
    return _OF_IT.search(record) is not None or any(name in record for name in names)
