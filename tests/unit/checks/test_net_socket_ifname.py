"""net.socket_ifname: facts to findings."""

from typing import Any

import pytest

from checks.net_socket_ifname import socket_ifname
from netdoctor.facts.device_names import DeviceNames
from netdoctor.facts.environ import Environ, Launcher
from netdoctor.facts.intent import Intent
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Link, Net, Peer, Route
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.reach import Reach
from netdoctor.facts.runs import Baseline
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.nccl.log.facts import LogFacts
from tests.support.facts import (
    address,
    baseline,
    environ,
    job,
    judge,
    libraries,
    library,
    machine,
    nccl_choice,
    net,
    netlink_link,
    no_rdma,
    outside,
    run,
    vantage,
)

PASS, FAIL, UNKNOWN, SKIP = Status.PASS, Status.FAIL, Status.UNKNOWN, Status.SKIP
C, W = Severity.CRITICAL, Severity.WARNING
LOST = Unavailable("denied")
OLD, NEW = (2, 27, 7), (2, 28, 9)

LO = netlink_link("lo", 1, "127.0.0.1")
ETH0 = netlink_link("eth0", 2, "10.0.0.7")
ETH1 = netlink_link("eth1", 3, "10.1.0.7", speed_mbps=100000)
DOWN = netlink_link("eth1", 3, "10.1.0.7", up=False)
SCOPED = netlink_link("eth1", 3, "fe80::7")
SLOW = netlink_link("eth0", 2, "10.0.0.7", speed_mbps=1000)
DOCKER0 = netlink_link("docker0", 4, "172.17.0.1", kind="bridge")
BR = netlink_link("br-1a2b", 2, "172.18.0.1", kind="bridge")
NIC_IN_BR = netlink_link("ens1", 3, controller=2)
DEFAULT = Route("eth0")
SEVERAL = job(nodes=2)
TWO_RANKS = environ(launcher=Launcher("x", 0, 2, 0, 1))
KINDS: dict[str, type] = {
    "net": Net,
    "vantage": Vantage,
    "environ": Environ,
    "nccl": NcclChoice,
    "job": Intent,
    "rdma": Rdma,
    "libraries": Libraries,
    "baseline": Baseline,
    "reach": Reach,
}


def far(*interfaces: str, name: str = "10.0.0.1") -> Peer:
    """Another node, reached by the first interface; the others have a route of their own."""
    routes = {name: Route(interfaces[0])} if interfaces else {name: Unavailable("absent", "ENETUNREACH")}
    return Peer(name, (name,), routes, local=False, via={name: interfaces})


def seen(*links: Link, **changes: Any) -> Net:
    return net(*(links or (LO, ETH0)), **{"default_route": DEFAULT, "hostname_addresses": ("10.0.0.7",), **changes})


def checked(flag: str) -> Link:
    """An interface whose one address the kernel looks for elsewhere (duplicate address detection)."""
    return netlink_link("eth0", 2, addresses=(address("fd00::7", flags=frozenset({flag})),))


def findings(**facts: Any) -> dict[str, Finding]:
    """A node with one interface, without an answer of NCCL's own, unless a test gives other ones."""
    given = {"net": seen(), "job": job(), "nccl": Unavailable("absent"), **facts}
    return {f.subject: f for f in judge(socket_ifname, machine({KINDS[name]: value for name, value in given.items()}))}


def found(**facts: Any) -> dict[str, tuple[Status, Severity | None]]:
    return {subject: (f.status, f.severity) for subject, f in findings(**facts).items()}


