"""Node reports from one builder: kinds of nodes with noise, and faults planted on chosen ones.

`report("n1")` is the JSON of one healthy node; `fleet(count, seed)` yields (name, text of the file, what was planted).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.inventory import inventory
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from tests.support import facts

CHECKS = (
    ("allreduce.run", "The all-reduce finishes with right data", "hang"),
    ("allreduce.bandwidth", "The all-reduce is as fast as its path", "low_bandwidth"),
    ("rdma.gpudirect", "HCAs reach GPU memory directly", "gdr_disabled"),
    ("rdma.dev_infiniband", "RDMA devices are usable where the job runs", "dev_infiniband_missing"),
    ("net.socket_ifname", "NCCL takes the right interface", "socket_ifname"),
    ("net.port_range", "The ephemeral port range is wide enough for the job", "bootstrap_ports"),
    ("net.tcp_buffers", "TCP buffers fill the link", "tcp_tuning"),
    ("cpu.numa_affinity", "Ranks run near their GPUs", "numa_affinity"),
    ("torch.backend", "NCCL carries CUDA tensors", "gloo_backend"),
    ("nccl.version", "One NCCL is loaded", "version_mismatch"),
    ("nccl.environment", "Variables do what they say", "env_misuse"),
    ("nccl.shared_memory", "Shared memory is large enough", "shm_disabled_or_small"),
)
SIZES = [1 << power for power in range(12, 27)]
TIME = "2026-03-01T08:00:00Z"


@dataclass(frozen=True)
class Kind:
    """One kind of hardware in the fleet."""

    name: str
    gpu: str
    gpu_id: int
    gpus: int
    nics: str  # "ib" "roce" "efa" "none"
    busbw: float
    share: float
    net: int  # second byte of its addresses


KINDS = (
    Kind("h100", "NVIDIA H100 80GB HBM3", 0x2330, 8, "ib", 360.0, 0.4, 1),
    Kind("a100", "NVIDIA A100-SXM4-80GB", 0x20B2, 8, "roce", 220.0, 0.3, 2),
    Kind("h200", "NVIDIA H200", 0x2335, 8, "efa", 380.0, 0.2, 3),
    Kind("l40s", "NVIDIA L40S", 0x26B9, 4, "none", 20.0, 0.1, 4),
)
ALONE = Kind("gb200", "NVIDIA GB200", 0x2941, 4, "ib", 700.0, 0.0, 5)


def _facts(kind: Kind) -> dict[type, object]:
    nic = {
        "ib": facts.hca,
        "roce": lambda i: facts.hca(i, ports=(facts.roce_port(f"eth{i + 1}", rate_gbps=200.0),)),
        "efa": lambda i: facts.hca(
            i,
            name=f"rdmap{i}",
            driver="efa",
            firmware="1.0",
            ports=(facts.port(link_layer="Unspecified", rate_gbps=100.0),),
        ),
    }.get(kind.nics)
    return facts.machine(
        {
            Gpus: facts.gpus(
                all=tuple(facts.gpu(i, name=kind.gpu) for i in range(kind.gpus)),
                visible=tuple(facts.visible(i, name=kind.gpu) for i in range(kind.gpus)),
            ),
            Pci: facts.pci(
                devices=tuple(facts.gpu_device(i, device=kind.gpu_id) for i in range(kind.gpus))
                + (tuple(facts.hca_device(i) for i in range(8)) if nic else ())
            ),
            Rdma: facts.rdma(devices=tuple(nic(i) for i in range(8))) if nic else facts.no_rdma(),
            Net: facts.net(
                facts.netlink_link("lo", 1, "127.0.0.1"),
                facts.netlink_link("eth0", 2, "10.0.0.1", mtu=9000),
                facts.netlink_link("mgmt0", 3, "172.20.0.1"),
                facts.netlink_link("docker0", 4, "172.17.0.1", kind="bridge"),
            ),
            NcclChoice: facts.nccl_choice(interface="eth0", address="10.0.0.1"),
            Libraries: facts.libraries(),
        }
    )


def _finding(check: str, cause: str, subject: str, message: str, **evidence: Any) -> dict[str, Any]:
    return {
        "check": check,
        "status": "pass",
        "severity": None,
        "cause": cause,
        "subject": subject,
        "message": message,
        "expected": None,
        "evidence": evidence,
        "how": None,
        "why": None,
        "notes": [],
        "fix": None,
        "waived": None,
        "blocking": True,
        "fingerprint": f"{abs(hash((check, subject))):016x}"[:16],
    }


def _checks(kind: Kind) -> list[dict[str, Any]]:
    out = []
    for name, title, cause in CHECKS:
        findings = [_finding(name, cause, "node", title, seen="as it should be")]
        if name in ("rdma.gpudirect", "cpu.numa_affinity"):
            findings = [
                _finding(
                    name,
                    cause,
                    f"GPU {g} - mlx5_{h}",
                    "DMA-BUF: ibv_reg_dmabuf_mr(fd=-1) answers EBADF",
                    dmabuf_errno="EBADF",
                    gpu=facts.bdf(facts.GPU_BUSES[g]),
                    hca=facts.bdf(facts.HCA_BUSES[h]),
                    distance="PXB",
                    used=True,
                    nccl="2.27.5",
                    level="default",
                    read=True,
                )
                for g in range(kind.gpus)
                for h in range(8 if name == "rdma.gpudirect" else 16 // kind.gpus)
            ]
        out.append({"id": name, "title": title, "cause": cause, "status": "pass", "severity": None, "findings": findings})
    return out


_TEMPLATES: dict[str, str] = {}


def report(name: str = "n1", kind: Kind = KINDS[0], number: int = 1, noise: random.Random | None = None) -> dict[str, Any]:
    """A healthy node: its own addresses, GPUs and figures, the rest as on every node of its kind."""
    if kind.name not in _TEMPLATES:
        _TEMPLATES[kind.name] = json.dumps(
            {
                "schema": "netdoctor.report/1",
                "tool_version": "0.1.0",
                "identity": {"host": "", "kernel": "6.8.0-1019-nvidia"},
                "vantage": {"kind": "host", "runtime": None, "euid": 0, "user": "root", "job_user": True},
                "profile": "audit",
                "checks": _checks(kind),
                "verdict": {"status": "healthy", "exit_code": 0, "text": "HEALTHY: 12 checks passed", "causes": []},
                "runs": [
                    {
                        "backend": "nccl",
                        "device": "cuda",
                        "ranks": kind.gpus,
                        "path": "default",
                        "sizes": SIZES,
                        "state": "finished",
                        "verified": True,
                        "torch": "2.9.1+cu129",
                        "nccl": "2.27.5",
                        "environment_changes": [],
                    }
                ],
                "inventory": inventory(_facts(kind)),
                "partial": None,
            }
        )
    doc: dict[str, Any] = json.loads(_TEMPLATES[kind.name])
    doc["identity"]["host"] = name
    have = doc["inventory"]
    ip = f"10.{kind.net}.{number // 250}.{number % 250 + 1}"
    have["links"][1]["addresses"] = [f"{ip}/16"]
    have["links"][2]["addresses"] = [f"172.2{kind.net}.{number // 250}.{number % 250 + 1}/16"]
    have["nccl_interface"] |= {"address": ip, "prefix": 16, "mtu": 9000}
    for index, gpu in enumerate(have["gpus"]):
        gpu["uuid"] = f"GPU-{kind.name}-{number:06d}-{index}"
    draw = noise or random.Random(number)
    speed, small, init = (max(0.85, min(1.15, draw.gauss(1, 0.03))) for _ in range(3))
    busbw = {str(s): round(kind.busbw * speed * s / (s + (4 << 20)), 4) for s in SIZES}
    doc["volatile"] = {
        "time": TIME,
        "seconds": {f"check {name}": round(draw.random() / 100, 6) for name, _, _ in CHECKS},
        "measured": {},
        "runs": [
            {
                "path": "default",
                "reason": "",
                "seconds": 9.1,
                "import_seconds": 3.2,
                "busbw_gb_s": busbw,
                "latency_s": {str(s): 25e-6 * small * (1 + s / (1 << 20)) for s in SIZES},
                "system_cpu_per_gb": 0.001,
                "ranks": [
                    {"rank": r, "phase": "done", "error": "", "exit": 0, "phase_seconds": {"init": 1.6 * init, "first": 0.4}}
                    for r in range(kind.gpus)
                ],
            }
        ],
    }
    return doc


def own_fail(doc: dict[str, Any], check: str = "net.port_range", message: str = "3 usable ports, 24 listeners") -> None:
    """The node's own report finds something."""
    found = next(c for c in doc["checks"] if c["id"] == check)
    found |= {"status": "fail", "severity": "critical"}
    found["findings"] = [{**found["findings"][0], "status": "fail", "severity": "critical", "message": message}]
    doc["verdict"] = {"status": "unhealthy", "exit_code": 3, "text": f"UNHEALTHY: {check}", "causes": [found["cause"]]}


