"""Whether something keeps this node's clock in time, by the kernel's own word (adjtimex(2))."""

from __future__ import annotations

from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, mapping, read, read_int, value
from netdoctor.model import Kind, Unavailable, record

# STA_UNSYNC: set from boot on, and again where a daemon says nothing until the error may be 16 s (kernel/time/ntp.c).
UNSYNC: Final = 0x0040
_SOURCE: Final = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_RTC: Final = "/sys/class/rtc/rtc0/since_epoch"  # Documentation/ABI/testing/sysfs-class-rtc
WRITTEN: Final = 1735689600  # 2025-01-01: no clock that shows an earlier time is right, for netdoctor is younger


@record
class Clock(Fact):
    """CLOCK_REALTIME, which all containers of a node share, and the clock on the board."""

    kept: bool | Unavailable  # chrony, ntpd, timesyncd, ptp4l with phc2sys or a hypervisor's agent told the kernel so
    error: float | Unavailable  # seconds that it may be wrong by, as whoever keeps it says; means nothing where nobody does
    early: bool | Unavailable  # before netdoctor was written
    source: str | Unavailable = Unavailable(Kind.NOT_READ, "nobody asked by what the kernel counts time")
    # Seconds that it is ahead of the clock on the board, from which it was set at boot; None: that one shows no possible time.
    ahead: int | None | Unavailable = Unavailable(Kind.ABSENT, "nobody asked for a clock on the board")


def probe(host: Host) -> Clock:
    got, source = mapping(host, "ask:clock"), read(host, _SOURCE)
    source = source if isinstance(source, Unavailable) else source.strip()
    if isinstance(got, Unavailable):
        return Clock(got, got, got, source, got)
    status, most = value(got.get("status"), int, "state of the clock"), value(got.get("maxerror"), int, "error of the clock")
    now = value(got.get("now"), int, "time")
    return Clock(
        status if isinstance(status, Unavailable) else not status & UNSYNC,
        most if isinstance(most, Unavailable) else most / 1e6,
        now if isinstance(now, Unavailable) else now < WRITTEN,
        source,
        now if isinstance(now, Unavailable) else _ahead(host, now),
    )


def _ahead(host: Host, now: int) -> int | None | Unavailable:
    """Without a battery it begins at 1970 or at its maker's year."""
    board = read_int(host, _RTC)
    return board if isinstance(board, Unavailable) else now - board if board >= WRITTEN else None
