"""Probes of GPUs, CPUs and the kernel: what they find, and that absent, denied, empty and unread stay apart."""

# ruff: noqa: F401, F811  (fixtures that come by import)

from __future__ import annotations

import pathlib
from typing import Any

import pynvml
import pytest

from netdoctor.facts import cpu, gpu, kernel, pci
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.host.helpers.nvml import answer as ask_nvml, why
from netdoctor.model import Kind, Unavailable, missing
from tests.unit.test_hardware_probes import answers, healthy, root

# GPUs

NVML_GPU = {
    "index": 0,
    "uuid": "GPU-fa4e0000-0000-4000-8000-000000000000",
    "name": "NVIDIA H100 80GB HBM3",
    "pci": "00000000:1B:00.0",
    "memory_total": 80 << 30,
    "memory_used": 4 << 20,
    "utilization": 0,
    "processes": 0,
    "nvlinks": [True, False],
    "mig": False,
    "mig_uuids": [],
    "capability": [9, 0],
}
NVML: dict[str, Any] = {"driver": "580.95.05", "cuda": 13000, "devices": [NVML_GPU]}
CUDA_GPU: dict[str, Any] = {
    "ordinal": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "fa4e0000000040008000000000000000",
    "attributes": {"18": 0, "33": 0x1B, "34": 0, "50": 0, "116": 1, "124": {"unavailable": "unsupported", "detail": "old"}},
}
CUDA: dict[str, Any] = {"driver_version": 12090, "init": 0, "error": "", "devices": [CUDA_GPU]}


def the_gpus(**given: Answer) -> gpu.Gpus:
    return gpu.probe(
        ReplayHost({f"ask:{k}": v for k, v in given.items()} | {"file:/sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n"})
    )


def test_both_sides_of_a_gpu() -> None:
    fact = the_gpus(nvml=NVML, cuda=CUDA)
    assert (fact.driver, fact.cuda_driver) == ("580.95.05", 12090)
    assert not isinstance(fact.all, Unavailable) and not isinstance(fact.visible, Unavailable)
    one, seen = fact.all[0], fact.visible[0]
    assert (one.pci, one.numa_node, one.nvlinks, one.capability) == ("0000:1b:00.0", 1, (True, False), (9, 0))
    assert (seen.uuid, seen.gpudirect_rdma, seen.dmabuf, seen.integrated) == (
        one.uuid,
        True,
        Unavailable("unsupported", "old"),
        False,
    )
    assert fact.of_the_job == ((seen, one),)


def test_a_mig_instance_joins_its_gpu() -> None:
    mig = NVML_GPU | {"mig": True, "mig_uuids": ["MIG-11111111-2222-3333-4444-555555555555"]}
    fact = the_gpus(
        nvml=NVML | {"devices": [mig]}, cuda=CUDA | {"devices": [CUDA_GPU | {"uuid": "1111111122223333" + "4444555555555555"}]}
    )
    assert not isinstance(fact.visible, Unavailable) and not isinstance(fact.all, Unavailable)
    assert fact.visible[0].uuid == "MIG-11111111-2222-3333-4444-555555555555"
    assert fact.of_the_job == ((fact.visible[0], fact.all[0]),)


def test_a_gpu_that_fell_off_the_bus_stays_counted() -> None:
    lost = {"index": 1, "unavailable": "failed", "detail": "NVML: GPU is lost", "code": 15}
    fact = the_gpus(nvml=NVML | {"devices": [NVML_GPU, lost]}, cuda=CUDA)
    assert not isinstance(fact.all, Unavailable) and len(fact.all) == 2
    assert fact.all[1].index == 1 and fact.all[1].uuid == Unavailable("failed", "NVML: GPU is lost") == fact.all[1].pci


def test_none_visible_is_an_answer_and_a_failed_init_is_not() -> None:
    assert the_gpus(nvml=NVML, cuda=CUDA | {"init": 100, "devices": []}).visible == ()
    failed = {"unavailable": "failed", "detail": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "code": 802}
    fact = the_gpus(nvml=NVML, cuda=CUDA | {"init": 802, "devices": failed})
    assert isinstance(fact.visible, Unavailable) and "802" in fact.visible.detail and fact.of_the_job == fact.visible
    assert isinstance(the_gpus(nvml=NVML, cuda=CUDA | {"devices": [CUDA_GPU, failed]}).visible, Unavailable)
    assert the_gpus(nvml=NVML | {"devices": []}, cuda=Unavailable("absent")).all == ()
    assert the_gpus(nvml=Unavailable("timed out"), cuda=CUDA).all == Unavailable("timed out")