def test_a_healthy_machine_passes() -> None:
    """Without a run nobody knows whether sockets carry the data, so what NET/Socket would take is not a pass."""
    found = {f.subject: f.status for f in judge(socket_ifname, machine({Intent: job()}))}
    assert found == {"NCCL": PASS, "Gloo": PASS, "NET/Socket": UNKNOWN}


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        # one node
        ({}, (PASS, None)),
        ({"net": seen(LO, default_route=None)}, (UNKNOWN, None)),  # several nodes would not meet
        ({"net": seen(LO, default_route=None), "job": job(nodes=1)}, (PASS, None)),
        ({"net": seen(LO, ETH0, DOCKER0)}, (PASS, None)),
        ({"net": seen(LO, BR, netlink_link("eth0", 5, "10.0.0.7"))}, (UNKNOWN, None)),
        ({"net": seen(LO, BR, netlink_link("eth0", 5, "10.0.0.7")), "job": job(nodes=1)}, (PASS, None)),
        ({"net": seen(LO, BR, NIC_IN_BR, default_route=Route("br-1a2b"))}, (PASS, None)),
        ({"net": seen(LO, BR, default_route=None)}, (PASS, None)),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "lo"})}, (UNKNOWN, None)),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "lo"}), "job": job(nodes=1)}, (PASS, None)),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "eth1"})}, (FAIL, None)),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "=eth"})}, (FAIL, None)),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "eth"})}, (PASS, None)),
        # several nodes: by route
        ({"net": seen(master=far("eth0"))}, (PASS, None)),
        ({"net": seen(LO, ETH1, master=far("eth1"))}, (PASS, None)),
        ({"net": seen(LO, ETH0, ETH1, master=far("eth1"))}, (UNKNOWN, None)),
        ({"net": seen(LO, ETH0, ETH1, master=far("eth1", "eth0"))}, (PASS, None)),
        ({"net": seen(LO, ETH0, ETH1, master=far("eth1"), peers=(far("eth0", name="10.0.0.9"),))}, (PASS, None)),
        ({"net": seen(LO, BR, netlink_link("eth0", 5, "10.0.0.7"), master=far("eth0"))}, (FAIL, C)),
        ({"net": seen(LO, BR, master=far("br-1a2b"), default_route=None)}, (PASS, None)),
        ({"net": seen(LO, DOCKER0, default_route=None, master=far("docker0"))}, (PASS, None)),
        ({"job": SEVERAL}, (UNKNOWN, None)),
        ({"net": seen(LO, default_route=None), "job": SEVERAL}, (FAIL, C)),
        ({"net": seen(master=far("eth0")), "environ": environ({"NCCL_SOCKET_IFNAME": "^docker"})}, (FAIL, C)),
        ({"environ": environ(launcher=Launcher("torchrun", 8, 16, 0, 8))}, (UNKNOWN, None)),
        ({"environ": TWO_RANKS}, (UNKNOWN, None)),
        ({"job": job(nodes=1), "environ": TWO_RANKS}, (PASS, None)),
        # addresses
        ({"net": seen(LO, netlink_link("eth0", 2, "fe80::7"))}, (UNKNOWN, None)),
        ({"net": seen(LO, netlink_link("eth0", 2, "fe80::7")), "job": job(nodes=1)}, (PASS, None)),
        ({"net": seen(LO, netlink_link("eth0", 2, "fe80::7")), "job": SEVERAL}, (FAIL, C)),
        ({"net": seen(LO, checked("dadfailed"))}, (FAIL, C)),
        ({"net": seen(LO, checked("tentative"))}, (UNKNOWN, None)),
        ({"net": seen(LO, netlink_link("eth0", 2, "fd00::7"), master=far("eth0", name="fd00::1"))}, (PASS, None)),
        ({"net": seen(LO, netlink_link("eth0", 2, "10.0.0.7", up=False, running=False))}, (FAIL, C)),  # before 2.28
        # what cannot be told
        ({"vantage": outside()}, (UNKNOWN, None)),
        ({"net": seen(LO, BR, netlink_link("eth0", 5, "10.0.0.7")), "vantage": outside()}, (UNKNOWN, None)),
        ({"environ": LOST}, (UNKNOWN, None)),
        ({"environ": environ(nccl=LOST)}, (UNKNOWN, None)),
        ({"job": LOST}, (UNKNOWN, None)),
        ({"environ": environ({"NCCL_COMM_ID": "node0:4000"})}, (UNKNOWN, None)),
        ({"environ": environ({"NCCL_COMM_ID": "bad"})}, (FAIL, None)),
    ],
)
def test_nccl(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts)["NCCL"] == status


