"""rdma.gpudirect: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Provider, Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
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


def test_no_modprobe_where_the_version_ignores_the_module() -> None:
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


UNREAD = Unavailable("denied")
NO_PLATFORM: dict[type, object] = {Kernel: NO_MODULE, Gpus: CLOSED_DRIVER}


def says(*vias: tuple[str, bool]) -> PathRun:
    """A run of GPU0 and GPU1 through mlx5_0 whose log has these lines about GPU0: direction and /GDRDMA."""
    lines = tuple(f.via(0, 1, way, yes) if way == "send" else f.via(1, 0, way, yes) for way, yes in vias)
    return f.path_run(f.hca_run(log=f.log(vias=lines)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({Rdma: f.rdma(devices=UNREAD)}, "GPUs or RDMA devices could not be read: denied"),
        ({Pci: UNREAD, Gpus: f.gpus(all=LOST, visible=LOST)}, "GPUs or RDMA devices could not be read: denied"),
        ({Pci: f.pci(0, 8), Gpus: f.gpus(0, visible=UNREAD)}, "PCI shows no GPU, and libcuda could not be asked: denied"),
        ({Environ: f.environ({"NCCL_IB_HCA": "=mlx5_99"})}, "NCCL_IB_HCA selects none of the RDMA devices"),
        ({Rdma: f.no_rdma()}, "PCI shows RDMA hardware, /sys/class/infiniband shows none"),
        ({Pci: UNREAD, Rdma: f.no_rdma()}, "no RDMA device in sysfs, but PCI could not be read: denied"),
        ({Gpus: f.gpus(visible=())}, "libcuda shows the job no GPU, PCI does"),
        ({Pci: UNREAD, Gpus: f.gpus(visible=())}, "libcuda shows the job no GPU, PCI could not be read: denied"),
        # what NCCL would ask, where no run was made
        ({Kernel: NO_MODULE, Gpus: f.gpus(visible=LOST)}, "peer memory: none of "),
        ({Gpus: f.gpus(visible=LOST)}, "peer memory: attribute 116 of this GPU: libcuda was not asked"),
        (
            {Environ: f.environ({"NCCL_TOPO_FILE": "/opt/topo.xml"})},
            "how far GPU and HCA are apart for NCCL is not known; no run",
        ),
        ({Environ: f.environ({"NCCL_TOPO_FILE": "/opt/topo.xml"}), Gpus: f.gpus(visible=LOST)}, "peer memory: "),
        # a run whose log tells half
        ({PathRun: says(("receive", True))}, "GPUDirect on receive, sends not shown or not decided: the default"),
        (
            {
                PathRun: says(("receive", True), ("send", False)),
                Gpus: f.gpus(all=tuple(f.gpu(i, capability=UNREAD) for i in range(8))),
            },
            "GPUDirect on receive, sends not shown or not decided: compute capability: denied",
        ),
        ({PathRun: says(("send", True))}, "GPUDirect on send, receives not shown"),
        (
            {PathRun: runs(False), Environ: f.environ({"NCCL_TOPO_FILE": "/opt/topo.xml"})},
            "the run staged through host memory, and how far GPU and HCA are apart for NCCL is not known",
        ),
        # staged, and whether the GPU could do better was not read: a GeForce would be healthy
        (
            {
                PathRun: runs(False),
                Gpus: f.gpus(visible=tuple(f.visible(i, gpudirect_rdma=UNREAD, dmabuf=UNREAD) for i in range(8))),
            },
            "on neither side, and whether it could be used is not known: peer memory: attribute 116 of this GPU: denied",
        ),
        # without a version, a log that tells half is no proof
        (
            {Libraries: LOST, Baseline: LOST, PathRun: says(("send", True))},
            "the job's NCCL version is not known: not recorded",
        ),
        ({Vantage: f.outside(), PathRun: runs()}, "both ways, seen as root outside the job"),
        ({Vantage: f.outside(why_not=""), PathRun: runs()}, "both ways, seen outside the job"),
    ],
)
def test_what_is_missing_is_named(changes: dict[type, object], words: str) -> None:
    found = one(changes)
    assert found.status is Status.UNKNOWN and words in found.message, found.message


def test_a_log_that_shows_both_ways_needs_no_version() -> None:
    assert one({Libraries: LOST, Baseline: LOST, PathRun: runs()}).status is Status.PASS


@pytest.mark.parametrize(
    ("stated", "status"),
    [
        ({"nodes": 1}, Status.SKIP),  # no data crosses the network
        ({"nodes": 2}, Status.FAIL),
        ({}, Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize("changes", [NO_PLATFORM, {PathRun: runs(False)}], ids=["no platform", "not in the run"])
def test_it_counts_as_the_job_needs_it(changes: dict[type, object], stated: dict[str, int], status: Status) -> None:
    assert one({**changes, Intent: f.job(**stated)}).status is status


# The two mechanisms, each by what decides it: module, attribute 116, attribute 124, the HCA's driver.
@pytest.mark.parametrize(
    ("module", "offers", "dmabuf", "errno", "status", "words"),
    [
        (True, True, True, "EBADF", Status.PASS, "everything that NCCL asks says DMA-BUF"),
        (True, True, True, "EOPNOTSUPP", Status.UNKNOWN, "a peer-memory module is loaded"),
        # NCCL asks the GPU first: with 116 = 0 and 124 = 1 the unmodified 2.18.3 to 2.32.3 use neither
        (True, False, True, "EBADF", Status.UNKNOWN, "attribute 116 is 0, which NCCL asks first"),
        (True, False, True, "EOPNOTSUPP", Status.UNKNOWN, "attribute 116 is 0, which NCCL asks first"),
        (False, UNREAD, True, "EBADF", Status.UNKNOWN, "DMA-BUF: attribute 116 of this GPU: denied"),
        (True, UNREAD, True, "EOPNOTSUPP", Status.UNKNOWN, "attribute 116 of this GPU: denied"),
        (False, True, True, "EOPNOTSUPP", Status.FAIL, "no GPUDirect"),
        (False, UNREAD, True, "EOPNOTSUPP", Status.FAIL, "no GPUDirect"),
        (False, True, True, UNREAD, Status.UNKNOWN, "ibv_reg_dmabuf_mr: denied"),
        (True, False, True, UNREAD, Status.UNKNOWN, "attribute 116 is 0, which NCCL asks first"),
    ],
)
def test_either_mechanism_serves(
    module: bool, offers: bool | Unavailable, dmabuf: bool, errno: str | Unavailable, status: Status, words: str
) -> None:
    found = one(
        {
            Kernel: f.kernel() if module else NO_MODULE,
            Gpus: f.gpus(visible=tuple(f.visible(i, gpudirect_rdma=offers, dmabuf=dmabuf) for i in range(8))),
            Rdma: f.rdma(devices=tuple(f.hca(i, provider=Provider(True, "", errno)) for i in range(8))),
        }
    )
    assert found.status is status and words in found.message, found


OLD_VERBS = f.rdma(devices=tuple(f.hca(i, provider=Provider(True, "", Unavailable("unsupported"))) for i in range(8)))
LOADS = "modprobe nvidia-peermem"


@pytest.mark.parametrize(
    ("changes", "words", "loads"),
    [
        ({Kernel: NO_MODULE, Environ: f.environ({"NCCL_DMABUF_ENABLE": "0"})}, "remove NCCL_DMABUF_ENABLE", False),
        ({Gpus: CLOSED_DRIVER, **old("2.22.3")}, "NCCL 2.23.4 or newer", False),
        (NO_PLATFORM, "the driver's open kernel modules (DMA-BUF), or load nvidia_peermem", True),
        ({Kernel: NO_MODULE, Rdma: OLD_VERBS}, "rdma-core 34", False),
        ({Kernel: NO_MODULE, Rdma: NO_DMABUF_HCAS}, "load nvidia_peermem where ib_core has the peer-memory API", True),
        ({Kernel: NO_MODULE, **old("2.12.12")}, "load nvidia_peermem where ib_core has the peer-memory API", True),
        ({Kernel: NO_MODULE, Gpus: f.gpus(cuda_driver=11060)}, "GPU driver (CUDA 11.7 or newer)", True),
    ],
)
def test_the_mend_is_one_that_can_help(changes: dict[type, object], words: str, loads: bool) -> None:
    found = one(changes)
    assert found.status is Status.FAIL and found.fix is not None, found
    assert words in found.fix.summary
    assert (LOADS in found.fix.commands) is loads


ALONE = {
    Pci: FAR,
    Rdma: f.rdma(devices=(f.hca(7),)),
    Gpus: f.gpus(all=(f.gpu(0),), visible=(f.visible(0),)),
}


@pytest.mark.parametrize("level", ["PXB", "PIX", "LOC"])
def test_a_level_that_changes_nothing_is_no_fault(level: str) -> None:
    """GPU and HCA on two sockets: NCCL's default stages as well."""
    assert one({**ALONE, Environ: f.environ({"NCCL_NET_GDR_LEVEL": level})}).status is Status.SKIP


