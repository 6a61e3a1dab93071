"""Source: the platform.  A table of node shapes, ``platforms.tsv``: what a product or a cloud's instance type is made of.

Columns: name · vendor, product, asset tag (regular expressions on what the firmware says; empty: whatever) · instance
type, the cloud's own name (where it is known, it counts; a row without another mark is known by it alone) · GPU model (regular
expression on NVML's name) · NVSwitches on PCI (empty: whatever) · GPUs · RDMA devices for the job · Gb/s of each · fabric that
they are on · NCCL plugin that it needs · source.  An empty figure claims nothing, as does a row that does not match.

"32 at most" RDMA devices: who launches an instance attaches that many or fewer; fewer that serve every GPU alike are no fault.
"400 at most" Gb/s: what the ports can do; which switches they are cabled to is the site's choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from netdoctor.expectation.model import Expectation, Part, Quantity, Source, Value
from netdoctor.facts import tables
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.platform import Platform
from netdoctor.model import NODE, Kind, Unavailable, missing, record


@record
class Shape:
    """One row: a kind of node."""

    name: str
    vendor: str
    product: str
    asset_tag: str
    instance: str
    model: str
    nvswitches: int | None
    gpus: int | None
    rails: int | None
    rate: float | None
    fabric: str
    plugin: str
    source: str
    attached: bool  # the owner attaches as many RDMA devices as he wants, up to `rails`
    capable: bool  # `rate` is what the ports can do, not what the maker's own switches give them
    certain: bool = False  # told by the instance type: it has these RDMA devices, whether any is seen or not

    def says(self, subject: str, quantity: Quantity, should: Value, *, certain: bool = True) -> Expectation:
        return Expectation(subject, quantity, should, Source.PLATFORM, self.name, cites=self.source, certain=certain)

    @property
    def by_name_alone(self) -> bool:
        """Nothing but the instance type tells such a node."""
        return not (self.vendor or self.product or self.asset_tag or self.nvswitches is not None)


@lru_cache(maxsize=1)
def table() -> tuple[Shape, ...]:
    """All rows, the more particular ones first."""
    head, *rows = tables.rows(__package__, "platforms.tsv")
    return tuple(_shape(dict(zip(head, row, strict=True))) for row in rows)


def _shape(row: Mapping[str, str]) -> Shape:
    rails, attached, _ = row["rails"].partition(" at most")
    rate, capable, _ = row["rate"].partition(" at most")
    return Shape(
        name=row["name"],
        vendor=row["vendor"],
        product=row["product"],
        asset_tag=row["asset_tag"],
        instance=row["instance"],
        model=row["model"],
        nvswitches=int(row["nvswitches"]) if row["nvswitches"] else None,
        gpus=int(row["gpus"]) if row["gpus"] else None,
        rails=int(rails) if rails else None,
        rate=float(rate) if rate else None,
        fabric=row["fabric"],
        plugin=row["plugin"],
        source=row["source"],
        attached=bool(attached),
        capable=bool(capable),
    )


def shape(platform: Platform, pci: Pci, nvml: Gpus, expected: Expected) -> Shape | None | Unavailable:
    """The shape of this node; None: no row is about it.  Unavailable where what is not known might make it one."""
    stated = expected.instance_type
    if isinstance(nvml.all, Unavailable) or isinstance(stated, Unavailable):
        return Unavailable(Kind.NOT_READ, f"the model of the GPUs, or what the site expects: {missing(nvml.all, stated)}")
    if stated:
        platform = replace(platform, instance_type=stated)
    names = [gpu.name for gpu in nvml.all if isinstance(gpu.name, str)]
    lost = missing(*(gpu.name for gpu in nvml.all)) if not names else None
    for row in (row for row in table() if row.instance or not stated):
        fits = _fits(row, platform, pci, names) if lost is None else lost
        if isinstance(fits, Unavailable):
            return fits
        if fits:
            return replace(row, certain=bool(platform.instance_type and row.instance))
    return Unavailable(Kind.UNSUPPORTED, f"no row is about {stated} with these GPUs") if stated else None


def _fits(row: Shape, platform: Platform, pci: Pci, names: Sequence[str]) -> bool | Unavailable:
    if not any(re.fullmatch(row.model, name) for name in names):
        return False
    if row.nvswitches is not None:
        if isinstance(pci.nvswitches, Unavailable):
            return pci.nvswitches
        if len(pci.nvswitches) != row.nvswitches:
            return False
    kind = platform.instance_type if row.instance else ""
    if kind or (row.instance and row.by_name_alone and not isinstance(kind, Unavailable)):
        return re.fullmatch(row.instance, kind) is not None
    wanted = ((row.vendor, platform.vendor), (row.product, platform.product), (row.asset_tag, platform.asset_tag))
    told = [(pattern, text) for pattern, text in wanted if pattern]
    if not all(re.fullmatch(pattern, text) for pattern, text in told if isinstance(text, str)):
        return False
    lost = missing(*(text for _, text in told), kind)
    return True if lost is None else lost


def gpus(row: Shape) -> Iterator[Expectation]:
    """How many GPUs such a node has."""
    if row.gpus is not None:
        yield row.says(NODE, Quantity.GPUS, row.gpus)


def rails(row: Shape, parts: Sequence[Part]) -> Iterator[Expectation]:
    """How many RDMA devices, on which fabric, and the rate of each.

    Of a rate that the ports can do, and none does, one expectation speaks for all: the fabric may be slower by design.
    """
    layers = {part.has.get(Quantity.LAYER) for part in parts}
    if row.fabric in _LAYERS and row.fabric not in layers and parts:
        return  # devices for something else: Azure's accelerated networking on a node without InfiniBand
    if row.rails is not None:
        yield row.says(NODE, Quantity.RAILS, row.rails)
    if row.fabric in _LAYERS:
        yield from (row.says(part.name, Quantity.LAYER, row.fabric) for part in parts)
    rates = [rate for part in parts if isinstance(rate := part.has.get(Quantity.RATE), int | float)]
    if row.rate is None or not rates:
        return
    if row.capable and max(rates) < row.rate:
        yield row.says(NODE, Quantity.RATE, row.rate, certain=False)
    else:
        yield from (row.says(part.name, Quantity.RATE, row.rate) for part in parts)


_LAYERS = ("InfiniBand", "Ethernet")