def test_no_interface_at_all() -> None:
    assert found(net=seen(netlink_link("lo", 1), default_route=None, hostname_addresses=()))["NCCL"] == (FAIL, None)


def test_master_on_this_node_passes_by_its_address() -> None:
    here = Peer("10.0.0.7", ("10.0.0.7",), {}, local=True)
    assert found(net=seen(master=here), job=SEVERAL)["NCCL"] == (PASS, None)
    assert found(net=seen(LO, ETH1, ETH0, master=here), job=SEVERAL)["NCCL"] == (UNKNOWN, None)


def test_the_loopback_on_one_node_is_noted() -> None:
    finding = findings(environ=environ({"NCCL_SOCKET_IFNAME": "lo"}), job=job(nodes=1))["NCCL"]
    assert "on this node alone" in finding.notes[0]


def test_the_version_decides_about_virbr() -> None:
    links = (LO, netlink_link("virbr0", 2, "192.168.122.1", kind="bridge"), netlink_link("eth0", 3, "10.0.0.7"))
    unsettled = libraries(torch=LOST)
    either = findings(net=seen(*links), libraries=unsettled)["NCCL"]
    assert either.status is UNKNOWN
    assert either.message.endswith("before 2.28 virbr0 192.168.122.1, from 2.28 on eth0 10.0.0.7")
    new = nccl_choice(version=NEW, interface="eth0", address="10.0.0.7")
    assert found(net=seen(*links), nccl=new)["NCCL"] == (PASS, None)
    old = nccl_choice(version=OLD, interface="virbr0", address="192.168.122.1")
    assert found(net=seen(*links), nccl=old)["NCCL"] == (UNKNOWN, None)
    assert found(net=seen(*links), nccl=old, job=SEVERAL)["NCCL"] == (FAIL, C)
    assert found(net=seen(*links), libraries=libraries(), job=SEVERAL)["NCCL"] == (FAIL, C)  # the job's torch has 2.27.5


def test_the_fix_names_an_interface_with_the_route() -> None:
    fix = findings(net=seen(LO, BR, netlink_link("eth0", 5, "10.0.0.7"), master=far("eth0")))["NCCL"].fix
    assert fix and "export NCCL_SOCKET_IFNAME==eth0" in fix.commands


def test_ncclis_own_answer_that_differs_is_a_finding_of_its_own() -> None:
    other = nccl_choice(interface="eth1", address="10.1.0.7")
    got = found(net=seen(LO, ETH0, ETH1), nccl=other)
    assert got["emulation"] == (UNKNOWN, None)
    same = found(net=seen(LO, ETH0, ETH1), nccl=nccl_choice(interface="eth0", address="10.0.0.7"))
    assert "emulation" not in same


def test_the_all_reduce_is_nccls_own_answer_too() -> None:
    log = LogFacts(bootstrap_ifname="eth1", bootstrap_address="10.1.0.7")
    got = findings(net=seen(LO, ETH0, ETH1), baseline=baseline(run(log=log)))
    assert got["emulation"].status is UNKNOWN and got["NCCL"].evidence["interface"] == "eth1"


def test_nccl_that_refuses_is_a_fail_in_its_words() -> None:
    refused = nccl_choice(interface="eth0", address=None, code=2, error="Call to bind failed: Cannot assign requested address")
    finding = findings(nccl=refused)["NCCL"]
    assert finding.status is FAIL and "Cannot assign" in finding.message
    nothing = nccl_choice(interface=None, address=None, code=5, error="Bootstrap : no socket interface found")
    finding = findings(nccl=nothing, environ=environ({"NCCL_SOCKET_IFNAME": "eth1"}))["NCCL"]
    assert finding.status is FAIL and "matches no interface" in finding.message


