"""net.socket_ifname: what MASTER_ADDR names."""

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.facts.environ import Environ, Launcher
from netdoctor.facts.net import Peer
from netdoctor.model import Status, Unavailable
from tests.support.facts import environ, job
from tests.unit.checks.test_net_socket_ifname import LOST, SEVERAL, far, found, seen

FAIL, UNKNOWN = Status.FAIL, Status.UNKNOWN
LOOP = Peer("localhost", ("127.0.0.1",), {}, local=True)
DEBIAN = Peer("head", ("127.0.1.1",), {}, local=True)  # what /etc/hosts of the node itself says


def placed(**place: int) -> Environ:
    return environ(launcher=replace(Launcher("torchrun", None, None, None, None), **place))


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"net": seen(master=far("eth0"))}, None),
        ({"net": seen(master=far())}, (FAIL, None)),
        ({"net": seen(master=LOOP)}, (UNKNOWN, None)),
        ({"net": seen(master=LOOP), "job": job(nodes=1)}, None),
        ({"net": seen(master=LOOP), "job": SEVERAL}, (FAIL, None)),
        ({"net": seen(master=DEBIAN), "job": SEVERAL, "environ": placed(node_rank=1)}, (FAIL, None)),
        ({"net": seen(master=DEBIAN), "job": SEVERAL, "environ": placed(node_rank=0)}, None),
        ({"net": seen(master=DEBIAN), "job": SEVERAL, "environ": placed(rank=9, local_rank=1)}, (FAIL, None)),
        ({"net": seen(master=DEBIAN), "job": SEVERAL, "environ": placed(rank=1, local_rank=1)}, None),
        ({"net": seen(master=DEBIAN), "job": job(nodes=2), "environ": placed(rank=8, world=16)}, (FAIL, None)),
        ({"net": seen(master=DEBIAN), "job": job(nodes=2), "environ": placed(rank=7, world=16)}, None),
        ({"net": seen(master=DEBIAN), "job": SEVERAL}, (UNKNOWN, None)),
        ({"net": seen(master=DEBIAN), "job": job(nodes=1), "environ": placed(node_rank=1)}, None),
        ({"net": seen(master=Peer("nosuch", Unavailable("absent"), {}, local=LOST))}, (UNKNOWN, None)),
        ({"net": seen(master=LOST)}, (UNKNOWN, None)),
        ({"net": seen(master=Peer("10.0.0.1", ("10.0.0.1",), {"10.0.0.1": LOST}, local=False))}, (UNKNOWN, None)),
    ],
)
def test_master_addr(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts).get("MASTER_ADDR") == status
