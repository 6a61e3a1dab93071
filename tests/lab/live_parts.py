"""Live faults by part, as data (tests/lab/row.py): CPUs and cgroups, GPUDirect, torch and its libraries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.fakegpu.row import EXPORTS, NEEDS
from tests.lab.row import (
    BACKEND,
    BANDWIDTH,
    BUFFERS,
    CPU,
    CPUS,
    ENVIRONMENT,
    GDR,
    HARDWARE,
    IFNAME,
    LIMITS,
    OF_HARDWARE,
    PLUGIN,
    PORTS,
    RAILS,
    RDMA,
    RUN,
    SHM,
    VERSION,
    Row,
)
from tests.support.namespaces.dgx import Scene

# Of a GPU on the other node the path to its HCA is longer, too.
FARTHER: Final = {GDR: "farther", RAILS: "its HCA is not where its root port is"}
HALF: Final = {n: n // 4 for n in range(8)}
NODE: Final = "devices/system/node/node1"
# set_mempolicy(2): MPOL_BIND to node 0 (numactl --membind=0), then the program; its number on x86_64, else that of the others.
MEMBIND: Final = """python3 -c 'import ctypes, os, sys
call = 238 if os.uname().machine == "x86_64" else 237
ctypes.CDLL(None).syscall(call, 2, ctypes.byref(ctypes.c_ulong(1)), 8) and sys.exit("set_mempolicy")
os.execvp(sys.argv[1], sys.argv[1:])'"""

CPU_ROWS: Final = (
    Row("a mask of the other CPU", Scene(wrap="taskset -c 1"), {CPU: "fail numa_affinity"}),
    Row(
        "a cpuset cgroup of one CPU",
        Scene(cgroup={"cpuset": {"cpuset.cpus": "0", "cpuset.mems": "0"}}),
        {CPU: "fail numa_affinity"},
        needs=("cgroup cpuset",),
    ),
    Row(
        "a cpuset cgroup of all CPUs",
        Scene(cgroup={"cpuset": {"cpuset.cpus": "0-1", "cpuset.mems": "0"}}),
        needs=("cgroup cpuset",),
    ),
    Row("half of the GPUs on the other node", Scene(tree={"gpu_numa": HALF, "hca_numa": HALF}), {CPU: "fail numa_affinity"}),
    Row(
        "all GPUs on a node that the mask does not reach",
        Scene(tree={"gpu_numa": dict.fromkeys(range(8), 1), "hca_numa": dict.fromkeys(range(8), 1)}),
        {CPU: "fail numa_affinity"},
    ),
    # Nodes of one socket are 11 to 15 apart (AMD with four nodes a socket: 12): as good as local.
    Row(
        "a GPU on a neighbouring node of the same socket",
        Scene(
            tree={"gpu_numa": {**dict.fromkeys(range(8), 0), 3: 1}},
            sys=f"echo 12 10 > {NODE}/distance; echo 10 12 > devices/system/node/node0/distance",
        ),
        also=FARTHER,
    ),
    Row(
        "a NUMA node that the kernel does not know",
        Scene(tree={"gpu_numa": {**dict.fromkeys(range(8), 0), 3: 7}}),
        {CPU: "unknown: there is no NUMA node 7"},
        FARTHER,
    ),
    Row(
        "memory bound to the far node",
        Scene(tree={"gpu_numa": HALF, "hca_numa": HALF, "cpus": ("0", "1-3")}, wrap=MEMBIND),
        {CPU: "fail numa_affinity"},
        base=Scene(tree={"cpus": ("0", "1-3")}),
    ),
)

