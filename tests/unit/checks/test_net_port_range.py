"""net.port_range: facts to findings."""

from dataclasses import replace
from typing import Any

import pytest

from checks.net_port_range import OWN, port_range
from netdoctor.facts.environ import Environ, Launcher
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import LocalPorts, Net, Peer, Route
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Severity, Status, Unavailable
from tests.support.facts import (
    environ,
    gpus,
    job,
    judge,
    machine,
    nccl_choice,
    net,
    netlink_link,
    outside,
    pod,
    ports,
    vantage as job_vantage,
)

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
C, W = Severity.CRITICAL, Severity.WARNING
LOST = Unavailable("denied")
HERE = Peer("10.0.0.7", ("10.0.0.7",), {}, local=True)
THERE = Peer("10.0.0.1", ("10.0.0.1",), {}, local=False)
NAMELESS = Peer("nosuch", Unavailable("absent"), {}, local=Unavailable("not read"))


def shape(**stated: Any) -> Intent:
    """As `job:` of the configuration gives it."""
    return job(**{"ranks_per_node": 8, "nodes": 1, **stated})


BIG = shape(nodes=256)
TIGHT = ports(low=40000, high=40059)  # the listeners fit, connections from other nodes do not

TORCHRUN = Launcher("torchrun", None, 8, None, 8, 1, by_options=True)


def findings(**facts: Any) -> dict[str, Finding]:
    kinds = {
        "ports": LocalPorts,
        "vantage": Vantage,
        "job": Intent,
        "net": Net,
        "environ": Environ,
        "gpus": Gpus,
        "nccl": NcclChoice,
    }
    facts = {"job": job(), **facts}
    return {f.subject: f for f in judge(port_range, machine({kinds[name]: value for name, value in facts.items()}))}


def found(**facts: Any) -> dict[str, tuple[Status, Severity | None]]:
    return {subject: (f.status, f.severity) for subject, f in findings(**facts).items()}


def test_a_healthy_machine_passes_with_the_kernels_default() -> None:
    assert found() == {"listeners": (PASS, None)}


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"ports": ports(low=40000, high=40039)}, FAIL),  # 8 ranks: 24 + 9 + 8 + 8 + 4 = 53
        ({"ports": ports(low=40000, high=40052)}, FAIL),  # 53 of them, one can be missed
        ({"ports": ports(low=40000, high=40053)}, PASS),
        ({"ports": ports(low=40000, high=40053, listening=frozenset({40001, 40003}))}, FAIL),
        ({"ports": ports(reserved=frozenset(range(32768, 60970)))}, FAIL),
        ({"ports": ports(low=50000, high=51000)}, PASS),
        ({"ports": ports(low=40000, high=40039), "gpus": gpus(4)}, PASS),
        ({"ports": ports(low=40000, high=40039), "job": job(ranks_per_node=2)}, PASS),
        ({"ports": ports(low=40000, high=40053), "job": job(communicators=2)}, FAIL),
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
        (shape(nodes=256, all_to_all=True), {}, None),
        (shape(nodes=256, all_to_all=True), {"NCCL_PXN_DISABLE": "1"}, (FAIL, W)),
        (BIG, {"NCCL_PXN_DISABLE": "1"}, None),
    ],
)
def test_connections_are_an_estimate(shape: Intent, variables: dict[str, str], status: Any) -> None:
    assert found(job=shape, environ=environ(variables)).get("connections") == status


def test_lost_variables_leave_the_connections_and_services_open() -> None:
    lost = found(environ=LOST, ports=ports(low=1024, high=65535), net=LOST)
    assert {lost[subject] for subject in ("connections", "service ports", "MASTER_PORT")} == {(UNKNOWN, None)}


def test_connections_of_a_multi_node_job_in_a_narrow_range() -> None:
    assert found(job=BIG, ports=ports(low=50000, high=50200))["connections"] == (FAIL, W)
    assert "connections" not in found(ports=ports(low=50000, high=50200))
    uncounted = replace(shape()({}), nodes=None, others=True)  # MASTER_ADDR is another node, and nobody counts them
    assert found(job=lambda _: uncounted, ports=ports(low=50000, high=50200))["connections"] == (FAIL, W)


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


