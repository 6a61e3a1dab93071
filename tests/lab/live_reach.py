"""Live faults of the way to another host, which is a network namespace at the other end of the cable."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.lab.row import IFNAME, REACH, Row
from tests.support.namespaces.dgx import Scene

# The other end of what is below eth0 goes into a namespace of its own, which ends by itself.
OTHER: Final = """unshare --net sleep 15 >/dev/null 2>&1 &
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
    between("a blackhole route to the peer", "ip route add blackhole 10.0.0.9/32", "unknown"),
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