def test_another_name_of_an_interface_is_told_and_taken() -> None:
    names = DeviceNames("eth1", "udev's name ens4 is eth1 here")
    where = seen(LO, ETH0, ETH1, master=far("eth0", "eth1"))
    have = {Net: where, Environ: environ({"NCCL_SOCKET_IFNAME": "ens4"}), DeviceNames: names}
    finding = next(x for x in judge(socket_ifname, machine({**have, NcclChoice: LOST})) if x.subject == "NCCL")
    assert finding.status is FAIL and "can use (udev's name ens4 is eth1 here): NCCL stops" in finding.message
    assert "NCCL_SOCKET_IFNAME==eth1" in str(finding.fix)


SOCKET_LOG = baseline(run(log=LogFacts(net="Socket")))
TWIN = netlink_link("eth1", 3, "10.1.0.7")
BLIND = netlink_link("eth1", 3, "10.1.0.7", speed_mbps=LOST)
BOTH = far("eth0", "eth1")


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"net": seen(LO, SLOW, ETH1, master=BOTH)}, (FAIL, C)),
        ({"net": seen(LO, SLOW, ETH1, master=BOTH), "baseline": baseline(run(log=LogFacts(net="IB")))}, None),
        ({"net": seen(LO, SLOW, ETH1)}, (PASS, None)),
        ({"net": seen(LO, ETH0, TWIN, master=far("eth0"))}, (PASS, None)),
        ({"net": seen(LO, SLOW, master=far("eth0"))}, None),
        ({"net": seen(LO, ETH0, BR, master=far("eth0"))}, (FAIL, None)),
        ({"net": seen(LO, ETH0, BR)}, (UNKNOWN, None)),
        ({"net": seen(LO, ETH0, BR), "job": job(nodes=1)}, None),
        ({"net": seen(LO, ETH0, netlink_link("eth1", 3, "fe80::9"), master=far("eth0"))}, (UNKNOWN, None)),
        ({"net": seen(LO, ETH0, BLIND, master=far("eth0"))}, (UNKNOWN, None)),
        ({"net": seen(LO, SLOW, ETH1, master=BOTH), "rdma": no_rdma(), "baseline": LOST}, (FAIL, C)),
        ({"net": seen(LO, SLOW, ETH1, master=BOTH), "baseline": LOST}, (UNKNOWN, None)),
        ({"net": seen(LO, ETH0, ETH1, master=BOTH), "baseline": LOST}, (UNKNOWN, None)),
        ({"net": seen(LO, ETH0, TWIN, master=far("eth0")), "baseline": LOST}, (UNKNOWN, None)),
        ({"net": seen(LO, SLOW, ETH1, master=far("eth1")), "environ": environ({"NCCL_SOCKET_IFNAME": "=eth1"})}, None),
    ],
)
def test_sockets_that_carry_the_data(facts: dict[str, Any], status: Any) -> None:
    assert found(**{"baseline": SOCKET_LOG, **facts}).get("NET/Socket") == status


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"net": seen(hostname_addresses=("127.0.1.1",))}, (UNKNOWN, None)),
        ({"net": seen(hostname_addresses=("127.0.1.1",)), "job": job(nodes=1)}, (PASS, None)),
        ({"net": seen(hostname_addresses=("127.0.1.1",)), "job": SEVERAL}, (UNKNOWN, None)),  # by NCCL alone nobody notices
        ({"net": seen(hostname_addresses=("127.0.1.1",)), "job": job(nodes=2, gloo_groups=1)}, (FAIL, None)),
        ({"net": seen(hostname_addresses=("192.0.2.99",)), "job": job(nodes=2, gloo_groups=1)}, (FAIL, None)),
        ({"net": seen(hostname_addresses=Unavailable("absent")), "job": job(nodes=2, gloo_groups=1)}, (FAIL, None)),
        ({"net": seen(hostname_addresses=Unavailable("timed out"))}, (UNKNOWN, None)),
        ({"job": SEVERAL}, (PASS, None)),
        ({"net": seen(hostname_addresses=("127.0.1.1",)), "job": job(nodes=2, gloo_groups=0)}, None),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "eth0"})}, (PASS, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "eth"})}, (FAIL, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "^docker0"})}, (FAIL, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "eth0,nope"})}, (FAIL, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "lo"})}, (UNKNOWN, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "lo"}), "job": job(nodes=1)}, (PASS, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "lo"}), "job": SEVERAL}, (FAIL, None)),
        ({"net": seen(LO, ETH0, DOWN), "environ": environ({"GLOO_SOCKET_IFNAME": "eth1"}), "job": SEVERAL}, (FAIL, None)),
        ({"net": seen(LO, ETH0, DOWN), "environ": environ({"GLOO_SOCKET_IFNAME": "eth1"})}, (UNKNOWN, None)),
        ({"net": seen(LO, ETH0, SCOPED), "environ": environ({"GLOO_SOCKET_IFNAME": "eth1"}), "job": SEVERAL}, (FAIL, None)),
        ({"environ": environ({"GLOO_SOCKET_IFNAME": "x"})}, (PASS, None)),
        ({"environ": environ(variables=LOST)}, (UNKNOWN, None)),
        ({"vantage": outside()}, (UNKNOWN, None)),
    ],
)
def test_gloo(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts).get("Gloo") == status


