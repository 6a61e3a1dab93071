"""netdoctor/host/helpers/netlink.py against iproute2 in namespaces, and the probe through the real helper."""

from __future__ import annotations

import pytest

from tests.support.namespaces import netlab

pytestmark = [pytest.mark.live, pytest.mark.root]

LAYOUT = """
sh('ip link set lo up')
veth('eth0', '10.0.0.7/24', '10.5.0.7/24 label eth0:1', 'fd00::7/64', 'fe80::7/64')
veth('eth1', '10.1.0.7/24', '192.168.0.7/24')
veth('eth2', '10.2.0.7/24', up=False)
bridge('br0', '172.18.0.1/16')
sh('ip link set eth2p master br0', 'ip link add mac0 link eth0 type macvlan')
sh('ip route add default via 10.0.0.1', 'ip -6 route add default via fd00::1', 'ip route add 203.0.113.0/24 via 10.1.0.1',
   'ip route add unreachable 198.18.0.0/15', 'ip route add default via 10.1.0.1 table 77',
   'ip rule add from 10.1.0.7 lookup 77')
"""

AGAINST_IP = (
    LAYOUT
    + """
def ip(*words):
    return json.loads(subprocess.run(["ip", "-j", "-d", *words], capture_output=True, check=True).stdout or "[]")
from netdoctor.host.helpers.netlink import answer
told = answer({})
indexes = {one["index"]: one["name"] for one in told["links"]}
theirs, mine = {}, {}
for one in ip("addr"):
    theirs[one["ifname"]] = {
        "index": one["ifindex"], "mtu": one["mtu"], "up": "UP" in one["flags"], "lower": one.get("address"),
        "kind": one.get("linkinfo", {}).get("info_kind"), "master": one.get("master"),
        "on": None if "link_netnsid" in one else one.get("link"),
        "addresses": [[a["local"], a["prefixlen"], a["scope"], a.get("label")] for a in one["addr_info"]],
    }
for one in told["links"]:
    mine[one["name"]] = {
        "index": one["index"], "mtu": one["mtu"], "up": bool(one["flags"] & 1), "lower": one["address"],
        "kind": one["kind"], "master": indexes.get(one["controller"]), "on": indexes.get(one.get("lower")),
        "addresses": [[a["ip"], a["prefix"], a["scope"], a["label"]] for a in told["addresses"] if a["index"] == one["index"]],
    }
elsewhere = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
elsewhere.stdout.readline()
sh(f"ip link set mac0 netns {elsewhere.pid}")
away = json.loads(subprocess.run(["nsenter", "--net", f"--target={elsewhere.pid}", sys.executable, "-c",
    "import json; from netdoctor.host.helpers.netlink import answer; print(json.dumps(answer({})['links']))"],
    capture_output=True, check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}).stdout)
elsewhere.communicate()
wanted = ["203.0.113.9", "10.0.0.9", "10.0.0.7", "198.51.100.9", "198.18.0.1", "fd00::9", "2001:db8::9"]
got = answer({"routes": ",".join(wanted)})["routes"]
hops = {}
for one in wanted:
    done = subprocess.run(["ip", "-j", "route", "get", one], capture_output=True)
    hop = json.loads(done.stdout)[0] if done.stdout.strip() else {}
    hops[one] = [hop.get("dev"), hop.get("gateway"), hop.get("prefsrc")] if done.returncode == 0 else None
say([theirs, mine, hops, got, told["default"], {one["name"]: one.get("lower") for one in away}])
"""
)


def test_links_and_addresses_are_those_of_iproute2() -> None:
    theirs, mine, _, _, _, away = netlab.run(AGAINST_IP)
    assert {"lo", "eth0", "eth1", "eth2", "br0"} <= set(mine)
    assert mine == theirs
    assert mine["eth0"]["addresses"][1] == ["10.5.0.7", 24, "global", "eth0:1"]
    assert (mine["br0"]["kind"], mine["eth2p"]["master"]) == ("bridge", "br0")
    assert (mine["mac0"]["on"], mine["eth0"]["on"], mine["br0"]["on"]) == ("eth0", "eth0p", None)
    assert away == {"lo": None, "mac0": None}  # its number is another namespace's


