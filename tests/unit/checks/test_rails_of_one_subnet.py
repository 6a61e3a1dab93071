"""rdma.gid: rails of one subnet, of which strict rp_filter lets one alone hear ARP.

Two network namespaces with two veths each on one bridge show it: rp_filter 1 and arp_ignore 1 leave the second rail's neighbour
incomplete.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from netdoctor.facts.flat_rails import _beside, _leads_by
from netdoctor.host.base import question
from netdoctor.model import Finding, Kind, Status, Unavailable
from tests.support.machines.composed import Composed

FLAT = {f"hcas.{n}.address": f"10.10.{4 + n}.17/16" for n in range(8)}
NETDEVS = tuple(f"enp{bus}s0np0" for bus in (24, 64, 79, 94, 154, 192, 206, 220))
TITLE = "IP address       HW type     Flags       HW address            Mask     Device\n"


def arp(ip: str, flags: str = "0x0", device: str = NETDEVS[5]) -> str:
    return f"{TITLE}{ip:<16} 0x1         {flags:<11} 00:00:00:00:00:00     *        {device}\n"


def said(
    table: str | Unavailable = TITLE,
    every: int = 1,
    each: int = 0,
    sources: tuple[str, ...] | Unavailable = (),
    changes: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    ways: tuple[str, ...] | Unavailable = NETDEVS[:1] * 8,
) -> Finding | None:
    made = {**(FLAT if changes is None else changes), **({"host.environment": environment} if environment else {})}
    machine = Composed("hgx-h100-roce", made, {"job.nodes": 2, "vantage": "job", **(config or {})})
    for name, number in {"all": every, **dict.fromkeys(NETDEVS, each)}.items():
        machine.files.write(f"/proc/sys/net/ipv4/conf/{name}/rp_filter", f"{number}\n")
    if isinstance(table, Unavailable):
        machine.files.errors["/proc/net/arp"] = table
    else:
        machine.files.write("/proc/net/arp", table)
    beside = [f"10.10.{4 + n}.16" for n in range(8)]
    by = () if isinstance(ways, Unavailable) else ways
    rows = {ip: {"main": {"oif": name, "kind": "unicast"}, "via": list(NETDEVS)} for ip, name in zip(beside, by, strict=False)}
    asked = question("netlink", routes=",".join(beside))
    machine.host.answers[asked] = ways if isinstance(ways, Unavailable) else {"routes": rows}
    machine.host.answers["ask:netlink?rules=4"] = sources if isinstance(sources, Unavailable) else {"sources": list(sources)}
    found = machine.judged("rdma.gid")
    return next((one for one in found if one.subject == "rails of one subnet"), None)


def test_a_neighbour_that_did_not_answer_shows_it() -> None:
    one = said(arp("10.10.4.23"))
    assert one is not None
    assert (one.status, str(one.severity), one.measured) == ("fail", "warning", {"unanswered": ["10.10.4.23"]})
    assert one.message.startswith("8 rails are in 10.10.0.0/16, and strict rp_filter drops the ARP")


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, Status.FAIL),  # that nobody was asked yet mends nothing
        ({"table": arp("10.10.4.23", flags="0x2")}, Status.FAIL),
        ({"table": arp("10.0.4.1", device="bond0")}, Status.FAIL),
        ({"every": 0, "each": 1}, Status.FAIL),  # the larger of both holds
        ({"table": arp("10.10.4.23", flags="0x6")}, Status.UNKNOWN),  # ip neigh replace … nud permanent
        ({"table": arp("10.10.4.23", flags="0x6", device="bond0")}, Status.FAIL),
        ({"table": Unavailable(Kind.DENIED, "EACCES")}, Status.UNKNOWN),
        ({"environment": {"NCCL_IB_HCA": "=mlx5_0"}}, Status.UNKNOWN),  # the first answers
        ({"table": arp("10.10.4.23"), "every": 2}, None),  # loose
        ({"table": arp("10.10.4.23"), "each": 2}, None),
        ({"table": arp("10.10.4.23"), "every": 0}, None),
        ({"table": arp("10.10.4.23"), "sources": tuple(f"10.10.{4 + n}.17/32" for n in range(8))}, None),
        ({"table": arp("10.10.4.23"), "sources": tuple(f"10.10.{4 + n}.17/32" for n in range(4))}, Status.FAIL),
        ({"sources": Unavailable(Kind.DENIED, "netlink")}, Status.UNKNOWN),
        ({"ways": NETDEVS}, None),  # each rail has a range of the subnet, and a route to it
        ({"ways": NETDEVS[:4] * 2}, Status.FAIL),  # four of them have
        ({"sources": tuple(f"10.10.{4 + n}.17/32" for n in range(7))}, Status.FAIL),  # the last one lacks a rule
        ({"environment": {"NCCL_IB_HCA": "=mlx5_5"}}, Status.FAIL),  # a single one, which hears nothing
        ({"ways": Unavailable(Kind.DENIED, "netlink")}, Status.UNKNOWN),
        ({"ways": Unavailable(Kind.NOT_RECORDED)}, None),  # an older recording
        ({"ways": NETDEVS[:3]}, Status.UNKNOWN),  # not all of them were answered
        ({"ways": Unavailable(Kind.DENIED, "netlink"), "every": 2}, None),  # nor needed
        ({"table": arp("10.2.1.13"), "changes": {}}, None),  # a subnet for each rail
        ({"table": arp("10.10.4.23"), "config": {"job.nodes": 1}}, None),
    ],
)
def test_what_else_holds(more: dict[str, Any], status: Status | None) -> None:
    one = said(**more)
    assert (one and one.status) == status


def test_the_rails_that_hear_nothing_are_named() -> None:
    one, every = said(sources=tuple(f"10.10.{4 + n}.17/32" for n in range(6))), said()
    assert one and one.message.endswith(f"that comes in on {NETDEVS[6]}, {NETDEVS[7]}")
    assert one.evidence["rails"] == sorted(NETDEVS[6:])
    assert every and every.message.endswith("that comes in on any but the first")


@pytest.mark.parametrize(
    ("ip", "network", "own", "beside"),
    [
        ("10.5.0.12", "10.5.0.0/24", [], "10.5.0.13"),
        ("10.5.0.12", "10.5.0.0/24", ["10.5.0.13"], "10.5.0.14"),  # another rail's
        ("10.5.0.1", "10.5.0.0/24", [], "10.5.0.3"),  # 10.5.0.0 is the network
        ("10.5.0.254", "10.5.0.0/24", [], "10.5.0.252"),  # 10.5.0.255 is for all of it
        ("10.5.0.1", "10.5.0.0/30", ["10.5.0.2"], ""),
    ],
)
def test_an_address_beside_a_rails_own(ip: str, network: str, own: list[str], beside: str) -> None:
    assert _beside(ip, IPv4Network(network), [ip, *own]) == beside


@pytest.mark.parametrize(
    ("row", "leads"),
    [
        ({"main": {"oif": "a", "kind": "unicast"}}, True),
        ({"main": {"oif": "b", "kind": "unicast"}}, False),
        ({"main": {"error": "ENETUNREACH"}}, False),  # no way back at all
        ({"main": {"error": "EIO"}}, Kind.FAILED),
        ({"main": {}}, Kind.MALFORMED),
        (None, Kind.MALFORMED),
        (Unavailable(Kind.DENIED), Kind.DENIED),
    ],
)
def test_where_the_way_back_leads(row: Any, leads: object) -> None:
    found = _leads_by("a", "10.5.0.13", {"10.5.0.13": row})
    assert (found.kind if isinstance(found, Unavailable) else found) == leads
