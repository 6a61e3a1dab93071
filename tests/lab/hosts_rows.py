"""Faults between hosts as data: what is broken on which of h0, h1 …, and what their reports must say."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
EVERY, BRIDGE = -1, -2  # where a line of `setup` runs, besides a host's number
NODES, RUN, BANDWIDTH = "allreduce.nodes", "allreduce.run", "allreduce.bandwidth"
IFNAME, PORTS, BUFFERS = "net.socket_ifname", "net.port_range", "net.tcp_buffers"


@dataclass(frozen=True)
class Said:
    """A finding that must come.  `by`: the nodes in whose reports; None: in all that there are."""

    check: str
    text: str  # status and, for a fail, its cause
    subject: str = "node"
    words: str = ""
    by: tuple[int, ...] | None = None

    def met_by(self, check: str, finding: Mapping[str, Any]) -> bool:
        status, _, cause = self.text.partition(" ")
        return (
            (check, finding["status"]) == (self.check, status)
            and finding["subject"] in self.subject.split("|")
            and cause in ("", finding["cause"])
            and self.words in finding["message"]
        )

    def __str__(self) -> str:
        return " ".join(part for part in (self.check, self.text, self.subject, self.words) if part)


@dataclass(frozen=True)
class Base:
    """What healthy hosts are compared with."""

    hosts: int
    torch: bool
    ranks: int
    env: tuple[tuple[str, str], ...]
    macvlan: bool

    def row(self) -> Row:
        env = dict(self.env)
        return Row("healthy hosts", (), hosts=self.hosts, torch=self.torch, ranks=self.ranks, env=env, macvlan=self.macvlan)


@dataclass(frozen=True)
class Row:
    """One fault.  Where the nodes only have to meet, `torch` is False: they say that they cannot run, and it takes a second."""

    fault: str
    said: tuple[Said, ...]
    setup: tuple[tuple[int, str], ...] = ()
    variables: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # of one host
    hosts: int = 3
    torch: bool = False
    env: Mapping[str, str] = field(default_factory=dict)  # of all hosts, the healthy ones too
    ranks: int = 1  # of a host
    expect: Mapping[str, Any] = field(default_factory=dict)  # `expected:` of the configuration
    pythons: Mapping[int, str] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    after_the_others: bool = False  # the late ones come when the others have ended
    when: Mapping[int, tuple[str, int]] = field(default_factory=dict)  # host -> (line of its progress, signal it gets then)
    cable: tuple[int, tuple[str, ...]] | None = None  # the host that gets one (tests.support.namespaces.cable), and its options
    wait: float = 60.0
    waits: Mapping[int, float] = field(default_factory=dict)
    stall: float = 30.0
    also: tuple[str, ...] = ()  # checks that change rightly
    beside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # host -> a command that says "ready" and stays
    routers: int = 0  # more namespaces like hosts, after them, without a netdoctor
    macvlan: bool = False  # eth0 is one over a veth: of which the speed is known
    loose: bool = False  # what the fault does to others depends on chance
    severity: str = ""  # of what allreduce.nodes says; "": any
    may: tuple[Said, ...] = ()  # findings that may come, or not
    never: str = ""  # why it cannot run anywhere that this lab knows
    needs: tuple[str, ...] = ("ip", "nsenter", "unshare")

    def base(self) -> Base:
        return Base(self.hosts, self.torch, self.ranks, tuple(sorted(self.env.items())), self.macvlan)

    def expected(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for said in self.said:
            out.setdefault(said.check, []).append(f"{said.text} {said.subject} {said.words}".strip())
        return out


PLAIN: Final = Row("healthy hosts", ())


def nodes(subject: str, cause: str, words: str = "", by: tuple[int, ...] | None = None, status: str = "fail") -> Said:
    return Said(NODES, f"{status} {cause}".strip(), subject, words, by)


def run(cause: str, words: str = "", by: tuple[int, ...] | None = None) -> Said:
    return Said(RUN, f"fail {cause}", "node", words, by)


def dropped(table: str) -> str:
    return f"iptables -A {table} -j DROP"


SYN: Final = "INPUT -i eth0 -p tcp --syn"
OUT: Final = "OUTPUT -o eth0 -p tcp --syn"
TUN: Final = ("ip", "nsenter", "unshare", "/dev/net/tun")
FIREWALL: Final = ("ip", "nsenter", "unshare", "iptables")
UNREACHED: Final = "cannot be reached by nodes 0, 1"

SQUATTER: Final = "import socket, time; keep = socket.create_server(('', 29400)); print('ready', flush=True); time.sleep(600)"
MEETING: Final = (
    Row("healthy hosts that only meet", ()),
    Row(
        "a firewall drops what comes to the ports that the kernel gives out",
        (nodes("h2", "firewall_connect", f"{UNREACHED}: timed out"),),
        ((2, dropped(SYN)),),
        needs=FIREWALL,
    ),
    Row(
        "a firewall rejects what comes to the ports that the kernel gives out",
        (nodes("h2", "firewall_connect", f"{UNREACHED}: refused"),),
        ((2, f"iptables -A {SYN} -j REJECT --reject-with tcp-reset"),),
        needs=FIREWALL,
    ),
    Row(
        "a firewall rejects by ICMP",
        (nodes("h2", "firewall_connect", f"{UNREACHED}: no route"),),
        ((2, f"iptables -A {SYN} -j REJECT --reject-with icmp-host-prohibited"),),
        needs=FIREWALL,
    ),
    Row(
        "a firewall drops what a host dials, but for the meeting's port",
        (nodes("h2", "firewall_connect", "node 2 (h2) cannot reach nodes 0, 1"),),
        ((2, dropped(f"{OUT} ! --dport 29400")),),
        needs=FIREWALL,
    ),
    Row(
        "a firewall between two hosts, in one direction",
        (nodes("h1 to h2", "firewall_connect", "node 1 (h1) cannot reach node 2 (h2): timed out"),),
        ((2, dropped(f"{SYN} -s 10.99.0.2")),),
        needs=FIREWALL,
    ),
    Row(
        "a firewall drops the meeting's port on the master",
        (
            nodes("node 0", "missing_node", "time out", (1, 2)),
            nodes("node 1", "missing_node", "did not come", (0,)),
            nodes("node 2", "missing_node", "did not come", (0,)),
        ),
        ((0, dropped(f"{SYN} --dport 29400")),),
        wait=4,
        needs=FIREWALL,
    ),
    Row(
        "a firewall rejects the meeting's port on the master",
        (
            nodes("node 0", "missing_node", "refuses", (1, 2)),
            nodes("node 1", "missing_node", "did not come", (0,)),
            nodes("node 2", "missing_node", "did not come", (0,)),
        ),
        ((0, f"iptables -A {SYN} --dport 29400 -j REJECT --reject-with tcp-reset"),),
        wait=4,
        needs=FIREWALL,
    ),
    Row(
        "a firewall keeps one host from the meeting",
        (nodes("node 2", "missing_node", "did not come", (0, 1)), nodes("node 0", "missing_node", "time out", (2,))),
        ((2, dropped(f"{OUT} --dport 29400")),),
        wait=4,
        needs=FIREWALL,
    ),
    Row("a host is absent", (nodes("node 2", "missing_node", "did not come within 3 s"),), absent=(2,), wait=3),
    Row("the master is absent", (nodes("node 0", "missing_node", "refuses connections"),), absent=(0,), wait=3),
    Row("a host comes late", (), late=(2,)),
    Row(
        "a host comes too late",
        (nodes("node 2", "missing_node", "did not come", (0, 1)), nodes("node 0", "missing_node", "refuses", (2,))),
        late=(2,),
        after_the_others=True,
        wait=3,
    ),
    Row(
        "the master's name is not known on one host",
        (nodes("node 0", "missing_node", "its name is not known", (2,)), nodes("node 2", "missing_node", by=(0, 1))),
        ((2, "echo '127.0.0.1 localhost' > /run/hosts; mount --bind /run/hosts /etc/hosts"),),
        wait=4,
        also=(IFNAME,),
    ),
    Row(
        "the cable of a host is pulled",
        (nodes("node 0", "missing_node", by=(2,)), nodes("node 2", "missing_node", by=(0, 1))),
        ((BRIDGE, "ip link set p2 down"),),
        wait=4,
        also=(IFNAME, BUFFERS),
    ),
    Row(
        "the meeting's port is taken on the master",
        (
            nodes("h0", "bootstrap_ports", "port 29400 cannot be listened on", (0,)),
            nodes("node 0", "missing_node", "silent", by=(1, 2)),
        ),
        stall=5,
        beside={0: (sys.executable, "-c", SQUATTER)},
        wait=4,
    ),
    Row(
        "NCCL_ALGO differs on one host",
        (nodes("h1, variable NCCL_ALGO", "drift"),),
        variables={1: {"NCCL_ALGO": "Tree"}},
    ),
    Row(
        "NCCL_SOCKET_IFNAME differs on one host",
        (nodes("h2, variable NCCL_SOCKET_IFNAME", "drift"),),
        variables={2: {"NCCL_SOCKET_IFNAME": "eth0"}},
        also=(IFNAME,),
    ),
)


def ifname(value: str) -> dict[int, dict[str, str]]:
    return {2: {"GLOO_SOCKET_IFNAME": value}}


SECOND: Final = (BRIDGE, "ip link add q2 type veth peer name eth1 netns PID2; ip link set q2 up")  # of h2, leading nowhere
STRAY: Final = (nodes("h2", "socket_ifname", "where nodes 0, 1 cannot reach it"), run("socket_ifname", "Gloo listens on"))
OWN: Final = Said(IFNAME, "fail socket_ifname", "Gloo", by=(2,))
JUMBO: Final = (  # all hosts but one switch port
    (EVERY, "ip link set eth0 mtu 9000 gso_max_segs 1 gro_max_size 1500"),
    (BRIDGE, "ip link set p0 mtu 9000; ip link set p1 mtu 9000; ip link set br0 mtu 9000"),
)
INTERFACES: Final = (
    Row("healthy hosts", (), torch=True),
    Row(
        "GLOO_SOCKET_IFNAME of no interface",
        (run("socket_ifname", "rank 2 failed"), nodes("h2", "socket_ifname", "Unable to find address"), OWN),
        variables=ifname("nosuch0"),
        torch=True,
    ),
    Row(
        "GLOO_SOCKET_IFNAME of a network that does not reach the others",
        STRAY,
        (SECOND, (2, "ip addr add 10.98.0.2/24 dev eth1; ip link set eth1 up")),
        variables=ifname("eth1"),
        torch=True,
        also=(BUFFERS, IFNAME),
    ),
    Row(
        "the same, and the others are the ones that are dialled: it works by luck",
        (nodes("h2", "socket_ifname", "where nodes 0, 1 cannot reach it"),),
        (SECOND, (2, "ip addr add 172.20.0.2/24 dev eth1; ip link set eth1 up")),
        variables=ifname("eth1"),
        torch=True,
        also=(BUFFERS, IFNAME),
        severity="warning",
    ),
    Row(
        "GLOO_SOCKET_IFNAME of an interface without an IPv4 address",
        (*STRAY, OWN),
        (SECOND, (2, "ip link set eth1 up")),
        variables=ifname("eth1"),
        torch=True,
        also=(BUFFERS, IFNAME),
    ),
    Row(
        "GLOO_SOCKET_IFNAME of an interface that is down",
        (*STRAY, OWN),
        (SECOND, (2, "ip addr add 10.98.0.2/24 dev eth1")),
        variables=ifname("eth1"),
        torch=True,
        also=(BUFFERS, IFNAME),
    ),
    Row(
        "GLOO_SOCKET_IFNAME=lo on one host",
        (nodes("h2", "socket_ifname", "Gloo listens on 127.0.0.1 (lo)"), OWN),
        variables=ifname("lo"),
        torch=True,
        severity="warning",
    ),
    Row(
        "a host's own name is 127.0.1.1",
        (nodes("h2", "socket_ifname", "Gloo listens on 127.0.1.1"), OWN),
        ((2, "sed 's/^10.99.0.3 .*/127.0.1.1 h2/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts"),),
        torch=True,
        severity="warning",
    ),
    Row(
        "a host's own name is 127.0.1.1, and the hosts have higher addresses",
        (nodes("h2", "socket_ifname", "Gloo listens on 127.0.1.1"), run("socket_ifname", "Gloo listens on"), OWN),
        (
            (
                EVERY,
                (
                    "N=$(hostname | tr -d h); ip addr flush dev eth0; ip addr add 192.168.9.$((N + 1))/24 dev eth0;"
                    "sed 's/10.99.0/192.168.9/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts"
                ),
            ),
            (2, "sed 's/^.* h2$/127.0.1.1 h2/' /etc/hosts > /run/own; cat /run/own > /run/hosts"),
        ),
        torch=True,
        stall=6,
    ),
)
ROUTER: Final = (  # h2 behind a router whose other side carries 1400 bytes, and which may not say so
    (
        BRIDGE,
        (
            "ip link del p2; ip link add p2 type veth peer name r0 netns PID3; ip link set p2 master br0 up;"
            "ip link add r1 netns PID3 type veth peer name eth0 netns PID2"
        ),
    ),
    (
        3,
        (
            "ip link del eth0; ip addr add 10.99.0.254/24 dev r0; ip addr add 10.97.0.254/24 dev r1; ip link set r0 up;"
            "ip link set r1 mtu 1400 up; sysctl -q -w net.ipv4.ip_forward=1;"
            "iptables -A OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP"
        ),
    ),
    (2, "ip addr add 10.97.0.3/24 dev eth0; ip link set eth0 up; ip route add default via 10.97.0.254"),
    (0, "ip route add 10.97.0.0/24 via 10.99.0.254"),
    (1, "ip route add 10.97.0.0/24 via 10.99.0.254"),
    (EVERY, "sed 's/^10.99.0.3 /10.97.0.3 /' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts"),
)
TBF: Final = "tc qdisc add dev {0} root tbf rate 1gbit burst 256k latency 50ms"
LOSING: Final = ("h2", "h0 to h2", "h1 to h2", "h2 to h0", "h2 to h1")  # the ring goes through two of them
FLOOR: Final = {"busbw_floor": {"64MiB": 0.3}}  # GB/s: veths carry more than ten times a 1 Gb/s link
LOW: Final = Said(BANDWIDTH, "fail low_bandwidth")
PATH: Final = (
    Row(
        "one host has an MTU of 9000",
        (nodes("h2, MTU", "mtu", "9000, where the others in 10.99.0.0/24 have 1500"),),
        ((2, "ip link set eth0 mtu 9000"),),
        torch=True,
        severity="warning",
    ),
    Row(
        "a switch port drops what is above 1500, and the hosts have 9000: seen before anything runs",
        (nodes("h2", "mtu", "segments of 8948 bytes are lost, small ones arrive"),),
        JUMBO,
    ),
    Row(
        "a switch port drops what is above 1500, and the hosts have 9000: the all-reduce hangs",
        (nodes("h2", "mtu", "segments of 8948 bytes are lost"), run("mtu", "segments of 8948 bytes")),
        JUMBO,
        torch=True,
        stall=6,
    ),
    Row(
        "a path-MTU black hole: a router with 1400 bytes whose ICMP is dropped",
        (nodes("h2", "mtu", "from nodes 0, 1 to it are made, but large messages do not pass"), run("mtu", "large messages")),
        ROUTER,
        torch=True,
        stall=6,
        routers=1,
        needs=FIREWALL,
    ),
    Row(
        "a slow host: 500 Mb/s",
        (LOW, nodes("h2|h2 to h1|h2 to h0", "straggler", "waits for the network")),
        ((2, TBF.format("eth0").replace("1gbit", "500mbit")),),
        torch=True,
        expect=FLOOR,
    ),
    Row(
        "a slower network, taken by the variable on every host",
        (LOW,),
        (
            *((BRIDGE, f"ip link add q{n} type veth peer name eth1 netns PID{n}; ip link set q{n} up") for n in range(3)),
            (BRIDGE, "ip link add br1 type bridge; ip link set br1 up; for n in 0 1 2; do ip link set q$n master br1; done"),
            (
                EVERY,
                "N=$(hostname | tr -d h); ip addr add 10.98.0.$((N + 1))/24 dev eth1; ip link set eth1 up;"
                + TBF.format("eth1"),
            ),
        ),
        {n: {"GLOO_SOCKET_IFNAME": "eth1"} for n in range(3)},
        torch=True,
        expect=FLOOR,
        also=(BUFFERS, IFNAME),
    ),
    Row(
        "a host that loses 1 % of what comes",
        (nodes("|".join(LOSING), "link_degraded"),),
        ((2, "iptables -A INPUT -i eth0 -p tcp -m statistic --mode random --probability 0.01 -j DROP"),),
        torch=True,
        may=(nodes("h2", "straggler"),),
        needs=FIREWALL,
        severity="warning",
    ),
    Row(
        "5 ms more to one host",
        (nodes("h2", "straggler", "all that goes to or from node 2 (h2)"),),
        cable=(2, ("delay=5",)),
        torch=True,
        also=(BUFFERS,),
        needs=TUN,
        severity="warning",
    ),
    Row(
        "a cable that shuffles what it carries",
        (),
        cable=(2, ("delay=1", "jitter=1")),
        torch=True,
        also=(BUFFERS, NODES),
        may=(nodes("h2", "straggler"), *(nodes(name, "link_degraded") for name in LOSING)),  # TCP takes reordering for loss
        needs=TUN,
    ),
    Row(
        "tiny buffers",
        (Said(BUFFERS, "fail tcp_tuning", "eth0", by=(2,)),),
        ((2, "sysctl -q -w net.ipv4.tcp_wmem='4096 8192 16384' net.ipv4.tcp_rmem='4096 8192 16384'"),),
        macvlan=True,
    ),
    Row(
        "a congestion control that the kernel lacks",
        (Said(BUFFERS, "fail tcp_tuning", "congestion control", by=(2,)),),
        ((2, "echo nosuch > /run/cc; mount --bind /run/cc /proc/sys/net/ipv4/tcp_congestion_control"),),
    ),
    Row(
        "an address of another host as a second one",
        (nodes("h1, 10.99.0.2", "duplicate_address"), nodes("h2, 10.99.0.2", "duplicate_address")),
        ((2, "ip addr add 10.99.0.2/24 dev eth0"),),
    ),
    Row(
        "an address of another host instead of its own",
        (nodes("node 1|node 2|h1|h2|node 0", ""),),
        ((2, "ip addr flush dev eth0 scope global; ip addr add 10.99.0.2/24 dev eth0"),),
        wait=6,
        also=(IFNAME,),
        loose=True,
    ),
)
RANGE: Final = "sysctl -q -w net.ipv4.ip_local_port_range='40000 {0}'"
# Every ncclGetUniqueId opens the listener of a bootstrap root, which stays until its ranks have come.
ROOTS: Final = """
import ctypes, os, sys, time
os.environ.update(NCCL_NET_PLUGIN="none", NCCL_RAS_ENABLE="0")
library = ctypes.CDLL(sys.argv[1])
count = 0
while not library.ncclGetUniqueId(ctypes.create_string_buffer(128)):
    count += 1
