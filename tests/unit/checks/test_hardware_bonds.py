"""A bond is as whole as the ports that it was given, where it spreads what it carries."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from netdoctor.checks import hardware_links, hardware_rails
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.net import Link, Net, Route
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline
from netdoctor.host.helpers import netlink
from netdoctor.model import Finding, Severity, Status, Unavailable
from tests.support import facts as f

WHOLE: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
LACP, ACTIVE_BACKUP, BROADCAST = 4, 1, 3
BONDS = {
    "whole": (LACP, WHOLE, Status.PASS),
    "a port without a carrier": (LACP, ({}, {"running": False}), Status.FAIL),
    "a port taken down": (0, ({"up": False}, {}), Status.FAIL),
    "a port in no active aggregator": (LACP, ({}, {"backup": True}), Status.FAIL),
    "one that waits": (ACTIVE_BACKUP, ({}, {"backup": True}), Status.PASS),
    "one that is dead and would wait": (ACTIVE_BACKUP, ({}, {"backup": True, "running": False}), Status.PASS),
    "all is sent twice": (BROADCAST, ({}, {"running": False}), Status.PASS),
    "the kernel tells no mode": (None, ({}, {"running": False}), Status.PASS),
}


def bond(name: str, index: int, mode: int | None, ports: tuple[dict[str, Any], dict[str, Any]], *ips: str) -> tuple[Link, ...]:
    made = f.netlink_link(name, index, *ips, kind="bond", bond_mode=mode, speed_mbps=50000)
    own = (f.netlink_link(f"{name}p{n}", index + 1 + n, controller=index, **ports[n]) for n in range(2))
    return (made, *own)


def found(check: Any, changes: dict[type, object]) -> dict[str | None, Finding]:
    return {one.subject: one for one in f.judge(check, f.machine(changes))}


@pytest.mark.parametrize(("mode", "ports", "status"), BONDS.values(), ids=BONDS)
def test_bond_of_sockets(mode: int | None, ports: tuple[dict[str, Any], dict[str, Any]], status: Status) -> None:
    out = Route("bond0")
    links = (f.netlink_link("lo", 1, "127.0.0.1"), *bond("bond0", 2, mode, ports, "10.0.0.7"))
    seen: dict[type, object] = {
        Net: f.net(*links, default_route=out),
        Rdma: f.rdma(devices=()),
        Pci: f.pci(devices=tuple(f.gpu_device(n) for n in range(8))),
        Intent: f.job(nodes=2),
    }
    told = found(hardware_links.links, seen)
    assert {one.status for one in told.values()} - {Status.SKIP} <= {status}
    if status is Status.FAIL:
        loss = told["bond0"].loss
        assert loss is not None and loss.severity is Severity.CRITICAL and loss.share == 0.5
    else:
        assert "bond0" not in told
    elsewhere = {**seen, Net: f.net(*links, f.netlink_link("eth9", 9, "10.9.0.7"), default_route=Route("eth9"))}
    assert "bond0" not in found(hardware_links.links, elsewhere)


@pytest.mark.parametrize(
    ("variables", "whole", "status"),
    [
        ({"NCCL_IB_DISABLE": "1"}, False, Status.FAIL),
        ({"NCCL_NET": "Socket"}, False, Status.FAIL),
        ({"NCCL_IB_DISABLE": "1"}, True, None),
        ({"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth9"}, False, None),  # which does not take the bond
        ({}, False, None),  # the rails carry it
    ],
)
def test_half_a_bond_beside_rails_that_carry_nothing(variables: dict[str, str], whole: bool, status: Status | None) -> None:
    ports = WHOLE if whole else ({}, {"running": False})
    links = (f.netlink_link("lo", 1, "127.0.0.1"), *bond("bond0", 2, LACP, ports, "10.0.0.7"))
    seen: dict[type, object] = {
        Net: f.net(*links, f.netlink_link("eth9", 9, "10.9.0.7"), default_route=Route("bond0")),
        Intent: f.job(nodes=2),
        Environ: f.environ(variables),
        Baseline: f.baseline(Unavailable("refused", "--no-allreduce")),
    }
    told = found(hardware_links.links, seen).get("bond0")
    assert (told and told.status) is status


def test_half_a_bond_of_a_rail() -> None:
    links = [f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7")]
    for n in range(8):
        links += bond(f"bond{n}", 10 + 10 * n, LACP, ({}, {"running": n != 5}), f"10.1.{n}.7")
    rails = tuple(f.hca(n, name=f"mlx5_bond_{n}", ports=(f.roce_port(f"bond{n}"),)) for n in range(8))
    told = found(hardware_rails.rails, {Net: f.net(*links), Rdma: f.rdma(devices=rails), Intent: f.job(nodes=2)})
    failed = {subject: one.expected for subject, one in told.items() if one.status is Status.FAIL}
    assert list(failed) == ["mlx5_bond_5"] and "bond5p1" in str(failed), told


@pytest.mark.parametrize(
    ("names", "chosen", "expected"),
    [
        (("mlx5_bond_0",), "", ["mlx5_bond_0"]),  # the one way out
        (("mlx5_0", "mlx5_bond_0"), "", []),  # nothing says which of two kinds carries the data
        (("mlx5_0", "mlx5_bond_0"), "mlx5_bond_0", ["mlx5_bond_0"]),
        (("mlx5_0", "mlx5_bond_0"), "mlx5_0", []),
    ],
)
def test_half_a_bond_of_a_device_that_is_no_rail(names: tuple[str, ...], chosen: str, expected: list[str]) -> None:
    links = (f.netlink_link("lo", 1, "127.0.0.1"), *bond("bond0", 2, LACP, ({}, {"backup": True}), "10.0.0.7"))
    ports = {"mlx5_bond_0": f.roce_port("bond0"), "mlx5_0": f.port()}
    devices = tuple(f.hca(n, name=name, pci=f"0000:31:00.{n}", ports=(ports[name],)) for n, name in enumerate(names))
    seen: dict[type, object] = {
        Net: f.net(*links),
        Rdma: f.rdma(devices=devices),
        Pci: f.pci(devices=(*(f.gpu_device(n) for n in range(8)), *(f.hca_device(0, address=d.pci, path=()) for d in devices))),
        Intent: f.job(nodes=2),
        Environ: f.environ({"NCCL_IB_HCA": chosen} if chosen else {}),
    }
    told = found(hardware_rails.rails, seen)
    assert [subject for subject, one in told.items() if one.status is Status.FAIL] == expected, told


def test_a_port_that_is_slower_than_its_sibling() -> None:
    """The bond has 1.4 of two ports; in active-backup the active one alone counts, against all that are up."""
    for mode, ports, expected in (
        (LACP, ({}, {"speed_mbps": 10000}), 0.3),
        (0, ({"speed_mbps": 10000}, {}), 0.3),
        (ACTIVE_BACKUP, ({}, {"speed_mbps": 10000}), None),  # the kernel does not say which is the active one
        (ACTIVE_BACKUP, ({}, {"speed_mbps": 10000, "backup": True}), None),
        (ACTIVE_BACKUP, ({"backup": True}, {"speed_mbps": 10000}), 0.6),  # the slower stayed when the faster came back
        (ACTIVE_BACKUP, ({"backup": True, "running": False}, {"speed_mbps": 10000}), None),  # a spare does its work
        (ACTIVE_BACKUP, ({"backup": True}, {"speed_mbps": Unavailable("unsupported")}), None),
        (LACP, ({}, {"speed_mbps": 10000, "running": False}), 0.5),
        (LACP, ({}, {"speed_mbps": Unavailable("unsupported")}), None),
    ):
        both = tuple({"speed_mbps": 25000, **one} for one in ports)
        links = (f.netlink_link("lo", 1, "127.0.0.1"), *bond("bond0", 2, mode, (both[0], both[1]), "10.0.0.7"))
        seen: dict[type, object] = {
            Net: f.net(*links, default_route=Route("bond0")),
            Rdma: f.rdma(devices=()),
            Pci: f.pci(devices=tuple(f.gpu_device(n) for n in range(8))),
            Intent: f.job(nodes=2),
        }
        told = found(hardware_links.links, seen).get("bond0")
        assert (round(told.loss.share or 0, 3) if told and told.loss else None) == expected, (mode, ports)
        assert expected != 0.3 or (told and "slower: bond0p" in str(told.expected))


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def test_netlink_tells_of_bonds() -> None:
    """As rtnl_link_fill writes it: IFLA_INFO_KIND (1), _DATA (2), _SLAVE_KIND (4), _SLAVE_DATA (5)."""
    made = attribute(1, b"bond\0") + attribute(2, attribute(1, b"\x04") + attribute(2, b"\x01\0\0\0"))
    assert netlink.bonded(netlink.attributes(made)) == {"bond_mode": 4}
    port = attribute(4, b"bond\0") + attribute(5, attribute(1, b"\x01") + attribute(2, b"\0"))
    assert netlink.bonded(netlink.attributes(port)) == {"bond_state": 1}
    other = attribute(1, b"bridge\0") + attribute(2, attribute(1, b"\x04")) + attribute(4, b"team\0") + attribute(5, b"")
    assert netlink.bonded(netlink.attributes(other)) == {}
