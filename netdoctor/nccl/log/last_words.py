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
_MOST: Final = 8  # lines


class LastWords:
    """Feed it the lines of one file that no family knows; a sign of work makes what was said before it count for nothing."""

    def __init__(self) -> None:
        self._worked = False
        self._lines: dict[int, bytes] = {}

    def work(self) -> None:
        self._worked = True
        self._lines.clear()

    def feed(self, line: bytes, number: int) -> None:
        if len(self._lines) < _MOST and _ILL.search(line) and not _NONE.search(line):
            self._lines[number] = line

    def close(self, silent: bool) -> dict[int, bytes]:
        """The lines by number; what follows is another file's.  `silent`: without work they are all that such a log holds."""
        lines = self._lines if self._worked or silent else {}
        self._lines, self._worked = {}, False
        return lines
