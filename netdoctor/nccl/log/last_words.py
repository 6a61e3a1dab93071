"""What a program prints after its last sign of work: of a job that died in a way that no family knows, it is all there is."""

from __future__ import annotations

import re
from typing import Final

_ILL: Final = re.compile(
    rb"\b(?:errors?|fail(?:ed|ure|ing)?|abort\w*|killed|fatal|crash\w*|panic\w*|died|traceback|\w*exception|assertion"
    rb"|corrupt\w*|core dumped|segfault|terminat\w*|non-?zero|exit(?:ed|ing)?(?: with)? (?:code|status)\W{0,4}[1-9]"
    rb"|CUDNN_STATUS_\w+|CUBLAS_STATUS_\w+|SystemExit: [1-9])",
    re.IGNORECASE,
)
# A figure of that name, or that there is none ("test error: 0.12", "no errors", "0 failed"), and what Python and ld.so ignored.
_NONE: Final = re.compile(
    rb"\b(?:no|0|without(?: any)?) (?:errors?|fail\w*)|\berror rate\b|\berrors?[:=] {0,4}(?:[\d.]+(?:e-?\d+)?%?|none|null|\"\")"
    rb"(?:$|[\s,;}])|: ignored\.?$|Exception ignored",
    re.IGNORECASE,
)
# What is no trouble by itself, and all there is to show where a log holds neither work, nor NCCL, nor what a family knows.
_HINTS: Final = re.compile(
    rb"\b(?:stall\w*|stuck|hangs?|hanging|deadlock\w*|time[ds]?[ -]?out|refused|unreachable|denied|expired|dropped"
    rb"|unexpected\w*|unable to|cannot|could(?: not|n.t)|not found|no such|invalid|mismatch\w*|reject\w*|lost|insufficient"
    rb"|unavailable|exceeded)\b",
    re.IGNORECASE,
)
_MOST: Final = 8  # lines


class LastWords:
    """Feed it the lines of one file that no family knows; a sign of work makes what was said before it count for nothing."""

    def __init__(self) -> None:
        self._worked = False
        self._lines: dict[int, bytes] = {}
        self._hints: dict[int, bytes] = {}

    def work(self) -> None:
        self._worked = True
        self._lines.clear()

    def feed(self, line: bytes, number: int) -> None:
        if len(self._lines) < _MOST and _ILL.search(line) and not _NONE.search(line):
            self._lines[number] = line
        elif not (self._worked or self._lines) and len(self._hints) < _MOST and _HINTS.search(line):
            self._hints[number] = line

    def close(self, silent: bool) -> dict[int, bytes]:
        """The lines by number; what follows is another file's.  `silent`: without work they are all that such a log holds."""
        lines = self._lines if self._worked or silent else {}
        if silent and not self._worked:
            lines = lines or self._hints
        self._lines, self._hints, self._worked = {}, {}, False
        return lines
