"""Evidence lost on a machine that has a fault: what the faulted machines of the lab showed, one row for each."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor import engine
from netdoctor.facts import registry
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.transport import data_by_sockets
from tests.lab import faults, fixtures
from tests.lab.oracle import worse

LOST = Unavailable("denied", "as the test has it")
ABSENT = Unavailable("absent", "as the test has it")
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
UEVENT = "file:/sys/bus/pci/devices/0000:c1:00.0/uevent"
# fault, check, what is lost (a fact or a question), how
ROWS = [
    ("an accelerator of another vendor", "hardware.accelerator", UEVENT, LOST),
    ("an accelerator of another vendor", "rdma.gpudirect", UEVENT, LOST),
    ("a path that was pinned to an HCA went by sockets", "net.tcp_buffers", "PathRun", LOST),
    ("a path that was pinned to an HCA went by sockets", "cpu.numa_affinity", "PathRun", LOST),
    ("a path that was pinned to an HCA went by sockets", "net.socket_ifname", "PathRun", LOST),
    ("the plugin is there, and the run used sockets", "net.tcp_buffers", "Baseline", LOST),
    ("the plugin is there, and the run used sockets", "rdma.gpudirect", "link:/sys/bus/pci/devices/0000:4f:00.0", LOST),
    ("NVML lost the last GPU", "rdma.dev_infiniband", "Gpus", LOST),
    ("NVML shows a GPU that PCI does not", "rdma.dev_infiniband", "Gpus", LOST),
    ("NCCL_IB_HCA selects nothing", "nccl.environment", "Rdma", LOST),
    ("a cgroup rule refuses the nodes", "net.socket_ifname", "Libraries", LOST),
    ("MASTER_PORT lies inside the range", "net.socket_ifname", "ask:netlink?routes=10.0.9.117", ABSENT),
    ("the only interface of one of two nodes is down", "net.socket_ifname", "ask:resolve?name=cpu-117", ABSENT),
    ("the only interface of one of two nodes is down", "net.socket_ifname", "file:/proc/sys/kernel/hostname", ABSENT),
    ("a port runs at half the rate that the site expects", "rdma.dev_infiniband", f"file:{PORT}/state", LOST),
    ("a port runs at half the rate that the site expects", "rdma.dev_infiniband", f"file:{PORT}/link_layer", LOST),
    ("numactl --membind=1", "cpu.numa_affinity", "file:/sys/devices/system/node/node0/distance", LOST),
    ("windows are not scaled", "net.tcp_buffers", "file:/proc/sys/net/ipv4/tcp_window_scaling", LOST),
    (
        "a congestion control that the kernel does not offer",
        "net.tcp_buffers",
        "file:/proc/sys/net/ipv4/tcp_available_congestion_control",
        LOST,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "check", "what", "why"), ROWS, ids=[f"{f}: {c} without {w}" for f, c, w, _ in ROWS])
def test_no_verdict_comes_from_a_loss(fault: str, check: str, what: str, why: Unavailable) -> None:
    taken = next(one for one in faults.every() if one.fault == fault).after()
    spec = next(one for one in fixtures.specs() if one.id == check)
    have = fixtures.facts_of(taken)
    assert what in registry.SOURCES or what in registry.RUNS or what in taken.answers, what
    lost = have | {what: why} if what not in taken.answers else fixtures.facts_of(fixtures.without(taken, what, why))
    before, after = engine.judge(spec, have), engine.judge(spec, lost)
    assert worse(before, after) == []
    assert told(before) != told(after), "what is lost is not used"


def test_a_driver_that_could_not_be_read_may_be_that_of_efa() -> None:
    """Every function of EFA at once: one of them alone leaves others that need the plugin."""
    taken = next(one for one in faults.every() if one.fault == "the plugin is there, and the run used sockets").after()
    spec = next(one for one in fixtures.specs() if one.id == "net.plugin")
    for what in [q for q, a in taken.answers.items() if q.endswith("/uevent") and "DRIVER=efa" in str(a)]:
        taken = fixtures.without(taken, what, LOST)
    plugin = [f for f in engine.judge(spec, fixtures.facts_of(taken)) if f.subject == "network"]
    assert plugin and all(f.status is Status.UNKNOWN for f in plugin)


def told(findings: tuple[Finding, ...]) -> list[tuple[str, Status, str]]:
    return [(one.subject, one.status, one.message) for one in findings]


def test_one_log_of_two_can_prove_sockets_but_not_their_absence() -> None:
    def sockets(**lost: Any) -> bool | None:
        have = fixtures.facts_of(fixtures.snapshot("dgx-h100")) | lost
        runs = (registry.of(have, "Baseline"), registry.of(have, "PathRun"))
        rdma, environ, libraries, net, intent = (
            registry.of(have, n) for n in ("Rdma", "Environ", "Libraries", "Net", "Intent")
        )
        return data_by_sockets(rdma, environ, libraries, runs, net, intent).sockets

    assert sockets() is False
    assert sockets(PathRun=LOST) is None and sockets(Baseline=LOST) is None


def test_pci_with_a_function_unread_shows_no_absence() -> None:
    answers = {**fixtures.snapshot("cpu-node").answers}
    question = next(q for q in answers if q.startswith("file:/sys/bus/pci/devices/") and q.endswith("/uevent"))
    have = fixtures.facts_of(fixtures.snapshot("cpu-node"))
    assert have["Pci"].unclassified == ()
    pci = registry.make(ReplayHost({**answers, question: LOST}), "Pci", have)
    spec = next(one for one in fixtures.specs() if one.id == "hardware.accelerator")
    assert {f.status for f in engine.judge(spec, have | {"Pci": pci})} == {Status.UNKNOWN}
