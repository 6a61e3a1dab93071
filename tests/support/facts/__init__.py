"""Small factories for every fact.  The defaults are one healthy DGX H100; each takes the fields that a test changes.

`machine()` is all facts of one node by type; `judge(check, facts)` calls a check as the engine does: by the types of its
parameters, so a test names only what it changes::

    judge(gpudirect, machine() | {Kernel: kernel(modules={})})
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from netdoctor.cluster.observations import Cluster, Nodes, Ready
from netdoctor.facts.base import Fact
from netdoctor.facts.cpu import Cpu, MemoryPolicy, Node
from netdoctor.facts.device_names import DeviceNames
from netdoctor.facts.environ import Environ, Launcher, Setting
from netdoctor.facts.gpu import Gpu, Gpus, VisibleGpu
from netdoctor.facts.interrupts import Interrupts
from netdoctor.facts.job import Expected, JobShape
from netdoctor.facts.kernel import UNLIMITED, Kernel, Module
from netdoctor.facts.libraries import Libraries, NcclLibrary, Plugin
from netdoctor.facts.library_search import JobPython, Torch
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Address, Link, LocalPorts, Net
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.rdma import Gid, Provider, Rdma, RdmaDevice, RdmaPort, Uverbs
from netdoctor.facts.runs import AllReduce, Baseline, CommonRun, Path, PathRun, RankResult, Run
from netdoctor.facts.vantage import Place, Vantage
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.log.facts import Direction, LogFacts, Via

Facts = Mapping[type, object]
NONE = Unavailable("absent")

# Buses of a DGX H100: GPU and its HCA under one PCIe switch, four of them per socket.
GPU_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
HCA_BUSES = (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xCE, 0xDC)
GPU_NAME = "NVIDIA H100 80GB HBM3"
LIBNCCL = "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


# Judging


def judge(check: Callable[..., Iterable[Finding]], facts: Facts) -> list[Finding]:
    """The findings of `check` on `facts`; of a fact that is not there nothing was read."""
    hints = typing.get_type_hints(check)
    hints.pop("return", None)
    return list(check(**{name: _argument(hint, facts) for name, hint in hints.items()}))


def _argument(hint: type[Fact], facts: Facts) -> object:
    got = facts.get(hint, Unavailable("not recorded"))
    return hint.unread(got) if isinstance(got, Unavailable) else got


def statuses(findings: Iterable[Finding]) -> dict[str, Status]:
    """Status by subject (the last finding of a subject counts)."""
    return {f.subject: f.status for f in findings}


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding there is."""
    (found,) = findings
    return found


# Who looks


def vantage(**changes: Any) -> Vantage:
    """The job's own user on the host."""
    base = Vantage(
        kind=Place.HOST,
        runtime=None,
        euid=1000,
        user="ada",
        root_is_root=True,
        capabilities=frozenset(),
        namespaces={"net": "4026531840", "user": "4026531837", "mnt": "4026531841", "pid": "4026531836"},
        cgroup="/user.slice",
        job_user=True,
        job_network=True,
        job_environment=True,
    )
    return replace(base, **changes)


def outside(**changes: Any) -> Vantage:
    """Root in a prolog: sees the node, but not as the job does."""
    return vantage(
        **{
            "kind": "prolog",
            "euid": 0,
            "user": "root",
            "job_user": False,
            "job_network": False,
            "job_environment": False,
            "why_not": "seen as root outside the job",
            **changes,
        }
    )


def pod(**changes: Any) -> Vantage:
    """The job's own container in Kubernetes."""
    return vantage(**{"kind": "pod", "runtime": "kubernetes", "euid": 0, "user": "root", **changes})


# Kernel


def module(name: str, version: str | None = None, state: str | None = "live") -> Module:
    return Module(name, version, state)


