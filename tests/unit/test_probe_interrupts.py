"""Interrupts of interfaces: which CPUs serve them, and when nobody looks."""

from __future__ import annotations

from netdoctor.facts.interrupts import Interrupts, probe
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Unavailable

ABSENT = Unavailable("absent")
NET: dict[str, Answer] = {
    "dir:/sys/class/infiniband": ABSENT,
    "dir:/sys/class/net": ["eth0", "lo", "virt0"],
    "dir:/sys/class/net/eth0/device/msi_irqs": ["100", "101", "102"],
    "dir:/sys/class/net/lo/device/msi_irqs": ABSENT,
    "dir:/sys/class/net/lo/device/../msi_irqs": ABSENT,
    "dir:/sys/class/net/virt0/device/msi_irqs": ABSENT,
    "dir:/sys/class/net/virt0/device/../msi_irqs": ["30"],
    "file:/proc/irq/100/effective_affinity_list": "3\n",
    "file:/proc/irq/101/effective_affinity_list": "8-9\n",
    "file:/proc/irq/102/effective_affinity_list": ABSENT,
    "file:/proc/irq/30/effective_affinity_list": "0\n",
}


def test_the_cpus_of_each_interface() -> None:
    assert probe(ReplayHost(NET)) == Interrupts({"eth0": frozenset({3, 8, 9}), "virt0": frozenset({0})})


def test_a_vector_that_may_not_be_read_is_not_left_out() -> None:
    found = probe(ReplayHost(NET | {"file:/proc/irq/101/effective_affinity_list": Unavailable("denied")}))
    assert found == Interrupts({"eth0": Unavailable("denied"), "virt0": frozenset({0})})


def test_a_list_of_vectors_that_does_not_answer_is_not_none() -> None:
    found = probe(ReplayHost(NET | {"dir:/sys/class/net/eth0/device/msi_irqs": Unavailable("timed out")}))
    assert found == Interrupts({"eth0": Unavailable("timed out"), "virt0": frozenset({0})})


def test_rubbish() -> None:
    found = probe(ReplayHost(NET | {"file:/proc/irq/30/effective_affinity_list": "all of them"}))
    assert isinstance(found.cpus, dict) and isinstance(found.cpus["virt0"], Unavailable)


def test_with_rdma_nobody_looks() -> None:
    found = probe(ReplayHost(NET | {"dir:/sys/class/infiniband": ["mlx5_0"]}))
    assert isinstance(found.cpus, Unavailable) and found.cpus.kind == "unsupported"


def test_no_interfaces_to_be_read() -> None:
    assert probe(ReplayHost({"dir:/sys/class/infiniband": ABSENT})).cpus == Unavailable("not recorded")