SERVED = net(master=HERE, master_port=29500)
ROUTE = Route("eth0")
POD = net(netlink_link("eth0", 2, "10.244.0.7", kind="veth"), master=HERE, master_port=40000, default_route=ROUTE)
HOST_POD = net(netlink_link("eth0", 2, "10.0.0.7"), master=HERE, master_port=40000, default_route=ROUTE)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({}, (PASS, None)),
        ({"net": net(master=None, master_port=29500)}, (PASS, None)),
        ({"net": net(master=HERE, master_port=40000)}, (FAIL, W)),
        ({"net": net(master=HERE, master_port=40000), "ports": ports(reserved=frozenset({40000}))}, (PASS, None)),
        ({"net": net(master=THERE, master_port=40000)}, None),
        ({"net": POD, "vantage": pod()}, (PASS, None)),
        ({"net": HOST_POD, "vantage": pod()}, (FAIL, W)),
        ({"ports": ports(listening=frozenset({29500}))}, (UNKNOWN, None)),
        ({"ports": ports(listening=frozenset({29500}), owners={29500: frozenset({1001})})}, (FAIL, None)),
        ({"ports": ports(listening=frozenset({29500}), owners={29500: frozenset({1000})})}, (UNKNOWN, None)),
        # before a launcher starts nothing of the job's listens there
        ({"ports": ports(listening=frozenset({29500})), "environ": environ(launcher=TORCHRUN)}, (FAIL, None)),
        ({"vantage": outside()}, (UNKNOWN, None)),
        ({"ports": ports(listening=LOST)}, (UNKNOWN, None)),
        ({"net": net(master=NAMELESS, master_port=29500)}, (UNKNOWN, None)),
        ({"net": net(master=LOST, master_port=LOST)}, (UNKNOWN, None)),
        ({"net": net(master_port=Unavailable("malformed", "MASTER_PORT='x'"))}, (FAIL, None)),
        ({"net": LOST}, (UNKNOWN, None)),
    ],
)
def test_master_port(facts: dict[str, Any], status: Any) -> None:
    assert found(**{"net": SERVED, **facts}).get("MASTER_PORT") == status


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
        ({"ports": ports(low=40000, high=40053, listening=frozenset({40001}))}, "listeners", PASS),  # 53 left, 53 needed
        ({"gpus": LOST, "ports": ports(low=40000, high=41665, listening=frozenset({40001}))}, "listeners", PASS),  # 1665
        ({"gpus": LOST, "ports": ports(low=40000, high=41665, listening=frozenset({40001, 40002}))}, "listeners", UNKNOWN),
        ({"ports": ports(low=40000, high=40059), "job": shape(nodes=2)}, "connections", FAIL),
        ({"ports": ports(low=28028, high=60999)}, "service ports", FAIL),  # the lowest port is NCCL RAS's
        ({"ports": ports(low=20000, high=29500), "environ": environ({"NCCL_RAS_ENABLE": "0"})}, "service ports", FAIL),
    ],
)
def test_the_last_port_counts(facts: dict[str, Any], subject: str, status: Status) -> None:
    assert found(**facts)[subject][0] is status


def test_one_node_keeps_no_ports_for_connections() -> None:
    assert "connections" not in found(ports=ports(low=40000, high=40059), job=shape(nodes=1))


TORCHRUN_1 = Launcher("torchrun", 0, 8, 0, 8, nodes=1)
TORCHRUN_2 = Launcher("torchrun", 0, 16, 0, 8, nodes=2)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        # NCCL 2.27.5, 8 ranks, 2 nodes: 53 listeners, and 8 ranks x 3 peers x 16 channels = 384 connections
        ({"job": shape(nodes=2), "ports": ports(low=40000, high=40437, listening=frozenset({40000}))}, None),  # 437 left
        ({"job": shape(nodes=2), "ports": ports(low=40000, high=40437, listening=frozenset({40000, 40001}))}, (FAIL, W)),
        ({"job": shape(nodes=2), "ports": ports(low=40000, high=40053, listening=frozenset({40000}))}, (FAIL, W)),  # 53
        ({"job": shape(nodes=2), "ports": ports(low=40000, high=40047)}, None),  # 48: the finding about listeners says it
        # how many nodes: the configuration's word counts most, then the launcher's
        ({"job": shape(nodes=1), "environ": environ(launcher=TORCHRUN_2), "ports": TIGHT}, None),
        ({"job": shape(nodes=2), "environ": environ(launcher=TORCHRUN_1), "ports": TIGHT}, (FAIL, W)),
        ({"environ": environ(launcher=TORCHRUN_2), "ports": TIGHT}, (FAIL, W)),
        ({"environ": environ(launcher=Launcher("mpirun", 0, 16, 0, 8)), "ports": TIGHT}, (FAIL, W)),
        ({"environ": environ(launcher=Launcher("srun", 0, 9, 0, 8)), "ports": TIGHT}, (FAIL, W)),  # 9 ranks, 8 here: two nodes
        ({"environ": environ(launcher=Launcher("unknown", 0, 16, 0, None)), "ports": TIGHT}, None),
        ({"job": job(communicators=1), "environ": environ(launcher=TORCHRUN_2), "ports": TIGHT}, (FAIL, W)),
        ({"job": shape(nodes=2), "environ": LOST, "ports": TIGHT}, (FAIL, W)),  # no variable is asked for
        ({"job": shape(nodes=1), "environ": LOST}, None),
        ({"job": shape(nodes=2, all_to_all=True), "environ": LOST}, (UNKNOWN, None)),  # PXN may be off
        ({"environ": LOST}, (UNKNOWN, None)),
        ({"job": LOST}, (UNKNOWN, None)),
        # the number of ranks is not known: 256 of them need 1665 listeners and 12288 connections
        ({"job": job(nodes=2), "gpus": LOST}, None),
        ({"job": job(nodes=2), "gpus": LOST, "ports": ports(low=40000, high=49999)}, (UNKNOWN, None)),
    ],
)
def test_ports_that_connections_keep(facts: dict[str, Any], status: Any) -> None:
    assert found(**facts).get("connections") == status