def kernel(**changes: Any) -> Kernel:
    """nvidia_peermem loaded, memlock unlimited, wide sysctls."""
    base = Kernel(
        release="6.8.0-1019-nvidia",
        command_line="BOOT_IMAGE=/vmlinuz root=/dev/md0 iommu=pt",
        modules={
            "nvidia": module("nvidia", "580.95.05"),
            "nvidia_peermem": module("nvidia_peermem", "580.95.05"),
            "ib_core": module("ib_core"),
            "ib_uverbs": module("ib_uverbs"),
            "mlx5_core": module("mlx5_core"),
            "mlx5_ib": module("mlx5_ib"),
        },
        memory_peers={},
        sysctls={
            "net.ipv4.ip_local_port_range": "32768 60999",
            "net.ipv4.tcp_rmem": "4096 131072 67108864",
            "net.ipv4.tcp_wmem": "4096 65536 67108864",
            "net.ipv4.tcp_moderate_rcvbuf": "1",
            "net.ipv4.tcp_congestion_control": "cubic",
            "net.ipv4.tcp_available_congestion_control": "reno cubic",
            "net.core.somaxconn": "4096",
        },
        limits={
            "memlock": UNLIMITED,
            "nofile": 1048576,
            "stack": 8 << 20,
            "nproc": UNLIMITED,
        },
        driver="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
    )
    return replace(base, **changes)


# CPU


def node(id: int, cpus: Iterable[int], distances: Mapping[int, int] | Unavailable | None = None) -> Node:
    return Node(id, frozenset(cpus), {0: 10, 1: 21} if distances is None else distances)


def cpu(**changes: Any) -> Cpu:
    """Two sockets of 56 cores with two threads each."""
    first, second = [*range(56), *range(112, 168)], [*range(56, 112), *range(168, 224)]
    base = Cpu(
        nodes=(node(0, first, {0: 10, 1: 21}), node(1, second, {0: 21, 1: 10})),
        allowed=frozenset(range(224)),
        memory_allowed=frozenset({0, 1}),
        online=frozenset(range(224)),
        memory_policy=MemoryPolicy("default", frozenset()),
    )
    return replace(base, **changes)


def interrupts(cpus: Mapping[str, frozenset[int] | Unavailable] | Unavailable | None = None) -> Interrupts:
    """Where there are RDMA devices they are not read."""
    return Interrupts(Unavailable("unsupported", "there are RDMA devices") if cpus is None else cpus)


# PCI and GPUs


def bdf(bus: int, device: int = 0, function: int = 0) -> str:
    return f"0000:{bus:02x}:{device:02x}.{function}"


def _slot(bus: int, index: int) -> tuple[str, tuple[str, ...]]:
    """(root, path) of a device behind switch number `index`, which a GPU and its HCA share."""
    base = HCA_BUSES[index] - 3
    return f"pci0000:{base:02x}", (bdf(base, 1), bdf(base + 1), bdf(base + 2, 0 if bus == HCA_BUSES[index] else 1))


def gpu_device(index: int, **changes: Any) -> PciDevice:
    root, path = _slot(GPU_BUSES[index], index)
    base = PciDevice(
        address=bdf(GPU_BUSES[index]),
        vendor=0x10DE,
        device=0x2330,
        klass=0x030200,
        numa_node=index // 4,
        driver="nvidia",
        link=PciLink(32.0, 16, 32.0, 16),
        path=path,
        root=root,
        physical_function=None,
    )
    return replace(base, **changes)


def hca_device(index: int, **changes: Any) -> PciDevice:
    root, path = _slot(HCA_BUSES[index], index)
    base = PciDevice(
        address=bdf(HCA_BUSES[index]),
        vendor=0x15B3,
        device=0x1021,
        klass=0x020700,
        numa_node=index // 4,
        driver="mlx5_core",
        link=PciLink(32.0, 16, 32.0, 16),
        path=path,
        root=root,
        physical_function=None,
        rdma=True,
    )
    return replace(base, **changes)


def pci(gpus: int = 8, hcas: int = 8, **changes: Any) -> Pci:
    base = Pci(devices=(*(gpu_device(i) for i in range(gpus)), *(hca_device(i) for i in range(hcas))), foreign_accelerators=())
    return replace(base, **changes)


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-1111-2222-3333-444444444444"