def test_routes_are_those_of_iproute2() -> None:
    _, _, theirs, mine, default, _ = netlab.run(AGAINST_IP)
    for destination, hop in theirs.items():
        main = mine[destination]["main"]
        if hop is None:
            assert "error" in main or main["kind"] == "unreachable", destination
        else:
            assert [main["oif"], main["gateway"], main["source"]] == hop, destination
    assert mine["10.0.0.7"]["main"]["kind"] == "local"
    assert theirs["198.18.0.1"] is None
    assert (default["4"]["oif"], default["6"]["oif"]) == ("eth0", "eth0")
    # a route of its own: an entry longer than the default route, which leads everywhere and so shows nothing
    assert mine["203.0.113.9"]["via"] == ["eth1"]
    assert mine["10.0.0.9"]["via"] == ["eth0"]
    assert mine["fd00::9"]["via"] == ["eth0"]
    assert mine["198.51.100.9"]["via"] == mine["2001:db8::9"]["via"] == []


LISTENERS = """
import socket
from netdoctor.host.helpers.netlink import listening, listening_proc
sh('ip link set lo up')
held = [socket.create_server(("127.0.0.1", 41001)), socket.create_server(("::", 41002), family=socket.AF_INET6)]
bound = socket.socket(); bound.bind(("127.0.0.1", 41003))
client = socket.create_connection(("127.0.0.1", 41001))
pid = os.fork()
if not pid:
    os.setuid(65534)
    mine = socket.create_server(("127.0.0.1", 41004))
    import signal
    signal.pause()
while not any(port == 41004 for port, _ in listening()):
    os.sched_yield()
say([listening(), listening_proc()])
os.kill(pid, 9); os.waitpid(pid, 0)
"""


def test_listeners_by_sock_diag_and_by_proc() -> None:
    diag, proc = netlab.run(LISTENERS)
    assert diag == [[41001, 0], [41002, 0], [41004, 65534]]
    assert proc == diag


PROBE = (
    LAYOUT
    + """
import socket
os.environ.update(MASTER_ADDR="10.1.0.9", MASTER_PORT="29500")
from netdoctor.host.live import LiveHost
from netdoctor.facts.net import probe, probe_ports
host = LiveHost(config={"expected": {"peers": ["10.0.0.7:41001", "10.2.0.9"]}})
held = socket.create_server(("127.0.0.1", 41001))
net, ports = probe(host), probe_ports(host)
host.close()
from netdoctor.model import plain
say([plain(net), plain(ports)])
"""
)


def test_the_probe_through_the_helper() -> None:
    net, ports = netlab.run(PROBE)
    # sysfs is that of the mount, not of this namespace
    eth0 = next(link for link in net["links"] if link["name"] == "eth0")
    assert eth0["speed_mbps"] == {"unavailable": "not read", "detail": "sysfs of another network namespace"}
    master = net["master"]
    assert (master["local"], master["routes"]["10.1.0.9"]["interface"], master["via"]["10.1.0.9"]) == (False, "eth1", ["eth1"])
    assert master["rtt_ms"]["unavailable"] in ("failed", "timed out")  # nobody answers there
    here, down = net["peers"]
    assert (here["local"], down["local"]) == (True, False)
    assert (ports["low"], ports["high"], ports["listening"]) == (32768, 60999, [41001])


RTT = """
import socket
from netdoctor.host.helpers.rtt import answer
sh('ip link set lo up')
server = socket.create_server(("127.0.0.1", 41001))
say([answer({"host": "127.0.0.1", "port": "41001"}), answer({"host": "127.0.0.1", "port": "9"}),
     answer({"host": "10.9.9.9", "port": "9"})])
"""


def test_round_trip_of_a_connection() -> None:
    good, refused, away = netlab.run(RTT)
    assert 0 < good["rtt_us"] < 1_000_000
    assert refused == {"error": "ECONNREFUSED"}
    assert away == {"error": "ENETUNREACH"}


RESOLVE = """
from netdoctor.host.base import question
from netdoctor.host.live import LiveHost
host = LiveHost()
names = ["localhost", "nosuch.invalid", "x" * 70 + ".invalid"]
from netdoctor.model import plain
say([plain(host.ask(question("resolve", name=name))) for name in names])
host.close()
"""


def test_names_are_resolved_by_the_c_library() -> None:
    local, absent, wrong = netlab.run(RESOLVE)
    assert set(local["addresses"]) <= {"127.0.0.1", "::1"} and local["addresses"]
    assert absent["error"].startswith("EAI_")
    assert wrong["error"] == "EAI_NONAME"


