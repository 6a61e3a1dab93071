"""rdma.gpudirect: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.allreduce.experiment import Baseline, PathRun
from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.probes.environ import Environ
from netdoctor.probes.gpu import Gpus
from netdoctor.probes.kernel import Kernel
from netdoctor.probes.libraries import Libraries
from netdoctor.probes.pci import Pci
from netdoctor.probes.rdma import Provider, Rdma
from netdoctor.probes.vantage import Vantage
from tests.support import facts as f

PAIR = "GPU0–mlx5_0"
NO_MODULE = f.kernel(modules={"nvidia_peermem": Unavailable("absent")})
NO_DMABUF_HCAS = f.rdma(devices=tuple(f.hca(i, provider=Provider(True, "", "EOPNOTSUPP")) for i in range(8)))
CLOSED_DRIVER = f.gpus(visible=tuple(f.visible(i, dmabuf=False) for i in range(8)))


def runs(gdrdma: bool = True, **changes: Any) -> PathRun:
    return f.path_run(*(f.hca_run(i, (i + 1) % 8, f"mlx5_{i}:1", gdrdma, **changes) for i in range(8)))


def old(version: str) -> dict[type, object]:
    """A job whose run loaded this NCCL version."""
    return {Baseline: f.baseline(f.run(nccl_version=version))}


def one(changes: dict[type, object]) -> Finding:
    """The finding about GPU0 (or the only one there is)."""
    found = f.judge(gpudirect_rdma, f.machine({PathRun: f.path_run(), **changes}))
    return next((one for one in found if one.subject == PAIR), found[0])


HEALTHY = {
    "peermem proven by the run": {PathRun: runs()},
    "DMA-BUF alone, proven by the run": {PathRun: runs(), Kernel: NO_MODULE},
    "DMA-BUF alone, no run: NCCL asks and hears yes": {Kernel: NO_MODULE},
    "module built in without DMA-BUF, proven by the run": {PathRun: runs(), Gpus: CLOSED_DRIVER},
    "files say no, the run says yes": {PathRun: runs(), Kernel: NO_MODULE, Gpus: CLOSED_DRIVER},
    "receive only before Ampere without NVLink": {
        PathRun: f.path_run(
            f.hca_run(0, 1, "mlx5_0:1", log=f.log(vias=(f.via(0, 1, "send", False), f.via(1, 0, "receive", True))))
        ),
        Gpus: f.gpus(all=tuple(f.gpu(i, capability=(7, 0), nvlinks=()) for i in range(8))),
    },
}


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY)
def test_pass(changes: dict[type, object]) -> None:
    assert one(changes).status is Status.PASS


def test_one_finding_per_gpu_with_its_nearest_hca() -> None:
    found = f.judge(gpudirect_rdma, f.machine({PathRun: runs()}))
    assert {x.subject for x in found} == {f"GPU{i}–mlx5_{i}" for i in range(8)}


FAILS = {
    "neither mechanism": ({Kernel: NO_MODULE, Gpus: CLOSED_DRIVER}, "no GPUDirect"),
    "HCA without DMA-BUF and no module": ({Kernel: NO_MODULE, Rdma: NO_DMABUF_HCAS}, "no GPUDirect"),
    "able, not used": ({PathRun: runs(False)}, "able to use GPUDirect"),
    "send side only": (
        {PathRun: f.path_run(f.hca_run(log=f.log(vias=(f.via(0, 1, "send", True), f.via(1, 0, "receive", False)))))},
        "one side only",
    ),
    "reads off on Hopper": (
        {PathRun: f.path_run(f.hca_run(log=f.log(vias=(f.via(0, 1, "send", False), f.via(1, 0, "receive", True)))))},
        "one side only: receive",
    ),
    "switched off: NCCL_DMABUF_ENABLE": ({Kernel: NO_MODULE, Environ: f.environ({"NCCL_DMABUF_ENABLE": "0"})}, "no GPUDirect"),
    "level below the distance": (
        {PathRun: runs(False), Environ: f.environ({"NCCL_NET_GDR_LEVEL": "LOC"})},
        "NCCL_NET_GDR_LEVEL=LOC",
    ),
    "module that NCCL 2.22.3 does not see": ({Gpus: CLOSED_DRIVER, **old("2.22.3")}, "no GPUDirect"),
}


@pytest.mark.parametrize(("changes", "words"), FAILS.values(), ids=FAILS)
def test_fail(changes: dict[type, object], words: str) -> None:
    found = one(changes)
    assert found.status is Status.FAIL, found
    assert words in found.message


def test_no_modprobe_where_the_version_does_not_look_at_the_module() -> None:
    found = one({Gpus: CLOSED_DRIVER, **old("2.22.3")})
    assert found.fix is not None and "2.23.4" in found.fix.summary
    assert not any("modprobe" in command for command in found.fix.commands)


def test_no_modprobe_where_a_variable_switched_it_off() -> None:
    found = one({Kernel: NO_MODULE, Environ: f.environ({"NCCL_DMABUF_ENABLE": "0"})})
    assert found.fix is not None and "NCCL_DMABUF_ENABLE" in found.fix.summary


def test_a_level_that_the_user_lowered_is_tried_without() -> None:
    found = one({PathRun: runs(False), Environ: f.environ({"NCCL_NET_GDR_LEVEL": "LOC"})})
    assert found.cure is not None and ("NCCL_NET_GDR_LEVEL", None) in found.cure.change.env


FAR = f.pci(devices=(f.gpu_device(0), f.hca_device(7)))
SKIPS = {
    "no GPU": {Pci: f.pci(0, 8), Gpus: f.gpus(0)},
    "no RDMA device": {Pci: f.pci(8, 0), Rdma: f.no_rdma()},
    "too far by design": {
        Pci: FAR,
        Rdma: f.rdma(devices=(f.hca(7),)),
        Gpus: f.gpus(all=(f.gpu(0),), visible=(f.visible(0),)),
    },
    "GB10": {
        Gpus: f.gpus(1, all=(f.gpu(0, name="NVIDIA GB10"),), visible=(f.visible(0, name="NVIDIA GB10", integrated=True),))
    },
    "GeForce": {
        Gpus: f.gpus(1, visible=(f.visible(0, name="NVIDIA GeForce RTX 4090", gpudirect_rdma=False, dmabuf=False),)),
    },
}


@pytest.mark.parametrize("changes", SKIPS.values(), ids=SKIPS)
def test_skip(changes: dict[type, object]) -> None:
    assert one(changes).status is Status.SKIP


LOST = Unavailable("not recorded")
UNKNOWNS = {
    "module alone and no run": {Gpus: CLOSED_DRIVER},
    "modules could not be read": {Kernel: f.kernel(modules={"nvidia_peermem": Unavailable("denied")}), Gpus: CLOSED_DRIVER},
    "libibverbs could not be asked": {
        Kernel: NO_MODULE,
        Rdma: f.rdma(devices=tuple(f.hca(i, provider=LOST) for i in range(8))),
    },
    "libcuda could not be asked": {Kernel: NO_MODULE, Gpus: f.gpus(visible=LOST)},
    "PCI lost: distance not known": {Pci: LOST},
    "no RDMA in sysfs, PCI lost": {Pci: LOST, Rdma: f.no_rdma()},
    "PCI shows HCAs, sysfs none": {Rdma: f.no_rdma()},
    "version not known": {Libraries: LOST, Baseline: LOST},
    "settings lost": {Environ: f.environ(nccl=LOST, variables=LOST)},
    "AMD": {Pci: f.pci(0, 8, foreign_accelerators=("AMD (0000:c1:00.0)",)), Gpus: f.gpus(0)},
    "seen outside the job": {Vantage: f.outside(), PathRun: runs()},
    "libcuda shows none, PCI does": {Gpus: f.gpus(visible=())},
    "EFA without a run": {Rdma: f.rdma(devices=tuple(f.hca(i, driver="efa") for i in range(8)))},
    "NCCL_TOPO_FILE: distances are not PCI's": {Environ: f.environ({"NCCL_TOPO_FILE": "/opt/topo.xml"})},
    "vGPU": {Gpus: f.gpus(visible=(f.visible(0, gpudirect_rdma=False, dmabuf=False),))},
}


@pytest.mark.parametrize("changes", UNKNOWNS.values(), ids=UNKNOWNS)
def test_unknown(changes: dict[type, object]) -> None:
    found = one(changes)
    assert found.status is Status.UNKNOWN, found


def efa(gdrdma: bool) -> dict[type, object]:
    vias = tuple(f.via(s, 1 - s, way, gdrdma, detail="Libfabric") for s in (0, 1) for way in ("send", "receive"))
    return {
        Rdma: f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(8))),
        PathRun: f.path_run(f.hca_run(0, 1, "rdmap0s0:1", log=f.log(network="Libfabric", vias=vias))),
    }


@pytest.mark.parametrize(("gdrdma", "status"), [(True, Status.PASS), (False, Status.FAIL)])
def test_efa_is_judged_by_its_log(gdrdma: bool, status: Status) -> None:
    found = f.judge(gpudirect_rdma, f.machine(efa(gdrdma)))
    assert f.statuses(found)["GPU0–rdmap0s0"] is status


def test_without_distances_no_pair_is_guessed() -> None:
    found = f.judge(gpudirect_rdma, f.machine({PathRun: runs(), Pci: Unavailable("denied")}))
    assert {(one.subject, one.status) for one in found} == {(f"GPU{i}", Status.UNKNOWN) for i in range(8)}


def test_what_the_files_say_is_no_pass_where_the_runs_are_lost() -> None:
    found = one({Kernel: NO_MODULE, PathRun: Unavailable("no budget")})
    assert found.status is Status.UNKNOWN and "no budget" in found.message
