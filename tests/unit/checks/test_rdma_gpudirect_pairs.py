"""rdma.gpudirect: which GPU is judged with which HCA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Provider, Rdma
from netdoctor.facts.runs import Baseline, Path, PathRun
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.gdr_evidence import gdr_proof
from netdoctor.nccl.log.facts import NetDevice
from tests.support import facts as f

UNREAD = Unavailable("denied")


def told(changes: dict[type, object]) -> Finding:
    """The finding about GPU0."""
    return f.judge(gpudirect_rdma, f.machine(changes))[0]


NO_MODULE = f.kernel(modules={"nvidia_peermem": Unavailable("absent")})


def runs(**changes: Any) -> PathRun:
    return f.path_run(*(f.hca_run(i, (i + 1) % 8, f"mlx5_{i}:1", **changes) for i in range(8)))


DOWN = f.rdma(devices=tuple(f.hca(i, ports=(f.port(state="DOWN"),)) for i in range(8)))
NOTHING_CARRIED: dict[str, dict[type, object]] = {
    "its port is down": {Kernel: NO_MODULE, Rdma: DOWN},
    "its port is down, and a run went by it": {PathRun: runs(), Rdma: DOWN},
    "its ports were not read": {Kernel: NO_MODULE, Rdma: f.rdma(devices=tuple(f.hca(i, ports=UNREAD) for i in range(8)))},
    "its run went by sockets": {Kernel: NO_MODULE, PathRun: runs(log=f.log(net="Socket", network="Socket"))},
    "its run failed": {PathRun: runs(state="failed", verified=None, blamed=(1,))},
    "its data was wrong": {PathRun: runs(verified=False)},
}


@pytest.mark.parametrize("changes", NOTHING_CARRIED.values(), ids=NOTHING_CARRIED)
def test_what_carries_nothing_is_no_pass(changes: dict[type, object]) -> None:
    assert told(changes).status is Status.UNKNOWN


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


def test_the_faster_hca_is_the_one_that_nccl_takes() -> None:
    """As NCCL 2.18.3, 2.27.5 and 2.30.7 do: 12.5 GB/s behind the GPU's switch, 48 through the CPU."""
    slow, fast = f.hca(0, name="slow", ports=(f.port(rate_gbps=100.0),)), f.hca(1, name="fast")
    found = f.judge(
        gpudirect_rdma,
        f.machine(
            {
                Pci: f.pci(devices=(f.gpu_device(0), f.hca_device(0), f.hca_device(1))),
                Rdma: f.rdma(devices=(slow, fast)),
                Gpus: f.gpus(1),
                PathRun: f.path_run(f.hca_run(0, 1, "slow:1")),
            }
        ),
    )
    assert f.statuses(found) == {"GPU0–fast": Status.SKIP}  # and not a pass for the one that carries nothing
    assert found[0].message.startswith("their path is PHB")


def test_the_hca_that_is_taken_instead_is_named() -> None:
    dead = tuple(f.hca(i, provider=Provider(True, "", "EOPNOTSUPP")) for i in range(8))
    facts: dict[type, object] = {
        PathRun: f.path_run(),
        Rdma: f.rdma(devices=dead),
        Kernel: f.kernel(modules={"nvidia_peermem": Unavailable("absent")}),
    }
    found = f.judge(gpudirect_rdma, f.machine(facts))
    assert {one.status for one in found} == {Status.FAIL}
    assert found[1].subject == "GPU1–mlx5_1"
    assert found[1].notes == ("without GPUDirect NCCL's way from GPU1 is by mlx5_2",)
    assert found[3].notes == ()


def test_a_topology_file_that_may_be_set_hides_the_distance() -> None:
    far = (f.gpu_device(0), f.hca_device(1))
    unread: dict[type, object] = {
        Pci: f.pci(devices=far),
        Rdma: f.rdma(devices=(f.hca(1),)),
        Gpus: f.gpus(1),
        Environ: replace(f.environ(), variables=UNREAD),
    }
    assert told(unread).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("device", "virtual", "shown"),
    [
        (2, {0: "mlx5_0", 1: "mlx5_1", 2: "mlx5_0", 3: "mlx5_1"}, True),  # as 2.25.1 numbers two HCAs
        (3, {0: "mlx5_0", 1: "mlx5_1", 2: "mlx5_2", 3: "mlx5_0+mlx5_1"}, True),  # as 2.27.5 merges the ports of a card
        (1, {0: "mlx5_0", 1: "mlx5_1"}, False),
        (0, {}, True),  # before 2.24.3
        (7, {}, False),
    ],
)
def test_the_number_of_a_device_is_that_of_the_virtual_one(device: int, virtual: dict[int, str], shown: bool) -> None:
    listed = tuple(NetDevice(f"mlx5_{i}", 1, "RoCE") for i in range(3))
    way = f.via(direction="receive", gdrdma=False, device=device)
    log = f.log(net="IB", network="IB", vias=(way,), devices=listed, virtual_devices=virtual)
    run = f.run(2, log=log, experiment=replace(f.hca_run(1, 0).experiment, path=Path.parse("inter-node")))
    proof = gdr_proof((run,), 0, "mlx5_0")
    assert proof.receive is (False if shown else None)
    assert proof.unplaced is (device == 7)


def test_connections_that_name_no_device_are_no_pass() -> None:
    """Without GPUDirect, and by a device that may be this one."""
    way = f.via(1, 0, direction="send", gdrdma=False, device=9)
    log = f.log(net="IB", network="IB", vias=(way,))
    run = f.run(2, log=log, experiment=replace(f.hca_run(1, 0).experiment, path=Path.parse("inter-node")))
    one = told({PathRun: f.path_run(run)})
    assert one.status is Status.UNKNOWN and "does not name their device" in one.message


def test_old_versions_need_another_name_of_libcuda() -> None:
    """The unmodified 2.18.3 and 2.20.5 go without GPUDirect where there is no libcuda.so."""
    old: dict[type, object] = {
        PathRun: f.path_run(),
        Libraries: f.libraries(nccl=(f.library(version=(2, 20, 5)),)),
        Baseline: UNREAD,
    }
    one = told(old)
    assert one.status is Status.UNKNOWN and "this NCCL opens libcuda.so" in one.message
