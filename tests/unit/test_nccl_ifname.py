"""NCCL's interface choice, emulated; tests/live/test_nccl_choice.py holds it against real libraries."""

import pytest

from netdoctor.facts.net import Link
from netdoctor.model import Unavailable
from netdoctor.nccl.ifname import Pick, choose, comm_id_address
from tests.support.facts import address, netlink_link

OLD, NEW, BUGGY = (2, 27, 7), (2, 28, 9), (2, 29, 7)
LO = netlink_link("lo", 1, "127.0.0.1", "::1")
ETH0 = netlink_link("eth0", 2, "10.0.0.7", "fe80::7")
ETH1 = netlink_link("eth1", 3, "10.1.0.7")
DOCKER0 = netlink_link("docker0", 4, "172.17.0.1", kind="bridge")
VIRBR0 = netlink_link("virbr0", 2, "192.168.122.1", kind="bridge")
BR = netlink_link("br-1a2b", 2, "172.18.0.1", kind="bridge")
IB = netlink_link("ibp65s0", 9, "10.9.0.7")
DOWN = netlink_link("eth0", 2, "10.0.0.7", running=False, up=False)
V6 = netlink_link("eth0", 2, "fd00::7", "fe80::7")


def names(links: tuple[Link, ...], version: tuple[int, int, int], purpose: str = "bootstrap", **variables: str) -> list[str]:
    got = choose(links, version, variables, purpose)
    assert not isinstance(got, Unavailable)
    return [one.interface for one in got]


@pytest.mark.parametrize(
    ("links", "old", "new"),
    [
        ((LO,), ["lo"], ["lo"]),
        ((LO, ETH0, DOCKER0), ["eth0"], ["eth0"]),
        ((LO, DOCKER0), ["docker0"], ["docker0"]),
        ((LO, VIRBR0, ETH1), ["virbr0"], ["eth1"]),
        ((LO, VIRBR0), ["virbr0"], ["lo"]),
        ((VIRBR0,), ["virbr0"], ["virbr0"]),
        ((LO, BR, ETH1), ["br-1a2b"], ["br-1a2b"]),
        ((LO, ETH0, IB), ["ibp65s0"], ["ibp65s0"]),
        ((LO, DOWN, ETH1), ["eth0"], ["eth1"]),
        ((LO, V6), ["eth0"], ["eth0"]),
        ((LO, netlink_link("eth0", 2)), ["lo"], ["lo"]),
        ((), [], []),
    ],
)
def test_nothing_set(links: tuple[Link, ...], old: list[str], new: list[str]) -> None:
    assert names(links, OLD) == old
    assert names(links, NEW) == new


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("eth1", ["eth1"]),
        ("eth", ["eth0"]),
        ("=eth", []),
        ("=eth1", ["eth1"]),
        ("nosuch", []),
        ("eth9,docker", ["docker0"]),
        ("eth9, docker", []),
        ("^docker", ["lo"]),
        ("^lo,eth", ["docker0"]),
        ("^=eth0,lo", ["eth1"]),
        ("x", ["eth0"]),  # a single character is ignored
        ("", ["eth0"]),
        ("eth1:5", ["eth1"]),
    ],
)
def test_named_interfaces_are_found_or_nothing(value: str, taken: list[str]) -> None:
    assert names((LO, ETH0, ETH1, DOCKER0), OLD, NCCL_SOCKET_IFNAME=value) == taken


def test_sockets_take_all_of_the_first_class() -> None:
    assert names((LO, ETH0, ETH1, DOCKER0), OLD, "socket") == ["eth0", "eth1"]
    many = tuple(netlink_link(f"eth{i}", i + 2, f"10.{i}.0.7") for i in range(20))
    assert names(many, OLD, "socket") == [f"eth{i}" for i in range(16)]


def test_ipv4_comes_before_ipv6_of_an_earlier_interface() -> None:
    early = netlink_link("eth0", 2, "fd00::7")
    assert choose((LO, early, ETH1), OLD, {}) == (Pick("eth1", "10.1.0.7"),)
    assert choose((LO, early, ETH1), OLD, {"NCCL_SOCKET_FAMILY": "AF_INET6"}) == (Pick("eth0", "fd00::7"),)
    assert choose((LO, early, ETH1), OLD, {"NCCL_SOCKET_FAMILY": "inet6"}) == (Pick("eth1", "10.1.0.7"),)


def test_the_loopback_of_ipv6_is_passed_over() -> None:
    assert choose((LO,), OLD, {"NCCL_SOCKET_FAMILY": "AF_INET6"}) == ()


def test_an_alias_is_an_interface_of_its_own() -> None:
    both = netlink_link("eth0", 2, addresses=(address("10.0.0.7", label="eth0"), address("10.5.0.7", label="eth0:1")))
    assert names((LO, both), OLD, "socket") == ["eth0", "eth0:1"]


def test_comm_id_comes_before_the_name_in_the_bootstrap() -> None:
    links = (LO, ETH0, ETH1)
    assert names(links, OLD, NCCL_COMM_ID="10.1.0.1:4000", NCCL_SOCKET_IFNAME="eth0") == ["eth1"]
    assert names(links, OLD, "socket", NCCL_COMM_ID="10.1.0.1:4000", NCCL_SOCKET_IFNAME="eth0") == ["eth0"]
    assert names(links, OLD, "socket", NCCL_COMM_ID="10.1.0.1:4000") == ["eth1"]
    assert names(links, OLD, NCCL_COMM_ID="192.0.2.1:4000") == []
    assert names(links, OLD, "socket", NCCL_COMM_ID="192.0.2.1:4000") == ["eth0", "eth1"]


def test_comm_id_is_compared_the_wrong_way_round_in_2_29() -> None:
    assert names((LO, ETH0, ETH1), BUGGY, NCCL_COMM_ID="10.1.0.1:4000") == ["lo"]
    assert names((LO, ETH0, ETH1), (2, 30, 3), NCCL_COMM_ID="10.1.0.1:4000") == ["eth1"]
    assert names((LO, V6), BUGGY, NCCL_COMM_ID="[fd00::1]:4000") == ["eth0"]


def test_comm_id_of_a_link_local_address_needs_its_scope() -> None:
    assert names((LO, V6), OLD, NCCL_COMM_ID="[fe80::1%eth0]:4000") == ["eth0"]
    assert names((LO, V6), OLD, NCCL_COMM_ID="[fe80::1]:4000") == []


@pytest.mark.parametrize(("value", "kind"), [("node0:4000", "not read"), ("bad", "malformed"), ("[zz]:1", "malformed")])
def test_a_comm_id_that_is_no_address_leaves_the_choice_open(value: str, kind: str) -> None:
    got = choose((LO, ETH0), OLD, {"NCCL_COMM_ID": value})
    assert isinstance(got, Unavailable) and got.kind == kind
    assert isinstance(comm_id_address(value), Unavailable)