def slow(doc: dict[str, Any], share: float) -> None:
    """Bus bandwidth at `share` of what it was."""
    figures = doc["volatile"]["runs"][0]["busbw_gb_s"]
    figures.update({size: value * share for size, value in figures.items()})


def _lag(doc: dict[str, Any]) -> None:
    figures = doc["volatile"]["runs"][0]["latency_s"]
    figures.update({size: value * 2.5 for size, value in figures.items()})


def _slow_init(doc: dict[str, Any]) -> None:
    doc["volatile"]["runs"][0]["ranks"][0]["phase_seconds"]["init"] = 30.0


def _mtu(doc: dict[str, Any]) -> None:
    doc["inventory"]["links"][1]["mtu"] = doc["inventory"]["nccl_interface"]["mtu"] = 1500


def _interface(doc: dict[str, Any]) -> None:
    doc["inventory"]["nccl_interface"] |= {
        "name": "mgmt0",
        "prefix": 16,
        "mtu": 1500,
        "address": doc["inventory"]["links"][2]["addresses"][0].split("/")[0],
    }


def _gids(doc: dict[str, Any]) -> None:
    for port in doc["inventory"]["nics"][0]["ports"]:
        port["gids"] = port["gids"][:2]


def _inventory(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda doc: doc["inventory"].__setitem__(key, value)


# name -> (kind of node that it is planted on, what it does, what the fleet report must say of the node)
FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "driver": ("h100", _inventory("driver", "570.86.10"), "driver"),
    "kernel": ("a100", _inventory("kernel", "6.5.0-1004"), "kernel"),
    "nccl": ("h100", lambda d: d["inventory"]["nccl"].update(version="2.21.5"), "NCCL"),
    "torch": ("h200", lambda d: d["inventory"]["torch"].update(version="2.8.0+cu128"), "torch"),
    "firmware": ("h100", lambda d: d["inventory"]["nics"][3].update(firmware="28.30.1000"), "firmware"),
    "sysctl": ("a100", lambda d: d["inventory"]["sysctls"].update({"net.ipv4.tcp_rmem": "4096 131072 6291456"}), "sysctl"),
    "mtu": ("a100", _mtu, "MTU"),
    "names": ("h200", lambda d: d["inventory"]["links"][2].update(name="eno1"), "interface names"),
    "gpus": ("h100", lambda d: d["inventory"]["gpus"].pop(), "GPUs"),
    "nics": ("h200", lambda d: d["inventory"]["nics"].pop(), "RDMA devices"),
    "nvlink": ("h100", lambda d: d["inventory"]["gpus"][2].update(nvlinks_up=17), "NVLinks"),
    "port": ("h100", lambda d: d["inventory"]["nics"][1]["ports"][0].update(state="DOWN"), "RDMA ports"),
    "variable": ("a100", lambda d: d["inventory"]["nccl_variables"].update(NCCL_P2P_DISABLE="1"), "variable NCCL_P2P_DISABLE"),
    "busbw": ("h100", lambda d: slow(d, 0.7), "bus bandwidth"),
    "latency": ("a100", _lag, "latency"),
    "init": ("h200", _slow_init, "init time"),
    "interface": ("h200", _interface, "NCCL takes mgmt0"),
    "gids": ("a100", _gids, "GID table"),
    "own": ("l40s", own_fail, "net.port_range"),
}


