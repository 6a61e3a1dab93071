"""net.socket_ifname: an interface that the job names is the network that it means."""

from __future__ import annotations

import pytest

from netdoctor.facts.net import Peer, Route
from netdoctor.model import Status
from tests.support.facts import address, environ, netlink_link
from tests.unit.checks.test_net_socket_ifname import FAIL, LO, PASS, SEVERAL, UNKNOWN, far, found, seen

# A routed host's own address is on a dummy (BGP to the host); hosts may talk over a vxlan.
FABRIC = (netlink_link("eth0", 2, addresses=(address("10.255.0.1", 31),)), netlink_link("eth1", 3, "10.255.1.1"))
OWN = Peer("10.0.0.7", ("10.0.0.7",), {"10.0.0.7": Route("lo", "local")}, local=True, variable="MASTER_ADDR")


@pytest.mark.parametrize("kind", ["dummy", "vxlan", "geneve", "tun"])
@pytest.mark.parametrize(
    ("value", "master", "status"),
    [
        ("own0", OWN, PASS),  # the others come to this address
        ("=own0", OWN, PASS),
        ("own0", far("eth0"), UNKNOWN),
        ("^eth", far("eth0"), FAIL),  # nobody named it: it is what was left
    ],
)
def test_who_names_an_interface_means_it(kind: str, value: str, master: Peer, status: Status) -> None:
    given = {
        "net": seen(LO, *FABRIC, netlink_link("own0", 9, "10.0.0.7", kind=kind), master=master),
        "environ": environ({"NCCL_SOCKET_IFNAME": value}),
        "job": SEVERAL,
    }
    assert found(**given)["NCCL"][0] is status
