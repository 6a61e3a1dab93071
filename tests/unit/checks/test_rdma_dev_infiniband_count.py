"""rdma.dev_infiniband, how many HCAs there are: virtual functions and software are none."""

from __future__ import annotations

import pytest

from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Status
from tests.support import facts as f

Changes = dict[type, object]


def _virtual(cards: int, each: int) -> Changes:
    """Virtual functions alone that a pod was given, and where they are on PCI."""
    places = [(card, f"0000:{f.HCA_BUSES[card]:02x}:00.{n + 1}") for card in range(cards) for n in range(each)]
    functions = tuple(
        f.hca_device(card, address=at, device=0x101E, physical_function=f.bdf(f.HCA_BUSES[card])) for card, at in places
    )
    devices = tuple(f.hca(card, name=f"v{at}", pci=at, virtual_function=True) for card, at in places)
    return {Rdma: f.rdma(devices=devices), Pci: f.pci(8, 0, devices=(*f.pci(8, 0).devices, *functions))}


@pytest.mark.parametrize("vantage", [f.vantage(), f.outside()])
@pytest.mark.parametrize(
    ("changes", "status"),
    [
        (
            {
                Rdma: f.rdma(
                    devices=(*(f.hca(i) for i in range(4)), *(f.hca(i, name=f"v{i}", virtual_function=True) for i in range(4)))
                )
            },
            Status.UNKNOWN,
        ),
        ({Rdma: f.rdma(devices=(*(f.hca(i) for i in range(7)), f.hca(7, name="rxe0", pci=None)))}, Status.UNKNOWN),
        (_virtual(1, 8), Status.UNKNOWN),
        (_virtual(8, 1), Status.PASS),
        (_virtual(1, 7), Status.FAIL),
    ],
)
def test_virtual_functions_of_one_card_are_no_cards(changes: Changes, status: Status, vantage: Vantage) -> None:
    have = f.machine({PathRun: f.path_run(), Expected: f.expected(hcas=8), Vantage: vantage, **changes})
    (found,) = (one for one in f.judge(dev_infiniband, have) if one.subject == "count")
    assert found.status is status, found.message