OLDER: Final = {VERSION: "another version", IFNAME: "asked of the other version", PORTS: "by the rules of the other version"}
NO_PEERMEM: Final = {"peermem": False}
GDR_ROWS: Final = (
    Row(
        "no DMA-BUF in the driver, nor nvidia_peermem",
        Scene(tree=NO_PEERMEM, cuda="attr124=0"),
        {GDR: "fail gdr_disabled", "pci.path": "skip"},  # without GPUDirect no HCA reads a GPU
    ),
    Row(
        "a driver without GPUDirect (a vGPU)",
        Scene(tree=NO_PEERMEM, cuda="attr116=0\nattr124=0"),
        {GDR: "unknown: the driver offers no GPUDirect RDMA", "pci.path": "skip"},
    ),
    Row(
        "a GPU of which the driver does not tell",
        Scene(tree=NO_PEERMEM, cuda="gpu2.attr124=-1"),
        {GDR: "unknown: attribute 124"},
    ),
    Row("a driver for CUDA 11.4 without nvidia_peermem", Scene(tree=NO_PEERMEM, cuda="cuda=11040"), {GDR: "fail gdr_disabled"}),
    Row("one HCA without DMA-BUF", Scene(tree=NO_PEERMEM, ibverbs="gpu5.dmabuf=95"), {GDR: "fail gdr_disabled"}),
    # 2.21.5 does not look at /sys/module/nvidia_peermem, but at /sys/kernel/mm/memory_peers (src/transport/net_ib.cc).
    Row(
        "nvidia_peermem where an old libnccl does not look",
        Scene(ibverbs="dmabuf=95", site="ln -sf OLD_NCCL nvidia/nccl/lib/libnccl.so.2"),
        {GDR: "fail gdr_disabled"},
        OLDER,
    ),
    Row("no platform: DGX Spark", Scene(nvml="name=NVIDIA GB10", cuda="name=NVIDIA GB10"), {GDR: "skip"}, {CPU: "-"}),
)

# A torch of which the files say CUDA, asked and run: tests/fakes/cuda_torch over the real one.
ASKED: Final = ("--vantage", "job")
RAN: Final = {
    RUN: "there is a run",
    BANDWIDTH: "there is a run",
    VERSION: "there is a run",
    PLUGIN: "there is a run",
    GDR: "there is a run",
    CPU: "there is a run",
    SHM: "there is a run",
    "hardware.hca": "there is a run",
    "gpu.health": "there is a run",
    "gpu.fabric": "there is a run",
}


def asked(fault: str, says: str, expected: dict[str, str]) -> Row:
    env = {"TORCH_SAYS": says, "REAL_TORCH": "PACKAGES"}
    return Row(fault, Scene(site="cp FAKES/cuda_torch/torch/__init__.py torch/", env=env, options=ASKED), expected, RAN)


BACKEND_ROWS: Final = (
    asked("a torch that cannot use the driver", "no driver", {BACKEND: "fail cuda_driver_mismatch"}),
    asked("a torch without NCCL", "no nccl", {BACKEND: "fail gloo_backend"}),
    asked("a torch that dies when it is asked for CUDA", "dies", {BACKEND: "unknown: did not say"}),
    Row(
        "CUDA_VISIBLE_DEVICES of none",
        Scene(env={"CUDA_VISIBLE_DEVICES": ""}),
        {BACKEND: "unknown: shows this process no GPU"},
        dict.fromkeys((GDR, HARDWARE, CPU, RDMA, VERSION, PLUGIN, PORTS), "the job sees no GPU"),
    ),
    Row(
        "no library of the driver",
        Scene(env={"LD_LIBRARY_PATH": "IBVERBS"}),
        {BACKEND: "unknown: no driver library shows any"},
        dict.fromkeys(
            (GDR, HARDWARE, RDMA, VERSION, PLUGIN, PORTS, CPU, SHM, "process.limits", *OF_HARDWARE),
            "neither NVML nor libcuda is there",
        ),
    ),
)

BESIDE: Final = {"LD_LIBRARY_PATH": "LIBRARIES:SITE/nvidia/nccl/lib"}
MISFIT: Final = {PLUGIN: "fail plugin_mismatch"}
LOOKED: Final = {RDMA: "-", IFNAME: "-", ENVIRONMENT: "-"}


def library(fault: str, how: str, symbol: str, name: str, **variables: str) -> Row:
    """A plugin that gcc makes beside libnccl."""
    scene = Scene(site=how.format(symbol=symbol, name=name), env={**BESIDE, **variables})
    return Row(fault, scene, MISFIT, LOOKED, needs=("gcc",))


PLUGIN_ROWS: Final = (
    library("a network plugin of an interface that NCCL dropped", EXPORTS, "ncclNetPlugin_v3", "libnccl-net.so"),
    library("a network plugin whose library is gone", NEEDS, "ncclNetPlugin_v8", "libnccl-net.so"),
    library("a tuner that exports no interface", EXPORTS, "something", "libnccl-tuner.so"),
    library(
        "a profiler whose library is gone", NEEDS, "ncclProfiler_v3", "libnccl-profiler-site.so", NCCL_PROFILER_PLUGIN="site"
    ),
    Row("a network plugin that is not there", Scene(env={"NCCL_NET_PLUGIN": "ofi"}), MISFIT, LOOKED),
    Row("a tuner that is not there", Scene(env={"NCCL_TUNER_PLUGIN": "libnccl-tuner-site.so"}), MISFIT, LOOKED),
    Row("a tuner's file that is not there", Scene(env={"NCCL_TUNER_CONFIG_FILE": "/nonexistent/tuner.conf"}), MISFIT, LOOKED),
)


