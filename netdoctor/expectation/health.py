"""Source: siblings, of the state of GPUs: power limit, ECC, persistence and BAR1 as those of their model, clocks under load.

Not their compute mode: a batch system changes it for the GPUs of one job (LSF, `bsub -gpu mode=exclusive_process`)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from netdoctor.expectation import siblings
from netdoctor.expectation.model import Comparison, Expectation, Part, Quantity, Source, Value
from netdoctor.facts.gpu_health import GpuState
from netdoctor.facts.gpu_load import GpuLoad, Load
from netdoctor.model import Kind, Unavailable

SAMPLES: Final = 3  # moments under load, before a clock says something
MIB: Final = 1 << 20
Has = dict[Quantity, Value | None | Unavailable]


def comparison(gpus: tuple[GpuState, ...]) -> Comparison:
    """What those of one model share by how the node was set up."""
    parts = tuple(_part(gpu) for gpu in gpus)
    return Comparison(parts, tuple(siblings.of(parts)))


def _part(gpu: GpuState) -> Part:
    """In MIG mode a GPU is what somebody made of it."""
    has: Has = {
        Quantity.POWER: _known(gpu.power_limit, lambda milliwatts: milliwatts / 1000),
        Quantity.ECC: _known(gpu.ecc, _switch),
        Quantity.PERSISTENCE: _known(gpu.persistence, _switch),
        Quantity.BAR1: _known(gpu.bar1, lambda bar1: bar1[0] / MIB),
    }
    return Part(gpu.place, has, str(gpu.name) if gpu.name and gpu.mig is not True else "")


def clocks(gpus: tuple[GpuState, ...], load: GpuLoad) -> Comparison:
    """The highest clock of each under load, against the median of its model: chips of one model differ by a few steps."""
    parts = tuple(_clock(gpu, (load.gpus or {}).get(str(gpu.uuid))) for gpu in gpus)
    return Comparison(parts, tuple(_clocks(parts)))


def _clock(gpu: GpuState, seen: Load | None) -> Part:
    busy = seen is not None and seen.samples and seen.samples >= SAMPLES and gpu.mig is False
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
            usual = statistics.median_high(known)
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
