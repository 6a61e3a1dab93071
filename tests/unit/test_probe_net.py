"""Interfaces, routes, peers and ports out of recorded answers."""

from typing import Any

import pytest

from netdoctor.facts import registry
from netdoctor.facts.intent import Told
from netdoctor.facts.job import probe_expected
from netdoctor.facts.net import Net, probe, probe_ports
from netdoctor.host.base import RecordingHost, ReplayHost, question
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl import reaching

ETH0 = {
    "name": "eth0",
    "index": 2,
    "flags": 0x11043,
    "type": 1,
    "mtu": 9001,
    "kind": None,
    "controller": None,
    "address": "02:01",
}
LO = {"name": "lo", "index": 1, "flags": 0x49, "type": 772, "mtu": 65536, "kind": None, "controller": None, "address": "00:00"}
IB0 = {**ETH0, "name": "ib0", "index": 3, "flags": 0x1003, "type": 32, "mtu": 2044, "address": "80:00"}


def row(index: int, ip: str, prefix: int = 24, **more: Any) -> dict[str, Any]:
    family, scope = (6 if ":" in ip else 4), ("link" if ip.startswith("fe80") else "global")
    return {"index": index, "label": None, "family": family, "ip": ip, "prefix": prefix, "scope": scope, "flags": [], **more}


def hop(oif: str, gateway: str | None = None, kind: str = "unicast") -> dict[str, Any]:
    return {"oif": oif, "source": "10.0.0.7", "gateway": gateway, "kind": kind}


NETLINK: dict[str, Any] = {
    "links": [LO, ETH0, IB0],
    "addresses": [row(1, "127.0.0.1", 8), row(2, "10.0.0.7", label="eth0:1"), row(2, "fe80::1", 64, flags=["tentative"])],
    "default": {"4": hop("eth0", "10.0.0.1"), "6": {"error": "ENETUNREACH"}},
    "listening": [[22, 0], [29500, 1000], [29500, 1001]],
}
ANSWERS: dict[str, Any] = {
    "ask:netlink": NETLINK,
    "env:": {},
    "config:": {},
    "file:/proc/sys/kernel/hostname": "node7\n",
    question("resolve", name="node7"): {"addresses": ["10.0.0.7"]},
    "dir:/sys/class/net": ["bonding_masters", "eth0", "ib0", "lo"],
    "file:/sys/class/net/eth0/ifindex": "2\n",
    "file:/sys/class/net/eth0/address": "02:01\n",
    "file:/sys/class/net/ib0/ifindex": "3\n",
    "file:/sys/class/net/ib0/address": "80:00\n",
    "file:/sys/class/net/eth0/speed": "100000\n",
    "file:/sys/class/net/eth0/device/vendor": "0x1d0f\n",
    "link:/sys/class/net/eth0/device/driver": "../../../bus/pci/drivers/ena",
    "file:/sys/class/net/eth0/device/numa_node": "-1\n",
    "file:/sys/class/net/ib0/speed": "-1\n",
    "file:/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "file:/proc/sys/net/ipv4/ip_local_reserved_ports": "8080,40000-40002\n",
}


def seen(**changes: Any) -> Net:
    answers = {**ANSWERS, **{k.replace("__", ":", 1): v for k, v in changes.items()}}
    got = probe(ReplayHost(answers))
    assert isinstance(got, Net)
    return got


def test_links_and_addresses_come_from_netlink() -> None:
    net = seen()
    lo, eth0, ib0 = net.links
    assert (lo.loopback, eth0.loopback) == (True, False)
    assert (eth0.up, eth0.running, ib0.up, ib0.running) == (True, True, True, False)
    assert [(a.ip, a.family, a.usable, a.label) for a in eth0.addresses] == [
        ("10.0.0.7", 4, True, "eth0:1"),
        ("fe80::1", 6, False, None),
    ]
    assert net.default_route is not None and not isinstance(net.default_route, Unavailable)
    assert net.default_route.interface == "eth0"
    assert (net.hostname_addresses, net.master, net.master_port) == (("10.0.0.7",), None, None)


def test_speed_and_vendor_come_from_sysfs_of_the_same_namespace() -> None:
    net = seen()
    _, eth0, ib0 = net.links
    assert (eth0.speed_mbps, eth0.vendor, eth0.driver, eth0.numa_node) == (100000, "0x1d0f", "ena", -1)
    assert ib0.speed_mbps == Unavailable("unsupported", "speed -1: the driver does not say")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dir:/sys/class/net", ["eth0", "lo"]),
        ("file:/sys/class/net/eth0/ifindex", "7"),
        ("file:/sys/class/net/eth0/address", "02:99"),
    ],
)
def test_sysfs_of_another_namespace_is_not_taken(path: str, value: Any) -> None:
    net = seen(**{path: value})
    assert net.links[1].speed_mbps == Unavailable("not read", "sysfs of another network namespace")


