"""net.tcp_buffers: facts to findings."""

from typing import Any

import pytest

from checks.net_tcp_buffers import tcp_buffers
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Net, Peer, Route
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, State
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.nccl.log.facts import LogFacts, NetSource
from tests.support.facts import (
    baseline,
    common_run,
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
    "job": Intent,
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
LISTED = LogFacts(net="IB", net_inferred=NetSource.DEVICES)


def tuned(**values: str | Unavailable) -> Kernel:
    return kernel(sysctls={**LINUX, **{f"net.ipv4.{name}": value for name, value in values.items()}})


def on(speed: int | Unavailable, rtt: float | Unavailable | None = None, **link: Any) -> Net:
    """One Ethernet interface; with `rtt` a master on another node."""
    route = Route("eth0")
    far = Peer("10.0.0.1", ("10.0.0.1",), {"10.0.0.1": route}, local=False, rtt_ms=LOST if rtt is None else rtt)
    links = (netlink_link("lo", 1, "127.0.0.1"), netlink_link("eth0", 2, "10.0.0.7", speed_mbps=speed, **link))
    return net(*links, master=None if rtt is None else far)


def between(network: str) -> Baseline:
    """An all-reduce that nodes made together."""
    return baseline(common_run(run(log=LogFacts(net=network))))


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
        ({"baseline": baseline(run(log=LISTED))}, SKIP),
        ({"baseline": baseline(run(state=State.FAILED, log=LISTED))}, UNKNOWN),  # NET/IB lists them before NCCL chooses
        ({"baseline": LOST}, UNKNOWN),  # RDMA devices are there; that NCCL uses them is not shown
        ({"baseline": LOST, "rdma": no_rdma(), "libraries": libraries(plugins=(plugin(),))}, UNKNOWN),
        ({"baseline": LOST, "rdma": LOST}, UNKNOWN),
        ({"baseline": LOST, "rdma": no_rdma(), "libraries": LOST}, UNKNOWN),
        ({"baseline": LOST, "environ": LOST}, UNKNOWN),
        ({"environ": LOST}, UNKNOWN),
        ({"baseline": LOST, "rdma": rdma(verbs_devices=(), devices=(hca(0, uverbs=LOST),))}, UNKNOWN),
        ({"job": job(nodes=1)}, SKIP),
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


@pytest.mark.parametrize("value", ["true", "08", "0x"])  # as strtoll reads them: 0
def test_what_is_no_number_does_not_force_sockets(value: str) -> None:
    assert findings(baseline=LOST, environ=environ({"NCCL_IB_DISABLE": value}))["node"].status is UNKNOWN


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        # two channels of one socket, 2 MiB each: 33.5 Mbit in flight
        ({"net": on(25000)}, PASS),
        ({"net": on(100000)}, UNKNOWN),  # rank 0's own node: what the window is enough for hangs on the way to the others
        ({"net": on(100000), "job": job()}, PASS),  # nobody says that there are others
        ({"net": on(100000), "baseline": between("Socket")}, PASS),  # what it costs was measured
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


def test_no_word_of_nodes_in_the_configuration_is_no_single_node() -> None:
    assert findings(job=job(communicators=2))["eth0"].status is PASS


def test_without_a_round_trip_the_bound_is_said() -> None:
    near = findings(net=on(100000), job=job())["eth0"]
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


def _far(local: bool | Unavailable = False, port: int | None = None, rtt: float | Unavailable = LOST) -> Peer:
    return Peer("10.0.0.1", ("10.0.0.1",), {}, local=local, rtt_ms=rtt, port=port)


# Two channels of one socket; 2 x 1562500 bytes are 1 ms of 25 Gb/s, and the kernel counts twice that.
EXACT = tuned(tcp_rmem="4096 131072 67108864", tcp_wmem="4096 16384 3125000")


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        # a window that is just enough: 2 x 2 MiB are 0.33554432 ms of 100 Gb/s, 0.08388608 ms of 400 Gb/s
        ({"net": on(100000, 0.33554432)}, PASS),
        ({"net": on(100000, 0.3355445)}, FAIL),
        ({"net": on(LOST, 0.08388608)}, PASS),  # whatever the speed
        ({"net": on(LOST, 0.0838862)}, UNKNOWN),
        # no round trip is shorter than 0.02 ms: 62500 bytes of 25 Gb/s
        ({"net": on(25000), "kernel": tuned(tcp_wmem="4096 16384 62500"), "job": job()}, PASS),
        ({"net": on(25000), "kernel": tuned(tcp_wmem="4096 16384 62498")}, FAIL),
        # buffers that the job sets, by version
        (
            {
                "net": on(25000, 0.5),
                "environ": environ({"NCCL_SOCKET_RCVBUF": "1048576"}),
                "nccl": nccl_choice(version=(2, 27, 3)),
            },
            FAIL,
        ),
        (
            {
                "net": on(25000, 0.5),
                "environ": environ({"NCCL_SOCKET_RCVBUF": "1048576"}),
                "nccl": nccl_choice(version=(2, 27, 2)),
            },
            PASS,
        ),
        # what is no number to NCCL sets nothing, though str.isdigit() takes it
        ({"net": on(25000, 0.5), "environ": environ({"NCCL_SOCKET_SNDBUF": "\u00b2"})}, PASS),
        ({"net": on(25000, 0.5), "environ": environ({"NCCL_SOCKET_NTHREADS": "\u00b2"})}, PASS),
    ],
)
def test_the_last_byte_counts(facts: dict[str, Any], status: Status) -> None:
    assert findings(**facts)["eth0"].status is status


