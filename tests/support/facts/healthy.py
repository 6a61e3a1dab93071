"""Healthy machines as facts.  Each is one real kind of node; no check may find a fail in any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from netdoctor.facts.cpu import Cpu
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.interrupts import Interrupts
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.library_search import JobPython
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Link, Net, Route
from netdoctor.facts.pci import Pci
from netdoctor.facts.platform import Platform
from netdoctor.facts.rdma import Provider, Rdma
from netdoctor.facts.runs import Baseline, Path, PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Unavailable
from tests.support import facts as f

Machine = dict[type, object]
ABSENT = Unavailable("absent")
NO_PEERMEM = f.kernel(modules={**f.kernel().modules, "nvidia_peermem": ABSENT})


def paths(count: int = 8, gdrdma: bool = True, prefix: str = "mlx5_") -> PathRun:
    return f.path_run(*(f.hca_run(i, (i + 1) % count, f"{prefix}{i}:1", gdrdma) for i in range(count)))


def dgx_h100() -> Machine:
    """Eight GPUs, eight InfiniBand HCAs, one pair per PCIe switch; DMA-BUF and nvidia_peermem."""
    return f.machine({PathRun: paths()})


def dgx_h100_dmabuf() -> Machine:
    """The same with open kernel modules and no nvidia_peermem, as NVIDIA recommends now."""
    return dgx_h100() | {Kernel: NO_PEERMEM}


def dgx_pod() -> Machine:
    """The job's container on such a node: virtual interfaces, the default port range, locked memory unlimited."""
    eth0 = f.netlink_link(
        "eth0", 3, "10.42.3.17", kind="veth", speed_mbps=10000, vendor=ABSENT, driver=ABSENT, numa_node=ABSENT
    )
    net = f.net(f.netlink_link("lo", 1, "127.0.0.1"), eth0, default_route=Route("eth0"))
    return dgx_h100() | {
        Vantage: f.pod(),
        Net: replace(net, hostname_addresses=("10.42.3.17",)),
        NcclChoice: f.nccl_choice(interface="eth0", address="10.42.3.17"),
    }