@pytest.mark.parametrize(
    ("answer", "speed"),
    [
        ({"interfaces": {"eth0": {"speed_mbps": 200000}, "docker0": {"speed_mbps": 10000}}}, 200000),
        ({"interfaces": {"eth0": {"speed_mbps": 0}}}, Unavailable("not read", "sysfs of another network namespace")),
        ({"interfaces": {"eth0": {"speed_mbps": 65535}}}, Unavailable("not read", "sysfs of another network namespace")),
        ({"interfaces": []}, Unavailable("not read", "sysfs of another network namespace")),
    ],
)
def test_the_driver_tells_the_speed_that_sysfs_hides(answer: Any, speed: Any) -> None:
    net = seen(**{"dir:/sys/class/net": ["eth0", "lo"], "ask:psutil": answer})
    assert net.links[1].speed_mbps == speed


def test_the_driver_is_not_asked_where_sysfs_shows_it() -> None:
    host = RecordingHost(ReplayHost(ANSWERS))
    probe(host)
    assert "ask:netlink" in host.answers and "ask:psutil" not in host.answers


def test_sysfs_that_cannot_be_read_is_not_agreement() -> None:
    net = seen(**{"file:/sys/class/net/ib0/address": Unavailable("denied")})
    speed = net.links[1].speed_mbps
    assert isinstance(speed, Unavailable) and "denied" in str(speed)


