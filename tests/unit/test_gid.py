"""Which GID of a RoCE port NCCL takes, by its own rule (src/transport/net_ib, ncclUpdateGidIndex)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.facts.environ import Environ
from netdoctor.facts.rdma_ports import Gid
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.gid import Rail, Wish, not_its_address, wishes
from tests.support import facts as f

V1, V2 = "IB/RoCE v1", "RoCE v2"
LOCAL, LATER = "fe80:0000:0000:0000:0056:a1ff:fe51:18d1", "2001:0db8:0000:0000:0000:0000:0000:0007"
IPV4, OTHER = "0000:0000:0000:0000:0000:ffff:0a02:020c", "0000:0000:0000:0000:0000:ffff:0a03:020c"
NOW, BEFORE = (2, 27, 5), (2, 20, 5)
ALL: tuple[str, ...] = (LOCAL, LOCAL, IPV4, IPV4)


def table(*values: str) -> tuple[Gid, ...]:
    """v1 and v2 in turn, as the kernel makes it; "" is an empty entry."""
    return tuple(Gid(n, value, (V1, V2)[n % 2], "eth1") for n, value in enumerate(values) if value)


def environ(**variables: str) -> Environ:
    return f.environ(variables) if variables else f.environ({})


@pytest.mark.parametrize(
    ("entries", "version", "variables", "index"),
    [
        (table(*ALL), NOW, {}, 3),
        (table(*ALL), BEFORE, {}, 0),
        (table(*ALL, OTHER, OTHER), NOW, {}, 3),
        (table(*ALL, OTHER, OTHER), NOW, {"NCCL_IB_ADDR_RANGE": "10.3.0.0/16"}, 5),
        (table(*ALL), NOW, {"NCCL_IB_ADDR_RANGE": "10.9.0.0/16"}, 0),
        (table(*ALL, OTHER, OTHER), NOW, {"NCCL_IB_ADDR_RANGE": "10.3"}, 3),
        (table(*ALL, LATER, LATER), NOW, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 5),
        (table(*ALL), NOW, {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}, 0),
        (table(*ALL), NOW, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, 2),
        (table(LOCAL, LOCAL), NOW, {}, 0),
        (table("", "", IPV4), NOW, {}, 2),
        (table(*ALL), NOW, {"NCCL_IB_GID_INDEX": "1"}, 1),
        (table(*ALL), NOW, {"NCCL_IB_GID_INDEX": "-1"}, 3),
        (table(*ALL), BEFORE, {"NCCL_IB_GID_INDEX": "7"}, 7),
    ],
)
def test_the_index_that_is_taken(
    entries: tuple[Gid, ...], version: tuple[int, int, int], variables: dict[str, str], index: int
) -> None:
    found = wishes(environ(**variables), version)
    assert not isinstance(found, Unavailable)
    assert [wish.takes(entries) for wish in found] == [index]


def test_a_version_that_is_not_known_may_do_either() -> None:
    lost = Unavailable(Kind.NOT_READ)
    found = wishes(environ(), lost)
    assert {wish.takes(table(*ALL)) for wish in found or ()} == {0, 3}
    assert {wish.takes(table(*ALL)) for wish in wishes(environ(NCCL_IB_GID_INDEX="3"), lost) or ()} == {3}


def test_a_kind_that_could_not_be_read() -> None:
    denied, invalid = (Unavailable(kind, "types/3") for kind in (Kind.DENIED, Kind.FAILED))
    entries = table(*ALL)
    assert Wish(None).takes((*entries[:3], replace(entries[3], kind=denied))) == denied
    assert Wish(None).takes((*entries[:3], replace(entries[3], kind=invalid))) == 2  # EINVAL: NCCL goes on to the next


@pytest.mark.parametrize(
    ("addresses", "foreign"), [(("10.2.2.12",), False), (("10.9.9.9",), True), (("fe80::1",), False), ((), False)]
)
def test_an_interface_of_the_same_name_in_another_namespace(addresses: tuple[str, ...], foreign: bool) -> None:
    assert not_its_address(taken(3, ALL), f.net(f.netlink_link("eth1", 2, *addresses))) is foreign


def taken(index: int, values: tuple[str, ...]) -> Rail:
    device = f.hca(0)
    return Rail(device, (device.ports or ())[0], index, table(*values)[index], False)


@pytest.mark.parametrize(
    ("index", "kind", "addresses", "foreign"),
    [
        (5, None, ("2001:db8::7", "fe80::1"), False),
        (5, None, ("2001:db8::8", "fe80::1"), True),
        (5, None, ("10.0.0.1", "fe80::1"), False),  # none of its family was read: an address that comes later
        (1, None, ("fe80::1",), False),  # many interfaces have one of these
        (5, "veth", ("10.42.0.9", "fe80::5c"), True),  # a pod's eth0, and the host's is below the port
        (1, "veth", ("10.42.0.9", "fe80::5c"), True),
        (5, "veth", ("2001:db8::7",), False),  # rxe over a veth
    ],
)
def test_a_name_that_two_namespaces_have(index: int, kind: str | None, addresses: tuple[str, ...], foreign: bool) -> None:
    link = f.netlink_link("eth1", 2, *addresses, kind=kind)
    assert not_its_address(taken(index, (*ALL, LATER, LATER)), f.net(link)) is foreign