def test_who_takes_the_ports_is_said() -> None:
    off = environ({"NCCL_PXN_DISABLE": "1"})
    assert "without PXN" in str(findings(job=shape(nodes=256, all_to_all=True), environ=off)["connections"].how)
    # with PXN: 384 and 2 for each of 8184 remote ranks
    assert findings(job=shape(nodes=1024, all_to_all=True), ports=ports(low=50000, high=60999))["connections"].how is None
    assert findings(job=shape(nodes=2), environ=off, ports=TIGHT)["connections"].how is None


def test_gpus_that_are_hidden_count_as_ranks() -> None:
    """Where libcuda shows none (CUDA_VISIBLE_DEVICES is set per rank), the node has as many as NVML counts."""
    assert found(gpus=gpus(visible=()), ports=ports(low=40000, high=40053))["listeners"] == (PASS, None)


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({"ports": ports(low=1024, high=65535)}, [28028, 29500]),
        ({"ports": ports(low=28028, high=65535)}, [28028, 29500]),
        ({"ports": ports(low=29500, high=65535)}, [29500]),
        ({"ports": ports(low=1024, high=65535), "environ": environ({"NCCL_RAS_ENABLE": "0"})}, [29500]),
        ({"ports": ports(low=1024, high=65535), "nccl": nccl_choice(version=(2, 24, 3))}, [28028, 29500]),  # the first with RAS
        ({"ports": ports(low=1024, high=65535), "nccl": nccl_choice(version=(2, 23, 4))}, [29500]),
        ({"ports": ports(low=1024, high=65535), "nccl": LOST}, [28028, 29500]),
        ({"ports": ports(low=1024, high=65535, reserved=frozenset({28028}))}, [29500]),
    ],
)
def test_the_services_that_a_low_range_holds(facts: dict[str, Any], held: list[int]) -> None:
    finding = findings(**facts)["service ports"]
    assert finding.status is FAIL and finding.evidence["ports"] == held
    assert finding.expected == f"net.ipv4.ip_local_reserved_ports holds {','.join(map(str, held))}"


RANGE, RESERVED = "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"


@pytest.mark.parametrize(
    ("reserved", "written"),
    [
        ((), "28028,29500"),
        ((8080,), "8080,28028,29500"),  # writing the list clears the old one: it is appended to
        ((*range(30000, 32768), 28027), "28027-28028,29500,30000-32767"),
        ((29499, 29501), "28028,29499-29501"),
    ],
)
def test_what_is_reserved_already_stays_so(reserved: tuple[int, ...], written: str) -> None:
    fix = findings(ports=ports(low=1024, high=65535, reserved=frozenset(reserved)))["service ports"].fix
    assert fix and fix.commands == (f"sysctl -w {RESERVED}={written}",)


# 8 ranks without PXN, all-to-all: 49 + 384 + 16 per remote rank
FEW, MANY = shape(nodes=256, all_to_all=True), shape(nodes=300, all_to_all=True)  # 33073 and 38705 ports
NO_PXN = environ({"NCCL_PXN_DISABLE": "1"})
SET = net(master=HERE, master_port=20000)
DEFAULT, WIDE, WIDEST = (f"{RANGE}='{span}'" for span in ("32768 60999", "30000 65535", "10240 65535"))
BLOCKED = ports(low=40000, high=40039, reserved=frozenset(range(32768, 60947)))
MORE_BLOCKED = ports(low=40000, high=40039, reserved=frozenset(range(32768, 60948)))


