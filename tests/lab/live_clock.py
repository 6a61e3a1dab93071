"""Live faults of the node's clock, as data (tests/lab/row.py).

By what the kernel counts time is a file laid over the kernel's own.  A time of day of its own no namespace has: netdoctor and
what it starts get one by tests/fakes/fake_clock.c.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Final

from tests.lab.row import CLOCK, UNPRIVILEGED, Row
from tests.support.namespaces.dgx import Scene

WRONG: Final = "fail clock"
FOLDER: Final = "devices/system/clocksource/clocksource0"
FILE: Final = f"{FOLDER}/current_clocksource"
DAY: Final = 86400


def _ahead(fault: str, seconds: float, told: str = "") -> Row:
    env = {"LD_PRELOAD": "OTHER_TIME", "FAKE_CLOCK_AHEAD": str(round(seconds))}
    base = Scene(env=env | {"FAKE_CLOCK_AHEAD": "0"})
    return Row(fault, Scene(env=env), {CLOCK: told} if told else {}, base=base)


def _shows(fault: str, date: str) -> Row:
    shown = datetime.fromisoformat(date).replace(tzinfo=timezone.utc).timestamp()
    return _ahead(f"the clock shows {fault}", shown - time.time(), WRONG)


def _counts(name: str, told: str = "") -> Row:
    scene, base = (Scene(sys=f"mkdir -p {FOLDER}; echo {one} > {FILE}") for one in (name, "tsc"))
    return Row(f"the kernel counts time by {name}", scene, {CLOCK: told} if told else {}, base=base)


CLOCK_ROWS: Final = (
    _shows("1970, for its battery is empty", "1970-01-02"),
    _shows("a firmware's first day", "2018-01-01"),
    _shows("the last second before netdoctor was written", "2024-12-31T23:59:00"),
    _ahead("the clock is 120 years behind, before 1970", -120 * 365 * DAY, WRONG),
    *(_counts(name, WRONG) for name in ("hpet", "acpi_pm", "jiffies", "refined-jiffies")),
    Row(
        "by what the kernel counts time is not for this user to read",
        Scene(sys=f"mkdir -p {FOLDER}; echo tsc > {FILE}; chmod 0 {FILE}", wrap=UNPRIVILEGED),
        {CLOCK: "unknown: could not be read"},
        base=Scene(wrap=UNPRIVILEGED),
    ),
    _ahead("the clock is an hour ahead", 3600),
    _ahead("the clock is a day behind", -DAY),
    _ahead("the clock is ten years ahead", 3650 * DAY),
    *(_counts(name) for name in ("kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")),
)