print("ready", count, flush=True)
time.sleep(600)
"""


def exhausted(version: str) -> Row:
    path = f"{ROOT}/build/nccl/{version}/nvidia/nccl/lib/libnccl.so.2"
    return Row(
        f"libnccl {version} listens on every port",
        (
            Said(PORTS, "fail bootstrap_ports", "listeners", by=(2,)),
            nodes("h2", "bootstrap_ports", "no local port", by=(2,)),
            nodes("node 2", "missing_node", by=(0, 1)),
        ),
        ((2, RANGE.format(40199)),),
        beside={2: (sys.executable, "-c", ROOTS, path)},
        wait=5,
        needs=(path,),
    )


PORT_ROWS: Final = (
    exhausted("2.21.5"),
    exhausted("2.29.7"),
    Row(
        "the connection tracking table is full",
        (nodes("h2", "firewall_connect"),),
        never="net.netfilter.nf_conntrack_max is the machine's: a network namespace cannot set its own (EINVAL)",
    ),
    Row(
        "3 ports, 8 ranks",
        (Said(PORTS, "fail bootstrap_ports", "listeners"), run("bootstrap_ports"), nodes("h0|h1", "bootstrap_ports")),
        ((EVERY, RANGE.format(40002)),),
        hosts=2,
        torch=True,
        ranks=4,
        stall=8,
    ),
    Row(
        "24 ports, 8 ranks: enough for Gloo, one too few for NCCL with its RAS",
        (Said(PORTS, "fail bootstrap_ports", "listeners", "25 listeners"),),
        ((EVERY, RANGE.format(40023)),),
        hosts=2,
        torch=True,
        ranks=4,
    ),
    Row(
        "400 ports, 8 ranks",
        (),
        ((EVERY, RANGE.format(40399)),),
        hosts=2,
        torch=True,
        ranks=4,
    ),
    Row(
        "all but two ports reserved",
        (
            Said(PORTS, "fail bootstrap_ports", "listeners", by=(2,)),
            run("bootstrap_ports", "rank 2 failed"),
            nodes("h2", "bootstrap_ports", "Cannot assign requested address"),
        ),
        ((2, "sysctl -q -w net.ipv4.ip_local_reserved_ports=32768-60997"),),
        torch=True,
    ),
)


PHASES: Final = {
    "meeting": "in the rendezvous",
    "init": "in the initialisation",
    "between": "before its first collective",
    "first": "in its first collective",
    "timed": "in a later collective",
}
ACTIONS: Final = {
    "kill": "killed",
    "stop": "stopped",
    "sleep": "asleep",
    "7": "exiting",
    "rubbish": "printing rubbish",
    "flood": "flooding",
}


def died(phase: str, action: str, said: tuple[Said, ...], **more: Any) -> Row:
    return Row(
        f"a rank {ACTIONS[action]} {PHASES[phase]}",
        said,
        variables={2: {"FAULT": f"{phase}:{action}"}},
        hosts=4,
        torch=True,
        stall=5,
        **more,
    )


def wrapped(action: str, line: str, said: tuple[Said, ...]) -> Row:
    """The job's Python on one host is a script that does this first."""
    make = f"mkdir /run/bad; cat > /run/bad/python3 <<'END'\n#!/bin/sh\n{line}\nEND\nchmod 755 /run/bad/python3"
    setup = ((2, make),)
    return Row(f"the job's Python {action} at its start on one host", said, setup, torch=True, pythons={2: "/run/bad/python3"})


