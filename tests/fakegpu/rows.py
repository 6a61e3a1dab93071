"""Faults of a machine with GPUs, and what a live preflight must say of each: fault, machine, how it is injected, check, cause.

Walked by tests/live/test_fakegpu_rows.py (one row a check) and `make lab` (all): endtoend.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.fakegpu.doctor import Around
from tests.fakegpu.row import ERROR_ROWS, HEALTH_ROWS, PLUGIN_ROWS, RAIL_ROWS, Row, env, told

FABRIC, MAPPING = "gpu.fabric", "gpu.mapping"
GPUS, RAILS, LINKS, SITE = "hardware.gpus", "hardware.rails", "hardware.links", "hardware.site"
INVENTORY, HCAS, DIRECT = "hardware.accelerator", "rdma.dev_infiniband", "rdma.gpudirect"
VERSION, ENVIRONMENT, BACKEND = "nccl.version", "nccl.environment", "torch.backend"
NUMA, INTERFACE, PORTS = "cpu.numa_affinity", "net.socket_ifname", "net.port_range"
RUN, BANDWIDTH, SHARED = "allreduce.run", "allreduce.bandwidth", "nccl.shared_memory"
SMALL: Final = "shm_disabled_or_small"
RANGE: Final = "sysctl -q -w net.ipv4.ip_local_port_range='{} {}'"
SEVERAL: Final[Mapping[str, Any]] = {"base": Around(config="{job: {nodes: 2}}")}
# Two NUMA nodes, and all is on the first, which is this process's: the kernel tells whose memory a process may have.
SOCKETS: Final[Mapping[str, Any]] = {"nodes": True, "healthy": {"above.all.numa": 0}}
NO_PEERMEM: Final = {"modules.nvidia_peermem": None}
BUILT_FOR: Final = """mkdir torch-2.9.1+cu129.dist-info
echo 'Requires-Dist: nvidia-nccl-cu12=={}' > torch-2.9.1+cu129.dist-info/METADATA"""
CPU_TORCH: Final = 'sed -i "s/^cuda.*/cuda = None/; s/cu129/cpu/" torch/version.py; rm torch/lib/libtorch_cuda.so'
EAGER: Final = {"NCCL_RUNTIME_CONNECT": "0"}  # connections at init: each rank takes its pool
SHM: Final = "mount -t tmpfs -o size={},mode=1777 shm /dev/shm"
NO_P2P: Final[Mapping[str, Any]] = {"machine": "pcie-l40s", "healthy": {"p2p": [[0, 1, "none"]]}}
# 20 MB/s: less than a tenth of what the CPUs of a busy machine move; with 100 ms a kernel it is 10 at most.
FLOOR: Final = "{expected: {busbw_floor: {1MiB: 0.02}}}"


def slow(fault: str, order: str, **more: Any) -> Row:
    """Calls that take their time; the floor is far below what the healthy fake does on a busy machine."""
    return told(FLOOR, fault, BANDWIDTH, "node", "low_bandwidth", changes={"faults": [order]}, runs=True, **more)


def broken(fault: str, cause: str, subject: str = "node", *orders: str, **more: Any) -> Row:
    """An all-reduce that does not come to its end."""
    changes = {**more.pop("changes", {}), **({"faults": list(orders)} if orders else {})}
    return Row(fault, RUN, subject, cause, changes=changes, runs=True, **more)


def on_fabric(fault: str, subject: str, cause: str, changes: Mapping[str, Any]) -> Row:
    """Of a board whose GPUs are registered."""
    healthy = {"gpus.all.state.fabric.state": 3}
    return Row(fault, FABRIC, subject, cause, "hgx-h100", changes, healthy=healthy)


RANK_1: Final = "TORCHELASTIC_RUN_ID=b RANK=1 LOCAL_RANK=1 CUDA_VISIBLE_DEVICES=1,0 sleep 60 >/dev/null 2>&1 &"
RANK_0: Final = {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
OF_PCI, OF_JOB, LAYERS = "GPUs", "GPUs of the job", "hardware.hca"
TORCHRUN: Final = Around(env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4"})


def masked(gpus: str) -> Around:
    return Around(env={"CUDA_VISIBLE_DEVICES": gpus})


def on_driver(edit: str) -> dict[str, Any]:
    """The last GPU of two-a100 with its uevent file edited; NVML tells nothing of it."""
    setup = f"sed -i {edit} $(readlink -f /sys/bus/pci/devices/0000:54:00.0)/uevent"
    return {"changes": {"gpus.3.state.lost": 1}, "around": Around(setup=setup)}


def without_device(more: str, number: int = 1, bus: str = "55", machine: str = "two-a100") -> dict[str, Any]:
    """An HCA without an RDMA device; by default the last one of two-a100."""
    uevent = f"$(readlink -f /sys/bus/pci/devices/0000:{bus}:00.0)/uevent"
    setup = f"rm /sys/class/infiniband/mlx5_{number}; {more.format(uevent=uevent)}"
    return {"changes": {f"hcas.{number}.node": "none"}, "around": Around(setup=setup), "machine": machine}


ROWS: Final = (
    # GPUs and HCAs are there
    Row("a GPU is lost", INVENTORY, "GPUs", "inventory", changes={"gpus.1.state.lost": 1}),
    Row("two GPUs are lost", INVENTORY, "GPUs", "inventory", changes={"gpus.3.state.lost": 1, "gpus.0.state.lost": 1}),
    told("{expected: {gpus: 4}}", "a GPU is gone from PCI", SITE, "GPUs", "inventory", changes={"gpus.3": None}),
    told("{expected: {hcas: 2}}", "an HCA is gone", HCAS, "count", "inventory", changes={"hcas.1": None}),
    Row("nouveau has a GPU", INVENTORY, f"{OF_PCI} on another driver", "inventory", **on_driver("s/=nvidia/=nouveau/")),
    Row("a GPU has no driver", INVENTORY, f"{OF_PCI} without a driver", "inventory", **on_driver("/^DRIVER/d")),
    Row("libcuda is another driver's", INVENTORY, OF_JOB, "cuda_driver_mismatch", changes={"faults": ["cuInit * 803"]}),
    Row(
        "no NVML",
        INVENTORY,
        "GPUs",
        "cuda_driver_mismatch",
        changes={"faults": ["nvmlInitWithFlags * 12"]},
    ),
    Row("MIG is on and has no instance", INVENTORY, OF_JOB, "inventory", changes={"gpus.3.state.mig": 0}),
    Row(
        "MIG is on for two, without instances",
        INVENTORY,
        OF_JOB,
        "inventory",
        changes={"gpus.0.state.mig": 0, "gpus.3.state.mig": 0},
    ),
    told(
        "{job: {ranks_per_node: 4}}",
        "a mask for less than was configured",
        INVENTORY,
        OF_JOB,
        "inventory",
        around=masked("0,1,2"),
    ),
    Row("a mask for less than torchrun starts", INVENTORY, OF_JOB, "inventory", around=masked("0,1"), base=TORCHRUN),
    Row("a mask with the numbers of another node", INVENTORY, OF_JOB, "inventory", around=masked("2,3,4,5")),
    Row("a mask with the UUID of another node", INVENTORY, OF_JOB, "inventory", around=masked("0,GPU-deadbeef,1")),
    Row("a mask that leaves none", INVENTORY, OF_JOB, "inventory", around=masked("4")),
    Row("an HCA has no RDMA device", LAYERS, "node", "inventory", **without_device("true")),
    Row("an HCA has no driver", LAYERS, "node", "inventory", **without_device("sed -i /^DRIVER/d {uevent}")),
    Row("the first HCA has no RDMA device", LAYERS, "node", "inventory", **without_device("true", 0, "15")),
    Row("a rail of an HGX has no RDMA device", LAYERS, "node", "inventory", **without_device("true", 3, "5e", "hgx-h100")),
    Row(
        "a rail of an HGX has no driver",
        LAYERS,
        "node",
        "inventory",
        **without_device("sed -i /^DRIVER/d {uevent}", 6, "ce", "hgx-h100"),
    ),
    Row(
        "NCCL leaves out an HCA that is ready",
        LAYERS,
        "HCAs in NCCL's log",
        "dev_infiniband_missing",
        changes={"faults": ["ibv_query_device 2+ 5"]},
        runs=True,
        **SEVERAL,
    ),
    # what model, siblings and platform say
    Row("an NVLink is down", GPUS, "GPU 0000:61:00.0", "link_degraded", "hgx-h100", {"gpus.3.links_down": [7]}),
    Row(
        "two NVLinks of each GPU are down",
        GPUS,
        "GPU 0000:1b:00.0",
        "link_degraded",
        "hgx-h100",
        {"gpus.all.links_down": [0, 1]},
    ),
    Row("a GPU is gone from an HGX", GPUS, "node", "inventory", "hgx-h100", {"gpus.7": None}),
    Row("a GPU has less memory", GPUS, "GPU 0000:14:00.0", "odd_one_out", changes={"gpus.1.memory": 21474836480}),
    Row("a rail runs at half of its rate", RAILS, "mlx5_1", "link_degraded", changes={"hcas.1.rate": 100}),
    Row("a rail has other firmware", RAILS, "mlx5_0", "odd_one_out", changes={"hcas.0.firmware": "20.30.1004"}),
    Row("a rail is gone from an HGX", RAILS, "GPU 0000:52:00.0", "inventory", "hgx-h100", {"hcas.2": None}),
    Row("all rails are slower than any such card", RAILS, "mlx5_0", "link_degraded", changes={"hca.rate": 40}),
    Row("a GPU has four lanes", LINKS, "GPU 0000:53:00.0", "link_degraded", changes={"gpus.2.link": {"width": 4}}),
    Row("an HCA has eight lanes", LINKS, "mlx5_0", "link_degraded", changes={"hcas.0.link": {"width": 8}}),
    Row("all HCAs came up as PCIe 1", LINKS, "mlx5_1", "link_degraded", changes={"hca.link": {"generation": 1}}),
    Row("a GPU of another model", GPUS, "GPU 0000:53:00.0", "odd_one_out", changes={"gpus.2.name": "NVIDIA A30"}),
    Row("two GPUs are gone from an HGX", GPUS, "node", "inventory", "hgx-h100", {"gpus.7": None, "gpus.6": None}),
    Row(
        "half of a GPU's NVLinks are down",
        GPUS,
        "GPU 0000:c3:00.0",
        "link_degraded",
        "hgx-h100",
        {"gpus.5.links_down": [*range(9)]},
    ),
    Row("a rail runs at a quarter", RAILS, "mlx5_5", "link_degraded", "hgx-h100", {"hcas.5.rate": 100}),
    Row("a rail has older firmware", RAILS, "mlx5_6", "odd_one_out", "hgx-h100", {"hcas.6.firmware": "28.36.1010"}),
    Row("two rails are gone", RAILS, "GPU 0000:c3:00.0", "inventory", "hgx-h100", {"hcas.5": None, "hcas.2": None}),
    Row("a GPU has one lane", LINKS, "GPU 0000:13:00.0", "link_degraded", changes={"gpus.0.link": {"width": 1}}),
    Row("all GPUs have eight lanes", LINKS, "GPU 0000:54:00.0", "link_degraded", changes={"gpus.all.link": {"width": 8}}),
    Row(
        "a GPU's link stays slow while it works",
        LINKS,
        "GPU 0000:53:00.0",
        "link_degraded",
        changes={"gpus.2.link": {"generation": 2}},
        runs=True,
    ),
    # what the site says
    told(
        "{expected: {driver: 570.86.15}}",
        "the driver is another than the site's",
        SITE,
        "node",
        "odd_one_out",
        changes={"driver.version": "570.99.01", "modules.nvidia": "570.99.01"},
    ),
    told(
        "{expected: {nvlinks: 18}}",
        "fewer NVLinks than the site has",
        SITE,
        "GPU 0000:61:00.0",
        "link_degraded",
        machine="hgx-h100",
        changes={"gpus.3.links_down": [7]},
    ),
    told(
        "{expected: {hca_addresses: ['0000:15:00.0', '0000:55:00.0']}}",
        "no HCA at a place that the site names",
        SITE,
        "RDMA device 0000:55:00.0",
        "inventory",
        changes={"hcas.1": None},
    ),
    # what state they are in
    *HEALTH_ROWS,
    # what joins them
    on_fabric("a GPU has not registered", "GPU 0000:61:00.0", "fabric_manager", {"gpus.3.state.fabric.state": 1}),
    on_fabric("the routes of a GPU are broken", "GPU 0000:1b:00.0", "link_degraded", {"gpus.0.state.fabric.health": 16}),
    on_fabric("a GPU is in another clique", "GPU 0000:df:00.0", "fabric_manager", {"gpus.7.state.fabric.clique": 4}),
    on_fabric("two GPUs may not access each other", "peer access", "p2p_disabled", {"p2p": [[0, 1, "regkey"]]}),
    on_fabric("the driver waits for the fabric", "driver", "fabric_manager", {"faults": ["cuInit * 802"]}),
    Row(
        "an NVLink trains anew under load",
        FABRIC,
        "GPU 0000:1b:00.0 under load",
        "link_degraded",
        "hgx-h100",
        {"gpus.0.state.nvlink.4.rising": 100000},
        runs=True,
    ),
    # whose they are
    Row("somebody computes on a GPU", MAPPING, "GPUs in use", "device_mapping", changes={"gpus.2.state.processes": 1}),
    env("Slurm gave two of four", MAPPING, "GPUs that were given", "device_mapping", SLURM_GPUS_ON_NODE="2"),
    Row(
        "another rank has this rank's GPU",
        MAPPING,
        "ranks",
        "duplicate_gpu",
        around=Around(env=dict(RANK_0, TORCHELASTIC_RUN_ID="b", CUDA_VISIBLE_DEVICES="0,1"), setup=RANK_1),
        base=Around(env=dict(RANK_0, CUDA_VISIBLE_DEVICES="0,1")),
    ),
    # RDMA devices
    Row("a port is down", HCAS, "mlx5_0", "link_degraded", changes={"hcas.0.state": "DOWN"}),
    Row("a port waits for its subnet manager", HCAS, "mlx5_1", "link_degraded", changes={"hcas.1.state": "INIT"}),
    Row("no node in /dev", HCAS, "mlx5_0", "dev_infiniband_missing", changes={"hcas.0.mode": "none"}),
    Row("ib_uverbs is not loaded", HCAS, "mlx5_0", "dev_infiniband_missing", changes={"hcas.all.node": "none"}),
    Row("no context", HCAS, "mlx5_0", "dev_infiniband_missing", changes={"faults": ["ibv_open_device * 13"]}),
    Row(
        "the rdma cgroup allows one context",
        HCAS,
        "mlx5_1",
        "dev_infiniband_missing",
        changes={"faults": ["ibv_open_device 2+ 11"]},
    ),
    env("NCCL_IB_HCA selects nothing", HCAS, "node", "env_misuse", NCCL_IB_HCA="=mlx5_9"),
    *RAIL_ROWS,
    *ERROR_ROWS,
    # GPUDirect
    env("GPUDirect switched off by distance", DIRECT, "GPU0–mlx5_0", "gdr_disabled", {"torch": ""}, NCCL_NET_GDR_LEVEL="LOC"),
    Row(
        "neither nvidia_peermem nor dma-buf of the driver",
        DIRECT,
        "GPU0–mlx5_0",
        "gdr_disabled",
        changes={**NO_PEERMEM, "gpu.attributes.124": 0},
        torch="",
    ),
    Row(
        "neither nvidia_peermem nor dma-buf of the HCA",
        DIRECT,
        "GPU0–mlx5_0",
        "gdr_disabled",
        changes={**NO_PEERMEM, "hca.dmabuf": False},
        torch="",
    ),
    Row(
        "nvidia_peermem is not loaded and dma-buf switched off",
        DIRECT,
        "GPU0–mlx5_0",
        "gdr_disabled",
        changes=NO_PEERMEM,
        around=Around(env={"NCCL_DMABUF_ENABLE": "0"}),
        torch="",
    ),
    # which NCCL
    Row("an older libnccl than torch was built for", VERSION, "loaded", "version_mismatch", torch=BUILT_FOR.format("2.99.1")),
    Row(
        "a patch release older than torch was built for",
        VERSION,
        "loaded",
        "version_mismatch",
        torch=BUILT_FOR.format("2.29.99"),
    ),
    Row(
        "a libnccl that is no library",
        VERSION,
        "loaded",
        "version_mismatch",
        torch="rm nvidia/nccl/lib/libnccl.so.2; head -c 4096 /dev/zero > nvidia/nccl/lib/libnccl.so.2",
    ),
    *PLUGIN_ROWS,
    # variables
    env("a value that is no number", ENVIRONMENT, "NCCL_IB_TIMEOUT", "env_misuse", NCCL_IB_TIMEOUT="twenty"),
    env("an algorithm that is none", ENVIRONMENT, "NCCL_ALGO", "env_misuse", NCCL_ALGO="Rings"),
    env("a misspelt name", ENVIRONMENT, "NCCL_SOCKET_IFNAMES", "env_misuse", NCCL_SOCKET_IFNAMES="eth0"),
    env(
        "an exclusion that leaves out two rails",
        ENVIRONMENT,
        "NCCL_IB_HCA",
        "env_misuse",
        {"machine": "dgx-h100", **SEVERAL},
        NCCL_IB_HCA="^mlx5_1",
    ),
    env("LL128 where PCIe joins the GPUs", ENVIRONMENT, "NCCL_PROTO", "env_misuse", {"machine": "pcie-l40s"}, NCCL_PROTO="^LL"),
    # torch
    Row("a torch for CPUs", BACKEND, "node", "gloo_backend", torch=CPU_TORCH),
    Row(
        "a distribution's torch without CUDA",
        BACKEND,
        "node",
        "gloo_backend",
        torch="printf \"__version__ = '2.6.0'\\ncuda = None\\n\" > torch/version.py; rm torch/lib/libtorch_cuda.so",
    ),
    Row(
        "a torch for CPUs before the right one",
        BACKEND,
        "node",
        "gloo_backend",
        torch=f"mkdir other; cp -r torch other; cd other; {CPU_TORCH}",
        around=Around(env={"PYTHONPATH": "SITE/other"}),
    ),
    # CPUs and memory near the GPUs
    Row("bound to the other socket", NUMA, "GPU0", "numa_affinity", around=Around(wrap="taskset -c LAST"), **SOCKETS),
    Row("memory of one socket, GPUs on two", NUMA, "memory", "numa_affinity", changes={"above.switch1.numa": 1}, **SOCKETS),
    Row("one CPU for everything", NUMA, "GPU0", "numa_affinity", around=Around(wrap="taskset -c FIRST")),
    # the bootstrap's interface
    env("an interface that is not there", INTERFACE, "NCCL", "socket_ifname", NCCL_SOCKET_IFNAME="ib9"),
    env("an address that is not here", INTERFACE, "NCCL", "env_misuse", NCCL_COMM_ID="192.0.2.7:2345"),
    env("an interface of Gloo that is not there", INTERFACE, "Gloo", "socket_ifname", GLOO_SOCKET_IFNAME="eth9"),
    env("a loopback master", INTERFACE, "MASTER_ADDR", "socket_ifname", SEVERAL, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500"),
    # ports
    Row("twelve ports", PORTS, "listeners", "bootstrap_ports", around=Around(setup=RANGE.format(40000, 40011))),
    Row(
        "a range that holds services", PORTS, "service ports", "bootstrap_ports", around=Around(setup=RANGE.format(1025, 60999))
    ),
    env("a port that is none", PORTS, "MASTER_PORT", "bootstrap_ports", MASTER_ADDR="10.0.0.7", MASTER_PORT="http"),
    env(
        "a port that anybody may be given", PORTS, "MASTER_PORT", "bootstrap_ports", MASTER_ADDR="10.0.0.7", MASTER_PORT="40000"
    ),
    # the all-reduce
    broken("a kernel fails", "rank_died", "node", "kernel 1 719"),
    broken("a kernel fails where sockets are the network", "rank_died", "node", "kernel 1 719", machine="one-gpu"),
    broken("the driver waits for the fabric of its GPUs", "fabric_manager", "node", "cuInit * 802"),
    broken("no kernel runs", "wrong_data", "node", around=Around(kernels=False)),
    broken(
        "peers' memory does not open",
        "p2p_disabled",
        "node",
        "cuIpcOpenMemHandle * 217",
        "cuMemImportFromShareableHandle * 217",
    ),
    broken("the HCA registers nothing", "memlock", "inter-node mlx5_0:1", "registration * 12"),
    broken(
        "the rdma cgroup gives no more queue pairs",
        "dev_infiniband_missing",
        "inter-node mlx5_0:1",
        "ibv_create_qp 3+ 11",
    ),
    broken("/dev/shm of 8 MiB", SMALL, "inter-node mlx5_0:1", around=Around(setup=SHM.format("8m"))),
    # shared memory
    Row("/dev/shm of 1 MiB", SHARED, "node", SMALL, torch="", around=Around(setup=SHM.format("1m"), env=EAGER)),
    Row("/dev/shm of 2 MiB, in a run", SHARED, "node", SMALL, around=Around(setup=SHM.format("2m")), runs=True),
    Row(
        "/dev/shm of 2 MiB, in a run without P2P",
        SHARED,
        "node",
        SMALL,
        around=Around(setup=SHM.format("2m")),
        runs=True,
        **NO_P2P,
    ),
    broken("no way to the other HCA", "ib_timeout", "inter-node mlx5_0:1", "ibv_modify_qp 3+ 110"),
    # its bandwidth
    slow("GPUs that throttle", "kernel 55+ 100ms", machine="one-gpu"),
    slow("GPUs that throttle, by P2P", "kernel 55+ 100ms"),
    slow(
        "an HCA that crawls",
        "ibv_post_send 200+ 100ms",
        healthy={"gpus": [{"at": ["switch0", "0000:12:00.0", "0000:13:00.0"]}]},
    ),
)
