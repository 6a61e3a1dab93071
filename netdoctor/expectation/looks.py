"""What each check weighs: parts of one kind, and what all sources say of them.  A new source is added here."""

from __future__ import annotations

from netdoctor.expectation import device, parts, past, platform, siblings
from netdoctor.expectation import rails as of_rails
from netdoctor.expectation.findings import About, findings
from netdoctor.expectation.model import Expectation, Look, Part, Quantity, Source
from netdoctor.expectation.site import look as site
from netdoctor.facts.accelerator import accelerator
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.facts.platform import Platform
from netdoctor.facts.vantage import Vantage
from netdoctor.model import NODE, Finding, Status, Unavailable, missing

__all__ = ["About", "findings", "gpus", "links", "past", "place", "rails", "rails_of", "site", "without_gpus"]


def gpus(pci: Pci, nvml: Gpus, firmware: Platform) -> Look | Unavailable:
    """The GPUs: siblings alike, NVLinks as their model has, and as many as the platform has."""
    every = parts.gpus(pci, nvml)
    if isinstance(every, Unavailable):
        return every
    shape = platform.shape(firmware, pci, nvml)
    there = Part(NODE, {Quantity.GPUS: sum(d.physical_function is None for d in pci.gpus or ())})
    expected = [*device.nvlinks(pci, nvml), *siblings.of(every)]
    if isinstance(shape, platform.Shape):
        expected += platform.gpus(shape)
    return Look((*every, there), tuple(expected), missing(shape, parts.unlinked(nvml), parts.apart(pci, nvml)))


def rails(found: of_rails.Rails, pci: Pci, nvml: Gpus, firmware: Platform, rate: float | None) -> Look:
    """The RDMA devices for the GPUs: siblings alike, each GPU with its own, and as many and as fast as the platform has.

    `rate` is what the site says of it, which counts more than the table.
    """
    shape = platform.shape(firmware, pci, nvml)
    number = len(found.devices)
    there = Part(NODE, {Quantity.RAILS: number})
    expected = [*device.ports(found.parts), *siblings.of(found.parts), *siblings.of(found.near)]
    if not found.chosen and not found.by_switch and found.gpus >= of_rails.FLAT and number == found.gpus - 1:
        expected.append(Expectation(NODE, Quantity.RAILS, found.gpus, Source.SIBLINGS, f"one for each of {found.gpus} GPUs"))
    given = any(d.rdma and d.driver in parts.GIVEN_AWAY for d in pci.devices or ())  # a virtual machine has them
    if isinstance(shape, platform.Shape) and number:
        claims = platform.rails(shape, [part.name for part in found.parts])
        given |= shape.attached and found.even and number < (shape.rails or 0)
        expected += [
            one
            for one in claims
            if not (one.quantity is Quantity.RAILS and (found.chosen or given)) and not (one.quantity is Quantity.RATE and rate)
        ]
    return Look(
        (*found.parts, *found.near, there), tuple(expected), missing(shape, None if rate else siblings.divided(found.parts))
    )


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