@pytest.mark.parametrize("half", [{"job_network": False}, {"job_environment": False}])
def test_the_network_or_the_variables_alone_make_no_pass(half: dict[str, bool]) -> None:
    """A wrapper on the host has the job's variables, a sidecar has the job's network."""
    got = findings(vantage=vantage(**half))
    assert {subject: f.status for subject, f in got.items()} == {"NCCL": UNKNOWN, "Gloo": UNKNOWN}
    assert got["Gloo"].message.endswith("; seen outside the job")
    assert findings(vantage=outside())["Gloo"].message.endswith("; seen as root outside the job")


def test_half_a_line_of_the_log_is_no_answer() -> None:
    """A cut log may name the interface without its address."""
    got = findings(net=seen(LO, ETH0, ETH1), baseline=baseline(run(log=LogFacts(bootstrap_ifname="eth1"))))
    assert "emulation" not in got and got["NCCL"].evidence["interface"] == "eth0"


REFUSED = nccl_choice(interface=None, address=None, code=5, error="Bootstrap : no socket interface found")


@pytest.mark.parametrize(
    ("named", "answer", "words"),
    [
        # it found the interface and could not bind: the name is not to blame
        ("eth0", nccl_choice(interface="eth0", address=None, code=2, error="Call to bind"), "bootstrap on eth0: Call to"),
        ("ib", REFUSED, "NCCL_SOCKET_IFNAME=ib matches no interface"),
        # NCCL ignores a value of one character (src/misc/socket.cc)
        ("e", REFUSED, "NCCL cannot start its bootstrap on any interface: Bootstrap : no socket"),
    ],
)
def test_what_nccl_refused_is_said(named: str, answer: NcclChoice, words: str) -> None:
    finding = findings(nccl=answer, environ=environ({"NCCL_SOCKET_IFNAME": named}))["NCCL"]
    assert finding.status is FAIL and words in finding.message, finding.message


def test_an_answer_from_another_namespace_is_unknown() -> None:
    finding = findings(nccl=nccl_choice(interface="eth9", address="10.9.0.7"))["NCCL"]
    assert finding.status is UNKNOWN and "not among this namespace's interfaces" in finding.message


DEAD = netlink_link("eth1", 3, "10.1.0.7", running=False)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"net": seen(LO, DEAD, ETH0)}, (UNKNOWN, None)),  # before 2.28 NCCL looks at IFF_UP alone
        ({"net": seen(LO, DEAD, ETH0, master=far("eth0"))}, (FAIL, C)),
        ({"net": seen(LO, DEAD, default_route=None)}, (PASS, None)),  # no other: on one node the kernel loops it back
        ({"net": seen(LO, DEAD, ETH0), "libraries": libraries(nccl=(library(version=NEW),))}, (PASS, None)),
    ],
)
def test_an_interface_without_carrier(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts)["NCCL"] == status


TAKE_ETH1 = ("export NCCL_SOCKET_IFNAME==eth1",)
BR2 = netlink_link("br-3c4d", 3, "172.19.0.1", kind="bridge")


