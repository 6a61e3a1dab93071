"""net.port_range: facts to findings."""

from typing import Any

import pytest

from checks.net_port_range import port_range
from netdoctor.model import Severity, Status, Unavailable
from netdoctor.probes.environ import Environ, Launcher
from netdoctor.probes.gpu import Gpus
from netdoctor.probes.job import JobShape
from netdoctor.probes.nccl import NcclChoice
from netdoctor.probes.net import LocalPorts, Net, Peer, Route
from netdoctor.probes.vantage import Vantage
from tests.support.facts import environ, gpus, job, judge, machine, nccl_choice, net, netlink_link, outside, pod, ports
from tests.support.facts import vantage as job_vantage

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
C, W = Severity.CRITICAL, Severity.WARNING
LOST = Unavailable("denied")
HERE = Peer("10.0.0.7", ("10.0.0.7",), {}, local=True)
THERE = Peer("10.0.0.1", ("10.0.0.1",), {}, local=False)
NAMELESS = Peer("nosuch", Unavailable("absent"), {}, local=Unavailable("not read"))
BIG = job(nodes=256, ranks_per_node=8, stated=True)


def found(**facts: Any) -> dict[str, tuple[Status, Severity | None]]:
    kinds = {
        "ports": LocalPorts,
        "vantage": Vantage,
        "job": JobShape,
        "net": Net,
        "environ": Environ,
        "gpus": Gpus,
        "nccl": NcclChoice,
    }
    findings = judge(port_range, machine({kinds[name]: value for name, value in facts.items()}))
    return {f.subject: (f.status, f.severity) for f in findings}


def test_a_healthy_machine_passes_with_the_kernels_default() -> None:
    assert found() == {"listeners": (PASS, None)}


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"ports": ports(low=40000, high=40039)}, FAIL),  # 8 ranks: 24 + 9 + 8 + 8 = 49
        ({"ports": ports(low=40000, high=40048)}, FAIL),  # 49 of them, one can be missed
        ({"ports": ports(low=40000, high=40049)}, PASS),
        ({"ports": ports(low=40000, high=40049, listening=frozenset({40001, 40003}))}, FAIL),
        ({"ports": ports(reserved=frozenset(range(32768, 60970)))}, FAIL),
        ({"ports": ports(low=50000, high=51000)}, PASS),
        ({"ports": ports(low=40000, high=40039), "gpus": gpus(4)}, PASS),
        ({"ports": ports(low=40000, high=40039), "job": job(ranks_per_node=2, stated=True)}, PASS),
        ({"ports": ports(low=40000, high=40049), "job": job(communicators=2, stated=True)}, FAIL),
        ({"ports": ports(low=40000, high=40039), "nccl": nccl_choice(version=(2, 21, 5))}, PASS),
        ({"ports": ports(low=40000, high=40039), "vantage": outside()}, FAIL),
        ({"vantage": outside()}, UNKNOWN),
        ({"ports": ports(low=LOST, high=LOST)}, UNKNOWN),
        ({"ports": ports(reserved=LOST)}, UNKNOWN),
        ({"ports": ports(listening=LOST)}, UNKNOWN),
        ({"ports": ports(low=40000, high=40039, reserved=LOST)}, FAIL),
        ({"gpus": LOST}, PASS),
        ({"gpus": LOST, "ports": ports(low=40000, high=40999)}, UNKNOWN),
        ({"job": LOST}, UNKNOWN),
        ({"environ": LOST}, PASS),
        ({"environ": LOST, "ports": ports(low=40000, high=40999)}, UNKNOWN),
        ({"nccl": LOST}, PASS),
    ],
)
def test_listeners(facts: dict[str, Any], status: Status) -> None:
    assert found(**facts)["listeners"] == (status, None)


def test_the_launchers_rank_count_is_taken() -> None:
    launcher = Launcher("torchrun", 0, 2, 0, 2)
    assert found(ports=ports(low=40000, high=40039), environ=environ(launcher=launcher))["listeners"] == (PASS, None)


def test_a_narrow_range_that_is_enough_is_noted() -> None:
    (finding,) = judge(port_range, machine({LocalPorts: ports(low=50000, high=51000)}))
    assert finding.status is PASS and "narrower than the kernel's default" in finding.notes[0]


@pytest.mark.parametrize(
    ("shape", "variables", "status"),
    [
        (BIG, {}, None),
        (job(nodes=256, ranks_per_node=8, all_to_all=True, stated=True), {}, None),
        (job(nodes=256, ranks_per_node=8, all_to_all=True, stated=True), {"NCCL_PXN_DISABLE": "1"}, (FAIL, W)),
        (job(nodes=256, ranks_per_node=8, stated=True), {"NCCL_PXN_DISABLE": "1"}, None),
    ],
)
def test_connections_are_an_estimate(shape: JobShape, variables: dict[str, str], status: Any) -> None:
    assert found(job=shape, environ=environ(variables)).get("connections") == status


def test_lost_variables_leave_the_connections_and_services_open() -> None:
    lost = found(environ=LOST, ports=ports(low=1024, high=65535), net=LOST)
    assert {lost[subject] for subject in ("connections", "service ports", "MASTER_PORT")} == {(UNKNOWN, None)}


