"""The node has the hardware, and its all-reduce the bus bandwidth, that it had when it was last good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from netdoctor.api import (
    Baseline,
    Environ,
    Finding,
    Gpus,
    Loss,
    Past,
    Pci,
    Quantity,
    Rdma,
    Run,
    Unavailable,
    check,
    expectation,
    fail,
    inventory,
    missing,
    ok,
    skip,
    unknown,
)

HARDWARE, FIGURE = "parts", "bus bandwidth"
FORGET = "what changed since then; where the change is meant, rm /var/lib/netdoctor/past.json begins anew"


@check(id="hardware.past", title="The node is as good as in its own past", cause="low_bandwidth")
def past(past: Past, baseline: Baseline, pci: Pci, gpus: Gpus, rdma: Rdma, environ: Environ) -> Iterator[Finding]:
    if isinstance(past.entries, Unavailable):
        yield unknown(f"what this node was like could not be read: {past.entries}")
        return
    if not past.entries:
        yield skip("no good look at this node is kept (it is where the site makes /var/lib/netdoctor)")
        return
    seen = inventory({type(fact): fact for fact in (pci, gpus, rdma, environ, baseline)})
    comparison = expectation.past.hardware(past, seen, any(gpu.mig is not False for gpu in gpus.all or ()))
    if comparison.expectations or comparison.unread is not None:
        yield from expectation.findings(comparison, expectation.About(HARDWARE, len(comparison.parts), None))
    else:
        yield skip("no hardware was seen then", subject=HARDWARE)
    if not any(one.shape for one in past.entries):
        yield skip("no figure of an all-reduce is kept", subject=FIGURE)
    elif isinstance(baseline.run, Unavailable) or not baseline.run.finished or baseline.run.verified is not True:
        yield unknown("there is no figure of an all-reduce: see allreduce.run", subject=FIGURE)
    else:
        on_gpus = baseline.run.experiment.device == "cuda"
        yield _figure(past, baseline.run, seen, missing(environ.nccl, gpus.all if on_gpus else None))


def _figure(past: Past, run: Run, seen: Mapping[str, Any], lost: Unavailable | None) -> Finding:
    now = expectation.past.entry_of("", run, seen)
    ring, fall = expectation.past.like(past, now), expectation.past.fall(past, now)
    measured = {"now": Quantity(now.busbw, "GB/s")}
    if fall is None and len(ring) < expectation.past.FEWEST:
        if lost is not None:
            return unknown(f"which kept runs are like this one could not be told: {lost}", subject=FIGURE, measured=measured)
        few = f"{len(ring)} kept runs are like this one; only {expectation.past.FEWEST} tell how much they differ by themselves"
        return skip(few, subject=FIGURE)
    if fall is None:
        return ok(f"within what {len(ring)} like runs of this node differ by themselves", subject=FIGURE, measured=measured)
    share = 1 - fall.now / fall.usual
    return fail(
        f"{now.kind}: far below every like run of this node, the last of them on {fall.since}",
        subject=FIGURE,
        expected=f"about {Quantity(fall.usual, 'GB/s')} (this node until {fall.since})",
        how=FORGET,
        loss=Loss(None if now.cpu else share, "this node's own like runs against this one", True, measured=True),
        measured={**measured, "usual": Quantity(fall.usual, "GB/s"), "lowest": Quantity(fall.lowest, "GB/s")},
        source="past",
        looks=fall.looks,
    )