@pytest.mark.parametrize(
    ("given", "status", "words", "commands"),
    [
        (seen(LO, SLOW, ETH1, master=BOTH), FAIL, "eth0 (1000 Mb/s), eth1 (100000 Mb/s): slower than eth1 alone", TAKE_ETH1),
        (seen(LO, ETH0, BR, master=far("eth0")), FAIL, "also takes br-1a2b", ("export NCCL_SOCKET_IFNAME==eth0",)),
        (seen(LO, ETH0, BLIND, master=BOTH), UNKNOWN, "eth0, eth1; the speed of eth1 is not known", None),
        # two halves as fast as the whole: no gain from leaving one out
        (seen(LO, netlink_link("eth0", 2, "10.0.0.7", speed_mbps=50000), ETH1, master=BOTH), PASS, "takes eth0, eth1", None),
        (
            seen(LO, netlink_link("eth0", 2, "10.0.0.7", speed_mbps=49000), ETH1, master=BOTH),
            FAIL,
            "than eth1 alone",
            TAKE_ETH1,
        ),
        # nothing but networks of containers
        (seen(LO, BR, BR2, default_route=None, master=far("eth7")), UNKNOWN, "nothing shows that other nodes", None),
        # the default route may lead through it
        (seen(LO, ETH0, BR, default_route=LOST, master=far("eth0")), UNKNOWN, "takes br-1a2b: container", None),
        (seen(LO, BR, BR2, default_route=None), PASS, "takes br-1a2b, br-3c4d", None),
    ],
)
def test_interfaces_that_sockets_spread_over(given: Net, status: Status, words: str, commands: tuple[str, ...] | None) -> None:
    finding = findings(net=given, baseline=SOCKET_LOG)["NET/Socket"]
    assert finding.status is status and words in finding.message, finding
    assert (finding.fix.commands if finding.fix else None) == commands


def test_what_sockets_would_take_beyond_one_node_is_noted() -> None:
    found = findings(net=seen(LO, BR, BR2, default_route=None), baseline=SOCKET_LOG)["NET/Socket"]
    assert found.notes == ("with several nodes, NET/Socket would also take br-1a2b, br-3c4d",)
    assert not findings(net=seen(LO, SLOW, ETH1), baseline=SOCKET_LOG)["NET/Socket"].notes


@pytest.mark.parametrize(
    ("variables", "facts", "status", "words"),
    [
        ({"GLOO_SOCKET_IFNAME": "nope"}, {}, FAIL, "no interface 'nope' with an address"),
        ({"GLOO_SOCKET_IFNAME": "eth"}, {}, FAIL, "Gloo takes whole names"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, {"job": SEVERAL}, PASS, "Gloo takes eth0"),
        ({"GLOO_SOCKET_IFNAME": "eth0,lo"}, {"job": SEVERAL}, FAIL, "no other node reaches the loopback"),
    ],
)
def test_names_that_gloo_takes(variables: dict[str, str], facts: dict[str, Any], status: Status, words: str) -> None:
    finding = findings(net=seen(LO, ETH0), environ=environ(variables), **facts)["Gloo"]
    assert finding.status is status and words in finding.message
    assert ("whole names" in words) == ("whole names" in finding.message)


def test_an_interface_with_link_local_alone_can_be_left_out() -> None:
    given = seen(LO, ETH0, netlink_link("eth1", 3, "fe80::9"), master=far("eth0"))
    assert findings(net=given, baseline=SOCKET_LOG)["NET/Socket"].how == "NCCL_SOCKET_IFNAME==eth0 leaves it out"
    six = seen(LO, netlink_link("eth0", 2, "10.0.0.7", "fe80::8"), netlink_link("eth1", 3, "fe80::9"), master=far("eth0"))
    every = findings(net=six, baseline=SOCKET_LOG, environ=environ({"NCCL_SOCKET_FAMILY": "AF_INET6"}))["NET/Socket"]
    assert every.how == "NCCL_SOCKET_FAMILY=AF_INET, or give them addresses"