# CPU and kernel


def test_nodes_of_a_dgx(healthy: dict[str, Answer]) -> None:
    status = "Uid:\t0\t0\t0\t0\nCpus_allowed_list:\t0-3,8\nMems_allowed_list:\t0-1\n"
    fact = cpu.probe(ReplayHost(healthy | {"file:/proc/self/status": status}))
    assert not isinstance(fact.nodes, Unavailable)
    assert [n.distances for n in fact.nodes] == [{0: 10, 1: 21}, {0: 21, 1: 10}]
    assert fact.nodes[1].cpus == frozenset(range(56, 112))
    assert fact.allowed == frozenset({0, 1, 2, 3, 8}) and fact.memory_allowed == frozenset({0, 1})


ONLINE = "file:/sys/devices/system/cpu/online"


def test_nodes_without_cpus_and_kernels_without_numa(healthy: dict[str, Answer]) -> None:
    alone: dict[str, Answer] = {ONLINE: healthy["file:/sys/devices/system/node/node0/cpulist"]}
    fact = cpu.probe(ReplayHost(healthy | alone | {"file:/sys/devices/system/node/node1/cpulist": "\n"}))
    assert not isinstance(fact.nodes, Unavailable) and fact.nodes[1].cpus == frozenset()
    flat: dict[str, Answer] = {"dir:/sys/devices/system/node": Unavailable("absent"), "dir:/sys/devices/system": ["cpu"]}
    fact = cpu.probe(ReplayHost(healthy | flat))
    assert not isinstance(fact.nodes, Unavailable) and len(fact.nodes) == 1
    nothing: list[Answer] = [Unavailable("absent"), []]
    for answer in nothing:
        assert isinstance(cpu.probe(ReplayHost(healthy | flat | {"dir:/sys/devices/system": answer})).nodes, Unavailable)


@pytest.mark.parametrize("text", ["0-", "5-2", "a", "0-99999999", "1,,2", "-1", "٣"])
def test_rubbish_is_no_cpu_list(text: str) -> None:
    assert isinstance(cpu.cpu_list(text, "x"), Unavailable)


def test_a_list_may_end_with_a_zero_byte(healthy: dict[str, Answer]) -> None:
    """As Linux 5.15 gives it."""
    online: dict[str, Answer] = {ONLINE: f"0-3,{str(healthy['file:/sys/devices/system/node/node1/cpulist']).strip()}"}
    fact = cpu.probe(ReplayHost(healthy | online | {"file:/sys/devices/system/node/node0/cpulist": "0-3\n\0"}))
    assert not isinstance(fact.nodes, Unavailable) and fact.nodes[0].cpus == frozenset(range(4))


def test_a_cpu_in_two_nodes_is_in_none(healthy: dict[str, Answer]) -> None:
    both = {f"file:/sys/devices/system/node/node{n}/cpulist": "0-7\n" for n in (0, 1)}
    fact = cpu.probe(ReplayHost(healthy | both))
    assert isinstance(fact.nodes, Unavailable) and fact.nodes.kind == "malformed"


def test_modules_are_absent_only_where_there_are_modules(healthy: dict[str, Answer]) -> None:
    fact = kernel.probe(ReplayHost(healthy))
    assert fact.modules["nvidia_peermem"] == kernel.Module("580.95.05")
    assert fact.modules["ib_core"] == kernel.Module(None)
    assert fact.modules["efa"] == Unavailable("absent")
    missing: list[tuple[Answer, str]] = [([], "empty"), (Unavailable("absent"), "not read"), (Unavailable("denied"), "denied")]
    for answer, kind in missing:
        got = kernel.probe(ReplayHost(healthy | {"dir:/sys/module": answer})).modules["nvidia_peermem"]
        assert isinstance(got, Unavailable) and got.kind == kind


