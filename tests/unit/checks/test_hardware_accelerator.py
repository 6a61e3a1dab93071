"""hardware.accelerator: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.causes import cost
from netdoctor.checks.hardware_accelerator import accelerator
from netdoctor.facts import layers
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import Baseline, Path, Way
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

LOST = Unavailable("not recorded")
GONE = Unavailable("absent")
Changes = dict[type, object]
NOT_THE_JOB = f.vantage(job_environment=False)
TORCHRUN = Launcher("torchrun", None, 64, None, 64, 1, by_options=True)
OTHER, GPUS, JOB = "other accelerators", "GPUs", "GPUs of the job"


def judged(changes: Changes) -> dict[str, Finding]:
    found = f.judge(accelerator, f.machine(changes))
    assert len({x.subject for x in found}) == len(found) > 0
    return {x.subject: x for x in found}


def together(here: int | None, asked: int = 8) -> Changes:
    """An all-reduce of two nodes, so many ranks of it on this one."""
    one = f.run(2 * asked, experiment=replace(f.run().experiment, ranks=2 * asked, gpus=(), path=Path(way=Way.BETWEEN_NODES)))
    return {Baseline: f.baseline(replace(f.common_run(one), here=here))}


def given_away(driver: str) -> Pci:
    return f.pci(devices=(*(f.gpu_device(i) for i in range(7)), f.gpu_device(7, driver=driver)))


NO_RUN = Unavailable("refused", "--no-allreduce")
STILL: Changes = {Baseline: NO_RUN}
UNBOUND: Changes = {**STILL, Pci: f.pci(devices=tuple(f.gpu_device(i, driver="") for i in range(8)))}
NO_DRIVER: Changes = {**UNBOUND, Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=9)}

CASES: dict[str, tuple[Changes, str, Status]] = {
    "eight everywhere": ({}, GPUS, Status.PASS),
    "all of them between nodes": (together(8), JOB, Status.PASS),
    "one rank a node between nodes": (together(1), JOB, Status.UNKNOWN),
    "one rank a node, as the job has": ({**together(1), Intent: f.job(ranks_per_node=1)}, JOB, Status.PASS),
    "one in the container": ({Vantage: f.pod(), Gpus: f.gpus(1)}, GPUS, Status.PASS),
    "one given to a virtual machine": ({Pci: given_away("vfio-pci"), Gpus: f.gpus(7)}, GPUS, Status.PASS),
    "all given to virtual machines": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i, driver="vfio-pci") for i in range(8))), Gpus: f.gpus(0)},
        GPUS,
        Status.SKIP,
    ),
    "all given to virtual machines, and libcuda shows one": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i, driver="vfio-pci") for i in range(8))), Gpus: f.gpus(1, all=())},
        JOB,
        Status.UNKNOWN,
    ),
    "all given to virtual machines, NVML lost": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i, driver="vfio-pci") for i in range(8))), Gpus: f.gpus(0, all=LOST)},
        GPUS,
        Status.UNKNOWN,
    ),
    "more ranks than GPUs, by torchrun's options": ({Environ: f.environ(launcher=TORCHRUN)}, JOB, Status.FAIL),
    "more ranks than GPUs, over a network of NCCL's": (
        {Intent: f.job(ranks_per_node=64), Expected: f.expected(transport="IB")},
        JOB,
        Status.FAIL,
    ),
    "NVML lost all": ({Gpus: f.gpus(0)}, GPUS, Status.FAIL),
    "NVML shows more than PCI": ({Pci: f.pci(devices=tuple(f.gpu_device(i) for i in range(5)))}, GPUS, Status.UNKNOWN),
    "WSL2 gives GPUs that are not on PCI": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i) for i in range(5)), foreign_accelerators=("/dev/dxg",))},
        GPUS,
        Status.PASS,
    ),
    "a GPU of another kind that has nouveau": (
        {Pci: f.pci(devices=(*f.pci().devices, f.gpu_device(0, address="0000:02:00.0", device=0x20B0, driver="nouveau")))},
        "GPUs on another driver",
        Status.FAIL,
    ),
    "NVML lost one": ({Gpus: f.gpus(7)}, GPUS, Status.FAIL),
    "NVML shows another one": (
        {Pci: f.pci(devices=tuple(f.gpu_device(i) for i in range(7))), Gpus: f.gpus(all=tuple(f.gpu(i) for i in range(1, 8)))},
        GPUS,
        Status.FAIL,
    ),
    "no accelerator": ({Pci: f.pci(0, 0), Gpus: f.gpus(0)}, "node", Status.SKIP),
    "no accelerator, no driver": ({Pci: f.pci(0, 0), Gpus: f.gpus(0, visible=GONE, all=GONE)}, "node", Status.SKIP),
    "AMD": ({Pci: f.pci(0, 0, foreign_accelerators=("AMD (0000:c1:00.0)",)), Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "/dev/kfd": ({Pci: f.pci(0, 0, foreign_accelerators=("/dev/kfd",)), Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "other vendors lost": ({Pci: f.pci(0, 0, foreign_accelerators=LOST), Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "PCI lost": ({Pci: LOST}, GPUS, Status.UNKNOWN),
    "PCI lost, no GPU seen": ({Pci: LOST, Gpus: f.gpus(0)}, OTHER, Status.UNKNOWN),
    "NVML lost": ({Gpus: f.gpus(all=Unavailable("timed out"))}, GPUS, Status.UNKNOWN),
    "no NVML, and libcuda shows eight": ({Gpus: f.gpus(all=GONE)}, GPUS, Status.FAIL),
    "no NVML in a container, and libcuda shows two": ({Vantage: f.pod(), Gpus: f.gpus(2, all=GONE)}, GPUS, Status.FAIL),
    "no NVML, one GPU": ({Pci: f.pci(1), Gpus: f.gpus(1, all=GONE)}, GPUS, Status.UNKNOWN),
    "no NVML, seen outside of the job": (
        {Vantage: NOT_THE_JOB, Gpus: f.gpus(all=GONE)},
        GPUS,
        Status.UNKNOWN,
    ),
    "libcuda lost": ({Gpus: f.gpus(visible=LOST)}, JOB, Status.UNKNOWN),
    "libcuda of another driver": ({Gpus: f.gpus(visible=LOST, refused=803)}, JOB, Status.FAIL),
    "libcuda and NVML of another driver": ({Gpus: f.gpus(visible=LOST, all=LOST, refused=803)}, JOB, Status.FAIL),
    "cuda-compat on a GPU that it does not serve": ({Gpus: f.gpus(visible=LOST, refused=804)}, JOB, Status.FAIL),
    "libcuda of another driver, outside of the job": (
        {Vantage: NOT_THE_JOB, Gpus: f.gpus(visible=LOST, refused=803)},
        JOB,
        Status.UNKNOWN,
    ),
    "NVML of another driver": ({**STILL, Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=18)}, GPUS, Status.FAIL),
    "NVML of another driver, seen from the node": (
        {**STILL, Vantage: NOT_THE_JOB, Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=18)},
        GPUS,
        Status.FAIL,
    ),
    "NVML of another driver in a job's container": (
        {**STILL, Vantage: f.pod(), Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=18)},
        GPUS,
        Status.FAIL,
    ),
    "NVML of another driver in a container that is not the job's": (
        {**STILL, Vantage: replace(f.pod(), job_environment=False), Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=18)},
        GPUS,
        Status.UNKNOWN,
    ),
    "NVML of another driver, and no GPU for it": (
        {Pci: given_away("vfio-pci"), Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=9)},
        GPUS,
        Status.UNKNOWN,
    ),
    "no driver is loaded": ({**NO_DRIVER, Expected: f.expected(gpus=8)}, GPUS, Status.FAIL),
    "no driver is loaded, and a job has GPUs": ({**NO_DRIVER, Environ: f.environ({"SLURM_JOB_GPUS": "0"})}, GPUS, Status.FAIL),
    "no driver is loaded, and nobody means it to be": (NO_DRIVER, GPUS, Status.UNKNOWN),
    "no device file of the driver": ({**STILL, Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=9)}, GPUS, Status.UNKNOWN),
    "no driver is seen in a container": (
        {**UNBOUND, Vantage: f.pod(), Gpus: f.gpus(visible=LOST, all=LOST, nvml_refused=9)},
        GPUS,
        Status.UNKNOWN,
    ),
    "libcuda waits for the fabric": ({Gpus: f.gpus(visible=LOST, refused=802)}, JOB, Status.UNKNOWN),
    "libcuda shows the job none": ({Gpus: f.gpus(visible=())}, JOB, Status.UNKNOWN),
    "a container without GPUs": ({Vantage: f.pod(), Gpus: f.gpus(0)}, GPUS, Status.UNKNOWN),
    "addresses lost": ({Gpus: f.gpus(all=tuple(f.gpu(i, pci=LOST) for i in range(8)))}, GPUS, Status.UNKNOWN),
}


@pytest.mark.parametrize(("changes", "subject", "status"), CASES.values(), ids=CASES)
def test_case(changes: Changes, subject: str, status: Status) -> None:
    assert judged(changes)[subject].status is status, judged(changes)


@pytest.mark.parametrize(
    ("variables", "words"),
    [({}, "NVIDIA_VISIBLE_DEVICES is not set"), ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, "NVIDIA_VISIBLE_DEVICES is 0,1")],
)
def test_what_a_container_asked_for_is_said(variables: dict[str, str], words: str) -> None:
    none = judged({Vantage: f.pod(), Gpus: f.gpus(0), Environ: f.environ(variables)})[GPUS]
    assert none.status is Status.UNKNOWN and words in none.message


def test_the_missing_gpu_is_named() -> None:
    found = judged({Gpus: f.gpus(7)})[GPUS]
    assert found.evidence["missing"] == [f.bdf(f.GPU_BUSES[7])]


MIG = tuple(f"MIG-0000000{n}-2222-3333-4444-555555555555" for n in range(2))
ALL_PARTED = f.gpus(
    all=tuple(f.gpu(n, mig=True, mig_uuids=(f"MIG-{n}",)) for n in range(8)), visible=(f.visible(0, uuid="MIG-3"),)
)
ONE_PARTED = f.gpus(
    all=(*(f.gpu(n) for n in range(7)), f.gpu(7, mig=True, mig_uuids=MIG)),
    visible=tuple(replace(f.visible(7), ordinal=n, uuid=name) for n, name in enumerate(MIG)),
)
FOUR = f.gpus(visible=tuple(f.visible(n) for n in range(4)))
RANK = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_STEP_ID": "0"}
NO = Unavailable("denied")
DENIED = f.gpus(4, all=(*(f.gpu(n) for n in range(4)), *(f.gpu(n, uuid=NO, pci=NO) for n in range(4, 8))))

# What looks like a contradiction between layers and is none: no fail, and mostly a pass.
HEALTHY: dict[str, tuple[Changes, str, Status]] = {
    "MIG everywhere, one instance given": ({Gpus: ALL_PARTED}, JOB, Status.PASS),
    "MIG instances chosen by UUID": (
        {Gpus: ONE_PARTED, Environ: f.environ({"CUDA_VISIBLE_DEVICES": ",".join(MIG)})},
        JOB,
        Status.PASS,
    ),
    "MIG instances by the container": (
        {Gpus: ONE_PARTED, Vantage: f.pod(), Environ: f.environ({"NVIDIA_VISIBLE_DEVICES": MIG[0]})},
        JOB,
        Status.PASS,
    ),
    "whole GPUs chosen beside one in MIG": (
        {
            Gpus: f.gpus(
                all=(*(f.gpu(n) for n in range(7)), f.gpu(7, mig=True)), visible=tuple(f.visible(n) for n in range(7))
            ),
            Environ: f.environ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}),
        },
        JOB,
        Status.PASS,
    ),
    "four of eight by a mask": ({Gpus: FOUR, Environ: f.environ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"})}, JOB, Status.PASS),
    "four of eight by a mask, for four ranks": (
        {
            Gpus: FOUR,
            Environ: f.environ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}),
            Intent: f.job(ranks_per_node=4),
            Expected: f.expected(gpus=8),
        },
        JOB,
        Status.PASS,
    ),
    "a rank that is given one GPU": (
        {Gpus: f.gpus(visible=(f.visible(3, ordinal=0),)), Environ: f.environ({**RANK, "CUDA_VISIBLE_DEVICES": "3"})},
        JOB,
        Status.PASS,
    ),
    "more ranks than GPUs, where NCCL is told to": (
        {Environ: f.environ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, launcher=TORCHRUN)},
        JOB,
        Status.PASS,
    ),
    "64 ranks of a program for CPUs": ({Intent: f.job(ranks_per_node=64)}, JOB, Status.PASS),
    "an MPS server with four": (
        {Gpus: FOUR, Environ: f.environ({"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"})},
        JOB,
        Status.PASS,
    ),
    "a device cgroup that keeps four": ({Gpus: DENIED}, JOB, Status.PASS),
    "a device cgroup that keeps four, of the node": ({Gpus: DENIED}, GPUS, Status.PASS),
    "a hypervisor with a GPU of its own": (
        {
            Pci: f.pci(devices=(f.gpu_device(0), *(f.gpu_device(n, driver="vfio-pci") for n in range(1, 8)))),
            Gpus: f.gpus(1),
            Expected: f.expected(gpus=1),
        },
        "GPUs of virtual machines",
        Status.PASS,
    ),
    "a VGA card for the screen": (
        {
            Pci: f.pci(
                devices=(
                    *f.pci().devices,
                    f.gpu_device(0, address="0000:02:00.0", device=0x1288, klass=0x030000, driver="nouveau"),
                )
            )
        },
        GPUS,
        Status.PASS,
    ),
    "a container whose GPUs come by CDI": (
        {Vantage: f.pod(), Gpus: f.gpus(2), Environ: f.environ({"NVIDIA_VISIBLE_DEVICES": "void"})},
        GPUS,
        Status.PASS,
    ),
    "WSL": ({Pci: f.pci(0, 0, foreign_accelerators=("/dev/dxg",)), Gpus: f.gpus(1)}, JOB, Status.PASS),
    "PCI hidden in a container": ({Vantage: f.pod(), Pci: LOST}, JOB, Status.PASS),
}


@pytest.mark.parametrize(("changes", "subject", "status"), HEALTHY.values(), ids=HEALTHY)
def test_what_is_meant_is_no_fault(changes: Changes, subject: str, status: Status) -> None:
    found = judged({Baseline: NO_RUN, **changes})
    assert found[subject].status is status, found[subject].message
    assert not [one.message for one in found.values() if one.status is Status.FAIL]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not set: the container toolkit gives no GPU to a container that does not ask"),
        ("void", "void: the container toolkit leaves it alone"),
        ("none", "none: it has the driver's libraries, and was given no GPU on purpose"),
        ("all", "all: it was to be given all"),
    ],
)
def test_unset_void_none_and_all_are_four_things(value: str | None, words: str) -> None:
    environ = f.environ({} if value is None else {"NVIDIA_VISIBLE_DEVICES": value})
    for nothing in (f.gpus(0), f.gpus(0, all=GONE, visible=GONE)):
        found = judged({Vantage: f.pod(), Gpus: nothing, Environ: environ})[GPUS]
        assert found.status is Status.UNKNOWN and words in found.message


@pytest.mark.parametrize(
    ("mask", "names"),
    [("0,1", 2), ("", 0), ("-1", 0), ("0,1,-1,2", 2), ("NoDevFiles", 0), ("GPU-8932f937, 1", 2), ("MIG-1", 1), ("0,,1", 1)],
)
def test_a_mask_ends_at_what_is_no_device(mask: str, names: int) -> None:
    assert len(layers.named_gpus(mask)) == names


def test_a_gpu_is_joined_by_bus_and_uuid() -> None:
    rows = layers.gpu_layers(f.pci(), ONE_PARTED, f.baseline())
    last = next(row for row in rows if row.parted)
    assert len(rows) == 8 and last.pci is not None and [one.uuid for one in last.cuda] == list(MIG) and last.ranks == (0, 1)
    assert last.name == f"{f.bdf(f.GPU_BUSES[7])} ({f.uuid(7)})"


def test_a_gpu_that_the_driver_lost_is_named_with_what_it_said() -> None:
    gone = Unavailable("absent", "GPU is lost")
    found = judged({Gpus: f.gpus(8, all=tuple(f.gpu(n, pci=gone) if n == 3 else f.gpu(n) for n in range(8)))})["GPUs"]
    assert (found.status, found.evidence["missing"]) == (Status.FAIL, [f.gpu(3).pci])
    assert found.message == f"the driver has lost {f.gpu(3).pci}: GPU is lost"


@pytest.mark.parametrize(
    ("hidden", "words", "mend"),
    [
        (f.gpu(3, mig=True, mig_uuids=()), "in MIG mode without an instance", "turn MIG off"),
        (f.gpu(3), "CUDA_VISIBLE_DEVICES is not set", "see why libcuda leaves it out"),  # an error of its memory, an MPS server
    ],
)
def test_no_mend_unsets_a_mask_that_is_not_set(hidden: Gpu, words: str, mend: str) -> None:
    every = [f.gpu(n) if n != 3 else hidden for n in range(8)]
    gpus = f.gpus(
        all=tuple(every), visible=tuple(replace(f.visible(n), ordinal=m) for m, n in enumerate((0, 1, 2, 4, 5, 6, 7)))
    )
    found = judged({Gpus: gpus, Intent: f.job(ranks_per_node=8), Expected: f.expected(transport="IB")})[JOB]
    assert found.status is Status.FAIL and words in found.message
    assert found.fix is not None and mend in found.fix.summary and "unset CUDA_VISIBLE_DEVICES" not in found.fix.commands


def test_what_nvml_says_of_the_driver_has_the_nodes_mend() -> None:
    """With what libcuda says of the same it is one block; a container may have libraries that are not the node's."""
    both = {
        **STILL,
        Gpus: f.gpus(visible=LOST, all=LOST, refused=803, nvml_refused=18, libcuda="/usr/lib64/libcuda.so.550.90.07"),
    }
    here, there = judged(both), judged({**both, Vantage: f.pod()})
    for found, words in ((here, "restart it"), (there, "start the container again")):
        assert found[GPUS].fix == found[JOB].fix and words in str(found[GPUS].fix)
        assert found[GPUS].loss == cost.STOPS
    compat = judged({**STILL, Gpus: f.gpus(visible=LOST, refused=803, libcuda="/usr/local/cuda/compat/libcuda.so.1")})
    assert "take cuda-compat off" in str(compat[JOB].fix)
