"""NCCL logs and runs, composed: one process a rank, as `NCCL_DEBUG=INFO` with netdoctor's subsystems leaves them.

Lines in the wording of NCCL 2.24 to 2.27: src/init.cc, src/bootstrap.cc, src/transport/net.cc, src/transport/net_ib.cc,
src/graph/topo.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from netdoctor.allreduce.plan import GLOO
from netdoctor.allreduce.verdict import busbw
from netdoctor.facts.runs import AllReduce, RankResult, Run, TorchFacts, Way

STEPS = "".join(f"step {n} loss 2.0\n" for n in range(9))  # work of a program, in its own words
CHANGES = (
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_DEBUG_FILE", "/dev/null"),
    ("NCCL_DEBUG_SUBSYS", "INIT,ENV,BOOTSTRAP,NET,GRAPH,TUNING,NVLS"),
    ("NCCL_RAS_ENABLE", "0"),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
)


@dataclass(frozen=True)
class Wire:
    """How ranks of this machine are connected, and what NCCL finds on it."""

    host: str
    version: str = "2.27.5"
    bootstrap: str = "eth0:10.0.0.7"
    devices: tuple[str, ...] = ()  # "mlx5_0:1/IB" in NCCL's order; () no HCA
    inside: str = "P2P/CUMEM"  # between GPUs of the node
    plugin: str = ""  # name of the network of an external plugin
    sockets: str = ""  # "eth0:10.0.0.7" of NET/Socket
    gdr: bool = True
    nvls: bool = False
    mnnvl: bool = False
    affinity: Mapping[int, str] = field(default_factory=dict)  # GPU -> CPU list
    buses: tuple[str, ...] = ()  # busId per GPU
    cuda_driver: int = 13000


def text(wire: Wire, experiment: AllReduce) -> str:
    """The log of this experiment."""
    network = wire.plugin or ("IB" if wire.devices else "Socket")
    across = experiment.path.way != Way.DEFAULT or len(set(experiment.gpus)) < experiment.ranks
    named = experiment.path.pinned
    devices = [d for d in wire.devices if not named or d.startswith(f"{named}/")]
    lines: list[str] = []
    for rank in range(experiment.ranks):
        gpu = experiment.gpus[rank]
        lines += _rank(wire, experiment, rank, gpu, network, devices, across)
    return "\n".join(lines) + "\n"


def _rank(wire: Wire, experiment: AllReduce, rank: int, gpu: int, network: str, devices: list[str], across: bool) -> list[str]:
    pid, count = 4100 + rank, experiment.ranks
    hosts = "netdoctor" in str(experiment.rank_env)
    nodes = 2 if hosts else 1
    bus = wire.buses[gpu] if gpu < len(wire.buses) else f"{gpu:x}000"
    address = f"0x55d0c0{rank:02x}a0"
    where = f"cudaDev {gpu} nvmlDev {gpu} busId {bus} commId 0x5ee3a1f0b2c4d6e8"
    comm = f"comm {address} rank {rank} nranks {count} {where}"
    said = [
        f"cudaDriverVersion {wire.cuda_driver}",
        f"NCCL version {wire.version}+cuda12.9",
        f"Bootstrap: Using {wire.bootstrap}<0>",
    ]
    if wire.plugin:
        said += [
            f"NET/Plugin: Loaded net plugin {wire.plugin} (v10)",
            "NET/OFI Initializing aws-ofi-nccl 1.16.3",
            "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
        ]
    else:
        said.append("NET/Plugin: Could not find: libnccl-net.so")
        if devices:
            listed = " ".join(f"[{n}]{d}" for n, d in enumerate(devices))
            said.append(f"NET/IB : Using {listed} [RO]; OOB {wire.bootstrap}<0>")
        else:
            said += ["NET/IB : No device found.", f"NET/Socket : Using [0]{wire.sockets or wire.bootstrap}<0>"]
    said += [
        f"Using network {network}",
        f"DMA-BUF is available on GPU device {gpu}",
        f"ncclCommInitRankConfig {comm} - Init START",
    ]
    if gpu in wire.affinity:
        said.append(f"Setting affinity for GPU {gpu} to {wire.affinity[gpu]}")
    if wire.nvls and not across:
        said.append(f"NVLS multicast support is available on dev {gpu} (NVLS_NCHANNELS 16)")
    local, place, mnnvl = (1, 0, 0) if hosts else (count, rank, int(wire.mnnvl and not across))
    said += [
        f"comm {address} rank {rank} nRanks {count} nNodes {nodes} localRanks {local} localRank {place} MNNVL {mnnvl}",
        "2 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer",
        f"ncclCommInitRankConfig {comm} - Init COMPLETE",
        f"Init timings - ncclCommInitRankConfig: rank {rank} nranks {count} total 1.08 (kernels 0.17, alloc 0.45, rest 0.46)",
    ]
    after, before = (rank + 1) % count, (rank - 1) % count
    for channel in ("00", "01"):
        if across:
            end = f"via NET/{network}/0{'/GDRDMA' if wire.gdr and network != 'Socket' else ''}"
            said.append(f"Channel {channel}/0 : {before}[{experiment.gpus[before]}] -> {rank}[{gpu}] [receive] {end}")
            said.append(f"Channel {channel}/0 : {rank}[{gpu}] -> {after}[{experiment.gpus[after]}] [send] {end}")
        else:
            said.append(f"Channel {channel}/0 : {rank}[{gpu}] -> {after}[{experiment.gpus[after]}] via {wire.inside}")
    said.append(f"Connected all rings, use ring PXN 0 GDR {int(wire.gdr)}")
    return [f"{wire.host}:{pid}:{pid} [{gpu}] NCCL INFO {one}" for one in said]


def nccl_run(
    wire: Wire, experiment: AllReduce, torch: TorchFacts, libnccl: str, masks: tuple[tuple[int, ...], ...], rate: float
) -> Run:
    """A finished run at `rate` GB/s of bus bandwidth at its largest size; `masks` are the CPUs of each rank."""
    seconds = {size: max(20e-6, size * _factor(experiment.ranks) / rate / 1e9) for size in experiment.sizes}
    ranks = tuple(_rank_result(n, seconds, libnccl, masks[experiment.gpus[n]]) for n in range(experiment.ranks))
    return _run(experiment, ranks, seconds, torch, text(wire, experiment), libnccl)


def gloo_run(torch: TorchFacts, mask: tuple[int, ...], rate: float = 1.5) -> Run:
    """The two Gloo ranks of a machine whose torch sees no CUDA device."""
    seconds = {size: max(300e-6, size / rate / 1e9) for size in GLOO.sizes}
    return _run(GLOO, tuple(_rank_result(n, seconds, "", mask) for n in range(2)), seconds, torch, "", "")


def _factor(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _rank_result(number: int, seconds: Mapping[int, float], libnccl: str, mask: tuple[int, ...]) -> RankResult:
    return RankResult(
        number,
        "done",
        exit=0,
        seconds=seconds,
        phase_seconds={"init": 1.1, "first": 0.3, "timed": 0.8},
        user_cpu=1.2,
        system_cpu=0.02,
        mapped=(libnccl,) if libnccl else (),
        affinity=mask,
        thread_affinity=mask,
    )


def _run(
    experiment: AllReduce,
    ranks: tuple[RankResult, ...],
    seconds: Mapping[int, float],
    torch: TorchFacts,
    log: str,
    libnccl: str,
) -> Run:
    rates = {size: busbw(size, took, experiment.ranks) for size, took in seconds.items()}
    return Run(
        experiment,
        "finished",
        verified=True,
        ranks=ranks,
        busbw=rates,
        latency=dict(seconds),
        import_seconds=4.0,
        seconds=6.5,
        log_text=log,
        backends=torch.backends,
        backends_nccl=torch.backends_nccl,
        torch_version=torch.version,
        nccl_version=torch.nccl,
        cuda_available=torch.cuda_available,
        mapped=(libnccl,) if libnccl else (),
        system_cpu_per_gb=0.002,
        changes=CHANGES,
        torch=torch,
    )


def torch_facts(version: str, cuda: str | None, count: int, nccl: str) -> TorchFacts:
    """What such a torch answers."""
    here = count > 0
    backends: dict[str, Any] = {"cuda": "nccl"} if here else {"cpu": "gloo"}
    return TorchFacts(
        version=version,
        nccl_built=cuda is not None,
        cuda_available=here,
        device_count=count,
        nccl=nccl if here else "",
        backends=backends,
        backends_nccl={"cuda": "nccl"} if here else {},
    )
