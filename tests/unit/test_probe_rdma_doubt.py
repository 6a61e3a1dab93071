"""Probes of RDMA and PCI where one file of many could not be read: it is told as unread, and never as not there."""

from __future__ import annotations

import pytest

from netdoctor.facts import pci, rdma
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Unavailable
from tests.support.machines.sysfs import HCA_BUSES, scratch
from tests.unit.test_hardware_probes import answers, devices, the_rdma

DENIED = Unavailable("denied", "EACCES")


@pytest.fixture(scope="module")
def healthy() -> dict[str, Answer]:
    with scratch() as folder:
        return answers(folder)


def uverbs_of(given: dict[str, Answer]) -> dict[str, str]:
    """By device its uverbs, or the kind of what is missing."""
    found = {d.name: d.uverbs for d in devices(the_rdma(given))}
    return {n: u.kind if isinstance(u, Unavailable) else u.node.removeprefix("/dev/infiniband/") for n, u in found.items()}


def test_a_uverbs_whose_device_could_not_be_read_may_be_anybodys(healthy: dict[str, Answer]) -> None:
    """The kernel has a uverbs for it: no advice to load ib_uverbs."""
    found = uverbs_of(healthy | {"file:/sys/class/infiniband_verbs/uverbs3/ibdev": DENIED})
    assert found == {f"mlx5_{n}": "not read" if n == 3 else f"uverbs{n}" for n in range(8)}
    one = devices(the_rdma(healthy | {"file:/sys/class/infiniband_verbs/uverbs3/ibdev": DENIED}))[3]
    assert isinstance(one.uverbs, Unavailable) and "uverbs3/ibdev: EACCES" in one.uverbs.detail


def test_an_unlisted_uverbs_is_absent_where_all_others_were_read(healthy: dict[str, Answer]) -> None:
    listed = [f"uverbs{n}" for n in range(8) if n != 3] + ["abi_version"]
    found = uverbs_of(healthy | {"dir:/sys/class/infiniband_verbs": listed})
    assert found == {f"mlx5_{n}": "absent" if n == 3 else f"uverbs{n}" for n in range(8)}
    # and with one unread it may be that one
    found = uverbs_of(
        healthy | {"dir:/sys/class/infiniband_verbs": listed, "file:/sys/class/infiniband_verbs/uverbs4/ibdev": DENIED}
    )
    assert (found["mlx5_3"], found["mlx5_4"], found["mlx5_5"]) == ("not read", "not read", "uverbs5")


def test_a_class_that_could_not_be_listed(healthy: dict[str, Answer]) -> None:
    assert set(uverbs_of(healthy | {"dir:/sys/class/infiniband_verbs": DENIED}).values()) == {"denied"}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("4: ACTIVE\n", "ACTIVE"),
        (" 1: DOWN", "DOWN"),
        ("²: ACTIVE", "malformed"),  # a digit to str.isdigit(), no number
        ("four: ACTIVE", "malformed"),
        (": ACTIVE", "malformed"),
        ("4", "malformed"),
        ("4:", "malformed"),
        ("4: \n", "malformed"),
        ("\n", "empty"),
    ],
)
def test_the_state_of_a_port(healthy: dict[str, Answer], text: str, state: str) -> None:
    one = devices(the_rdma(healthy | {"file:/sys/class/infiniband/mlx5_0/ports/1/state": text}))[0]
    assert not isinstance(one.ports, Unavailable)
    got = one.ports[0].state
    assert (got.kind if isinstance(got, Unavailable) else got) == state


def test_a_device_whose_link_could_not_be_read_has_no_place(healthy: dict[str, Answer]) -> None:
    address = f"0000:{HCA_BUSES[2]:02x}:00.0"
    fact = pci.probe(ReplayHost(healthy | {f"link:/sys/bus/pci/devices/{address}": DENIED}))
    assert isinstance(fact, pci.Pci)
    assert [d.address for d in fact.devices if not d.placed] == [address]
    lost = fact.at(address)
    assert lost and (lost.path, lost.root) == ((), "")
    assert lost.rdma and lost.driver == "mlx5_core"  # all else of it was read


def test_where_a_device_of_sysfs_sits_could_not_be_read(healthy: dict[str, Answer]) -> None:
    """No software device: its place is not known."""
    one = devices(the_rdma(healthy | {"link:/sys/class/infiniband/mlx5_0": DENIED}))[0]
    assert (one.pci, one.driver, one.virtual_function) == (DENIED, DENIED, DENIED)
    odd = devices(the_rdma(healthy | {"link:/sys/class/infiniband/mlx5_0": "../../devices/platform/x/infiniband/mlx5_0"}))[0]
    assert isinstance(odd, rdma.RdmaDevice) and isinstance(odd.pci, Unavailable) and odd.pci.kind == "malformed"