def test_connections_of_a_multi_node_job_in_a_narrow_range() -> None:
    assert found(job=BIG, ports=ports(low=50000, high=50200))["connections"] == (FAIL, W)
    assert "connections" not in found(ports=ports(low=50000, high=50200))


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"ports": ports(low=1024, high=65535)}, (FAIL, W)),
        ({"ports": ports(low=29000, high=65535)}, (FAIL, W)),
        ({"ports": ports(low=1024, high=65535, reserved=frozenset({28028, 29500}))}, None),
        ({"ports": ports(low=30000, high=65535)}, None),
        ({"ports": ports(low=1024, high=65535, reserved=frozenset({29500}))}, None),  # RAS alone stops no job
        ({"ports": ports(low=1024, high=65535), "net": net(master_port=20000, master=THERE)}, None),
        ({"ports": ports(low=1024, high=65535), "net": LOST}, (UNKNOWN, None)),
        ({"ports": ports(low=1024, high=65535), "net": net(master_port=LOST, master=THERE)}, (UNKNOWN, None)),
        ({"ports": ports(low=29000, high=65535), "net": net(master_port=20000, master=THERE)}, None),
        ({"ports": ports(low=28000, high=65535, reserved=frozenset({29500})), "nccl": nccl_choice(version=(2, 21, 5))}, None),
        (
            {"ports": ports(low=28000, high=65535, reserved=frozenset({29500})), "environ": environ({"NCCL_RAS_ENABLE": "0"})},
            None,
        ),
    ],
)
def test_a_lowered_floor_swallows_service_ports(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts).get("service ports") == status


ROUTE = Route("default", "eth0", "10.244.0.7", "10.244.0.1")
POD = net(netlink_link("eth0", 2, "10.244.0.7", kind="veth"), master=HERE, master_port=40000, default_route=ROUTE)
HOST_POD = net(netlink_link("eth0", 2, "10.0.0.7"), master=HERE, master_port=40000, default_route=ROUTE)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"net": net(master=HERE, master_port=29500)}, (PASS, None)),
        ({"net": net(master=None, master_port=29500)}, (PASS, None)),
        ({"net": net(master=HERE, master_port=40000)}, (FAIL, W)),
        ({"net": net(master=HERE, master_port=40000), "ports": ports(reserved=frozenset({40000}))}, (PASS, None)),
        ({"net": net(master=THERE, master_port=40000)}, None),
        ({"net": POD, "vantage": pod()}, (PASS, None)),
        ({"net": HOST_POD, "vantage": pod()}, (FAIL, W)),
        ({"net": net(master=HERE, master_port=29500), "ports": ports(listening=frozenset({29500}))}, (UNKNOWN, None)),
        (
            {
                "net": net(master=HERE, master_port=29500),
                "ports": ports(listening=frozenset({29500}), owners={29500: frozenset({1001})}),
            },
            (FAIL, None),
        ),
        (
            {
                "net": net(master=HERE, master_port=29500),
                "ports": ports(listening=frozenset({29500}), owners={29500: frozenset({1000})}),
            },
            (UNKNOWN, None),
        ),
        ({"net": net(master=HERE, master_port=29500), "vantage": outside()}, (UNKNOWN, None)),
        ({"net": net(master=HERE, master_port=29500), "ports": ports(listening=LOST)}, (UNKNOWN, None)),
        ({"net": net(master=NAMELESS, master_port=29500)}, (UNKNOWN, None)),
        ({"net": net(master=LOST, master_port=LOST)}, (UNKNOWN, None)),
        ({"net": net(master_port=Unavailable("malformed", "MASTER_PORT='x'"))}, (FAIL, None)),
        ({"net": LOST}, (UNKNOWN, None)),
    ],
)
def test_master_port(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts).get("MASTER_PORT") == status


@pytest.mark.parametrize("low", [1024, 40000, 50000])
def test_messages_do_not_change_with_who_listens(low: int) -> None:
    some = [ports(low=low, high=low + 40, listening=frozenset(range(low, low + n))) for n in (0, 3)]
    first, second = (judge(port_range, machine({LocalPorts: one})) for one in some)
    assert [(f.message, f.evidence) for f in first] == [(f.message, f.evidence) for f in second]


def test_the_fix_is_said_for_the_place() -> None:
    narrow = ports(low=40000, high=40039)
    host, inside = (judge(port_range, machine({LocalPorts: narrow, Vantage: who}))[0].fix for who in (job_vantage(), pod()))
    assert host and "sysctl -w net.ipv4.ip_local_port_range='32768 60999'" in host.commands
    assert inside and "securityContext" in inside.persistent[0]


@pytest.mark.parametrize(
    ("facts", "subject", "status"),
    [
        ({"ports": ports(low=40000, high=40049, listening=frozenset({40001}))}, "listeners", PASS),  # 49 left, 49 needed
        ({"gpus": LOST, "ports": ports(low=40000, high=41537, listening=frozenset({40001}))}, "listeners", PASS),  # 1537
        ({"gpus": LOST, "ports": ports(low=40000, high=41537, listening=frozenset({40001, 40002}))}, "listeners", UNKNOWN),
        ({"ports": ports(low=40000, high=40059), "job": job(nodes=2, ranks_per_node=8, stated=True)}, "connections", FAIL),
        ({"ports": ports(low=28028, high=60999)}, "service ports", FAIL),  # the lowest port is NCCL RAS's
        ({"ports": ports(low=20000, high=29500), "environ": environ({"NCCL_RAS_ENABLE": "0"})}, "service ports", FAIL),
    ],
)
def test_the_last_port_counts(facts: dict[str, Any], subject: str, status: Status) -> None:
    assert found(**facts)[subject][0] is status


def test_one_node_keeps_no_ports_for_connections() -> None:
    assert "connections" not in found(ports=ports(low=40000, high=40059), job=job(nodes=1, ranks_per_node=8, stated=True))
