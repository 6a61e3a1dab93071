"""Live faults of the way to another host, which is a network namespace at the other end of the cable."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.lab.row import IFNAME, REACH, Row
from tests.support.namespaces.dgx import Scene

# The other end of what is below eth0 goes into a namespace of its own, which ends by itself.
OTHER: Final = """unshare --net sleep 60 >/dev/null 2>&1 &
other=$!; sleep 0.3; ip link set low0p netns $other
there() { nsenter --target $other --net "$@"; }
there ip addr add 10.0.0.9/24 dev low0p; there ip link set low0p up
"""
PEERS: Final = "{job: {nodes: 2}, expected: {gpus: 8, hcas: 8, peers: [10.0.0.9]}}"
HEALTHY: Final = Scene(setup=OTHER, config=PEERS)
MANY: Final = "{job: {nodes: 200}, expected: {gpus: 8, hcas: 8}}"
# A namespace does not show the machine's tables.
TABLE: Final = """mount -t tmpfs neigh /proc/sys/net/ipv4/neigh
mkdir /proc/sys/net/ipv4/neigh/default; echo {} > /proc/sys/net/ipv4/neigh/default/gc_thresh3"""
TABLES: Final = f"""ip addr add fd00::7/64 dev eth0 nodad
{TABLE.format(1024)}
{TABLE.replace("ipv4", "ipv6")}"""
BY_SIX: Final = Scene(config=MANY, env={"NCCL_IB_ADDR_FAMILY": "AF_INET6"})


def between(fault: str, setup: str, says: str, needs: tuple[str, ...] = ()) -> Row:
    return Row(fault, replace(HEALTHY, setup=OTHER + setup), {REACH: says}, {IFNAME: "the peer"}, HEALTHY, needs=needs)


REJECT: Final = "there iptables -A INPUT -p tcp --dport {} -j REJECT --reject-with icmp-{}-prohibited"
NODE_0: Final = replace(
    HEALTHY,
    config="{expected: {gpus: 8, hcas: 8}}",
    env={
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "16",
        "RANK": "8",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "8",
    },
)
NAMED: Final = replace(
    NODE_0, hosts=f"{HEALTHY.hosts}fd00:15::9 node0\n10.0.0.9 node0\n", env={**NODE_0.env, "MASTER_ADDR": "node0"}
)
LISTENS: Final = """there timeout 60 python3 -c 'import socket, time; s = socket.create_server(("", 29500)); time.sleep(60)' &
sleep 0.5"""
DEAD_FIRST: Final = "ip -6 addr add fd00:15::7/64 dev eth0 nodad"
DROP: Final = "there iptables -A INPUT -m length --length {}:65535 -j DROP"
REACH_ROWS: Final = (
    between("full packets vanish on the way", DROP.format(1400), "fail mtu", ("iptables",)),
    between(
        "jumbo frames vanish on the way",
        f"ip link set low0 mtu 9000; ip link set eth0 mtu 9000; {DROP.format(8000)}",
        "fail mtu",
        ("iptables",),
    ),
    between("the other end has a smaller MTU", "there ip link set low0p mtu 1200", "fail mtu"),
    between("nobody has the peer's address", "there ip addr del 10.0.0.9/24 dev low0p", "fail firewall_connect"),
    between("the peer drops echoes", "there iptables -A INPUT -p icmp -j DROP", "unknown: does not answer", ("iptables",)),
    *(
        Row(
            f"a {kind} route to the peer",
            replace(HEALTHY, setup=f"{OTHER}ip route add {kind} 10.0.0.9/32"),
            {IFNAME: "fail socket_ifname", REACH: "unknown: no route to one is known"},
            base=HEALTHY,
        )
        for kind in ("blackhole", "prohibit", "unreachable")
    ),
    Row(
        "the peer's firewall rejects the port that was asked, alone",
        replace(HEALTHY, setup=OTHER + REJECT.format("22", "host"), config=PEERS.replace("10.0.0.9", '"10.0.0.9:22"')),
        {IFNAME: "unknown: whether it passes the job's ports"},
        base=HEALTHY,
        needs=("iptables",),
    ),
    Row(
        "node 0's firewall rejects the job's port",
        replace(NODE_0, setup=OTHER + REJECT.format("29500", "admin")),
        {IFNAME: "fail firewall_connect"},
        base=replace(NODE_0, setup=OTHER + LISTENS),
        needs=("iptables",),
    ),
    Row(
        "the first address of node 0 is dead, the second answers",
        replace(NAMED, setup=f"{OTHER}{LISTENS}\n{DEAD_FIRST}"),
        base=replace(NODE_0, setup=OTHER + LISTENS),
    ),
    Row(
        "no address of node 0 answers",
        replace(NAMED, setup=f"{OTHER}{DEAD_FIRST}\nthere ip addr del 10.0.0.9/24 dev low0p"),
        {REACH: "fail firewall_connect", IFNAME: "unknown: did not answer within a second"},
        base=replace(NODE_0, setup=OTHER + LISTENS),
    ),
    Row(
        "IPv6 alone is asked for, and the peer has none",
        replace(HEALTHY, env={"NCCL_SOCKET_FAMILY": "AF_INET6"}),
        {REACH: "fail firewall_connect"},
        {IFNAME: "no IPv6 here", "nccl.environment": "the variable", "net.tcp_buffers": "no interface"},
        HEALTHY,
    ),
    Row(
        "more nodes than the kernel keeps neighbours",
        Scene(config=MANY, setup=TABLE.format(128)),
        {REACH: "fail firewall_connect"},
        base=Scene(config=MANY, setup=TABLE.format(1024)),
    ),
    Row(
        "more nodes than the kernel keeps neighbours of IPv6",
        replace(BY_SIX, setup=TABLES.format(128)),
        {REACH: "fail firewall_connect"},
        base=replace(BY_SIX, setup=TABLES.format(1024)),
    ),
)