@pytest.mark.parametrize(
    ("net_facts", "others", "status"),
    [
        # another node that was asked, and its answer lost: the round trip may be any
        ({"master": _far(port=29500)}, {}, UNKNOWN),
        ({"peers": (_far(port=29500),)}, {}, UNKNOWN),
        ({"master": LOST}, {}, UNKNOWN),
        # not asked, for no port of it is known: a window for any network inside one site is enough
        ({"master": _far()}, {}, PASS),
        ({"master": _far()}, {"kernel": EXACT}, PASS),
        ({"master": _far()}, {"kernel": tuned(tcp_wmem="4096 16384 3124998")}, UNKNOWN),
        # unless what the site says of the delay could not be read
        ({"master": _far()}, {"expected": LOST}, UNKNOWN),
        ({}, {"expected": LOST}, UNKNOWN),
        ({}, {}, PASS),
        # whether it is another node is not known
        ({"master": _far(local=LOST, port=29500)}, {}, UNKNOWN),
        ({"master": _far(local=True, port=29500)}, {}, PASS),
        # one was measured
        ({"master": _far(port=29500, rtt=0.1), "peers": (_far(port=29500),)}, {}, PASS),
    ],
)
def test_a_round_trip_that_was_lost_is_no_pass(net_facts: dict[str, Any], others: dict[str, Any], status: Status) -> None:
    link = netlink_link("eth0", 2, "10.0.0.7", speed_mbps=25000)
    assert findings(net=net(link, **net_facts), **others)["eth0"].status is status


def test_a_window_for_one_site_needs_no_advice() -> None:
    assert not findings(kernel=EXACT, job=job())["eth0"].notes
    assert "farther nodes" in findings(kernel=tuned(tcp_wmem="4096 16384 3124998"), job=job())["eth0"].notes[0]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"environ": environ(nccl=LOST)}, "the TCP buffers could not be read: denied"),  # the job may set them
        ({"environ": environ(nccl=LOST), "nccl": nccl_choice(version=(2, 26, 2))}, "which interfaces carry the data"),
        ({"kernel": tuned(tcp_rmem="4096 131072")}, "the TCP buffers could not be read: malformed"),
        ({"environ": environ({"NCCL_SOCKET_SNDBUF": "65536"}), "kernel": kernel(sysctls={})}, "could not be read"),
        (
            {
                "environ": environ({"NCCL_SOCKET_SNDBUF": "65536"}),
                "kernel": kernel(sysctls={k: v for k, v in LINUX.items() if k != "net.core.wmem_max"}),
            },
            "net.core.wmem_max",
        ),
    ],
)
def test_what_was_lost_is_named(facts: dict[str, Any], words: str) -> None:
    finding = findings(**facts)["node"]
    assert finding.status is UNKNOWN and words in finding.message, finding.message