@pytest.mark.parametrize(
    ("facts", "subject", "commands"),
    [
        # the kernel's default is enough to the last port
        ({"ports": BLOCKED, "job": job(), "environ": environ()}, "listeners", [DEFAULT]),
        ({"ports": MORE_BLOCKED, "job": job(), "environ": environ()}, "listeners", [WIDE]),
        ({"job": FEW}, "connections", [WIDE]),
        # below 30000 lie service ports: they are reserved before the range is widened over them
        ({}, "connections", [f"{RESERVED}=28028,29500", WIDEST]),
        ({"ports": ports(reserved=frozenset({8080, 29500}))}, "connections", [WIDEST]),  # RAS alone stops no job
        ({"ports": ports(reserved=frozenset({8080, 8081}))}, "connections", [f"{RESERVED}=8080-8081,28028,29500", WIDEST]),
        ({"net": SET}, "connections", [f"{RESERVED}=20000,28028", WIDEST]),
        ({"net": net(master=THERE, master_port=29500)}, "connections", [f"{RESERVED}=28028,29500", WIDEST]),
        # what is reserved could not be read: nothing can be appended to it
        ({"ports": ports(reserved=LOST)}, "connections", [WIDEST]),
        # no range is wide enough
        ({"job": shape(nodes=1024, all_to_all=True)}, "connections", []),
    ],
)
def test_the_mend_widens_no_further_than_needed(facts: dict[str, Any], subject: str, commands: list[str]) -> None:
    finding = findings(**{"job": MANY, "environ": NO_PXN, **facts})[subject]
    assert finding.status is FAIL and finding.fix
    assert finding.fix.commands == tuple(f"sysctl -w {one}" for one in commands)
    assert bool(commands) != ("no port range has that many" in finding.fix.summary)


@pytest.mark.parametrize("facts", [{}, {"net": SET}, {"net": net(master=HERE, master_port=29500)}])
def test_the_mend_mends_and_nothing_else_is_wrong_after_it(facts: dict[str, Any]) -> None:
    facts = {"job": MANY, "environ": NO_PXN, **facts}
    fix = findings(**facts)["connections"].fix
    assert fix
    written = dict(command.removeprefix("sysctl -w ").replace("'", "").split("=") for command in fix.commands)
    low, high = map(int, written[RANGE].split())
    after = ports(low=low, high=high, reserved=frozenset(map(int, written[RESERVED].split(","))))
    assert {f.status for f in findings(**facts, ports=after).values()} == {PASS}


@pytest.mark.parametrize(
    ("facts", "subject", "words"),
    [
        ({"ports": ports(low=40000, high=40039, reserved=LOST)}, "listeners", "the range 40000 40039 has 40 ports"),
        (
            {"ports": ports(low=40000, high=40039, reserved=frozenset({39999, 40000, 40039, 40040}))},
            "listeners",
            "the range 40000 40039 has 40 ports, 2 of them reserved",
        ),
        ({"vantage": outside()}, "listeners", f"32768 60999 has 28,232 ports here, seen as root outside the job: {OWN}"),
        (
            {"vantage": outside(why_not="")},
            "listeners",
            f"the range 32768 60999 has 28,232 ports here, seen outside the job's network namespace: {OWN}",
        ),
        ({"net": SERVED, "vantage": outside()}, "MASTER_PORT", "MASTER_PORT 29500 is free here, seen as root outside the job"),
        ({"net": SERVED, "ports": ports(listening=LOST)}, "MASTER_PORT", "29500 is free could not be read: denied"),
        ({"net": SERVED, "ports": ports(reserved=LOST)}, "MASTER_PORT", "29500 is free could not be read: denied"),
    ],
)
def test_what_was_seen_is_said(facts: dict[str, Any], subject: str, words: str) -> None:
    assert findings(**facts)[subject].message.endswith(words)


@pytest.mark.parametrize(("port", "status"), [(32767, PASS), (32768, FAIL), (60999, FAIL), (61000, PASS)])
def test_a_master_port_at_either_end_of_the_range(port: int, status: Status) -> None:
    assert found(net=net(master=HERE, master_port=port))["MASTER_PORT"][0] is status


@pytest.mark.parametrize("value", ["1", "0x1", " 01", "1 # off", "+1", "2", "0", "", "true", "11", "-1", "9223372036854775808"])
def test_pxn_is_off_where_nccl_reads_one(value: str) -> None:
    off = value in ("1", "0x1", " 01", "1 # off", "+1")
    facts = {"job": shape(nodes=256, all_to_all=True), "environ": environ({"NCCL_PXN_DISABLE": value})}
    assert ("without PXN" in str(findings(**facts).get("connections"))) is off


@pytest.mark.parametrize("value", ["1", "0x1", "01", "", "9223372036854775808", "0", "00", "false", "2", "-1", "0 # off"])
def test_ras_is_on_where_nccl_reads_one(value: str) -> None:
    on = value in ("1", "0x1", "01", "", "9223372036854775808")
    found = findings(ports=ports(low=1024, high=65535), environ=environ({"NCCL_RAS_ENABLE": value}))["service ports"]
    assert ("28028" in found.message) is on