def gpu(index: int, **changes: Any) -> Gpu:
    base = Gpu(
        uuid=uuid(index),
        index=index,
        name=GPU_NAME,
        pci=bdf(GPU_BUSES[index]),
        numa_node=index // 4,
        memory_total=80 << 30,
        memory_used=0,
        utilization=0,
        processes=0,
        nvlinks=(True,) * 18,
        mig=False,
        capability=(9, 0),
    )
    return replace(base, **changes)


def visible(index: int, **changes: Any) -> VisibleGpu:
    base = VisibleGpu(index, uuid(index), GPU_NAME, gpudirect_rdma=True, dmabuf=True, integrated=False)
    return replace(base, **changes)


def gpus(count: int = 8, **changes: Any) -> Gpus:
    base = Gpus(
        driver="580.95.05",
        cuda_driver=13000,
        all=tuple(gpu(i) for i in range(count)),
        visible=tuple(visible(i) for i in range(count)),
    )
    return replace(base, **changes)


# RDMA


def gid(index: int = 0, value: str = "fe80:0000:0000:0000:a088:c203:00b0:0001", **changes: Any) -> Gid:
    base = Gid(index, value, "IB/RoCE v1", Unavailable("failed", "EINVAL"))
    return replace(base, **changes)


def roce_gids(netdev: str | Unavailable) -> tuple[Gid, ...]:
    """What a RoCE port with an IPv4 address has."""
    local, mapped = "fe80:0000:0000:0000:a288:c2ff:fe46:0001", "0000:0000:0000:0000:0000:ffff:0a0a:0001"
    return (
        Gid(0, local, "IB/RoCE v1", netdev),
        Gid(1, local, "RoCE v2", netdev),
        Gid(2, mapped, "IB/RoCE v1", netdev),
        Gid(3, mapped, "RoCE v2", netdev),
    )


def port(number: int = 1, **changes: Any) -> RdmaPort:
    base = RdmaPort(number, "ACTIVE", "LinkUp", "InfiniBand", 400.0, (gid(),))
    return replace(base, **changes)


def roce_port(netdev: str | Unavailable, **changes: Any) -> RdmaPort:
    return port(**{"link_layer": "Ethernet", "gids": roce_gids(netdev), **changes})


def uverbs(index: int, **changes: Any) -> Uverbs:
    base = Uverbs(
        name=f"uverbs{index}",
        node=f"/dev/infiniband/uverbs{index}",
        numbers=(231, 192 + index),
        node_numbers=(231, 192 + index),
        open_errno="",
        owner=(0o666, 0, 0),
    )
    return replace(base, **changes)


def hca(index: int, **changes: Any) -> RdmaDevice:
    base = RdmaDevice(
        name=f"mlx5_{index}",
        pci=bdf(HCA_BUSES[index]),
        driver="mlx5_core",
        vendor="0x15b3",
        numa_node=index // 4,
        virtual_function=False,
        firmware="28.39.3560",
        ports=(port(),),
        uverbs=uverbs(index),
        provider=Provider(True, "", "EBADF"),
    )
    return replace(base, **changes)


def rdma(count: int = 8, **changes: Any) -> Rdma:
    base = Rdma(
        devices=tuple(hca(i) for i in range(count)),
        nodes=("rdma_cm", *(f"uverbs{i}" for i in range(count))),
        libibverbs="libibverbs.so.1",
        verbs_devices=tuple(f"mlx5_{i}" for i in range(count)),
    )
    return replace(base, **changes)


def no_rdma() -> Rdma:
    """Positive evidence: /sys/class/infiniband was read and is empty."""
    return Rdma((), NONE, NONE, ())


# Network


def address(ip: str, prefix: int = 24, **changes: Any) -> Address:
    family = 6 if ":" in ip else 4
    scope = "link" if ip.startswith("fe80") else "host" if ip.startswith("127.") or ip == "::1" else "global"
    return replace(Address(ip, prefix, family, scope), **changes)