GONE: Final = (
    nodes("h2, torch", "version_mismatch", "not there"),
    nodes("h2", "", "cannot run", (0, 1), "unknown"),
    Said(RUN, "unknown", words="before torch was imported"),
)
DEAD: Final = (run("rank_died"), nodes("h2", "rank_died"))
STILL: Final = (run("hang"), nodes("h2", "hang"))
RANKS: Final = (
    died("meeting", "kill", DEAD),
    died("first", "kill", DEAD),
    died("timed", "kill", DEAD),
    died("meeting", "stop", STILL),
    died("first", "stop", STILL),
    died("timed", "stop", STILL),
    died("between", "sleep", STILL),
    died("timed", "sleep", (run("hang", "all ranks are in it, and none comes out"),)),  # whose fault it is does not show
    died("init", "7", DEAD),
    died("timed", "7", DEAD),
    died("first", "rubbish", ()),
    died("timed", "flood", ()),
    wrapped("killed", "kill -KILL $$", GONE),
    wrapped("exiting", "exit 7", GONE),
    wrapped("printing rubbish", 'head -c 100000 /dev/urandom; exec PYTHON "$@"', ()),
    wrapped("flooding", 'head -c 64000000 /dev/zero; exec PYTHON "$@"', ()),
    Row(
        "netdoctor is killed on one host",
        (nodes("h2", "missing_node", "during the all-reduce"), run("rank_died", "was lost")),
        variables={1: {"FAULT": "first:stop"}},
        when={2: ("all-reduce across the nodes", signal.SIGKILL)},
        torch=True,
        stall=20,
    ),
    Row(
        "netdoctor is stopped on the master",
        (nodes("h0", "missing_node", "silent"), run("rank_died", "node 0 (h0) was lost: was silent")),
        when={0: ("all-reduce across the nodes", signal.SIGSTOP)},
        torch=True,
        stall=5,
    ),
    Row(
        "two versions of netdoctor",
        (nodes("h2, netdoctor", "drift"),),
        (
            (2, "mkdir /run/other; cp -rL ROOT/netdoctor /run/other"),
            (2, "sed -i 's/^__version__.*/__version__ = \"0.0.1\"/' /run/other/netdoctor/__init__.py"),
        ),
        {2: {"PYTHONPATH": "/run/other"}},
    ),
)
ROWS: Final = (*MEETING, *INTERFACES, *PATH, *PORT_ROWS, *RANKS)