def efa_on(name: str, send: bool | None, receive: bool | None, gpus: int = 8) -> Finding:
    lines = tuple(
        f.via(*ends, way, yes, detail="Libfabric")
        for ends, way, yes in (((0, 1), "send", send), ((1, 0), "receive", receive))
        if yes is not None
    )
    run = f.hca_run(0, 1, "rdmap0s0:1", log=f.log(network="Libfabric", vias=lines))
    every = range(gpus)
    seen = f.gpus(all=tuple(f.gpu(i, name=name) for i in every), visible=tuple(f.visible(i, name=name) for i in every))
    found = f.judge(gpudirect_rdma, f.machine({Rdma: efa(True)[Rdma], PathRun: f.path_run(run), Gpus: seen}))
    return next(x for x in found if x.subject == "GPU0–rdmap0s0")


@pytest.mark.parametrize(
    ("name", "send", "receive", "status", "words"),
    [
        (f.GPU_NAME, True, True, Status.PASS, "EFA: the log shows /GDRDMA both ways (NET/Libfabric)"),
        (f.GPU_NAME, True, False, Status.FAIL, "EFA without GPUDirect: NET/Libfabric staged"),
        (f.GPU_NAME, False, True, Status.FAIL, "EFA without GPUDirect: NET/Libfabric staged"),
        (f.GPU_NAME, None, None, Status.UNKNOWN, "libfabric and aws-ofi-nccl decide"),
        # instances with these GPUs have an EFA without GPUDirect RDMA
        ("NVIDIA A10G", False, False, Status.UNKNOWN, "libfabric and aws-ofi-nccl decide"),
        ("NVIDIA A10G", True, True, Status.PASS, "both ways"),
    ],
)
def test_efa_by_gpu_and_direction(name: str, send: bool | None, receive: bool | None, status: Status, words: str) -> None:
    found = efa_on(name, send, receive)
    assert found.status is status and words in found.message, found


