"""net.socket_ifname: NCCL_COMM_ID decides before NCCL_SOCKET_IFNAME."""

from __future__ import annotations

from netdoctor.checks.net_socket_ifname import socket_ifname
from netdoctor.facts.environ import Environ
from netdoctor.facts.net import Net
from netdoctor.model import Status
from tests.support import facts as f


def test_an_address_in_no_subnet_here() -> None:
    """As the unmodified 2.27.5 and 2.30.7 say: NET/Socket : No usable listening interface found."""
    settings = f.environ({"NCCL_COMM_ID": "203.0.113.1:4000", "NCCL_SOCKET_IFNAME": "eth0"})
    links = (f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7"))
    found = f.judge(socket_ifname, f.machine({Environ: settings, Net: f.net(*links)}))
    one = next(finding for finding in found if finding.subject == "NCCL")
    assert one.status is Status.FAIL and one.cause == "env_misuse"
    assert one.message.startswith("NCCL_COMM_ID=203.0.113.1:4000: no interface is in its subnet")
    assert one.fix is not None and "NCCL_COMM_ID" in one.fix.summary
