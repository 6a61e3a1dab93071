"""The clock shows a time at which certificates and tickets hold, and reading it costs next to nothing.

That nothing keeps a clock in time is no fault of laptops, virtual machines and containers (a sandbox may not even say), and a
job on one node needs no right time of day: it is a note.  How far apart the clocks of nodes are shows where they meet
(allreduce.nodes).  Days apart from the clock on the board, one that nothing keeps is unknown: one of the two is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import Clock, Finding, Fix, Kind, Quantity, Unavailable, Vantage, check, cost, expectation, fail, ok, unknown

SUBJECT, SOURCE = "clock", "clock source"
# The one on the board may show the time of any zone (hwclock --localtime), 14 hours ahead at most: two days are no zone.
APART = 2 * 86400  # seconds
# What no program reads without the kernel: of x86 the vDSO knows the TSC and the clocks of hypervisors (arch/x86/include/asm/
# vdso/clocksource.h); hpet and acpi_pm are one device for all CPUs, each reading a microsecond and more.
SLOW_SOURCES = ("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies")
STEADY = Fix(
    "see why the kernel gave the TSC up (firmware, a CPU that hung, `clocksource=`); most often a reboot brings it back",
    ("dmesg | grep -i -e tsc -e clocksource", "cat /sys/devices/system/clocksource/clocksource0/available_clocksource"),
    ("update the firmware; tsc=reliable on the kernel's command line only where the vendor says that it is",),
)
SET = Fix("set the clock, and let chrony keep it", ("chronyc makestep", "date"), ("systemctl enable --now chronyd",))


@check(id="node.clock", title="The node's clock shows a possible time", cause="clock")
def node_clock(clock: Clock, vantage: Vantage) -> Iterator[Finding]:
    yield _time(clock, vantage)
    if clock.source in SLOW_SOURCES:
        yield fail(
            f"the kernel counts time by {clock.source}: every reading is a system call, and all CPUs wait for one device",
            subject=SOURCE,
            loss=cost.MIGHT,
            why="proxy threads, profilers and data loaders read the clock all the time",
            fix=Fix(f"{expectation.place(vantage)}{STEADY.summary}", STEADY.commands, STEADY.persistent),
        )
    elif isinstance(clock.source, Unavailable) and clock.source.kind in (Kind.DENIED, Kind.TIMED_OUT, Kind.FAILED):
        yield unknown(f"by what the kernel counts time could not be read: {clock.source}", subject=SOURCE)


def _time(clock: Clock, vantage: Vantage) -> Finding:
    if clock.early is True:
        text = "the clock shows a time before netdoctor was written: certificates (TLS) and tickets do not hold yet"
        fix = Fix(f"{expectation.place(vantage)}{SET.summary}", SET.commands, SET.persistent)
        return fail(text, subject=SUBJECT, loss=cost.SOMETIMES, fix=fix)
    if isinstance(clock.early, Unavailable):
        return unknown(f"the time could not be read: {clock.early}", subject=SUBJECT, how="date")
    if clock.kept is not True and clock.ahead and abs(clock.ahead) >= APART:
        word = "behind" if clock.ahead < 0 else "ahead of"
        text = f"the clock is days {word} the one on the board, and nothing keeps it in time: one of the two is wrong"
        how = "date -u; hwclock --show --utc; chronyc tracking"
        return unknown(text, subject=SUBJECT, how=how, measured={"ahead": Quantity(float(clock.ahead), "s")})
    if isinstance(clock.kept, Unavailable):
        note = f"whether something keeps the clock in time, the kernel does not say here: {clock.kept}"
        return ok("the clock shows a possible time", subject=SUBJECT, notes=(note,))
    if clock.kept:
        measured = {"maxerror": Quantity(clock.error, "s")} if isinstance(clock.error, float) else {}
        return ok("the clock is kept in time, by the kernel's word", subject=SUBJECT, measured=measured)
    note = "nothing keeps the clock in time, by the kernel's word: an all-reduce over nodes measures how far apart they are"
    return ok("the clock shows a possible time", subject=SUBJECT, notes=(note,))