@pytest.mark.parametrize(("gpus", "status"), [(1, Status.UNKNOWN), (2, Status.FAIL)])
def test_an_instance_of_one_gpu_has_an_efa_without_gpudirect(gpus: int, status: Status) -> None:
    assert efa_on(f.GPU_NAME, False, False, gpus).status is status


@pytest.mark.parametrize(
    ("variables", "plugins", "status", "words"),
    [
        ({"NCCL_NET": "socket"}, (), Status.SKIP, "socket is meant to carry the data"),
        ({"NCCL_IB_DISABLE": "1"}, (), Status.SKIP, "NCCL_IB_DISABLE=1, and no network plugin is installed"),
        ({"NCCL_IB_DISABLE": "1"}, (f.plugin(),), Status.UNKNOWN, "whether a plugin does is not known"),
        ({"NCCL_IB_DISABLE": "1"}, UNREAD, Status.UNKNOWN, "whether a plugin does is not known"),
        ({"NCCL_IB_DISABLE": "0"}, (), Status.PASS, "everything that NCCL asks says DMA-BUF"),
    ],
)
def test_where_nccl_asks_no_rdma_device(variables: dict[str, str], plugins: Any, status: Status, words: str) -> None:
    facts = {Environ: f.environ(variables), Libraries: f.libraries(plugins=plugins)}
    found = one(facts)
    assert found.status is status and words in found.message
    assert one({**facts, PathRun: runs()}).status is Status.PASS  # what a run shows counts more