@dataclass
class Planted:
    """One file of the fleet."""

    name: str
    text: str
    state: str  # "good" "bad" "unknown"
    fault: str = ""  # key of FAULTS, "address", "missing", "schema"
    says: str = ""  # a word that must stand in the node's reasons


@dataclass
class Fleet:
    """What `fleet` will give: filled while it is drained."""

    expected: list[str] = field(default_factory=list)
    planted: dict[str, Planted] = field(default_factory=dict)  # by node, without the healthy ones


def fleet(count: int, faults: int, seed: int = 1, into: Fleet | None = None) -> Iterator[Planted]:
    """`count` nodes with `faults` planted: four kinds and one node alone of its kind, 5 % of another schema, values missing
    on 2 %, and a tie (half of the l40s have another kernel parameter than the other half)."""
    draw = random.Random(seed)
    into = into if into is not None else Fleet()
    sizes = [int((count - 1) * k.share) // 2 * 2 for k in KINDS]
    sizes[0] += count - 1 - sum(sizes)
    names = [*FAULTS, "address", "missing"]
    wanted: dict[str, list[str]] = {k.name: [] for k in KINDS}
    for i in range(faults):
        fault = names[i % len(names)]
        wanted[FAULTS[fault][0] if fault in FAULTS else "h100"].append(fault)
    for kind, size in zip((*KINDS, ALONE), (*sizes, 1), strict=True):
        given = wanted.get(kind.name, [])
        chosen = dict(zip(draw.sample(range(size), len(given)), given, strict=True)) if given else {}
        free = [i for i in range(size) if i not in chosen]
        other = set(draw.sample(free, int(size * 0.05))) if size > 1 else set()
        blind = set(draw.sample([i for i in free if i not in other], int(size * 0.02))) if size > 1 else set()
        for i in range(size):
            yield _one(kind, i, chosen.get(i, ""), i in other, i in blind, draw, into)


def _one(kind: Kind, i: int, fault: str, other: bool, blind: bool, draw: random.Random, into: Fleet) -> Planted:
    name = f"{kind.name}-{i:05d}"
    into.expected.append(name)
    doc = report(name, kind, i + 1, draw)
    made = Planted(name, "", "good")
    if kind.name == "l40s":
        doc["inventory"]["sysctls"]["net.core.somaxconn"] = "4096" if i % 2 else "8192"
    if fault in FAULTS:
        FAULTS[fault][1](doc)
        made = Planted(name, "", "bad", fault, FAULTS[fault][2])
    elif fault == "address":  # also the address of a node that is not planted otherwise
        doc["inventory"]["links"][2]["addresses"] = ["172.29.0.1/16"]
        made = Planted(name, "", "bad", fault, "172.29.0.1 is an address of several hosts")
    elif fault == "missing":
        made = Planted(name, "", "missing", fault, "no report")
    elif other:
        doc["schema"] = "netdoctor.report/2"
        made = Planted(name, "", "unknown", "schema", "another version")
    elif blind:
        gone = {"unavailable": "denied", "detail": "EACCES"}
        doc["inventory"] |= {"driver": gone, "sysctls": gone, "nccl_variables": gone}
        doc["volatile"]["runs"] = doc["runs"] = []
    if fault != "missing":
        made.text = json.dumps(doc)
    if made.state != "good":
        into.planted[name] = made
    return made
