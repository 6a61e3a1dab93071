"""The GPUs are what their model, their siblings and the platform say: as many, alike, with all their NVLinks.

Where none is up, the driver may have been told so (NVreg_NvLinkDisable): a GPU alone needs that, several lose by it.
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import Expected, Finding, Gpus, Pci, Platform, Unavailable, Vantage, check, expectation, skip, unknown


@check(id="hardware.gpus", title="The GPUs are as many, as alike and as linked as they should be", cause="inventory")
def gpus(pci: Pci, gpus: Gpus, platform: Platform, expected: Expected, vantage: Vantage) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    comparison = expectation.gpus(pci, gpus, platform, expected)
    if isinstance(comparison, Unavailable):
        yield unknown(f"what GPUs there are could not be read: {comparison}", subject="GPUs")
        return
    number = len(comparison.parts) - 1
    if not number and gpus.all == ():
        yield skip("no NVIDIA GPU that this machine itself uses: PCI and NVML were read", subject="GPUs")
    elif not number:
        yield unknown("PCI shows no NVIDIA GPU that this machine itself uses: what there is comes another way", subject="GPUs")
    else:
        yield from expectation.findings(comparison, expectation.About("GPUs", number, True, expectation.place(vantage)))
