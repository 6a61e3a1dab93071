"""Whom a program polls until all are ready, by its own words: "Node 10.0.0.7:8000 is not ready yet", "worker-3 is ready"."""

from __future__ import annotations

import re
from typing import Final

_POLLED: Final = re.compile(
    rb"(?<![\w./\-])(?P<who>[\w.\-]{0,80}\d[\w.\-]{0,80}(?::\d{1,5})?) (?:is|are|was)(?P<still> (?:still )?not)? (?:yet )?"
    rb"(?:ready|healthy|reachable)\b"
)
_OF_IT: Final = re.compile(
    rb"\b(?:ready|readiness|healthy|unhealthy|reach\w*|available|wait\w*|start\w*|come up)\b", re.IGNORECASE
)
_MOST: Final = 256
_NAMED: Final = 4
_LATELY: Final = 200  # lines


class Awaited:
    """Feed it the lines of one file that may be of such a poll."""

    def __init__(self) -> None:
        self._not_ready: dict[bytes, int] = {}  # who -> the last such line

    def feed(self, line: bytes, number: int) -> None:
        polled = _POLLED.search(line)
        if polled is None:
            return
        if polled["still"] is None:
            self._not_ready.pop(polled["who"], None)
        elif polled["who"] in self._not_ready or len(self._not_ready) < _MOST:
            self._not_ready[polled["who"]] = number

    def names(self, number: int, said: bytes) -> str:
        """Who was not ready to the end, where what was raised on line `number` speaks of that."""
        if _OF_IT.search(said) is None:
            return ""
        told = [who.decode("ascii", "replace") for who, at in self._not_ready.items() if number - at <= _LATELY]
        return ", ".join(told[:_NAMED]) + (" …" if len(told) > _NAMED else "")
