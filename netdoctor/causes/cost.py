"""What faults cost: the formulas by which it is estimated from what the hardware is capable of, and what was measured.

A check says what is lost (a `Loss`), never how bad that is: `Loss.severity` is the one rule.  What was measured counts for more
than what was estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from netdoctor.model import (
    MUCH as MUCH,  # noqa: PLC0414 - for checks
    CheckResult,
    Finding,
    Loss,
    Status,
    record,
)

STOPS: Final = Loss(1.0, "the job does not start, hangs, or gets wrong data")
SOMETIMES: Final = replace(STOPS, needed=None)  # some jobs, or now and then
NOTHING: Final = Loss(0.0, "nothing that a collective would show")
MIGHT: Final = Loss(None, "how much is not known before it is measured")
WORST: Final = STOPS.severity


def less(now: float, should: float, what: str, *, needed: bool | None = True) -> Loss:
    """Of something that carries `should` (any unit) `now` is left; `what` says so with its unit: "Gb/s of the rails"."""
    if should <= 0:
        return replace(MIGHT, needed=needed)
    left = min(1.0, max(0.0, now / should))
    return Loss(1 - left, f"{now:g} of {should:g} {what}", needed)


# Bytes of a RoCE port's packet that are data, as the kernel makes them of its interface's MTU less 96 bytes of headers
# (include/rdma/ib_addr.h, iboe_get_mtu), and what stands around them on the wire: preamble 8, Ethernet 14 and 4, IPv4 20,
# UDP 8, BTH 12, ICRC 4, gap 12.
_ROCE_MTUS: Final = (4096, 2048, 1024, 512, 256)
_ROCE_HEADERS, _AROUND_ROCE = 96, 82


def roce_frames(now: float, should: float, *, needed: bool | None = True) -> Loss:
    """An interface of RoCE with a smaller MTU than another: a queue pair goes by the smaller of both ends' (NCCL
    src/transport/net_ib/connect.cc: min of the ports' active_mtu)."""
    mine, its = (next((m for m in _ROCE_MTUS if m <= mtu - _ROCE_HEADERS), 0) for mtu in (now, should))
    if not mine:
        return replace(STOPS, formula=f"an interface's MTU of {now:g} is too small for RoCE", needed=needed)
    if mine == its:
        return Loss(0.0, f"RDMA sends {mine} bytes a packet with both", needed)
    return _data(mine, its, "packets", 0, _AROUND_ROCE, needed)


def infiniband_packets(now: float, should: float, *, needed: bool | None = True) -> Loss:
    """A port with smaller packets than another: LRH 8, BTH 12, ICRC 4 and VCRC 2 bytes stand around the data of each."""
    return _data(now, should, "packets", 0, 26, needed)


def tcp_frames(now: float, should: float, *, needed: bool | None = True) -> Loss:
    """A socket's interface with a smaller MTU than others: IPv4, TCP and its timestamps take 52 bytes of each, and preamble,
    Ethernet and gap stand around them with 38."""
    return _data(now, should, "frames", 52, 38, needed)


def smaller_frames(now: float, should: float) -> Loss:
    """Of two nodes' interfaces, whatever goes by them: ends agree on the smaller one, TCP's by what each tells the other that
    it takes (RFC 9293, 3.7.1), NCCL's queue pairs by their ports (see `roce_frames`).  Nothing is lost by that."""
    return max(tcp_frames(now, should, needed=None), roce_frames(now, should, needed=None), key=lambda one: one.share or 0.0)


def _data(now: float, should: float, what: str, within: int, around: int, needed: bool | None) -> Loss:
    """What is sent in pieces of these sizes, of which `within` bytes are headers, and `around` stand around each."""
    part, whole = (round(100 * max(0.0, size - within) / (size + around), 1) for size in (now, should))
    return less(part, whole, f"% of what is sent is data, by {what} of {now:g} bytes instead of {should:g}", needed=needed)


def staged(*, needed: bool | None = True) -> Loss:
    """RDMA without GPUDirect: each byte goes from the GPU to host memory and from there to the HCA, by the way that it would
    take once (NCCL src/transport/net.cc: the proxy's copy into a host buffer)."""
    return Loss(0.5, "each byte crosses PCIe and host memory twice instead of once: half is left at best", needed)


