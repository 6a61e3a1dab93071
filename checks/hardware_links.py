"""PCIe links of GPUs and RDMA devices, and of the switches above them, are as wide and as fast as both their ends can be.

So are the interfaces of Ethernet by which the job's data leaves, and the bonds of these are whole, where sockets carry it.
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Baseline,
    Environ,
    Finding,
    Gpus,
    Intent,
    Libraries,
    NcclChoice,
    Net,
    PathRun,
    Pci,
    Rdma,
    Vantage,
    check,
    expectation,
    ifname,
    interfaces,
    missing,
    transport,
    unknown,
)

SUBJECT = "PCIe links"


@check(id="hardware.links", title="PCIe links are as wide and as fast as they can be", cause="link_degraded")
def links(
    pci: Pci,
    gpus: Gpus,
    rdma: Rdma,
    net: Net,
    baseline: Baseline,
    paths: PathRun,
    intent: Intent,
    environ: Environ,
    libraries: Libraries,
    nccl: NcclChoice,
    vantage: Vantage,
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if pci.lost is not None:
        yield unknown(f"PCI could not be read: {pci.lost}", subject=SUBJECT)
        return
    by_sockets = transport.data_by_sockets(rdma, environ, libraries, (baseline, paths), net, intent).sockets
    taken = interfaces.of_sockets(net, environ, ifname.versions(nccl, libraries)[-1]) if by_sockets and rdma.devices else None
    carry = taken[1] if isinstance(taken, tuple) else taken
    if by_sockets is None and expectation.bonds.short(net):  # it counts where the data goes by it
        carry = missing(environ.get("NCCL_NET"), environ.get("NCCL_IB_DISABLE"), libraries.plugins)
    comparison = expectation.links(pci, gpus, rdma, net, baseline.run, carry)
    several = len(pci.gpus or ()) > 1 or intent.others  # a GPU alone sends nothing to others
    about = expectation.About(
        SUBJECT, len(comparison.parts), True if several else None, expectation.place(vantage), intent.others
    )
    yield from expectation.findings(comparison, about)