def netlink_link(name: str, index: int, *ips: str, **changes: Any) -> Link:
    base = Link(
        name=name,
        index=index,
        up=True,
        running=True,
        loopback=name == "lo",
        kind=None,
        mtu=65536 if name == "lo" else 1500,
        controller=None,
        addresses=tuple(address(ip) for ip in ips),
        speed_mbps=NONE if name == "lo" else 25000,
        vendor=NONE if name == "lo" else "0x15b3",
        driver=NONE if name == "lo" else "mlx5_core",
        numa_node=NONE if name == "lo" else 0,
    )
    return replace(base, **changes)


def net(*links: Link, **changes: Any) -> Net:
    """lo, eth0 and IPoIB interfaces ib0 … ib7."""
    usual = (
        netlink_link("lo", 1, "127.0.0.1"),
        netlink_link("eth0", 2, "10.0.0.7"),
        *(netlink_link(f"ib{i}", 3 + i, f"10.1.{i}.7", mtu=2044, speed_mbps=400000, numa_node=i // 4) for i in range(8)),
    )
    base = Net(
        links=links or usual,
        hostname_addresses=("10.0.0.7",),
        master=None,
        master_port=None,
        peers=(),
        default_route=None,
    )
    return replace(base, **changes)


def ports(**changes: Any) -> LocalPorts:
    base = LocalPorts(32768, 60999, reserved=frozenset(), listening=frozenset({22}))
    return replace(base, **changes)


# Environment, libraries


def environ(variables: Mapping[str, str] | None = None, /, launcher: Launcher | None = None, **changes: Any) -> Environ:
    """`variables` as a process has them; NCCL_* become effective settings from the environment."""
    have = dict(variables or {})
    effective = {k: Setting(k, v) for k, v in have.items() if k.startswith("NCCL_")}
    base = Environ(have, effective, launcher or Launcher(None, None, None, None, None))
    return replace(base, **changes)


def library(path: str = LIBNCCL, version: tuple[int, int, int] | Unavailable = (2, 27, 5), **changes: Any) -> NcclLibrary:
    base = NcclLibrary(path, path, version, "dlopen", ("site-packages", "torch"))
    return replace(base, **changes)


def torch(**changes: Any) -> Torch:
    base = Torch(
        version="2.9.1+cu129",
        path="/opt/venv/lib/python3.12/site-packages/torch",
        cuda="12.9",
        nccl_linkage="dynamic",
        nccl_path=LIBNCCL,
        nccl_compiled=(2, 27, 5),
    )
    return replace(base, **changes)


def libraries(**changes: Any) -> Libraries:
    base = Libraries(
        python=JobPython("/opt/venv/bin/python3", "VIRTUAL_ENV", False), torch=torch(), nccl=(library(),), plugins=()
    )
    return replace(base, **changes)


def plugin(path: str = "/opt/amazon/ofi-nccl/lib/libnccl-net.so", **changes: Any) -> Plugin:
    base = Plugin(path, path.rpartition("/")[2], ("loader cache",), ("ncclNetPlugin_v9", "ncclNetPlugin_v10"))
    return replace(base, **changes)


def nccl_choice(**changes: Any) -> NcclChoice:
    base = NcclChoice(LIBNCCL, (2, 27, 5), "ib0", "10.1.0.7", 0, "", ())
    return replace(base, **changes)


# Job


def job(**changes: Any) -> JobShape:
    return replace(JobShape(), **changes)


def expected(**changes: Any) -> Expected:
    return replace(Expected(), **changes)


# Runs


def rank(number: int, **changes: Any) -> RankResult:
    near = frozenset(range(56)) | frozenset(range(112, 168))
    every = tuple(sorted(near if number < 4 else frozenset(range(224)) - near))
    base = RankResult(
        number, "done", exit=0, seconds={1 << 26: 0.001}, mapped=(LIBNCCL,), affinity=every, thread_affinity=every
    )
    return replace(base, **changes)


def run(count: int = 8, /, **changes: Any) -> Run:
    """A finished NCCL all-reduce with one rank per GPU."""
    base = Run(
        experiment=AllReduce("nccl", count, "cuda", gpus=tuple(range(count))),
        state="finished",
        verified=True,
        ranks=tuple(rank(i) for i in range(count)),
        busbw={1 << 26: 360.0},
        latency={1 << 12: 25e-6},
        log=log(),
        backends={"cuda": "nccl"},
        backends_nccl={"cuda": "nccl"},
        torch_version="2.9.1+cu129",
        nccl_version="2.27.5",
        cuda_available=True,
        mapped=(LIBNCCL,),
        system_cpu_per_gb=0.001,
    )
    return replace(base, **changes)


def gloo_run(**changes: Any) -> Run:
    """Two Gloo ranks on a machine without an accelerator."""
    return replace(
        run(2),
        **{
            "experiment": AllReduce("gloo", 2),
            "log": None,
            "backends": {"cpu": "gloo"},
            "backends_nccl": {},
            "torch_version": "2.13.0+cpu",
            "nccl_version": "",
            "cuda_available": False,
            "mapped": (),
            "ranks": tuple(rank(i, mapped=()) for i in range(2)),
            "busbw": {1 << 26: 1.4},
            **changes,
        },
    )


def log(**fields: Any) -> LogFacts:
    """A parsed NCCL log."""
    return LogFacts(**{"library": "NCCL", "nccl_version": "2.27.5", **fields})


def via(src: int = 0, dst: int = 1, direction: str = "send", gdrdma: bool = True, **changes: Any) -> Via:
    """``Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA``"""
    return replace(Via(src, dst, Direction(direction), "NET", "IB", 0, gdrdma), **changes)


def hca_run(gpu: int = 0, peer: int = 1, hca: str = "mlx5_0:1", gdrdma: bool = True, **changes: Any) -> Run:
    """The inter-node path through one HCA port: two ranks on two GPUs."""
    both = tuple(via(s, d, way, gdrdma) for s, d in ((0, 1), (1, 0)) for way in ("send", "receive"))
    experiment = AllReduce("nccl", 2, "cuda", path=Path.parse(f"inter-node {hca}"), gpus=(gpu, peer))
    fields = {"experiment": experiment, "log": log(net="IB", network="IB", vias=both)}
    return replace(run(2), **{**fields, **changes})


def baseline(one: Run | None = None, **changes: Any) -> Baseline:
    base = Baseline(one or run(), "/opt/venv/bin/python3", True)
    return replace(base, **changes)


def path_run(*runs: Run) -> PathRun:
    return PathRun(runs)


def common_run(one: Run, told: str = "", told_cause: str = "") -> CommonRun:
    """`one` as a run of several nodes."""
    return CommonRun(**{f.name: getattr(one, f.name) for f in fields(one)}, told=told, told_cause=told_cause)


def cluster(count: int = 2, /, **changes: Any) -> Cluster:
    """As node 0 knows it: every node came, each reached the others, and they ran one all-reduce of a Gloo rank a node."""
    everybody = range(count)
    base = Cluster(
        Nodes(count, 0, "h0", 29400),
        {n: f"h{n}" for n in everybody},
        {n: f"10.0.0.{n}" for n in everybody},
        reach={a: {b: None for b in everybody if b != a} for a in everybody},
        ready={n: Ready(1, "gloo", traits={"torch": "2.9"}, variables_read=True) for n in everybody},
        first_ranks={n: n for n in everybody},
        run=common_run(gloo_run(experiment=AllReduce("gloo", count), ranks=tuple(rank(n, mapped=()) for n in everybody))),
    )
    return replace(base, **changes)


def machine(changes: Facts | None = None) -> dict[type, object]:
    """All facts of a healthy DGX H100 on one node, seen by the job; `changes` replace facts by type."""
    return {
        Vantage: vantage(),
        DeviceNames: DeviceNames(),
        Kernel: kernel(),
        Cpu: cpu(),
        Interrupts: interrupts(),
        Pci: pci(),
        Gpus: gpus(),
        Rdma: rdma(),
        Net: net(),
        LocalPorts: ports(),
        Environ: environ(),
        Libraries: libraries(),
        NcclChoice: nccl_choice(),
        JobShape: job(),
        Expected: expected(),
        Baseline: baseline(),
        PathRun: path_run(),
        Cluster: cluster(),
        **(changes or {}),
    }
