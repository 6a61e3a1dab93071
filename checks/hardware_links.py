"""PCIe links of GPUs and RDMA devices, and of the switches above them, are as wide and as fast as both their ends can be."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import Baseline, Finding, Gpus, Intent, Net, Pci, Rdma, Vantage, check, expectation, unknown

SUBJECT = "PCIe links"


@check(id="hardware.links", title="PCIe links are as wide and as fast as they can be", cause="link_degraded")
def links(
    pci: Pci, gpus: Gpus, rdma: Rdma, net: Net, baseline: Baseline, intent: Intent, vantage: Vantage
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if pci.lost is not None:
        yield unknown(f"PCI could not be read: {pci.lost}", subject=SUBJECT)
        return
    comparison = expectation.links(pci, gpus, rdma, net, baseline.run)
    several = len(pci.gpus or ()) > 1 or intent.others  # a GPU alone sends nothing to others
    about = expectation.About(
        SUBJECT, len(comparison.parts), True if several else None, expectation.place(vantage), intent.others
    )
    yield from expectation.findings(comparison, about)
