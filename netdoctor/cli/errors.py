"""Bad usage, said the same way by every command."""

from __future__ import annotations

import sys
from typing import Final

USAGE: Final = 2


def usage(words: object) -> int:
    """One line on stderr; the exit code."""
    from netdoctor.textsafe import clean

    print(f"netdoctor: {clean(str(words))}", file=sys.stderr)
    return USAGE


def missing(format: str | None) -> str:
    """What this format needs and is not installed, in words; "" where it can be written."""
    if format == "junit":
        from netdoctor.report import junit_cases
        from netdoctor.report.extras import MissingExtraError

        try:
            junit_cases.needed()
        except MissingExtraError as error:
            return str(error)
    return ""
