"""The GPUs while the all-reduce ran: their clocks, what lowered them, and errors that rose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import (
    DISPLAY,
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    POWER_BRAKE,
    SW_POWER,
    SW_THERMAL,
    SYNC_BOOST,
)
from netdoctor.host.base import Host, mapping, question, value
from netdoctor.model import Kind, Unavailable, missing, record

LONGEST: Final = 600  # seconds; it is told to end when the run has
SAMPLES: Final = 3  # moments under load, before a clock says something
# Of the highest clock that a board knows.  Consumer boards run at four fifths of it with no reason named (a GeForce RTX 3090's
# boost clock is 1,695 of 2,100 MHz), boards of data centres at all of it (an H100: 1,980 MHz); what is lower has a reason.
LOW: Final = 0.75
EXPLAINED: Final = (HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE, SW_POWER, SYNC_BOOST, DISPLAY)
SEEN: Final = 2  # moments with a reason: one alone may be that in which the clocks change
QUESTION: Final = question("gpu_load", seconds=LONGEST)


@record
class Load:
    """One GPU under load."""

    samples: int | Unavailable  # moments in which it was busy
    clock: int | Unavailable  # MHz, the highest of them
    reasons: Mapping[int, int] | Unavailable  # bit of nvmlClocksEventReason* -> samples
    replays: int | Unavailable  # of PCIe, by which they rose
    nvlink: tuple[int | Unavailable, ...] | Unavailable  # errors of each NVLink, by which they rose
    clock_max: int | Unavailable = Unavailable(Kind.NOT_READ, "NVML was not asked for it")  # MHz, that the board can run at

    @property
    def lowered_by(self) -> frozenset[int]:
        """The reasons that were seen in more than one moment; none where they could not be read."""
        return frozenset(bit for bit, times in (self.reasons or {}).items() if times >= SEEN)

    @property
    def held_low(self) -> bool | Unavailable:
        """Its highest clock is far below its board's own, and NVML names no reason: what a lock does."""
        if (lost := missing(self.samples, self.clock, self.clock_max, self.reasons)) is not None:
            return lost
        if (self.samples or 0) - (self.reasons or {}).get(IDLE, 0) < SAMPLES:
            return Unavailable(Kind.NOT_READ, "it was not busy for so long that its clock would tell")
        low = 0 < (self.clock or 0) < LOW * (self.clock_max or 0)
        return low and self.lowered_by.isdisjoint(EXPLAINED)


@record
class GpuLoad(Fact):
    """What NVML showed of the GPUs while the all-reduce ran."""

    seconds: float | Unavailable
    gpus: Mapping[str, Load] | Unavailable  # by UUID

    @property
    def why_not(self) -> Unavailable | None:
        """Why nothing was seen."""
        lost = missing(self.gpus, self.seconds)
        return replace(lost, detail="nobody looked") if lost is not None and lost.kind is Kind.NOT_READ else lost


def begin(host: Host, gpus: Gpus) -> bool:
    """Start to look, where there is a GPU; `probe` after the run tells it to end."""
    if not gpus.all:
        return False
    host.prefetch([QUESTION])
    return True


def probe(host: Host) -> GpuLoad | Unavailable:
    """What was seen; where a run is not the recording's, it is not recorded."""
    got = mapping(host, QUESTION)
    if isinstance(got, Unavailable):
        return got
    devices: list[Any] | Unavailable = value(got.get("devices"), list, "devices under load")
    seconds = value(got.get("seconds"), (float, int), "seconds")  # type: ignore[arg-type]
    if isinstance(devices, Unavailable):
        return GpuLoad(seconds, devices)
    rows = [one for one in devices if isinstance(one, dict) and isinstance(one.get("uuid"), str)]
    return GpuLoad(seconds, {one["uuid"]: _load(one) for one in rows})


def _load(one: dict[str, Any]) -> Load:
    reasons: dict[str, Any] | Unavailable = value(one.get("reasons"), dict, "why clocks are lowered")
    links: list[Any] | Unavailable = value(one.get("nvlink"), list, "errors of NVLinks")
    if not isinstance(reasons, Unavailable) and not all(k.isdecimal() and type(v) is int for k, v in reasons.items()):
        reasons = Unavailable(Kind.MALFORMED, "why clocks are lowered")
    return Load(
        samples=value(one.get("samples"), int, "samples"),
        clock=value(one.get("clock"), int, "SM clock"),
        reasons=reasons if isinstance(reasons, Unavailable) else {int(k): v for k, v in reasons.items()},
        replays=value(one.get("replays"), int, "PCIe replays"),
        nvlink=links if isinstance(links, Unavailable) else tuple(value(n, int, "errors of an NVLink") for n in links),
        clock_max=value(one.get("clock_max"), int, "highest SM clock of the board"),
    )