def test_master_is_resolved_routed_and_its_round_trip_measured() -> None:
    net = seen(
        **{
            "env:": {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
            question("resolve", name="node0"): {"addresses": ["10.0.0.1"]},
            question("netlink", routes="10.0.0.1"): {"routes": {"10.0.0.1": {"main": hop("eth0"), "via": ["eth0", "ib0"]}}},
            question("rtt", host="10.0.0.1", port=29500, seconds=1): {"rtt_us": 250, "var_us": 10},
        }
    )
    assert net.master and net.master_port == 29500
    assert (net.master.local, net.master.rtt_ms) == (False, 0.25)
    assert net.master.reached_by() == {"eth0", "ib0"}


SIX, FOUR = "fd00::9", "10.0.0.1"


@pytest.mark.parametrize(
    ("six", "four", "told"),
    [
        ({"error": "EHOSTUNREACH"}, {"rtt_us": 250}, 0.25),  # a dead AAAA before a live A
        ({"error": "ETIMEDOUT"}, {"rtt_us": 250}, 0.25),
        ({"error": "EHOSTUNREACH"}, {"error": "ECONNREFUSED"}, Kind.FAILED),  # it is there
        ({"error": "ETIMEDOUT"}, {"error": "EHOSTUNREACH"}, Kind.TIMED_OUT),
        ({"error": "EHOSTUNREACH"}, {"error": "ENETUNREACH"}, Kind.ABSENT),
        ({"error": "EHOSTUNREACH"}, Unavailable("absent"), Kind.NOT_READ),  # a helper that did not answer
    ],
)
def test_a_name_is_as_good_as_the_best_of_its_addresses(six: Any, four: Any, told: float | Kind) -> None:
    asked = {ip: question("rtt", host=ip, port=29500, seconds=1) for ip in (SIX, FOUR)}
    net = seen(
        **{
            "env:": {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
            question("resolve", name="node0"): {"addresses": [SIX, FOUR]},
            question("netlink", routes=f"{FOUR},{SIX}"): {"routes": {ip: {"main": hop("eth0"), "via": []} for ip in asked}},
            asked[SIX]: six,
            asked[FOUR]: four,
        }
    )
    assert net.master
    got = net.master.rtt_ms
    assert (got.kind if isinstance(got, Unavailable) else got) == told


@pytest.mark.parametrize(
    ("main", "words"),
    [
        ({"error": "EINVAL"}, "a blackhole route"),
        ({"error": "EACCES"}, "a prohibit route"),
        ({"error": "EHOSTUNREACH"}, "an unreachable route"),
        (hop("lo", kind="blackhole"), "a blackhole route"),  # as some kernels answer for IPv6
        ({"error": "ENETUNREACH"}, ""),
    ],
)
def test_a_route_that_leads_nowhere_is_none(main: dict[str, Any], words: str) -> None:
    net = seen(**{"config:": {"expected": {"peers": [FOUR]}}, **_routes(FOUR, main)})
    (peer,) = net.peers
    assert peer.routed is False and words in peer.dead_end and bool(peer.dead_end) is bool(words)


@pytest.mark.parametrize(
    ("env", "variable", "name"),
    [
        ({"PET_MASTER_ADDR": "10.0.0.1"}, "PET_MASTER_ADDR", "10.0.0.1"),
        ({"LWS_LEADER_ADDRESS": "10.0.0.1"}, "LWS_LEADER_ADDRESS", "10.0.0.1"),
        ({"MASTER_ADDR": "10.0.0.2", "PET_MASTER_ADDR": "10.0.0.1"}, "MASTER_ADDR", "10.0.0.2"),
        ({"MASTER_ADDR": "", "PET_MASTER_ADDR": "10.0.0.1"}, "PET_MASTER_ADDR", "10.0.0.1"),
    ],
)
def test_node_0_by_what_a_launcher_has(env: dict[str, str], variable: str, name: str) -> None:
    net = seen(**{"env:": env, **_routes(name, hop("eth0"))})
    assert net.master and (net.master.variable, net.master.name, net.master.local) == (variable, name, False)
    assert net.others == (net.master,)


def test_this_node_is_known_as_master_and_nothing_connects_to_it() -> None:
    net = seen(**{"env:": {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}, **_routes("10.0.0.7", hop("lo", kind="local"))})
    assert net.master and net.master.local is True
    assert net.master.rtt_ms == Unavailable("not read", "it is this node")


@pytest.mark.parametrize(
    ("told", "name", "address"),
    [
        ("head:4000", "head", "10.0.0.9"),
        ("10.0.0.9:4000", "10.0.0.9", "10.0.0.9"),
        ("[fd00::9]:4000", "fd00::9", "fd00::9"),
        ("nothing", None, None),
        (":4000", None, None),
    ],
)
def test_of_nccls_own_root_its_first_address_counts(told: str, name: str | None, address: str | None) -> None:
    """NCCL tries no other (src/misc/socket.cc: "use the first"); nothing connects to it, for a job may be under way there."""
    resolved = {question("resolve", name="head"): {"addresses": ["10.0.0.9", "10.0.0.1"]}}
    net = seen(**{"env:": {"NCCL_COMM_ID": told}, **resolved, **(_routes(address, hop("eth0")) if address else {})})
    if address is None:
        assert net.peers == ()
        return
    (peer,) = net.peers
    assert (peer.variable, peer.name, peer.host, peer.addresses) == ("NCCL_COMM_ID", told, name, (address,))
    assert net.others == (peer,) and peer.rtt_ms == Unavailable("not read", "no port to connect to")


def test_nccls_own_root_may_not_resolve() -> None:
    resolved = {question("resolve", name="head"): {"error": "EAI_NONAME", "detail": ""}}
    (peer,) = seen(**{"env:": {"NCCL_COMM_ID": "head:4000"}, **resolved}).peers
    why = reaching.unreached(peer, None)
    assert why and why.certain and why.how.startswith("getent hosts head:") and "NCCL_COMM_ID=head:4000 does not" in why.text


def _routes(ip: str, main: dict[str, Any]) -> dict[str, Any]:
    return {question("netlink", routes=ip): {"routes": {ip: {"main": main, "via": []}}}}


def test_a_master_that_does_not_resolve_is_kept_with_the_reason() -> None:
    name = question("resolve", name="nosuch")
    net = seen(**{"env:": {"MASTER_ADDR": "nosuch"}, name: {"error": "EAI_NONAME", "detail": "Name or service not known"}})
    assert net.master and isinstance(net.master.addresses, Unavailable) and net.master.addresses.kind == "absent"
    assert isinstance(net.master.local, Unavailable)


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1", "٢٢"])
def test_a_master_port_that_is_none_is_malformed(port: str) -> None:
    got = seen(**{"env:": {"MASTER_PORT": port}}).master_port
    assert isinstance(got, Unavailable) and got.kind == "malformed"


def test_an_unreadable_environment_is_not_an_unset_master() -> None:
    net = seen(**{"env:": Unavailable("denied")})
    assert isinstance(net.master, Unavailable) and isinstance(net.master_port, Unavailable)


@pytest.mark.parametrize(
    ("given", "name", "port"),
    [
        ("10.0.0.9", "10.0.0.9", None),
        ("10.0.0.9:5201", "10.0.0.9", 5201),
        ("[fd00::9]:22", "fd00::9", 22),
        ("fd00::9", "fd00::9", None),
    ],
)
def test_configured_peers(given: str, name: str, port: int | None) -> None:
    net = seen(**{"config:": {"expected": {"peers": [given]}}})
    (peer,) = net.peers
    assert (peer.name, peer.port, peer.local) == (name, port, False)


def test_without_netlink_there_is_no_net() -> None:
    assert probe(ReplayHost({**ANSWERS, "ask:netlink": Unavailable("denied")})) == Unavailable("denied")
    broken = probe(ReplayHost({**ANSWERS, "ask:netlink": {"links": [{}], "addresses": []}}))
    assert isinstance(broken, Unavailable) and broken.kind == "malformed"


def test_ports() -> None:
    ports = probe_ports(ReplayHost(ANSWERS))
    assert not isinstance(ports, Unavailable)
    assert (ports.low, ports.high) == (32768, 60999)
    assert ports.reserved == {8080, 40000, 40001, 40002}
    assert ports.listening == {22, 29500}
    assert ports.owners == {22: {0}, 29500: {1000, 1001}}


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("file:/proc/sys/net/ipv4/ip_local_port_range", "", "low"),
        ("file:/proc/sys/net/ipv4/ip_local_port_range", "1 2 3", "high"),
        ("file:/proc/sys/net/ipv4/ip_local_reserved_ports", "a-b", "reserved"),
        ("file:/proc/sys/net/ipv4/ip_local_reserved_ports", Unavailable("denied"), "reserved"),
        ("ask:netlink", {**NETLINK, "listening": {"unavailable": "denied", "detail": ""}}, "listening"),
        ("ask:netlink", Unavailable("timed out"), "listening"),
        ("ask:netlink", {}, "listening"),
    ],
)
def test_ports_that_cannot_be_read_are_unavailable(path: str, value: Any, field: str) -> None:
    ports = probe_ports(ReplayHost({**ANSWERS, path: value}))
    assert isinstance(getattr(ports, field), Unavailable)


