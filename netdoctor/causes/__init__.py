"""The vocabulary of causes: one table that checks, log rules, environment rules and fleet rules all speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netdoctor.causes.cost import MIGHT, STOPS, sockets
from netdoctor.model import Loss, Severity


@dataclass(frozen=True)
class Cause:
    """A reason why distributed jobs are slow or hang."""

    name: str
    title: str
    loss: Loss  # where the finding itself does not say more
    costs: str  # what it costs, in words
    look: tuple[str, ...] = ()  # checks (ids) that look at it on a machine
    references: tuple[str, ...] = ()  # public sources: NCCL source files, kernel documentation

    @property
    def severity(self) -> Severity:
        return self.loss.severity


_TCP: Final = sockets(None)

_ROWS: Final = (
    Cause(
        "transport_fallback_tcp",
        "NCCL fell back from RDMA to TCP sockets",
        _TCP,
        "tens of GB/s become a few Gb/s; the CPU copies every byte",
        ("rdma.dev_infiniband", "allreduce.bandwidth"),
        (
            "NCCL src/plugin/net.cc and src/transport/net_ib (which network is taken)",
            "NCCL user guide: Environment Variables, NCCL_NET, NCCL_IB_DISABLE",
        ),
    ),
    Cause(
        "gdr_disabled",
        "GPUDirect RDMA is not in use",
        MIGHT,
        "every message is staged through host memory: typically half of the RDMA bandwidth",
        ("rdma.gpudirect",),
        (
            "NCCL src/graph/paths.cc, ncclTopoCheckGdr",
            "NCCL src/transport/net_ib (ncclIbGdrSupport, ncclIbDmaBufSupport)",
            "NVIDIA GPUDirect RDMA documentation: nvidia-peermem and DMA-BUF",
        ),
    ),
    Cause(
        "dev_infiniband_missing",
        "/dev/infiniband is missing or not usable where the job runs",
        _TCP,
        "NCCL silently takes TCP sockets instead of RDMA",
        ("rdma.dev_infiniband",),
        ("NCCL src/transport/net_ib (ncclIbInitDevices)", "Linux Documentation/infiniband/user_verbs.rst"),
    ),
    Cause(
        "socket_ifname",
        "NCCL or Gloo takes the wrong network interface",
        STOPS,
        "hangs at start, or traffic crosses a slow network",
        ("net.socket_ifname", "allreduce.nodes"),
        ("NCCL src/misc/socket.cc, ncclFindInterfaces", "NCCL user guide: Environment Variables, NCCL_SOCKET_IFNAME"),
    ),
    Cause(
        "bootstrap_ports",
        "Not enough ports to connect all ranks",
        STOPS,
        "handshakes stall or fail: `Address already in use`",
        ("net.port_range", "allreduce.nodes"),
        (
            "NCCL src/bootstrap.cc and src/misc/socket.cc (what is bound)",
            "Linux Documentation/networking/ip-sysctl.rst, ip_local_port_range",
            "NVIDIA/nccl issue 1882",
        ),
    ),
    Cause(
        "firewall_connect",
        "Ranks cannot reach each other's ports",
        STOPS,
        "the job hangs until a timeout of minutes to hours",
        ("net.socket_ifname", "allreduce.run", "allreduce.nodes"),
        ("NCCL src/misc/socket.cc (connect and its retries)", "NCCL user guide: Troubleshooting, Networking issues"),
    ),
    Cause(
        "memlock",
        "The locked-memory limit is too low for RDMA",
        STOPS,
        "memory registration fails with ENOMEM, or NCCL falls back",
        ("rdma.dev_infiniband",),
        (
            "Linux drivers/infiniband/core/umem.c, ib_umem_get (RLIMIT_MEMLOCK, CAP_IPC_LOCK)",
            "Linux Documentation/infiniband/user_verbs.rst, Memory pinning",
        ),
    ),
    Cause(
        "version_mismatch",
        "Two NCCL versions meet",
        STOPS,
        "refused from NCCL 2.23.4, before that hangs or corrupt handshakes",
        ("nccl.version", "allreduce.nodes"),
        ("NCCL src/bootstrap.cc and src/init.cc (versions are compared at init)",),
    ),
    Cause(
        "gloo_backend",
        "Gloo carries CUDA tensors instead of NCCL",
        _TCP,
        "up to two orders of magnitude slower",
        ("torch.backend",),
        ("PyTorch torch/distributed/distributed_c10d.py, BackendConfig",),
    ),
    Cause(
        "p2p_disabled",
        "GPU peer-to-peer is off",
        MIGHT,
        "copies are staged through host memory instead of NVLink or PCIe",
        ("gpu.fabric", "nccl.environment"),
        (
            "NCCL src/graph/paths.cc, ncclTopoCheckP2p",
            "NCCL user guide: Environment Variables, NCCL_P2P_DISABLE, NCCL_P2P_LEVEL",
        ),
    ),
    Cause(
        "shm_disabled_or_small",
        "Shared memory is off or too small",
        STOPS,
        "NCCL fails at init (`No space left on device`) or sends local traffic over the network",
        ("nccl.shared_memory",),
        ("NCCL src/misc/shmutils.cc and src/transport/shm.cc", "NCCL user guide: Troubleshooting, Sharing Data"),
    ),
    Cause(
        "process_limits",
        "A limit of the process, its user or its cgroup is too low for the ranks",
        STOPS,
        "`Too many open files`, `Resource temporarily unavailable`, ranks that are killed or wait for CPU time",
        ("process.limits",),
        (
            "getrlimit(2); Linux Documentation/admin-guide/cgroup-v2.rst (pids, cpu, cpuset, memory)",
            "NCCL src/proxy.cc and src/bootstrap.cc (threads and descriptors); PyTorch TCPStore and Gloo (a connection a rank)",
        ),
    ),
    Cause(
        "duplicate_gpu",
        "Two ranks took the same GPU",
        STOPS,
        "the job ends at init",
        ("gpu.mapping", "allreduce.run"),
        ("NCCL src/init.cc (Duplicate GPU detected)",),
    ),
    Cause(
        "ib_timeout",
        "RDMA requests time out (completion status 12)",
        STOPS,
        "the job stops after retries of about 30 s",
        ("rdma.dev_infiniband",),
        (
            "NCCL src/transport/net_ib (completion status)",
            "NCCL user guide: Environment Variables, NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT",
        ),
    ),
    Cause(
        "roce_gid",
        "The RoCE GID is wrong, empty or of another kind",
        STOPS,
        "queue pairs cannot be connected",
        ("rdma.gid", "hardware.rails", "rdma.dev_infiniband"),
        (
            "NCCL src/transport/net_ib (ncclIbGetGidIndex)",
            "NCCL user guide: Environment Variables, NCCL_IB_GID_INDEX, NCCL_IB_ROCE_VERSION_NUM",
        ),
    ),
    Cause(
        "plugin_mismatch",
        "A network plugin is not loaded, too old or not the right one",
        STOPS,
        "NCCL takes its built-in network: often TCP",
        ("nccl.version", "allreduce.nodes"),
        ("NCCL src/plugin/net.cc", "NCCL user guide: Environment Variables, NCCL_NET_PLUGIN"),
    ),
    Cause(
        "acs_iommu",
        "PCIe ACS or the IOMMU stands between GPU and NIC",
        MIGHT,
        "peer-to-peer traffic detours through the root complex, or hangs",
        (),
        (
            "NCCL user guide: Troubleshooting, PCI Access Control Services (ACS)",
            "Linux Documentation/admin-guide/kernel-parameters.txt, iommu=",
        ),
    ),
    Cause(
        "numa_affinity",
        "Ranks run on the wrong NUMA node or are squeezed onto one core",
        MIGHT,
        "proxy threads and copies cross the socket link",
        ("cpu.numa_affinity",),
        (
            "NCCL src/init.cc and src/graph/topo.cc, ncclTopoGetCpuAffinity",
            "Linux Documentation/admin-guide/mm/numa_memory_policy.rst",
        ),
    ),
    Cause(
        "env_misuse",
        "An environment variable harms, or does not do what it says",
        MIGHT,
        "settings are ignored, or a feature stays off",
        ("nccl.environment",),
        ("NCCL src/misc/param.cc", "NCCL user guide: Environment Variables"),
    ),
    Cause(
        "cuda_driver_mismatch",
        "CUDA, driver and library do not fit together",
        STOPS,
        "the GPU cannot be used at all",
        ("torch.backend", "hardware.accelerator"),
        ("NVIDIA CUDA Compatibility documentation",),
    ),
    Cause(
        "nvls_failure",
        "NVLink SHARP (NVLS) could not be set up",
        STOPS,
        "init fails, or reductions are slower",
        ("gpu.fabric",),
        ("NCCL src/transport/nvls.cc", "NCCL user guide: Environment Variables, NCCL_NVLS_ENABLE"),
    ),
    Cause(
        "tcp_tuning",
        "TCP buffers or congestion control limit the sockets",
        MIGHT,
        "one stream cannot fill the link",
        ("net.tcp_buffers",),
        (
            "Linux Documentation/networking/ip-sysctl.rst, tcp_rmem, tcp_wmem",
            "NCCL src/transport/net_socket.cc",
            "NCCL user guide: Environment Variables, NCCL_NSOCKS_PERTHREAD",
        ),
    ),
    Cause(
        "mtu",
        "MTU differs along the path",
        STOPS,
        "small messages pass, full-size packets vanish",
        ("hardware.rails", "net.socket_ifname", "allreduce.nodes"),
        ("RFC 1191 (Path MTU discovery) and RFC 2923 (its black holes)",),
    ),
    Cause(
        "link_degraded",
        "A link runs below its capability or flaps",
        MIGHT,
        "everybody waits for the slowest link",
        ("hardware.links", "hardware.rails", "hardware.gpus", "allreduce.bandwidth", "allreduce.nodes"),
        (
            "Linux Documentation/ABI/testing/sysfs-bus-pci, current_link_speed",
            "Linux Documentation/ABI/stable/sysfs-class-infiniband",
        ),
    ),
    Cause(
        "gpu_memory",
        "A GPU's memory has errors",
        STOPS,
        "the program that meets them ends, or gets wrong data; some are gone only after a reset or with the GPU",
        ("gpu.health",),
        (
            "NVIDIA GPU Memory Error Management",
            "NVIDIA NVML API reference, nvmlDeviceGetRemappedRows, nvmlDeviceGetMemoryErrorCounter",
            "NVIDIA Dynamic Page Retirement",
        ),
    ),
    Cause(
        "gpu_error",
        "The driver reports an error of a GPU or NVSwitch",
        STOPS,
        "a collective on it ends or hangs until it is reset",
        ("gpu.health",),
        ("NVIDIA Xid Errors: Analyzing Xid Errors with the Xid Catalog", "NVIDIA Fabric Manager User Guide (SXid)"),
    ),
    Cause(
        "gpu_slow",
        "A GPU runs slower than its like: heat, power, or a limit",
        MIGHT,
        "everybody waits for the slowest GPU",
        ("gpu.health",),
        ("NVIDIA NVML API reference, nvmlClocksEventReasons", "NVIDIA nvidia-smi(1), Clocks Event Reasons"),
    ),
    Cause(
        "odd_one_out",
        "One of several like devices differs from the others",
        MIGHT,
        "collectives wait for the one that is slower, or take a path that the others do not have",
        ("hardware.gpus", "hardware.rails"),
        ("NCCL src/graph/topo.cc (GPUs and NICs of one node are one topology)",),
    ),
    Cause(
        "inventory",
        "Hardware is missing, or the layers disagree about it",
        STOPS,
        "the job runs on less than was bought, or does not start",
        ("hardware.gpus", "hardware.rails", "rdma.dev_infiniband"),
        ("Linux Documentation/ABI/testing/sysfs-bus-pci", "NVIDIA NVML API reference, nvmlDeviceGetCount"),
    ),
    Cause(
        "straggler",
        "One rank is slower than the others",
        MIGHT,
        "everybody waits for it",
        ("allreduce.run", "allreduce.nodes"),
        ("NCCL user guide: Troubleshooting, RAS",),
    ),
    Cause(
        "hang",
        "A collective does not finish",
        STOPS,
        "GPU hours burn until a watchdog ends the job",
        ("allreduce.run", "allreduce.nodes"),
        ("NCCL user guide: Troubleshooting, RAS", "PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (watchdog)"),
    ),
    Cause(
        "wrong_data",
        "A collective gave wrong numbers",
        STOPS,
        "training diverges silently",
        ("allreduce.run",),
        ("nccl-tests doc/PERFORMANCE.md and src/verifiable",),
    ),
    Cause(
        "low_bandwidth",
        "Bandwidth is far below what the path can carry",
        MIGHT,
        "steps take longer than they must",
        ("allreduce.bandwidth", "allreduce.nodes"),
        ("nccl-tests doc/PERFORMANCE.md (bus bandwidth)", "NCCL src/graph/tuning.cc"),
    ),
    Cause(
        "rank_died",
        "A rank died; the others are its victims",
        STOPS,
        "the job ends or hangs",
        ("allreduce.run", "allreduce.nodes"),
        ("PyTorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp", "PyTorch torch/distributed/elastic"),
    ),
    Cause(
        "device_mapping",
        "Ranks and GPUs are mapped wrongly",
        STOPS,
        "ranks share a GPU, or none is visible",
        ("gpu.mapping", "torch.backend"),
        ("CUDA C++ Programming Guide: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER",),
    ),
    Cause(
        "fabric_manager",
        "NVSwitch Fabric Manager is not running or stuck",
        STOPS,
        "CUDA init fails with error 802, or NVLS fails",
        ("gpu.fabric", "allreduce.run"),
        ("NVIDIA Fabric Manager User Guide",),
    ),
    Cause(
        "imex",
        "IMEX is not set up for multi-node NVLink",
        STOPS,
        "the rack's NVLink is not used, or init fails",
        ("gpu.fabric",),
        ("NVIDIA IMEX Service for NVLink Networks guide", "NCCL src/mnnvl.cc"),
    ),
    Cause(
        "drift",
        "A node differs from most nodes of its kind",
        MIGHT,
        "one node behaves unlike the others: the hardest faults to find by hand",
        ("allreduce.nodes",),
    ),
    Cause(
        "duplicate_address",
        "Two nodes claim the same address or the same name",
        STOPS,
        "connections reach the wrong node: hangs and resets that move around",
        ("allreduce.nodes",),
        ("RFC 5227 (IPv4 address conflict detection)",),
    ),
    Cause(
        "missing_node",
        "An expected node gave no report",
        STOPS,
        "the job starts without it, or waits for it",
        ("allreduce.nodes",),
    ),
    Cause("other", "Another cause", MIGHT, "unknown", ()),
)

CAUSES: Final[dict[str, Cause]] = {row.name: row for row in _ROWS}
