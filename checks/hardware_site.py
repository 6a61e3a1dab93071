"""The node is the one that the site's configuration describes: models, places, NVLinks, driver, firmware, MTU."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.api import Expected, Finding, Gpus, Net, Pci, Rdma, check, expectation, inventory, skip, unknown

ABOUT = "parts"


@check(id="hardware.site", title="The node is as the site's configuration describes it", cause="inventory")
def site(expected: Expected, pci: Pci, gpus: Gpus, rdma: Rdma, net: Net) -> Iterator[Finding]:
    look = expectation.site(expected, inventory({type(fact): fact for fact in (pci, gpus, rdma, net)}))
    if look.unread is not None:
        yield unknown(f"what the site expects could not be read: {look.unread}")
    elif not look.expected:
        yield skip("the configuration expects no model, place, NVLinks, driver, firmware or MTU (netdoctor expect writes them)")
    else:
        about = expectation.About(ABOUT, len(expected.gpu_addresses or ()) or len(look.parts), True)
        yield from expectation.findings(look, about)