@pytest.mark.parametrize(
    ("variables", "vendor", "sockets"),
    [
        ({}, "0x15b3", 2),
        ({"NCCL_SOCKET_NTHREADS": "4"}, "0x15b3", 8),  # threads of one socket each
        ({"NCCL_NSOCKS_PERTHREAD": "4"}, "0x15b3", 2),  # no thread: the control socket carries the data
        ({"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "2"}, "0x15b3", 16),
        ({}, "0x1d0f", 32),
    ],
)
def test_sockets_that_share_a_link(variables: dict[str, str], vendor: str, sockets: int) -> None:
    finding = findings(net=on(25000, vendor=vendor), environ=environ(variables))["eth0"]
    assert finding.evidence["sockets"] == sockets


@pytest.mark.parametrize(
    ("speed", "rtt", "wmem", "command"),
    [
        # twice 100 Gb/s x rtt over two sockets, rounded up to a power of two
        (100000, 1.34217728, "4096 16384 4194304", "net.ipv4.tcp_wmem='4096 16384 16777216'"),
        (100000, 1.342178, "4096 16384 4194304", "net.ipv4.tcp_wmem='4096 16384 33554432'"),
        (1000, 0.1, "4096 4096 12000", "net.ipv4.tcp_wmem='4096 16384 65536'"),  # never less than Linux's smallest maximum
    ],
)
def test_the_mend_is_wide_enough_for_the_round_trip(speed: int, rtt: float, wmem: str, command: str) -> None:
    finding = findings(net=on(speed, rtt), kernel=tuned(tcp_wmem=wmem))["eth0"]
    assert finding.fix and finding.fix.commands == (f"sysctl -w {command}",)
    name, _, values = command.partition("=")
    mended = tuned(**{name.rpartition(".")[2]: values.strip("'"), "tcp_rmem": "4096 131072 67108864"})
    assert findings(net=on(speed, rtt), kernel=mended)["eth0"].status is PASS


def test_what_was_measured_and_seen_is_said() -> None:
    measured = findings(net=on(100000, 1.0))["eth0"].measured
    assert (str(measured["round_trip"]), str(measured["at_most"])) == ("1 ms", "33.6 Gb/s")
    assert findings(vantage=outside())["eth0"].message.endswith("; seen as root outside the job")
    assert findings(vantage=outside(why_not=""))["eth0"].message.endswith("; seen outside the job's network namespace")
    assert "one node" in findings(job=job(nodes=1))["node"].message


def test_how_the_round_trip_compares_is_said() -> None:
    assert findings(net=on(100000, 0.33554432))["eth0"].message.endswith("and it is not longer (measured to 10.0.0.1)")
    assert "and it is longer (measured to 10.0.0.1)" in findings(net=on(100000, 0.3355445))["eth0"].message
    assert findings(net=on(100000, LOST))["eth0"].message.endswith("; the round trip to 10.0.0.1: denied")
    assert findings(net=on(100000), expected=LOST)["eth0"].message.endswith("; denied")


NO_SPEED = Unavailable("absent", "a veth has no speed")


@pytest.mark.parametrize(
    ("wmem", "mtu", "speed", "status", "severity"),
    [
        ("4096 4096 4096", 1500, NO_SPEED, FAIL, Severity.CRITICAL),  # 2,048 bytes: less than two segments of 1,460
        ("4096 4096 4096", 1500, 100_000, FAIL, Severity.CRITICAL),
        ("4096 4096 5840", 1500, NO_SPEED, UNKNOWN, None),  # two segments: 2.3 Gb/s at the shortest round trip
        ("4096 4096 5839", 1500, NO_SPEED, FAIL, Severity.CRITICAL),
        ("4096 16384 32768", 9000, NO_SPEED, FAIL, Severity.CRITICAL),
        ("4096 16384 65536", 9000, NO_SPEED, UNKNOWN, None),
        ("4096 4096 4096", 576, 1000, UNKNOWN, None),
    ],
)
def test_windows_that_are_too_small_for_any_link(
    wmem: str, mtu: int, speed: int | Unavailable, status: Status, severity: Severity | None
) -> None:
    found = findings(kernel=tuned(tcp_wmem=wmem), net=on(speed, mtu=mtu))["eth0"]
    assert (found.status, severity and found.severity) == (status, severity)


def test_what_a_narrow_window_costs_is_its_share_of_the_link() -> None:
    found = findings(kernel=tuned(tcp_wmem="4096 16384 65536"), net=on(100_000, 0.5))["eth0"]
    assert found.loss is not None and found.loss.measured
    assert found.loss.share == pytest.approx(1 - 2 * 32768 / (0.5 * 125) / 100_000, abs=1e-3)
    assert found.severity is Severity.CRITICAL
