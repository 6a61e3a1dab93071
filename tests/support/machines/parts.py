"""What composed machines have in common: a snapshot of one, the Pythons, and the boards of DGX and HGX H100."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from netdoctor import engine
from netdoctor.allreduce.plan import first_experiment, path_experiments
from netdoctor.config.load import Config
from netdoctor.facts.cpu import cpu_list
from netdoctor.facts.runs import Baseline, PathRun, TorchFacts
from netdoctor.host.base import RecordingHost
from netdoctor.host.redact import redact
from netdoctor.model import Unavailable
from netdoctor.snapshot.snapshot import Snapshot, with_logs
from tests.support.facts.nccl_logs import Wire, gloo_run, nccl_run, torch_facts
from tests.support.machines.builder import MELLANOX, NVIDIA, Node, Place
from tests.support.machines.composed_host import roce_gids

VENV: Final = "/opt/venv"
SITE: Final = f"{VENV}/lib/python3.12/site-packages"
DIST: Final = "/usr/local/lib/python3.12/dist-packages"
H100: Final = "NVIDIA H100 80GB HBM3"
DGX_GPUS: Final = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
DGX_HCAS: Final = (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xCE, 0xDC)
TWO_SOCKETS: Final = {0: ("0-55,112-167", "10 21"), 1: ("56-111,168-223", "21 10")}
NO_CUDA: Final = Unavailable("unsupported", "the job's torch sees no CUDA device, so NCCL has no path to prove")


@dataclass(frozen=True)
class Rates:
    """GB/s of bus bandwidth that the composed runs have: in the node, and on the path that leaves it."""

    inside: float
    path: float


@dataclass(frozen=True)
class Built:
    """A machine that is ready to be written down."""

    node: Node
    torch: TorchFacts
    python: str
    wire: Wire
    rates: Rates = Rates(1.0, 1.0)
    exit_code: int = 0
    taken: str = "2026-01-01T00:00:00Z"

    def snapshot(self) -> Snapshot:
        """Every answer that the probes ask for, and the runs that the plan would make here."""
        from netdoctor.cli import setup

        host = RecordingHost(self.node.finish(), redact)
        config = Config(python=self.node.config.get("python"))
        specs, _ = setup.load_checks(config, ())
        work = engine.Work(host, specs)
        engine.collect(work, engine.wanted(specs))
        engine.identity(work)
        have = work.facts
        masks = self._masks()
        experiment = first_experiment(self.torch, have["JobShape"])
        if experiment.backend == "gloo":
            baseline = Baseline(gloo_run(self.torch, masks[0]), False)
            runs: dict[str, Any] = {"Baseline": baseline, "PathRun": NO_CUDA}
        else:
            library = self.node.libnccl

            def run(one: Any, rate: float) -> Any:
                return nccl_run(self.wire, one, self.torch, library, masks, rate)

            path = path_experiments(self.torch.device_count or 0, have)
            runs = {
                "Baseline": with_logs(Baseline(run(experiment, self.rates.inside), True)),
                "PathRun": with_logs(PathRun(tuple(run(one, self.rates.path) for one in path))),
            }
        return Snapshot(host.answers, runs, setup.policy_data(config), tool_version="composed", taken=self.taken)

    def _masks(self) -> tuple[tuple[int, ...], ...]:
        """Each rank near its GPU, as launchers that bind do; one mask for all where there is no GPU."""
        lists = [cpu_list(cpus, "") for cpus, _ in self.node.numa.values()]
        every = tuple(tuple(sorted(one)) for one in lists if not isinstance(one, Unavailable))
        if not self.node.gpus:
            return (tuple(sorted(cpu for one in every for cpu in one)),)
        return tuple(every[int(c["attributes"]["134"])] for c in self.node.cuda)


def venv(node: Node, torch: str, cuda: str | None, nccl: tuple[int, int, int] | None, count: int) -> TorchFacts:
    """/opt/venv with torch and its nvidia-nccl wheel, activated."""
    text = ".".join(map(str, nccl)) if nccl else ""
    node.environment |= {"VIRTUAL_ENV": VENV, "HOME": "/home/ada", "PATH": f"{VENV}/bin:/usr/bin:/bin"}
    node.python(f"{VENV}/bin/python3", "3.12", SITE, torch, cuda, compiled=text or None)
    if nccl:
        node.files.write(f"{SITE}/nvidia_nccl_cu12-{text}.dist-info/METADATA", f"Name: nvidia-nccl-cu12\nVersion: {text}\n")
        node.nccl(f"{SITE}/nvidia/nccl/lib/libnccl.so.2", nccl)
    return torch_facts(torch, cuda, count, text)


def image(node: Node, torch: str, cuda: str, nccl: tuple[int, int, int], count: int) -> TorchFacts:
    """NVIDIA's PyTorch image: torch in dist-packages, NCCL from a Debian package, found by the loader's cache."""
    text = ".".join(map(str, nccl))
    node.environment |= {"HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    node.python("/usr/bin/python3", "3.12", DIST, torch, cuda, compiled=None)
    node.nccl("/usr/lib/x86_64-linux-gnu/libnccl.so.2", nccl, cached=True)
    return torch_facts(torch, cuda, count, text)


def switched(node: Node, n: int) -> tuple[str, str, int]:
    """GPU n's and HCA n's folder below their common PCIe switch in a DGX or HGX H100, and the NUMA node."""
    numa, hca = n // 4, DGX_HCAS[n]
    base = hca - 3
    port = node.root_port(f"pci0000:{base:02x}", numa=numa)
    upstream = node.port_below(port, f"0000:{base + 1:02x}:00.0", numa)
    down = [node.port_below(upstream, f"0000:{base + 2:02x}:{slot:02x}.0", numa) for slot in (0, 1)]
    return down[1], down[0], numa


def h100s(node: Node) -> list[Place]:
    places = []
    for n in range(8):
        gpu, _, numa = switched(node, n)
        places.append(node.function(gpu, f"0000:{DGX_GPUS[n]:02x}:00.0", (NVIDIA, 0x2330), 0x030200, "nvidia", numa))
        node.gpu(places[n], H100, capability=(9, 0), links=18, attributes={})
    return places


def dgx(node: Node) -> None:
    """DGX H100: eight single-port ConnectX-7 for the fabric, two dual-port ones for storage, 10GbE for management."""
    node.numa = dict(TWO_SOCKETS)
    h100s(node)
    storage = {0x29: ("mlx5_1", "mlx5_2"), 0xAA: ("mlx5_7", "mlx5_8")}
    names = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
    for n, name in enumerate(names):
        _, below, numa = switched(node, n)
        place = node.function(below, f"0000:{DGX_HCAS[n]:02x}:00.0", (MELLANOX, 0x1021), 0x020700, "mlx5_core", numa)
        node.hca(place, name)
    for numa, (bus, pair) in enumerate(storage.items()):
        port = node.root_port(f"pci0000:{bus - 1:02x}", numa=numa)
        for function, name in enumerate(pair):
            place = node.function(port, f"0000:{bus:02x}:00.{function}", (MELLANOX, 0x1021), 0x020000, "mlx5_core", numa)
            interface, ip = f"enp{bus}s0f{function}np{function}", f"10.9.{numa}.7"
            up = function == 0
            gids = (
                roce_gids(ip, interface, f"{bus:02x}01")
                if up
                else ((0, f"fe80:0000:0000:0000:a288:c2ff:fe46:{bus:02x}02", "IB/RoCE v1", interface),)
            )
            node.hca(place, name, layer="Ethernet", rate="200 Gb/sec (4X HDR)", active=up, gids=gids)


def dgx_wire(node: Node, bootstrap: str, version: str = "2.27.5") -> Wire:
    fabric = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
    devices = sorted([f"{n}:1/IB" for n in fabric] + ["mlx5_1:1/RoCE", "mlx5_7:1/RoCE"])
    affinity = {n: TWO_SOCKETS[n // 4][0] for n in range(8)}
    buses = tuple(f"{bus:x}000" for bus in DGX_GPUS)
    return Wire(node.hostname, version, bootstrap, tuple(devices), nvls=True, affinity=affinity, buses=buses)
