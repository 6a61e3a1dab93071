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
for line in sys.argv[1:]:
    sh(line.replace('there', there))
try:
    say(answer({'to': '10.0.0.9/1500', 'seconds': '3.5'})['paths']['10.0.0.9'])
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
    told = netlab.run(PROGRAM, *lines)
    assert (told["full"], told["error"]) == (full, error)
