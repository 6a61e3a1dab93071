"""net.tcp_buffers: facts to findings."""

from typing import Any

import pytest

from checks.net_tcp_buffers import tcp_buffers
from netdoctor.allreduce.experiment import Baseline
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.facts import LogFacts
from netdoctor.probes.environ import Environ
from netdoctor.probes.job import Expected, JobShape
from netdoctor.probes.kernel import Kernel
from netdoctor.probes.libraries import Libraries
from netdoctor.probes.nccl import NcclChoice
from netdoctor.probes.net import Net, Peer, Route
from netdoctor.probes.rdma import Rdma
from netdoctor.probes.vantage import Vantage
from tests.support.facts import (
    baseline,
    environ,
    expected,
    hca,
    job,
    judge,
    kernel,
    libraries,
    machine,
    nccl_choice,
    net,
    netlink_link,
    no_rdma,
    outside,
    plugin,
    port,
    rdma,
    run,
)

PASS, FAIL, UNKNOWN, SKIP = Status.PASS, Status.FAIL, Status.UNKNOWN, Status.SKIP
LOST = Unavailable("denied")
KINDS: dict[str, type] = {
    "kernel": Kernel,
    "net": Net,
    "vantage": Vantage,
    "environ": Environ,
    "nccl": NcclChoice,
    "job": JobShape,
    "expected": Expected,
    "rdma": Rdma,
    "libraries": Libraries,
    "baseline": Baseline,
}
LINUX = {  # as a kernel boots with them on a machine with memory enough
    "net.ipv4.tcp_rmem": "4096 131072 6291456",
    "net.ipv4.tcp_wmem": "4096 16384 4194304",
    "net.ipv4.tcp_moderate_rcvbuf": "1",
    "net.ipv4.tcp_congestion_control": "cubic",
    "net.ipv4.tcp_available_congestion_control": "reno cubic",
    "net.core.rmem_max": "212992",
    "net.core.wmem_max": "212992",
}
SOCKETS = baseline(run(log=LogFacts(net="Socket")))


def tuned(**values: str | Unavailable) -> Kernel:
    return kernel(sysctls={**LINUX, **{f"net.ipv4.{name}": value for name, value in values.items()}})


def on(speed: int | Unavailable, rtt: float | Unavailable | None = None, **link: Any) -> Net:
    """One Ethernet interface; with `rtt` a master on another node."""
    route = Route("10.0.0.1", "eth0", "10.0.0.7", None)
    far = Peer("10.0.0.1", ("10.0.0.1",), {"10.0.0.1": route}, local=False, rtt_ms=LOST if rtt is None else rtt)
    links = (netlink_link("lo", 1, "127.0.0.1"), netlink_link("eth0", 2, "10.0.0.7", speed_mbps=speed, **link))
    return net(*links, master=None if rtt is None else far)


def findings(**facts: Any) -> dict[str, Finding]:
    given = {"kernel": tuned(), "net": on(25000), "baseline": SOCKETS, **facts}
    return {f.subject: f for f in judge(tcp_buffers, machine({KINDS[name]: value for name, value in given.items()}))}


def test_a_healthy_machine_skips_for_rdma_carries_the_data() -> None:
    (finding,) = judge(tcp_buffers, machine({Baseline: baseline(run(log=LogFacts(net="IB")))}))
    assert finding.status is SKIP and "network IB" in finding.message


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"baseline": baseline(run(log=LogFacts(net="IB")))}, SKIP),
        ({"baseline": LOST}, UNKNOWN),  # RDMA devices are there; that NCCL uses them is not shown
        ({"baseline": LOST, "rdma": no_rdma(), "libraries": libraries(plugins=(plugin(),))}, UNKNOWN),
        ({"baseline": LOST, "rdma": LOST}, UNKNOWN),
        ({"baseline": LOST, "rdma": no_rdma(), "libraries": LOST}, UNKNOWN),
        ({"baseline": LOST, "environ": LOST}, UNKNOWN),
        ({"environ": LOST}, UNKNOWN),
        ({"baseline": LOST, "rdma": rdma(verbs_devices=(), devices=(hca(0, uverbs=LOST),))}, UNKNOWN),
        ({"job": job(nodes=1, nodes_stated=True)}, SKIP),
    ],
)
def test_only_where_sockets_carry_the_data(facts: dict[str, Any], status: Status) -> None:
    assert findings(**facts)["node"].status is status


@pytest.mark.parametrize("variables", [{"NCCL_NET": "socket"}, {"NCCL_IB_DISABLE": "1"}])
def test_what_forces_sockets(variables: dict[str, str]) -> None:
    assert findings(baseline=LOST, environ=environ(variables))["eth0"].status is PASS


def test_rdma_devices_that_cannot_be_used_leave_the_sockets() -> None:
    down = rdma(devices=(hca(0, ports=(port(state="DOWN"),)),))
    assert findings(baseline=LOST, rdma=down)["eth0"].status is PASS
    assert findings(baseline=LOST, environ=environ({"NCCL_IB_HCA": "nosuch"}))["eth0"].status is PASS