PFC = """
from netdoctor.host.helpers.netlink import NETLINK_ROUTE, Netlink, answer, dcb, pauses
veth('eth0', '10.0.0.7/24')
route = Netlink(NETLINK_ROUTE)
say([dcb(route, "eth0").get("pfc"), dcb(route, "nosuch0").get("pfc"), [one.get("pfc") for one in answer({})["links"]],
     pauses("nosuch0"), pauses("lo")])
"""


def test_a_driver_without_dcb_tells_nothing_of_what_it_pauses() -> None:
    """The kernel's own refusals (EOPNOTSUPP, ENODEV) are no fault, and nothing that could not be read."""
    none, gone, every, *paused = netlab.run(PFC)
    assert (none, gone) == (None, None) and set(every) == {None} and paused == [None, None]


# Two hosts with two rails in one subnet, a cable for each rail: no switch could keep them further apart.
RAILS = """
import signal, socket
from netdoctor.facts.flat_rails import _neighbours
from netdoctor.host.live import LiveHost
from ipaddress import IPv4Network
sh("ip link set lo up")
other = subprocess.Popen(["unshare", "--net", "sleep", "60"]); time.sleep(0.5)
there = f"nsenter --target {other.pid} --net"
sh(f"{there} ip link set lo up")
for n in (1, 2):
    sh(f"ip link add r{n} type veth peer name r{n} netns {other.pid}", f"ip addr add 10.5.0.1{n}/24 dev r{n}",
       f"ip link set r{n} up", f"{there} ip addr add 10.5.0.2{n}/24 dev r{n}", f"{there} ip link set r{n} up")
    settle(f"r{n}")
def asked(strict):
    for name in ("all", "r1", "r2"):
        for key, value in (("rp_filter", strict), ("arp_ignore", 1)):
            sh(f"{there} sysctl -q -w net.ipv4.conf.{name}.{key}={value}")
    sh("ip neigh flush all")
    for n in (1, 2):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, f"r{n}".encode() + bytes(1))
        one.sendto(b"x", (f"10.5.0.2{n}", 9)); one.close()
    time.sleep(4)
    return _neighbours(LiveHost(), IPv4Network("10.5.0.0/24"), {"r1", "r2"})
found = [asked(1), asked(2)]
sh("ip neigh replace 10.5.0.22 lladdr 02:00:00:00:00:01 dev r2 nud permanent")
found.append(_neighbours(LiveHost(), IPv4Network("10.5.0.0/24"), {"r1", "r2"}))
sh("ip neigh del 10.5.0.22 dev r2")
def hears():  # the kernel of the other host, asked as netdoctor does
    asked = ",".join(f"10.5.0.2{n}/10.5.0.1{n}/r{n}" for n in (1, 2))
    told = subprocess.run([*there.split(), sys.executable, "-c", f"import json; from netdoctor.host.helpers import netlink; "
                           f"print(json.dumps(netlink.answer({{'heard': {asked!r}}})))"], capture_output=True, text=True)
    return list(json.loads(told.stdout)["heard"].values())
for strict in (1, 2):
    asked(strict)
    found.append(hears())
for n in (1, 2):  # loose on one of them: the larger of both holds
    sh(f"{there} sysctl -q -w net.ipv4.conf.all.rp_filter=1", f"{there} sysctl -q -w net.ipv4.conf.r{n}.rp_filter={n}")
found.append(hears())
asked(1)
for n in (1, 2):  # a route to each of the others by its own rail, as to a range
    sh(f"{there} ip route add 10.5.0.1{n}/32 dev r{n}")
found += [asked(1), hears()]
for n in (1, 2):
    sh(f"{there} ip route del 10.5.0.1{n}/32 dev r{n}", f"{there} ip route del 10.5.0.0/24 dev r{n}")
sh(f"{there} ip route add 10.5.0.0/24 nexthop dev r1 nexthop dev r2")  # any next hop's interface will do
found += [asked(1), hears()]
os.kill(other.pid, signal.SIGKILL)
say(found)
"""


def test_strict_rp_filter_hears_arp_on_one_rail_of_a_subnet() -> None:
    """So says the rule of netdoctor/nccl/one_subnet.py, of this kernel."""
    strict, loose, written, *rest = netlab.run(RAILS)
    assert strict == [["10.5.0.22"], []] and loose == [[], []] and written == [[], ["10.5.0.22"]]
    flat, all_loose, one_loose, ranges, by_ranges, hops, by_hops = rest
    assert flat == [True, False] and all_loose == one_loose == [True, True]
    assert ranges == hops == [[], []] and by_ranges == by_hops == [True, True]