def test_memory_peers(root: pathlib.Path, healthy: dict[str, Answer]) -> None:
    assert kernel.probe(ReplayHost(healthy)).memory_peers["nv_mem"] == Unavailable("absent", "ENOENT No such file or directory")
    fact = kernel.probe(ReplayHost(answers(root, memory_peers=["nv_mem"])))
    assert fact.memory_peers["nv_mem"] == "1.1"
    nothing: list[Answer] = [Unavailable("denied"), []]
    for answer in nothing:
        got = kernel.probe(ReplayHost(healthy | {"dir:/sys/kernel/mm": answer})).memory_peers["nv_mem"]
        assert isinstance(got, Unavailable) and got.kind == "not read"


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             96365                96365                processes
Max open files            20000                20000                files
Max locked memory         65536                unlimited            bytes
"""


def test_limits() -> None:
    fact = kernel.probe(ReplayHost({"file:/proc/self/limits": LIMITS}))
    assert fact.limits["memlock"] == 65536
    assert fact.limits["nofile"] == 20000
    cut = kernel.probe(ReplayHost({"file:/proc/self/limits": LIMITS[:100]}))
    assert isinstance(cut.limits["memlock"], Unavailable)


ROOT = "30 1 0:28 / / rw - ext4 /dev/md0 rw\n"
LOAD = "1.04 0.87 112.91 2/3971 90210\n"


@pytest.mark.parametrize(
    ("text", "mounts", "threads"),
    [
        (LOAD, ROOT, 3971),
        ("1.04 0.87 0.91 2 90210", ROOT, None),
        ("", ROOT, None),
        ("0.00 0.00 0.00 0/0 0\n", ROOT, None),  # gVisor's kernel counts none
        # LXCFS shows those of its container.
        (LOAD, f"{ROOT}96 90 0:50 /proc/loadavg /proc/loadavg rw - fuse.lxcfs lxcfs rw,user_id=0\n", None),
        (LOAD, "", None),
        (LOAD, Unavailable(Kind.DENIED, "EACCES"), None),
    ],
)
def test_threads_of_the_whole_machine(text: str, mounts: str | Unavailable, threads: int | None) -> None:
    found = kernel.probe(ReplayHost({"file:/proc/loadavg": text, "file:/proc/self/mountinfo": mounts})).threads
    assert found == threads if threads else isinstance(found, Unavailable)


@pytest.mark.parametrize("told", [{"size": -8, "free": 1}, {"size": 8, "free": -1}])
def test_shared_memory_is_never_less_than_none(told: dict[str, int]) -> None:
    found = kernel.probe(ReplayHost({"statvfs:/dev/shm": told, "file:/proc/self/mountinfo": ROOT}))
    assert missing(found.shm_size, found.shm_free) is not None


def test_who_chose_the_size_is_not_known_without_mounts() -> None:
    found = kernel.probe(ReplayHost({"statvfs:/dev/shm": {"size": 8, "free": 8}}))
    assert found.shm_size == 8 and isinstance(found.shm_by_default, Unavailable)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("cpu:type:x86,ven0002fam0019mod0011:feature:,0000,0001", pci.CpuModel(pci.CpuVendor.AMD, 25, 17)),
        ("cpu:type:x86,ven0000fam0006mod008F:feature:,0000", pci.CpuModel(pci.CpuVendor.INTEL, 6, 0x8F)),
        ("cpu:type:x86,ven0009fam0018mod0001:feature:,0000", pci.CpuModel(pci.CpuVendor.OTHER, 24, 1)),  # Hygon
        ("cpu:type:aarch64:feature:,0000,0001", pci.CpuModel(pci.CpuVendor.ARM)),
        ("rubbish", Unavailable("malformed", "cpu/modalias: 'rubbish'")),
        ("", Unavailable("empty", "cpu/modalias: ''")),
    ],
)
def test_the_processor(healthy: dict[str, Answer], text: str, model: object) -> None:
    host = ReplayHost(healthy | {"file:/sys/devices/system/cpu/modalias": f"{text}\n"})
    assert getattr(pci.probe(host), "cpu", None) == model


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_gpu_that_nobody_may_use_is_gone(code: int) -> None:
    """NVML gives no handle of it: what PCI alone shows of it is a fault."""
    told = why(pynvml, pynvml.NVMLError(code))
    assert (told["unavailable"], told["code"]) == ("absent", code)


def test_why_nvml_did_not_start_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of its errors it was says whose fault that is."""

    def refuses() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(pynvml, "nvmlInit", refuses)
    told = ask_nvml({})
    assert isinstance(told, dict)
    found = the_gpus(nvml=told, cuda=CUDA)
    assert found.nvml_refused == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    assert isinstance(found.all, Unavailable) and found.all == found.driver and "mismatch" in found.all.detail
    assert the_gpus(nvml=NVML, cuda=CUDA).nvml_refused is None