def hgx_roce() -> Machine:
    """RoCE instead of InfiniBand: eight Ethernet ports with IPv4 GIDs of this namespace."""
    names = [f"eth{i + 1}" for i in range(8)]
    rails = tuple(
        f.netlink_link(n, 3 + i, f"10.2.{i}.7", mtu=9000, speed_mbps=400000, numa_node=i // 4) for i, n in enumerate(names)
    )
    return dgx_h100() | {
        Rdma: f.rdma(
            devices=tuple(
                f.hca(i, ports=(f.roce_port(n, gids=f.roce_gids(n, f"0a02:{i << 8 | 7:04x}")),)) for i, n in enumerate(names)
            )
        ),
        Net: f.net(f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7"), *rails),
        NcclChoice: f.nccl_choice(interface="eth0", address="10.0.0.7"),
    }


def aws_efa() -> Machine:
    """p5: EFA behind aws-ofi-nccl, whose network is Libfabric."""
    vias = tuple(f.via(s, 1 - s, way, True, detail="Libfabric") for s in (0, 1) for way in ("send", "receive"))
    log = f.log(network="Libfabric", net="Libfabric", vias=vias, plugin="libnccl-net.so")
    ports = (f.port(link_layer="Unspecified", rate_gbps=100.0),)
    ena = f.netlink_link(
        "eth0", 2, "10.0.0.7", vendor="0x1d0f", driver="ena", speed_mbps=Unavailable("failed", "EINVAL"), mtu=9001
    )
    return f.machine(
        {
            Rdma: f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa", ports=ports) for i in range(8))),
            Pci: f.pci(
                devices=(
                    *(f.gpu_device(i) for i in range(8)),
                    *(f.hca_device(i, vendor=0x1D0F, driver="efa") for i in range(8)),
                )
            ),
            Platform: Platform("", "", ""),
            Net: f.net(f.netlink_link("lo", 1, "127.0.0.1"), ena),
            NcclChoice: f.nccl_choice(interface="eth0", address="10.0.0.7"),
            Libraries: f.libraries(plugins=(f.plugin(),)),
            Kernel: NO_PEERMEM,
            PathRun: f.path_run(*(f.hca_run(i, (i + 1) % 8, f"rdmap{i}s0:1", log=log) for i in range(8))),
        }
    )


def azure_nd() -> Machine:
    """InfiniBand virtual functions, each on a PCI root of its own; distances come from NCCL_TOPO_FILE."""
    gpus = tuple(f.gpu_device(i, path=(), root=f"pci000{i}:00") for i in range(8))
    hcas = tuple(f.hca_device(i, path=(), root=f"pci010{i}:00") for i in range(8))
    slow = f.hca(0, name="mlx5_an0", pci="00aa:00:02.0", ports=(f.roce_port("eth1", rate_gbps=100.0),), uverbs=f.uverbs(8))
    synthetic = f.netlink_link("eth0", 2, "10.0.0.7", vendor=ABSENT, driver="hv_netvsc", numa_node=ABSENT)
    vf = f.netlink_link("eth1", 3, controller=2)
    ib = tuple(f.netlink_link(f"ib{i}", 4 + i, f"172.16.{i}.7", mtu=2044, speed_mbps=400000) for i in range(8))
    return f.machine(
        {
            Pci: f.pci(devices=(*gpus, *hcas, f.hca_device(0, address="00aa:00:02.0", path=(), root="pci00aa:00"))),
            Rdma: f.rdma(devices=(*(f.hca(i, name=f"mlx5_ib{i}", virtual_function=True) for i in range(8)), slow)),
            Environ: f.environ({"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml"}),
            Net: f.net(f.netlink_link("lo", 1, "127.0.0.1"), synthetic, vf, *ib),
            NcclChoice: f.nccl_choice(interface="ib0", address="172.16.0.7"),
            PathRun: paths(prefix="mlx5_ib"),
        }
    )


def a100_pcie() -> Machine:
    """Two A100 PCIe cards without RDMA: sockets are what this machine has."""
    cards = tuple(f.gpu_device(i, device=0x20F1) for i in range(2))
    log = f.log(network="Socket", net="Socket", no_ib_device=True)
    socket = f.run(2, log=log, busbw={1 << 26: 18.0}, ranks=tuple(f.rank(i) for i in range(2)))
    name = "NVIDIA A100 80GB PCIe"
    return f.machine(
        {
            Pci: f.pci(devices=cards),
            Gpus: f.gpus(
                all=tuple(f.gpu(i, name=name, capability=(8, 0), nvlinks=()) for i in range(2)),
                visible=tuple(f.visible(i, name=name) for i in range(2)),
            ),
            Rdma: f.no_rdma(),
            Interrupts: f.interrupts({"eth0": frozenset(range(8)), "eth1": frozenset(range(64, 72))}),
            Net: f.net(f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7", speed_mbps=10000)),
            NcclChoice: f.nccl_choice(interface="eth0", address="10.0.0.7"),
            Kernel: NO_PEERMEM,
            Baseline: f.baseline(socket),
            PathRun: f.path_run(replace(socket, experiment=replace(socket.experiment, path=Path.parse("inter-node")))),
        }
    )


def gb200() -> Machine:
    """Four GPUs on two Grace CPUs: NVLink-C2C, memory-only nodes of the GPUs, HCAs under the same CPU."""
    count = 4
    cpus = tuple(f.node(n, range(72 * n, 72 * n + 72), {0: 10 if n == 0 else 40, 1: 40 if n == 0 else 10}) for n in range(2))
    memory = tuple(f.node(2 + i, (), {0: 80, 1: 80, 2 + i: 10}) for i in range(count))
    gpus = tuple(
        f.gpu_device(i, path=(f.bdf(i + 1),), root=f"pci000{i}:00", numa_node=i // 2, device=0x2941) for i in range(count)
    )
    hcas = tuple(f.hca_device(i, path=(f.bdf(i + 9),), root=f"pci001{i}:00", numa_node=i // 2) for i in range(count))
    name = "NVIDIA GB200"
    rank_cpus = tuple(tuple(range(72 * (i // 2), 72 * (i // 2) + 72)) for i in range(count))
    run = f.run(
        count,
        ranks=tuple(f.rank(i, affinity=rank_cpus[i], thread_affinity=rank_cpus[i]) for i in range(count)),
        busbw={1 << 26: 600.0},
    )
    return f.machine(
        {
            Pci: f.pci(devices=(*gpus, *hcas)),
            Gpus: f.gpus(
                all=tuple(f.gpu(i, name=name, capability=(10, 0), numa_node=i // 2) for i in range(count)),
                visible=tuple(f.visible(i, name=name) for i in range(count)),
            ),
            Rdma: f.rdma(devices=tuple(f.hca(i, numa_node=i // 2) for i in range(count))),
            Cpu: f.cpu(
                nodes=(*cpus, *memory),
                allowed=frozenset(range(144)),
                online=frozenset(range(144)),
                memory_allowed=frozenset(range(6)),
            ),
            Kernel: NO_PEERMEM,
            Baseline: f.baseline(run),
            PathRun: paths(count),
        }
    )


def gb10() -> Machine:
    """DGX Spark: one GPU that shares memory with the CPU, two RoCE ports, no GPUDirect RDMA by design."""
    name = "NVIDIA GB10"
    gids = [f.roce_gids(f"enp{i}", f"0a03:{i:02x}07") for i in range(2)]
    ports = [f.roce_port(f"enp{i}", rate_gbps=200.0, gids=gids[i]) for i in range(2)]
    hcas = tuple(f.hca(i, name=f"rocep{i}", ports=(ports[i],)) for i in range(2))
    run = f.run(
        2,
        experiment=replace(f.run().experiment, ranks=2, gpus=(0, 0)),
        busbw={1 << 26: 9.0},
        ranks=tuple(f.rank(i, affinity=tuple(range(20)), thread_affinity=tuple(range(20))) for i in range(2)),
    )
    return f.machine(
        {
            Pci: f.pci(devices=(f.gpu_device(0, device=0x2E12), *(f.hca_device(i) for i in range(2)))),
            Gpus: f.gpus(
                all=(f.gpu(0, name=name, capability=(12, 1), nvlinks=()),),
                visible=(f.visible(0, name=name, gpudirect_rdma=False, dmabuf=False, integrated=True),),
            ),
            Rdma: f.rdma(devices=tuple(replace(h, provider=Provider(True, "", "EBADF")) for h in hcas)),
            Net: f.net(
                f.netlink_link("lo", 1, "127.0.0.1"),
                *(f.netlink_link(f"enp{i}", 2 + i, f"10.3.{i}.7", speed_mbps=200000, mtu=9000) for i in range(2)),
            ),
            NcclChoice: f.nccl_choice(interface="enp0", address="10.3.0.7"),
            Cpu: f.cpu(
                nodes=(f.node(0, range(20), {0: 10}),),
                allowed=frozenset(range(20)),
                online=frozenset(range(20)),
                memory_allowed=frozenset({0}),
            ),
            Kernel: NO_PEERMEM,
            Baseline: f.baseline(run),
            PathRun: f.path_run(f.hca_run(0, 0, "rocep0:1", False), f.hca_run(0, 0, "rocep1:1", False)),
        }
    )


def cpu_node() -> Machine:
    """A node without accelerator and RDMA, with a CPU build of torch; 8 MiB of locked memory is systemd's default."""
    eth0: Link = f.netlink_link("eth0", 2, "10.0.0.7", vendor="0x1af4", driver="virtio_net", speed_mbps=Unavailable("failed"))
    kernel = f.kernel(limits={**f.kernel().limits, "memlock": 8 << 20}, modules={})
    return f.machine(
        {
            Pci: f.pci(0, 0),
            Gpus: f.gpus(driver=ABSENT, cuda_driver=ABSENT, all=ABSENT, visible=ABSENT),
            Rdma: f.no_rdma(),
            Net: f.net(f.netlink_link("lo", 1, "127.0.0.1"), eth0),
            NcclChoice: f.nccl_choice(interface="eth0", address="10.0.0.7"),
            Libraries: f.libraries(
                python=JobPython("/usr/bin/python3", "python3 on PATH", False),
                torch=f.torch(version="2.13.0+cpu", cuda=None, nccl_linkage="none", nccl_path=None, nccl_compiled=None),
                nccl=(),
            ),
            Kernel: kernel,
            Baseline: Baseline(f.gloo_run(), False),
            PathRun: PathRun(Unavailable("unsupported", "no accelerator: NCCL did not run")),
        }
    )


HEALTHY: dict[str, Callable[[], Machine]] = {
    made.__name__: made
    for made in (dgx_h100, dgx_h100_dmabuf, dgx_pod, hgx_roce, aws_efa, azure_nd, a100_pcie, gb200, gb10, cpu_node)
}