def test_a_true_that_is_no_number_does_not_force_sockets() -> None:
    assert findings(baseline=LOST, environ=environ({"NCCL_IB_DISABLE": "true"}))["node"].status is UNKNOWN


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        # two channels of one socket, 2 MiB each: 33.5 Mbit in flight
        ({"net": on(25000)}, PASS),
        ({"net": on(100000)}, PASS),
        ({"net": on(25000, 0.1)}, PASS),
        ({"net": on(100000, 0.3)}, PASS),
        ({"net": on(100000, 1.0)}, FAIL),
        ({"net": on(100000, LOST), "expected": expected(rtt_ms=1.0)}, FAIL),
        ({"net": on(100000), "expected": expected(rtt_ms=0.1)}, PASS),
        ({"net": on(100000, 1.0, vendor="0x1d0f")}, PASS),  # 16 sockets a connection
        ({"net": on(100000, 1.0, vendor="0x1ae0")}, PASS),  # 4
        ({"net": on(100000, 1.0), "environ": environ({"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"})}, PASS),
        ({"net": on(100000, 1.0), "kernel": tuned(tcp_rmem="4096 131072 67108864")}, FAIL),  # wmem binds
        ({"net": on(100000, 1.0), "kernel": tuned(tcp_rmem="4096 131072 67108864", tcp_wmem="4096 16384 67108864")}, PASS),
        ({"net": on(25000), "kernel": tuned(tcp_rmem="4096 8192 16384")}, FAIL),
        ({"net": on(25000, 0.05), "kernel": tuned(tcp_moderate_rcvbuf="0")}, FAIL),
        ({"net": on(25000), "kernel": tuned(tcp_moderate_rcvbuf="0", tcp_rmem="4096 33554432 33554432")}, PASS),
        ({"net": on(25000, 0.5), "kernel": tuned(tcp_window_scaling="0")}, FAIL),
        ({"net": on(25000, 0.5), "environ": environ({"NCCL_SOCKET_SNDBUF": "1048576"})}, FAIL),  # net.core.wmem_max binds
        (
            {
                "net": on(25000, 0.5),
                "environ": environ({"NCCL_SOCKET_SNDBUF": "1048576"}),
                "nccl": nccl_choice(version=(2, 26, 2)),
            },
            PASS,
        ),
        ({"net": on(100000, LOST)}, UNKNOWN),
        ({"net": on(25000, LOST)}, PASS),
        ({"net": on(100000), "expected": LOST}, UNKNOWN),
        ({"net": on(LOST)}, UNKNOWN),
        ({"net": on(LOST, 1.0)}, UNKNOWN),
        ({"net": on(LOST, 0.05)}, PASS),  # enough for 400 Gb/s
        ({"net": on(25000), "vantage": outside()}, UNKNOWN),
        ({"net": on(100000, 1.0), "vantage": outside()}, FAIL),
    ],
)
def test_windows(facts: dict[str, Any], status: Status) -> None:
    assert findings(**facts)["eth0"].status is status


@pytest.mark.parametrize("name", ["tcp_rmem", "tcp_wmem", "tcp_moderate_rcvbuf"])
def test_what_cannot_be_read_is_unknown(name: str) -> None:
    assert findings(kernel=tuned(**{name: LOST}))["node"].status is UNKNOWN
    assert findings(kernel=tuned(**{name: ""}))["node"].status is UNKNOWN


def test_a_configuration_that_says_nothing_of_nodes_is_no_single_node() -> None:
    assert findings(job=job(communicators=2, stated=True))["eth0"].status is PASS


def test_without_a_round_trip_the_bound_is_said() -> None:
    near = findings(net=on(100000))["eth0"]
    assert "up to a round trip of 0.34 ms" in near.message and near.notes
    assert not findings(net=on(25000))["eth0"].notes


def test_the_message_holds_nothing_that_was_measured() -> None:
    first, second = (findings(net=on(100000, rtt))["eth0"] for rtt in (1.01, 1.09))
    assert first.message == second.message and first.evidence == second.evidence
    assert first.measured != second.measured


def test_the_fix_raises_what_binds() -> None:
    fix = findings(net=on(100000, 1.0))["eth0"].fix
    assert fix and fix.commands == ("sysctl -w net.ipv4.tcp_wmem='4096 16384 16777216'",)
    fix = findings(net=on(25000, 0.05), kernel=tuned(tcp_moderate_rcvbuf="0"))["eth0"].fix
    assert fix and fix.commands == ("sysctl -w net.ipv4.tcp_moderate_rcvbuf=1",)


def test_a_congestion_control_that_is_not_there() -> None:
    assert findings(kernel=tuned(tcp_congestion_control="bbr"))["congestion control"].status is FAIL
    assert "congestion control" not in findings()


def test_the_loopback_carries_nothing_across_the_network() -> None:
    only = net(netlink_link("lo", 1, "127.0.0.1"))
    assert findings(net=only)["lo"].status is SKIP
    assert findings(net=net(netlink_link("lo", 1)))["node"].status is UNKNOWN
    bridge = netlink_link("docker0", 2, "172.17.0.1", kind="bridge")
    assert findings(net=net(bridge))["node"].status is UNKNOWN


def test_every_interface_that_sockets_take_is_judged() -> None:
    links = (netlink_link("eth0", 2, "10.0.0.7"), netlink_link("eth1", 3, "10.1.0.7", speed_mbps=LOST))
    got = {subject: f.status for subject, f in findings(net=net(*links)).items()}
    assert got == {"eth0": PASS, "eth1": UNKNOWN}
