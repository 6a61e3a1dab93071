"""The node is the one that the site's configuration describes: GPUs, models, places, NVLinks, power, driver, firmware, MTU."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Expected,
    Finding,
    GpuHealth,
    Gpus,
    Net,
    Pci,
    Rdma,
    Vantage,
    check,
    expectation,
    inventory,
    layers,
    skip,
    unknown,
)

ABOUT = "parts"
NOTHING = "the configuration describes no hardware (netdoctor expect writes it)"


@check(id="hardware.site", title="The node is as the site's configuration describes it", cause="inventory")
def site(
    expected: Expected, pci: Pci, gpus: Gpus, state: GpuHealth, rdma: Rdma, net: Net, vantage: Vantage
) -> Iterator[Finding]:
    if expected == Expected():  # as on most nodes, where the inventory need not be made for this
        yield skip(NOTHING)
        return
    here = inventory({type(fact): fact for fact in (pci, gpus, state, rdma, net)})
    comparison = expectation.by_site(expected, here, share=layers.may_share(vantage))
    if comparison.unread is not None:
        yield unknown(f"what the site expects could not be read: {comparison.unread}")
    elif not comparison.expectations:
        yield skip(NOTHING)
    else:
        about = expectation.About(ABOUT, len(expected.gpu_addresses or ()) or len(comparison.parts), True)
        yield from expectation.findings(comparison, about)
