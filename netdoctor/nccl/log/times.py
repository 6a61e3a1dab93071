"""When lines were written: how long a log went on after the last sign of work in it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_MONTHS: Final = {name: n for n, name in enumerate(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), 1)}
# ISO 8601, glog's and c10's "E0312 10:00:00", syslog's "Mar  3 10:00:00", Python loggers' "04-07 10:00:00"
_STAMP: Final = re.compile(
    rb"\d{4}[-/](?P<m>\d\d)[-/](?P<d>\d\d)[ T_](?P<t>\d\d:\d\d:\d\d)"
    rb"|\b[IWEF](?P<m2>\d\d)(?P<d2>\d\d) (?P<t2>\d\d:\d\d:\d\d)"
    rb"|\b(?P<m3>[A-Z][a-z]{2}) +(?P<d3>\d{1,2}) (?P<t3>\d\d:\d\d:\d\d)"
    rb"|\b(?P<m4>\d\d)-(?P<d4>\d\d) (?P<t4>\d\d:\d\d:\d\d)"
)
_HEAD: Final = 300
_DAYS: Final = 60  # beyond which the stamps are of two runs, or of two years


def when(line: bytes) -> datetime | None:
    """The time in a line, in a year that stands for any; None where it has none with a date."""
    match = _STAMP.search(line[:_HEAD])
    if match is None:
        return None
    got = {name.rstrip("234"): value for name, value in match.groupdict().items() if value}
    try:
        month = _MONTHS.get(got["m"]) or int(got["m"])
        hour, minute, second = map(int, got["t"].split(b":"))
        return datetime(2000, month, int(got["d"]), hour, minute, second)  # noqa: DTZ001  (compared with its like only)
    except ValueError:
        return None


def minutes(before: bytes, after: bytes) -> int:
    """From one line to another; 0 where they do not tell."""
    a, b = when(before), when(after)
    if a is None or b is None or not 0 <= (b - a).days < _DAYS:
        return 0
    return int((b - a).total_seconds() // 60)
