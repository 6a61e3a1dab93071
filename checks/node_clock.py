"""The clock shows a time at which certificates and tickets hold.

That nothing keeps a clock in time is no fault of laptops, virtual machines and containers (a sandbox may not even say), and a
job on one node needs no right time of day: it is a note.  How far apart the clocks of nodes are shows where they meet
(allreduce.nodes).
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import Clock, Finding, Fix, Quantity, Unavailable, Vantage, check, cost, expectation, fail, ok, unknown

SUBJECT = "clock"
SET = Fix("set the clock, and let chrony keep it", ("chronyc makestep", "date"), ("systemctl enable --now chronyd",))


@check(id="node.clock", title="The node's clock shows a possible time", cause="clock")
def node_clock(clock: Clock, vantage: Vantage) -> Iterator[Finding]:
    if clock.early is True:
        text = "the clock shows a time before netdoctor was written: certificates (TLS) and tickets do not hold yet"
        fix = Fix(f"{expectation.place(vantage)}{SET.summary}", SET.commands, SET.persistent)
        yield fail(text, subject=SUBJECT, loss=cost.SOMETIMES, fix=fix)
    elif isinstance(clock.early, Unavailable):
        yield unknown(f"the time could not be read: {clock.early}", subject=SUBJECT, how="date")
    elif isinstance(clock.kept, Unavailable):
        note = f"whether something keeps the clock in time, the kernel does not say here: {clock.kept}"
        yield ok("the clock shows a possible time", subject=SUBJECT, notes=(note,))
    elif clock.kept:
        measured = {"maxerror": Quantity(clock.error, "s")} if isinstance(clock.error, float) else {}
        yield ok("the clock is kept in time, by the kernel's word", subject=SUBJECT, measured=measured)
    else:
        note = "nothing keeps the clock in time, by the kernel's word: `netdoctor allreduce` measures how far apart nodes are"
        yield ok("the clock shows a possible time", subject=SUBJECT, notes=(note,))
