"""What each check weighs: parts of one kind, and what all sources say of them.  A new source is added here."""

from __future__ import annotations

from dataclasses import replace

from netdoctor.expectation import bonds, device, parts, past, platform, rails as of_rails, siblings
from netdoctor.expectation.findings import About, findings, netdev_of
from netdoctor.expectation.health import clocks, comparison as health, fabric, held_low
from netdoctor.expectation.model import Comparison, Expectation, Part, Quantity, Source
from netdoctor.expectation.site import comparison as by_site
from netdoctor.facts.accelerator import accelerator
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.platform import Platform
from netdoctor.facts.vantage import Vantage
from netdoctor.model import NODE, Finding, Status, Unavailable, count, missing

__all__ = [
    "About",
    "bonds",
    "by_site",
    "clocks",
    "fabric",
    "findings",
    "gpus",
    "health",
    "held_low",
    "links",
    "netdev_of",
    "past",
    "place",
    "rails",
    "rails_of",
    "without_gpus",
]


def gpus(pci: Pci, nvml: Gpus, firmware: Platform, site: Expected) -> Comparison | Unavailable:
    """The GPUs: siblings alike, NVLinks as their model has, and as many as the platform has."""
    every = parts.gpus(pci, nvml)
    if isinstance(every, Unavailable):
        return every
    shape = platform.shape(firmware, pci, nvml, site)
    up = max((sum(gpu.nvlinks or ()) for gpu in nvml.all or ()), default=0)
    there = Part(NODE, {Quantity.GPUS: sum(d.physical_function is None for d in pci.gpus or ()), Quantity.NVLINKS: up})
    expected = [*device.nvlinks(pci, nvml), *siblings.of(every), *siblings.of_one_make(every)]
    if isinstance(shape, platform.Shape) and site.gpus is None:  # whoever says how many he has knows better than the table
        expected += platform.gpus(shape)
    if site.nvlinks is not None:
        expected = [one for one in expected if one.certain]  # hardware.site holds it against what the site says
    doubts = (parts.unlinked(nvml), parts.apart(pci, nvml), parts.half_bridged(nvml), device.nvlinks_unread(pci, nvml))
    return Comparison((*every, there), tuple(expected), missing(shape, *doubts))


def rails(found: of_rails.Rails, pci: Pci, nvml: Gpus, firmware: Platform, site: Expected) -> Comparison:
    """The RDMA devices for the GPUs: siblings alike, each GPU with its own, and as many and as fast as the platform has.

    What the site says of their rate counts more than the table.
    """
    rate = site.hca_rate_gbps or None
    shape = platform.shape(firmware, pci, nvml, site)
    number = len(found.devices)
    rates = [of_rails.best_rate(d) for d in found.devices]
    unnamed = missing(*rates)
    fastest = max((rate for rate in rates if rate), default=None) if unnamed is None else unnamed
    speeds = [speed for part in found.parts if isinstance(speed := part.has.get(Quantity.INTERFACE_SPEED), int | float)]
    all_of_it = {Quantity.RATE: fastest, Quantity.INTERFACE_SPEED: max(speeds, default=None)}
    there = Part(NODE, {Quantity.RAILS: number or found.seen, **all_of_it})
    expected = [*device.ports(found.parts), *siblings.of(found.parts, but=Quantity.FIRMWARE), *siblings.of(found.boards)]
    expected += [bond.expectation(name) for name, bond in found.bonds.items()]
    # Who wrote down exactly so many knows that a GPU lacks its own.
    counted = bool(number) and site.hcas == number
    expected += [] if counted else siblings.of(found.near)
    expected += [] if rate else device.interfaces(found.parts, found.modes)
    if not counted and not found.chosen and not found.by_switch and found.gpus >= of_rails.FLAT and number == found.gpus - 1:
        expected.append(
            Expectation(NODE, Quantity.RAILS, found.gpus, Source.SIBLINGS, f"one for each of {count(found.gpus, 'GPU')}")
        )
    given = any(d.rdma and d.driver in parts.GIVEN_AWAY for d in pci.devices or ())  # a virtual machine has them
    if isinstance(shape, platform.Shape) and (number or shape.certain):
        given |= shape.attached and found.even and number < (shape.rails or 0)
        # A number of the site's counts every RDMA device, storage's too: as many as the platform has rails takes nothing
        # from the platform's word; fewer may be rails alone or not.
        fewer = isinstance(site.hcas, int) and site.hcas < (shape.rails or 0)
        settled = {Quantity.RAILS: found.chosen or given or site.hcas == 0, Quantity.RATE: rate is not None}
        # Who attaches as many as he wants, may attach two of a p4d's four: half of the GPUs have none near, and nothing in the
        # instance tells these from two that are lost (EC2's EfaInfo.maximumEfaInterfaces is what may be attached).
        certain = not (shape.attached and number and found.gpus % number == 0)
        claims = [one for one in platform.rails(shape, found.parts) if not settled.get(one.quantity)]
        expected += [one if one.quantity is not Quantity.RAILS else _number(one, site, certain and not fewer) for one in claims]
    # Where no device is seen, only a type of instance that is known by name claims any.
    told = shape if number or firmware.instance_type != "" or site.instance_type is not None else None
    unread = missing(told, None if rate else siblings.divided(found.parts))
    return Comparison((*found.parts, *found.alone, *found.near, there), tuple(expected), unread)


def _number(claim: Expectation, site: Expected, certain: bool) -> Expectation:
    """The platform's number of rails; not more than the site says that there are."""
    most = site.hcas if isinstance(site.hcas, int) else claim.should
    return replace(claim, should=min(claim.should, most), certain=claim.certain and certain)


def without_gpus(pci: Pci, nvml: Gpus) -> Finding | None:
    """What is said where there is no NVIDIA GPU to expect anything of, or where that could not be told; None: there is one."""
    there = accelerator(pci, nvml)
    if isinstance(there, Unavailable):
        return Finding(Status.UNKNOWN, f"whether there are GPUs could not be told: {there}")
    return None if there.nvidia else Finding(Status.SKIP, "no NVIDIA GPU: PCI was read and shows none")


def place(vantage: Vantage) -> str:
    """Where hardware must be mended, for one who looks from elsewhere."""
    return "on the node: " if vantage.in_container else ""


links, rails_of = device.links, of_rails.rails
