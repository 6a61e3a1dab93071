"""rdma.gid: rails of one subnet, of which strict rp_filter lets one alone hear ARP.

Two network namespaces with two veths each on one bridge show it: rp_filter 1 and arp_ignore 1 leave the second rail's neighbour
incomplete.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

import pytest

from netdoctor.facts.flat_rails import _beside
from netdoctor.host.base import question
from netdoctor.model import Finding, Kind, Status, Unavailable
from tests.support.machines.composed import Composed

EACH = (True,) * 8
FLAT = {f"hcas.{n}.address": f"10.10.{4 + n}.17/16" for n in range(8)}
NETDEVS = tuple(f"enp{bus}s0np0" for bus in (24, 64, 79, 94, 154, 192, 206, 220))
TITLE = "IP address       HW type     Flags       HW address            Mask     Device\n"


def arp(ip: str, flags: str = "0x0", device: str = NETDEVS[5]) -> str:
    return f"{TITLE}{ip:<16} 0x1         {flags:<11} 00:00:00:00:00:00     *        {device}\n"


def said(
    table: str | Unavailable = TITLE,
    hears: Sequence[object] | Unavailable = (True, *(False,) * 7),
    changes: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> Finding | None:
    made = {**(FLAT if changes is None else changes), **({"host.environment": environment} if environment else {})}
    machine = Composed("hgx-h100-roce", made, {"job.nodes": 2, "vantage": "job", **(config or {})})
    if isinstance(table, Unavailable):
        machine.files.errors["/proc/net/arp"] = table
    else:
        machine.files.write("/proc/net/arp", table)
    asked = [f"10.10.{4 + n}.17/10.10.{4 + n}.16/{name}" for n, name in enumerate(NETDEVS)]
    rows = {} if isinstance(hears, Unavailable) else dict(zip(asked, hears, strict=False))
    machine.host.answers[question("netlink", heard=",".join(asked))] = (
        hears if isinstance(hears, Unavailable) else {"heard": rows}
    )
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
        ({"table": arp("10.10.4.23", flags="0x6")}, Status.UNKNOWN),  # ip neigh replace … nud permanent
        ({"table": arp("10.10.4.23", flags="0x6", device="bond0")}, Status.FAIL),
        ({"table": Unavailable(Kind.DENIED, "EACCES")}, Status.UNKNOWN),
        ({"environment": {"NCCL_IB_HCA": "=mlx5_0"}}, Status.UNKNOWN),  # the first answers
        ({"table": arp("10.10.4.23"), "hears": EACH}, None),  # loose, rules, ranges, several next hops: the kernel says
        ({"hears": (*EACH[:7], False)}, Status.FAIL),  # the last one lacks a rule
        ({"environment": {"NCCL_IB_HCA": "=mlx5_5"}}, Status.FAIL),  # a single one, which hears nothing
        ({"hears": Unavailable(Kind.DENIED, "netlink")}, Status.UNKNOWN),
        ({"hears": Unavailable(Kind.NOT_RECORDED)}, None),  # an older recording
        ({"hears": EACH[:7]}, Status.UNKNOWN),  # not all of them were answered
        ({"hears": (*EACH[:7], {"error": "ENODEV"})}, Status.UNKNOWN),
        ({"hears": (*EACH[:7], "yes")}, Status.UNKNOWN),
        ({"table": arp("10.2.1.13"), "changes": {}}, None),  # a subnet for each rail
        ({"table": arp("10.10.4.23"), "config": {"job.nodes": 1}}, None),
    ],
)
def test_what_else_holds(more: dict[str, Any], status: Status | None) -> None:
    one = said(**more)
    assert (one and one.status) == status


def test_the_rails_that_hear_nothing_are_named() -> None:
    one, every = said(hears=(*EACH[:6], False, False)), said()
    assert one and one.message.endswith(f"that comes in on {NETDEVS[6]}, {NETDEVS[7]}")
    assert one.evidence["rails"] == sorted(NETDEVS[6:])
    assert every and every.message.endswith("that comes in on any but the first")
    first = said(hears=(*(False,) * 7, True))
    assert first and first.message.endswith(f"{NETDEVS[5]}, {NETDEVS[6]}")


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