def test_job_and_expectations_come_from_the_configuration() -> None:
    host = ReplayHost(
        {"config:": {"job": {"nodes": 4, "all_to_all": True}, "expected": {"gpus": 8, "busbw_floor": {"1024": 2}}}}
    )
    job, expected = registry.make(host, "Intent", {}), probe_expected(host)
    assert not isinstance(expected, Unavailable)
    assert (job.nodes, job.all_to_all, job.gloo_groups) == (4, True, 1)
    assert job.told is Told.CONFIGURATION
    assert (expected.gpus, expected.busbw_floor, expected.peers) == (8, {1024: 2.0}, ())


def test_without_configuration_the_job_is_not_stated() -> None:
    host = ReplayHost({"config:": {}})
    job = registry.make(host, "Intent", {})
    assert (job.nodes, job.count, job.others) == (None, 1, None)
    some = registry.make(ReplayHost({"config:": {"job": {"communicators": 2}}}), "Intent", {})
    assert (some.others, some.communicators) == (None, 2)
    lost = registry.make(ReplayHost({}), "Intent", {})
    assert lost.nodes == Unavailable("not recorded") and lost.across.needed is None
    broken = probe_expected(ReplayHost({"config:": {"expected": {"busbw_floor": {"x": 1}}}}))
    assert isinstance(broken, Unavailable) and broken.kind == "malformed"


@pytest.mark.parametrize("environment", [Unavailable("malformed", "snapshot entry"), "no object", None])
def test_an_unknown_environment_says_nothing_about_the_port(environment: Any) -> None:
    """What is malformed is the answer, not MASTER_PORT: the check of ports must not call it a wrong port."""
    got = probe(ReplayHost({"env:": environment, question("netlink"): NETLINK}))
    assert isinstance(got, Net) and isinstance(got.master_port, Unavailable) and got.master_port.kind == "not read"


@pytest.mark.parametrize(
    ("told", "paused"),
    [({}, None), ({"pfc": 8}, 8), ({"pfc": 0}, 0), ({"pfc": 256}, Kind.MALFORMED), ({"pfc": "8"}, Kind.MALFORMED)],
)
def test_what_an_interface_pauses(told: dict[str, Any], paused: object) -> None:
    links = [{**one, **(told if one["name"] == "eth0" else {})} for one in NETLINK["links"]]
    net = probe(ReplayHost({**ANSWERS, "ask:netlink": {**NETLINK, "links": links}}))
    link = net.link("eth0") if isinstance(net, Net) else None
    assert link and (link.qos.pfc.kind if isinstance(link.qos.pfc, Unavailable) else link.qos.pfc) == paused
