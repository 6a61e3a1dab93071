"""netdoctor/host/helpers/reach.py against another network namespace that answers, refuses, or is not there."""

from __future__ import annotations

import shutil

import pytest

from tests.support.namespaces import netlab

pytestmark = [pytest.mark.live, pytest.mark.root]

PROGRAM = """
from netdoctor.host.helpers.reach import answer
sh('ip link set lo up', 'ip link add eth0 type veth peer name far')
other = subprocess.Popen(["unshare", "--net", sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
                         stdout=subprocess.PIPE)
other.stdout.readline()
there = f"nsenter --target {other.pid} --net"
sh(f'ip link set far netns {other.pid}', f'{there} ip addr add 10.0.0.9/24 dev far', f'{there} ip link set far up')
give('eth0', '10.0.0.7/24'); sh('ip link set eth0 up')
SIZE = int(sys.argv[1])
for line in sys.argv[2:]:
    sh(line.replace('there', there))
try:
    say(answer({'to': f'10.0.0.9/{SIZE}', 'seconds': '3.5'})['paths']['10.0.0.9'])
finally:
    other.kill()
"""
REJECT = "there iptables -A INPUT -p icmp -j REJECT --reject-with icmp-"


@pytest.mark.parametrize(
    ("lines", "full", "error"),
    [
        ((), True, None),
        (("there iptables -A INPUT -p icmp -j DROP",), False, None),
        (("there ip addr del 10.0.0.9/24 dev far",), False, "EHOSTUNREACH"),  # nobody answers for it
        # A firewall that says no is none of those: the host is there.
        ((f"{REJECT}host-prohibited",), False, "EACCES"),
        ((f"{REJECT}net-prohibited",), False, "EACCES"),
        ((f"{REJECT}admin-prohibited",), False, "EACCES"),
        ((f"{REJECT}host-unreachable",), False, "EACCES"),  # by the host itself
        ((f"{REJECT}port-unreachable",), False, "ECONNREFUSED"),
        (("iptables -A OUTPUT -p icmp -j DROP",), False, "EPERM"),
        (("ip route add prohibit 10.0.0.9/32",), False, "EACCES"),
        (("ip route add unreachable 10.0.0.9/32",), False, "EHOSTUNREACH"),
    ],
)
def test_what_comes_back(lines: tuple[str, ...], full: bool, error: str | None) -> None:
    if any("iptables" in line for line in lines) and not shutil.which("iptables"):
        pytest.skip("needs iptables")
    told = netlab.run(PROGRAM, "1500", *lines)
    assert (told["full"], told["error"]) == (full, error)


JUMBO = ("ip link set eth0 mtu 9000", "there ip link set far mtu 9000")
# A router that says nothing of what its second link does not take, on the way to a host beyond that.
ROUTER = """
third = subprocess.Popen(["unshare", "--net", sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
                         stdout=subprocess.PIPE)
third.stdout.readline()
end = f"nsenter --target {third.pid} --net"
for line in ['ip link set eth0 mtu 9000', 'there ip link set far mtu 9000', 'there ip addr del 10.0.0.9/24 dev far',
             'there ip addr add 10.0.0.1/24 dev far', 'there ip link add r1 mtu 1400 type veth peer name r2 mtu BEYOND',
             f'there ip link set r2 netns {third.pid}', 'there ip addr add 10.1.0.1/24 dev r1', 'there ip link set r1 up',
             'there sysctl -q -w net.ipv4.ip_forward=1', 'there iptables -A OUTPUT -p icmp --icmp-type 3 -j DROP',
             'end ip addr add 10.0.0.9/32 dev lo', 'end ip link set lo up', 'end ip addr add 10.1.0.9/24 dev r2',
             'end ip link set r2 up', 'end ip route add default via 10.1.0.1', 'there ip route add 10.0.0.9/32 via 10.1.0.9',
             'ip route add 10.0.0.9/32 via 10.0.0.1']:
    sh(line.replace('there', there).replace('end', end))
SIZE = """


@pytest.mark.parametrize(
    ("lines", "pieces"),
    [
        (JUMBO, None),  # nothing vanishes
        (JUMBO[:1], 1500),
        ((JUMBO[0], "there ip link set far mtu 4000"), 3996),  # pieces are multiples of eight bytes
        ((*JUMBO, "there iptables -A INPUT -m length --length 8000:65535 -j DROP"), 0),
        ((*JUMBO, "there iptables -t raw -A PREROUTING -m length --length 8000:65535 -j DROP"), 9000),  # one way
        (
            (
                *JUMBO,
                "there iptables -t raw -A PREROUTING -m length --length 8000:65535 -j DROP",
                "there iptables -t raw -A PREROUTING -f -j DROP",
            ),
            None,
        ),
    ],
)
def test_pieces_tell_whose_mtu_it_is(lines: tuple[str, ...], pieces: int | None) -> None:
    if any("iptables" in line for line in lines) and not shutil.which("iptables"):
        pytest.skip("needs iptables")
    assert netlab.run(PROGRAM, "9000", *lines)["pieces"] == pieces


@pytest.mark.parametrize(("beyond", "pieces"), [("9000", 0), ("1400", None)])
def test_pieces_of_a_way_with_a_router(beyond: str, pieces: int | None) -> None:
    """That the answer came in pieces says nothing then: a router may have made them."""
    if not shutil.which("iptables"):
        pytest.skip("needs iptables")
    program = PROGRAM.replace("SIZE = ", ROUTER.replace("BEYOND", beyond), 1).replace(
        "other.kill()", "other.kill(); third.kill()"
    )
    told = netlab.run(program, "9000")
    assert (told["small"], told["full"], told["told"], told["pieces"]) == (True, False, None, pieces)
