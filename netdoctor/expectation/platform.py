"""Source: the platform.  A table of node shapes, ``platforms.tsv``: what a product or a cloud's instance type is made of.

Columns: name · vendor, product, asset tag (regular expressions on what the firmware says, whole text; empty: whatever it is) ·
GPU model (regular expression on NVML's name) · NVSwitches on PCI (empty: whatever) · GPUs · RDMA devices for the job · Gb/s of
each · source.  An empty figure claims nothing, a row that does not match neither.  "32 at most": who launches an instance
attaches that many or fewer; fewer that serve every GPU alike are no fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from netdoctor.expectation.model import Expectation, Quantity, Source
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.facts.platform import Platform
from netdoctor.model import NODE, Kind, Unavailable, missing


@dataclass(frozen=True)
class Shape:
    """One row: a kind of node."""

    name: str
    vendor: str
    product: str
    asset_tag: str
    model: str
    nvswitches: int | None
    gpus: int | None
    rails: int | None
    rate: float | None
    source: str
    attached: bool = False  # the owner attaches as many RDMA devices as he wants, up to `rails`

    @property
    def because(self) -> str:
        return f"{self.name}: {self.source}"


@lru_cache(maxsize=1)
def table() -> tuple[Shape, ...]:
    """All rows, the more particular ones first."""
    text = resources.files(__package__).joinpath("platforms.tsv").read_text(encoding="utf-8")
    return tuple(_shape(line.split("\t")) for line in text.splitlines()[1:] if line)


def _shape(row: Sequence[str]) -> Shape:
    name, vendor, product, tag, model, *figures, source = row
    number, at_most, _ = figures[2].partition(" at most")
    switches, gpus, rails = (int(one) if one else None for one in (*figures[:2], number))
    rate = float(figures[3]) if figures[3] else None
    return Shape(name, vendor, product, tag, model, switches, gpus, rails, rate, source, bool(at_most))


def shape(platform: Platform, pci: Pci, nvml: Gpus) -> Shape | None | Unavailable:
    """The shape of this node; None: no row is about it.  Unavailable where what is not known might make it one."""
    if isinstance(nvml.all, Unavailable):
        return Unavailable(Kind.NOT_READ, f"the model of the GPUs: {nvml.all}")
    names = [gpu.name for gpu in nvml.all if isinstance(gpu.name, str)]
    lost = missing(*(gpu.name for gpu in nvml.all)) if not names else None
    for row in table():
        fits = _fits(row, platform, pci, names) if lost is None else lost
        if isinstance(fits, Unavailable):
            return fits
        if fits:
            return row
    return None


def _fits(row: Shape, platform: Platform, pci: Pci, names: Sequence[str]) -> bool | Unavailable:
    if not any(re.fullmatch(row.model, name) for name in names):
        return False
    if row.nvswitches is not None:
        if isinstance(pci.nvswitches, Unavailable):
            return pci.nvswitches
        if len(pci.nvswitches) != row.nvswitches:
            return False
    wanted = ((row.vendor, platform.vendor), (row.product, platform.product), (row.asset_tag, platform.asset_tag))
    told = [(pattern, text) for pattern, text in wanted if pattern]
    if not all(re.fullmatch(pattern, text) for pattern, text in told if isinstance(text, str)):
        return False
    lost = missing(*(text for _, text in told))
    return True if lost is None else lost


def gpus(row: Shape) -> Iterator[Expectation]:
    """How many GPUs such a node has."""
    if row.gpus is not None:
        yield Expectation(NODE, Quantity.GPUS, row.gpus, Source.PLATFORM, row.because)


def rails(row: Shape, names: Sequence[str]) -> Iterator[Expectation]:
    """How many RDMA devices, and the rate of each."""
    if row.rails is not None:
        yield Expectation(NODE, Quantity.RAILS, row.rails, Source.PLATFORM, row.because)
    if row.rate is not None:
        yield from (Expectation(name, Quantity.RATE, row.rate, Source.PLATFORM, row.because) for name in names)
