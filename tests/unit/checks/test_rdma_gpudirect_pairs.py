"""rdma.gpudirect: which GPU is judged with which HCA."""

from __future__ import annotations

from typing import Any

from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import PathRun
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

UNREAD = Unavailable("denied")


def told(changes: dict[type, object]) -> Finding:
    """The finding about GPU0."""
    return f.judge(gpudirect_rdma, f.machine(changes))[0]


# GPUs and HCAs under one PCIe switch, as on a node with more GPUs than HCAs.
HCA_A, HCA_B = f.hca(0, name="a"), f.hca(1, name="b", pci="0000:19:00.0")
SWITCH_HCAS = (f.hca_device(0), f.hca_device(0, address="0000:19:00.0"))


def below_one_switch(gpus: int, a: Any = HCA_A, b: Any = HCA_B, **first: Any) -> dict[str, Status]:
    """The findings about `gpus` GPUs and two HCAs that share a switch; `first` changes what NVML says of GPU0."""
    devices = tuple(f.gpu_device(0, address=f.bdf(f.GPU_BUSES[i])) for i in range(gpus))
    facts = {
        Pci: f.pci(devices=(*devices, *SWITCH_HCAS)),
        Rdma: f.rdma(devices=(a, b)),
        Gpus: f.gpus(gpus, all=tuple(f.gpu(i, **(first if i == 0 else {})) for i in range(gpus))),
    }
    return f.statuses(f.judge(gpudirect_rdma, f.machine(facts)))


def test_gpus_take_the_hcas_of_their_switch_in_turn() -> None:
    assert set(below_one_switch(5)) == {"GPU0–a", "GPU1–b", "GPU2–a", "GPU3–b", "GPU4–a"}


def test_no_pair_is_guessed_where_the_turn_is_lost() -> None:
    unread = f.hca(0, name="a", ports=(f.port(rate_gbps=UNREAD),))
    assert below_one_switch(2, a=unread) == {"GPU0": Status.UNKNOWN, "GPU1": Status.UNKNOWN}
    # where GPU0 sits is not known: it may have taken either
    assert below_one_switch(3, pci=UNREAD) == {"GPU0": Status.UNKNOWN, "GPU1": Status.UNKNOWN, "GPU2": Status.UNKNOWN}
    # an HCA that is down is nobody's, and what is left is everybody's
    down = f.hca(1, name="b", pci="0000:19:00.0", ports=(f.port(state="DOWN"),))
    assert set(below_one_switch(2, b=down)) == {"GPU0–a", "GPU1–a"}


def test_the_only_hca_there_is_needs_no_rate() -> None:
    unread = f.hca(0, name="a", ports=(f.port(rate_gbps=UNREAD),))
    facts: dict[type, object] = {Rdma: f.rdma(devices=(unread,)), PathRun: f.path_run(f.hca_run(0, 1, "a:1"))}
    assert told(facts).subject == "GPU0–a"


def test_why_no_pair_is_named() -> None:
    lost = told({Pci: UNREAD})
    assert lost.message == "which RDMA device is its own could not be told: PCI: denied"
    moved: dict[type, object] = {Gpus: f.gpus(all=tuple(f.gpu(i, pci=UNREAD) for i in range(8)))}
    assert told(moved).message == "which RDMA device is its own could not be told"