def slow(fault: str, expected: dict[str, str], needs: tuple[str, ...] = (), **change: Any) -> Row:
    """What makes an all-reduce slow, and stops nothing."""
    return Row(fault, replace(CPUS, **change), expected, {}, CPUS, needs)


LOSS = "iptables -A INPUT -i lo -p tcp -m statistic --mode random --probability 0.2 -j DROP"
TINY = "for n in rmem wmem; do sysctl -q -w net.ipv4.tcp_$n='4096 4096 4096'; done"
LOW: Final = {BANDWIDTH: "fail low_bandwidth"}
# 0.14 GB/s where two whole CPUs reach 0.7 to 1.
QUARTER: Final = replace(CPUS, config="{expected: {busbw_floor: {64MiB: 0.25}}}")
BANDWIDTH_ROWS: Final = (
    slow("buffers of 4 KiB on the loopback", {**LOW, BUFFERS: "fail tcp_tuning"}, setup=TINY),
    # It does not end in the time that it has: partial numbers are no bandwidth.
    slow(
        "a loopback that loses a fifth of its packets",
        {BANDWIDTH: "unknown", RUN: "unknown"},
        ("iptables",),
        setup=LOSS,
        options=(*CPUS.options, "--budget", "8"),
    ),
    slow(
        "ranks that are slow in every large collective",
        LOW,
        env={"PYTHONPATH": "FAKES/faulty_torch:ROOT", "TORCH_FAULT": "large:slow"},
    ),
    Row(
        "a fifth of one CPU's time",
        replace(QUARTER, cgroup={"cpu": {"cpu.cfs_quota_us": "20000"}}),
        LOW,
        base=QUARTER,
        needs=("cgroup cpu",),
    ),
)

# A new /sys shows no cgroups: what this machine has of them, once more.
HIERARCHIES: Final = "".join(
    f"mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} none /sys/fs/cgroup/{name}\n"
    for name in ("pids", "cpu", "cpuset", "memory")
)
RANKS: Final = Scene(
    tree={"cpus": ("0", "1")},  # as many as there are
    setup=f"mount -t tmpfs none /sys/fs/cgroup\n{HIERARCHIES}",
    config="{job: {nodes: 64, ranks_per_node: 8, gloo_groups: 2}, expected: {gpus: 8, hcas: 8}}",
)


def limited(fault: str, expected: str = "fail process_limits", needs: tuple[str, ...] = (), **change: Any) -> Row:
    """A limit of the process or of a cgroup."""
    config = change.pop("ranks", 8)
    base = replace(RANKS, config=RANKS.config.replace("8, gloo", f"{config}, gloo"))
    also = {SHM: "no child is let take so much"} if "memory" in needs else {}
    return Row(fault, replace(base, **change), {LIMITS: expected}, also, base, tuple(f"cgroup {one}" for one in needs))


LIMIT_ROWS: Final = (
    limited("fewer open files than Gloo has peers", wrap="prlimit --nofile=1000:1000"),
    limited("open files that may do", "unknown: ulimit -n leaves 2048", wrap="prlimit --nofile=2048:2048"),
    limited(
        "a pids cgroup of fewer tasks than there are ranks",
        needs=("pids",),
        cgroup={"pids": {"pids.max": "120"}},
        ranks=128,
    ),
    limited("half a CPU's time for eight ranks", needs=("cpu",), cgroup={"cpu": {"cpu.cfs_quota_us": "50000"}}),
    limited("400 MiB of memory for eight ranks", needs=("memory",), cgroup={"memory": {"memory.limit_in_bytes": "400M"}}),
    limited(
        "2 GiB of memory for eight ranks", "unknown: memory", ("memory",), cgroup={"memory": {"memory.limit_in_bytes": "2G"}}
    ),
)

PART_ROWS: Final = (*CPU_ROWS, *LIMIT_ROWS, *GDR_ROWS, *BACKEND_ROWS, *PLUGIN_ROWS, *BANDWIDTH_ROWS)
