"""Source: siblings, of the state of GPUs: power limit, ECC, persistence and BAR1 as those of their model, clocks under load.

And the device: boards without a screen map all of their memory.

Not their compute mode: a batch system changes it for the GPUs of one job (LSF, `bsub -gpu mode=exclusive_process`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from netdoctor.expectation import siblings
from netdoctor.expectation.model import Comparison, Expectation, Part, Quantity, Source, Value
from netdoctor.facts.gpu_health import GpuState
from netdoctor.facts.gpu_load import SAMPLES, GpuLoad, Load
from netdoctor.model import Kind, Unavailable, missing

MIB: Final = 1 << 20
# Boards without a connector for a screen, which come with a BAR1 of all their memory and more: a V100 of 16 GiB has 16, an
# A100 of 80 has 128.  Those with one (A40, L40, RTX) and a T4 have 256 MiB in one of their modes; a vGPU's name ends in its
# profile (A100-40C), and of GH200 and GB200 the CPU maps the memory by NVLink.
_MAPS_ALL: Final = re.compile(
    r"(?:NVIDIA |Tesla )?(?:V100S?|A100|A800(?! 40GB Active)|A30|H100|H800|H200|H20|B200|B300)(?:-SXM\S*|-PCI\S*| .*)?"
)
_SIZES: Final = "GPUDirect RDMA: PCI BAR sizes"
Has = dict[Quantity, Value | None | Unavailable]


def comparison(gpus: tuple[GpuState, ...]) -> Comparison:
    """What those of one model share by how the node was set up, and what a board has by itself."""
    parts = tuple(_part(gpu) for gpu in gpus)
    whole = [gpu for gpu in gpus if gpu.mig is False and isinstance(gpu.name, str) and _MAPS_ALL.fullmatch(gpu.name)]
    lost = missing(*(gpu.memory for gpu in whole if not isinstance(gpu.bar1, Unavailable)))
    own = tuple(
        Expectation(gpu.place, Quantity.BAR1, gpu.memory / MIB, Source.DEVICE, "of all its memory", cites=_SIZES)
        for gpu in whole
        if isinstance(gpu.memory, int) and gpu.bar1 and gpu.bar1[0]
    )
    return Comparison(parts, (*siblings.of(parts), *own), lost)


def _part(gpu: GpuState) -> Part:
    """In MIG mode a GPU is what somebody made of it."""
    has: Has = {
        Quantity.POWER: _known(gpu.power_limit, lambda milliwatts: milliwatts / 1000),
        Quantity.ECC: _known(gpu.ecc, _switch),
        Quantity.PERSISTENCE: _known(gpu.persistence, _switch),
        Quantity.BAR1: _known(gpu.bar1, lambda bar1: bar1[0] / MIB),
    }
    return Part(gpu.place, has, str(gpu.name) if gpu.name and gpu.mig is not True else "")


def clocks(gpus: tuple[GpuState, ...], load: GpuLoad, site: float | None = None) -> Comparison:
    """The highest clock of each under load, against the median of its model (chips of one model differ by a few steps), and
    against what the site says."""
    parts = tuple(_clock(gpu, (load.gpus or {}).get(str(gpu.uuid))) for gpu in gpus)
    said = [Expectation(one.name, Quantity.CLOCK, site, Source.SITE, "expected: of the site") for one in parts if site]
    return Comparison(parts, (*said, *_clocks(parts)))


def held_low(gpus: tuple[GpuState, ...], load: GpuLoad) -> tuple[dict[tuple[int, int], int], Unavailable | None]:
    """GPUs whose highest clock under load is far below their board's own, and NVML names no reason: (clock, board's) -> how
    many; and why that could not be told of one.  A lock has no reason of its own (nvml.h, nvmlClocksEventReason*)."""
    low: dict[tuple[int, int], int] = {}
    lost: Unavailable | None = None
    for gpu in gpus:
        seen = (load.gpus or {}).get(str(gpu.uuid))
        if seen is None or not _busy(gpu, seen):
            continue
        clock, most = seen.clock, seen.clock_max
        if isinstance(most, Unavailable):
            lost = lost if most.kind in (Kind.UNSUPPORTED, Kind.NOT_READ) else most
        elif isinstance(clock, int) and seen.held_low is True:
            low[clock, most] = low.get((clock, most), 0) + 1
    return low, lost


def _busy(gpu: GpuState, seen: Load) -> bool:
    return bool(seen.samples and seen.samples >= SAMPLES and gpu.mig is False)


def _clock(gpu: GpuState, seen: Load | None) -> Part:
    busy = seen is not None and _busy(gpu, seen)
    has: Has = {Quantity.CLOCK: _known(seen.clock, float) if seen is not None and busy else None}
    return Part(f"{gpu.place} under load", has, str(gpu.name) if gpu.name else "")


def _known(value: object, text: object) -> Value | None | Unavailable:
    """None: this GPU or driver does not have it, which NVML said."""
    if isinstance(value, Unavailable):
        return None if value.kind is Kind.UNSUPPORTED else value
    made: Value | None = text(value)  # type: ignore[operator]
    return made


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _clocks(parts: tuple[Part, ...]) -> Iterator[Expectation]:
    for like in dict.fromkeys(part.like for part in parts if part.like):
        group = [(part.name, part.has.get(Quantity.CLOCK)) for part in parts if part.like == like]
        known = [value for _, value in group if isinstance(value, float) and value > 0]
        if len(known) > 1:
            usual = sorted(known)[len(known) // 2]
            because = f"the median of {len(known)} of its kind"
            yield from (Expectation(name, Quantity.CLOCK, usual, Source.SIBLINGS, because) for name, _ in group)


def fabric(gpus: tuple[GpuState, ...]) -> Comparison:
    """GPUs of one node are in one clique of one cluster."""
    told = [(gpu.place, gpu.fabric) for gpu in gpus]
    parts = tuple(
        Part(
            name,
            {Quantity.CLIQUE: one if isinstance(one, Unavailable) else f"{one.cluster}/{one.clique}"},
            "GPUs of the fabric",
        )
        for name, one in told
    )
    return Comparison(parts, tuple(siblings.of(parts)))
