"""The RDMA devices that are meant for the GPUs (rails) are as many as there should be, and alike."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import (
    Environ,
    Expected,
    Finding,
    Gpus,
    Intent,
    Net,
    Pci,
    Platform,
    Rdma,
    Unavailable,
    Vantage,
    check,
    expectation,
    missing,
    parse_hcas,
    skip,
    unknown,
)

SUBJECT = "rails"


@check(id="hardware.rails", title="Each GPU has its RDMA devices, and these are alike", cause="inventory")
def rails(
    pci: Pci,
    gpus: Gpus,
    rdma: Rdma,
    net: Net,
    environ: Environ,
    platform: Platform,
    intent: Intent,
    expected: Expected,
    vantage: Vantage,
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    setting = environ.get("NCCL_IB_HCA")
    if (lost := missing(intent.nodes, setting, expected.hca_rate_gbps)) is not None:
        yield unknown(f"what the job needs of the RDMA devices could not be read: {lost}", subject=SUBJECT)
        return
    if intent.others is False:
        yield skip(f"{intent.why}: no data of the job crosses an RDMA device", subject=SUBJECT)
        return
    found = expectation.rails_of(pci, rdma, net, parse_hcas(setting or ""))
    if isinstance(found, Unavailable):
        yield unknown(f"which RDMA devices are meant for the GPUs could not be told: {found}", subject=SUBJECT)
        return
    comparison = expectation.rails(found, pci, gpus, platform, expected)
    if not found.devices and not comparison.expectations and comparison.unread is None:
        yield skip("no two RDMA devices of one kind that GPUs could share the traffic on: nothing to compare", subject=SUBJECT)
        return
    about = expectation.About(SUBJECT, len(found.devices or found.alone), intent.others, expectation.place(vantage))
    yield from expectation.findings(comparison, about)