def sockets(speed: float | None = None, rails: float | None = None, *, needed: bool | None = True) -> Loss:
    """TCP instead of RDMA: Gb/s of the interfaces that NCCL's sockets take, and of the rails that it does without."""
    half = 0.5  # GPUDirect is lost with RDMA, and the CPU copies every byte into the kernel besides: see `staged`
    if speed and rails and speed < half * rails:
        return less(speed, rails, "Gb/s: what the sockets' interfaces have of the rails'", needed=needed)
    return Loss(half, "by sockets each byte passes host memory and the CPU: half is left at best", needed)


def measured(finding: Finding) -> Finding:
    """`finding` by what its cure gained: the A/B run counts for more than any formula."""
    cost = finding.cost
    if cost is None or finding.status is not Status.FAIL:
        return finding
    known = finding.loss or MIGHT
    if cost.significant and cost.ratio is None:
        known = replace(STOPS, measured=True)
    elif cost.significant and cost.ratio and cost.ratio > 1:
        share = 1 - 1 / cost.ratio
        known = replace(known, share=share, needed=True, measured=True, formula=f"measured: {cost.summary}")
    else:
        return finding
    return replace(finding, loss=known)


@record
class Outlook:
    """What all fails together leave a job here."""

    left: float  # share of the bandwidth that this node should give; 0: the job does not run
    checks: tuple[str, ...]  # whose fails say so, the worst first
    measured: bool
    bound: bool = False  # what is left is no more than that

    @property
    def text(self) -> str:
        """The head of a report."""
        by = ", ".join(self.checks)
        if not self.left:
            return f"a job here would not start, would hang or would get wrong data: {by}"
        how = "measured" if self.measured and not self.bound else "estimated"
        about = "no more than" if self.bound else "about"
        return f"a job here would communicate at {about} {share_text(self.left)} of what this node can do ({how}): {by}"


def share_text(share: float) -> str:
    """``12 %``; below one percent with a digit more."""
    return f"{share:.0%}".replace("%", " %") if share >= 0.01 else f"{share:.1%}".replace("%", " %")


def lost_packets(share: float, round_trip: float, segment: int, loopback: float) -> Loss:
    """Random loss: TCP keeps no more than 1.22 segments / √share under way (Mathis et al., CCR 27(3), 1997), against what the
    hosts' own loopback carries, in bytes a second."""
    if not round_trip or not segment or not loopback or share <= 0:
        return MIGHT
    most = 1.22 * segment / (round_trip * math.sqrt(share))
    what = "GB/s of the loopback: what TCP can carry with that loss and round trip (Mathis)"
    return replace(less(round(most / 1e9, 3), round(loopback / 1e9, 3), what), measured=True, bound=True)


def words(finding: Finding) -> str:
    """What a fail costs, in one line; "" where its cause's own words say all that is known."""
    loss, tried = finding.loss, finding.cost.summary if finding.cost else ""
    if finding.status is not Status.FAIL or loss is None or loss.measured or not loss.partial:
        return tried
    needed = {True: "", False: ", which this job does not use", None: ", if the job needs it"}[loss.needed]
    estimate = f"about {share_text(loss.share or 0)} of this node's bandwidth{needed} (estimated: {loss.formula})"
    return f"{tried}; {estimate}" if tried else estimate


def outlook(checks: Iterable[CheckResult]) -> Outlook | None:
    """The slowest part sets the pace of a collective, so of several losses the largest counts; None: nothing is lost that the
    job needs, as far as is known."""
    lost = [
        (f.loss, f.check)
        for c in checks
        for f in c.findings
        if f.status is Status.FAIL and not f.waived and f.loss and f.loss.needed and f.loss.share
    ]
    lost.sort(key=lambda one: -(one[0].share or 0))
    if not lost:
        return None
    worst = lost[0][0]
    left = 1 - (worst.share or 0)
    # Of one state there is one head: what was measured differs a little from run to run.
    left = float(f"{left:.1g}") if worst.measured else round(left, 3)
    names = dict.fromkeys(name for loss, name in lost if left or loss.share == worst.share)
    return Outlook(left, tuple(names), worst.measured, worst.bound)
