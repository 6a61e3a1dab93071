"""Every knob of the fake machine, and what the real NCCL says when it is turned: a knob that changes nothing is none.

python -m tests.fakegpu.faults [--version 2.27.5] [NAME…]     a table
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu import lab
from tests.fakegpu.paths import ROCE, VERSION_ENV


@dataclass(frozen=True)
class Fault:
    """A run with one knob turned, and a pattern of what a rank then says (and does not say otherwise)."""

    says: str  # with "!" before it: what only the healthy run says
    changes: Mapping[str, Any] = field(default_factory=dict)
    there: Mapping[str, Any] | None = None  # changes of the second rank's machine alone; None: the same as the first's
    env: Sequence[Mapping[str, str]] = ({}, {})
    base: Mapping[str, Any] = field(default_factory=dict)  # changes of the healthy machine, too
    machine: str = "two-a100"
    hosts: int = 1
    steps: str = "i"
    devices: Sequence[int | None] = (None, None)
    seconds: float = 6.0
    deadline: float = 30.0


def call(says: str, *faults: str, **more: Any) -> Fault:
    """A call that fails."""
    return Fault(says, {"faults": list(faults)}, **more)


def rdma(says: str, *faults: str, **more: Any) -> Fault:
    """A call of libibverbs that fails, between two hosts."""
    return call(says, *faults, hosts=2, **{"steps": "irw", **more})


CUMEM: Final = ({"NCCL_CUMEM_ENABLE": "1"},) * 2
LEGACY: Final = ({"NCCL_CUMEM_ENABLE": "0"},) * 2
GIDS: Final[Mapping[str, Any]] = {"hosts": 2, "base": ROCE, "steps": "irw"}

FAULTS: Final[Mapping[str, Fault]] = {
    # the driver: results at a chosen call
    "cuda 2": call(r"Cuda failure 2 'out of memory'|Cuda failure 'out of memory'", "cuMemCreate 3 2", "cuMemAlloc 3 2"),
    "cuda 100": call(r"CUDA_ERROR_NO_DEVICE", "cuInit 1 100"),
    "cuda 101": call(r"invalid device ordinal", "cuDeviceGetPCIBusId 1 101"),
    "cuda 214": call(r"uncorrectable ECC error", "cuMemcpyAsync 1 214", "cuMemsetD8Async 1 214", "cuStreamSynchronize 1 214"),
    "cuda 217": call(r"peer access is not supported", "cuIpcOpenMemHandle 1 217", env=LEGACY),
    "cuda 304": call(
        r"OS call failed",
        "cuMemExportToShareableHandle 1 304",
        "cuMemImportFromShareableHandle 1 304",
        env=CUMEM,
        deadline=10.0,
    ),
    "cuda 719": call(r"unspecified launch failure", "cuStreamSynchronize 2+ 719"),
    "cuda 719 by a kernel": call(r"CUDA_ERROR_LAUNCH_FAILED|unspecified launch failure", "kernel 1 719", steps="ir"),
    "cuda 802": call(r"CUDA_ERROR_SYSTEM_NOT_READY", "cuInit 1 802"),
    "cuda 999": call(r"unknown error", "cuStreamCreateWithPriority 1 999", "cuStreamCreate 2 999"),
    "cuda hangs": call(r"hangs, as the machine's file orders", "cuEventCreate 1 hang", deadline=20.0),
    "memory is limited": Fault(r"out of memory|CUDA_ERROR_OUT_OF_MEMORY", {"gpu.state.limit": 8 << 20}),
    "memory is taken": Fault(r"out of memory|CUDA_ERROR_OUT_OF_MEMORY", {"gpu.state.used": (40 << 30) - (8 << 20)}),
    # NVML
    "nvml does not start": call(r"nvmlInit\w*\(\) failed", "nvmlInit 1 9"),
    "a GPU is lost": Fault(r"GPU is lost", {"gpus.1.state.lost": 1}),
    # peers
    "no P2P for a pair": Fault(r"via SHM", {"p2p": [[0, 1, "none"]]}),
    "P2P off by chipset": Fault(r"via SHM", {"p2p": [[0, 1, "chipset"]]}),
    "NVLinks down": Fault(r"!NVL\[", {"gpu.links_down": list(range(18))}, machine="hgx-h100"),
    "fabric not started": Fault(r"cliqueId \S+ state 1 ", {"gpu.state.fabric.state": 1}, machine="hgx-h100"),
    # libibverbs
    "no registration": rdma(r"ibv_reg\w+ failed with error Cannot allocate memory", "registration 1+ 12"),
    "no registration of GPU memory": rdma(
        r"ibv_reg\w+ failed with error Bad address", "ibv_reg_dmabuf_mr 2+ 14", "registration 3+ 14"
    ),
    "create_qp refused": rdma(r"ibv_create_qp failed with error Cannot allocate memory", "ibv_create_qp 1 12"),
    "modify_qp refused": rdma(r"ibv_modify_qp failed with .*Invalid argument", "ibv_modify_qp 2 22"),
    "modify_qp times out": rdma(r"ibv_modify_qp failed with .*Connection timed out", "ibv_modify_qp 3 110"),
    "create_cq refused": rdma(r"ibv_create_cq failed", "ibv_create_cq 1 12"),
    "open refused": rdma(r"No device found|Unable to open device", "ibv_open_device * 13"),
    "polling fails": rdma(r"ibv_poll_cq\(\) failed|Call to ibv_poll_cq", "ibv_poll_cq 1+ 5"),
    **{
        f"completion {status}": rdma(
            rf"Got completion .*status={word}|Got completion .*error {status},", f"completion 1 {status}"
        )
        for status, word in (
            (4, r"(4|\S+\(4\))"),
            (5, r"(5|\S+\(5\))"),
            (9, r"(9|\S+\(9\))"),
            (10, r"(10|\S+\(10\))"),
            (12, r"(12|\S+\(12\))"),
        )
    },
    "port error": Fault(
        r"Got async .*event: port error|port error", {"events": ["mlx5_0 port_error 1 0"]}, hosts=2, steps="irw"
    ),
    "device fatal": Fault(r"local catastrophic error", {"events": ["mlx5_0 device_fatal 1 0"]}, hosts=2, steps="irw"),
    "qp fatal": Fault(r"work queue catastrophic error", {"events": ["mlx5_0 qp_fatal 1 1"]}, hosts=2, steps="irw"),
    "port down": Fault(r"NET/IB : Using \[0\]mlx5_1:1", {"hcas.0.state": "DOWN"}, hosts=2),
    "no node": Fault(r"NET/IB : Using \[0\]mlx5_1:1", {"hcas.0.mode": "none"}, hosts=2),
    # what the two ends of a connection must agree on
    "VLAN differs": Fault(r"ibv_modify_qp failed with .*Connection timed out", there={"hca.vlan": 100}, deadline=25.0, **GIDS),
    "GID kind differs": Fault(
        r"Got completion .*(status=(12|\S+\(12\))|error 12,)",
        env=({"NCCL_IB_GID_INDEX": "3"}, {"NCCL_IB_GID_INDEX": "2"}),
        **GIDS,
    ),
    "GID family differs": Fault(
        r"ibv_modify_qp failed with .*Network is unreachable",
        env=({"NCCL_IB_GID_INDEX": "3"}, {"NCCL_IB_GID_INDEX": "1"}),
        **GIDS,
    ),
    "GID is empty": Fault(r"ibv_modify_qp failed with .*Invalid argument", env=({"NCCL_IB_GID_INDEX": "6"},) * 2, **GIDS),
    "GID beyond the table": Fault(r"ibv_query_gid failed", env=({"NCCL_IB_GID_INDEX": "77"},) * 2, **GIDS),
    "RoCE meets InfiniBand": Fault(
        r"Remote IB device is incompatible|ibv_modify_qp failed", there={"hca.layer": "Ethernet"}, hosts=2, steps="irw"
    ),
    "one rank on sockets": Fault(
        r"(?i)wrong (socket )?type", env=({}, {"NCCL_IB_DISABLE": "1"}), hosts=2, steps="irw", deadline=10.0
    ),
    "MTU of the way": Fault(r"Got completion .*(status=(12|\S+\(12\))|error 12,)", {"fabric.mtu": 1024}, **GIDS),
}
# Variables by which a run is faulty: the healthy one is without them.
MISUSED: Final = frozenset({"NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE"})
# What `make test` runs: one of each kind.  `make lab` runs all, on every version.
SLICE: Final = (
    *("cuda 2", "cuda 101", "cuda 217", "cuda 719 by a kernel", "cuda 802", "cuda hangs", "memory is limited"),
    *("a GPU is lost", "no P2P for a pair", "NVLinks down", "no registration", "modify_qp refused", "completion 12"),
    *("port error", "no node", "VLAN differs", "GID kind differs"),
)


def run(
    fault: Fault | None,
    like: Fault,
    version: str,
    keep: pathlib.Path | None = None,
    more: Mapping[str, str] | None = None,
    kernels: pathlib.Path | None = None,
) -> lab.Run:
    """Two ranks with the knob turned, or (None) as healthy as the same run can be; `more`: variables of both."""
    base = lab.read(like.machine, like.base).on_one_node()
    here = base.with_changes(fault.changes) if fault else base
    there = here.with_changes(fault.there) if fault and fault.there else None
    env = fault.env if fault else [{k: v for k, v in one.items() if k not in MISUSED} for one in like.env]
    ranks = [
        lab.Rank(like.devices[n], {**VERSION_ENV.get(version, {}), **(more or {}), **env[n]}, there if n else None)
        for n in range(2)
    ]
    return lab.run(
        here,
        version,
        ranks,
        hosts=like.hosts,
        steps=like.steps,
        seconds=like.seconds,
        deadline=like.deadline,
        keep=keep,
        kernels=kernels,
    )


def said(done: lab.Run, fault: Fault) -> str:
    """What a rank says that fits; "" where none does."""
    pattern = fault.says.removeprefix("!")
    found = next((found.group(0) for rank in done.ranks if (found := re.search(pattern, rank.log))), "")
    if pattern != fault.says:
        return "" if found or not done.log else f"nothing like {pattern}"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.faults")
    parser.add_argument("--version", default="2.27.5")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    bad = 0
    for name in given.names or FAULTS:
        fault = FAULTS[name]
        keep = pathlib.Path("build/fakegpu/logs") / given.version / name.replace(" ", "-")
        done = run(fault, fault, given.version, keep)
        told, why = said(done, fault), " | ".join(dict.fromkeys(rank.failed or str(rank.code) for rank in done.ranks))
        bad += not told
        print(f"{name:32} {'bites' if told else 'NOT  '} {told.strip()[:90]!r} [{why[:150]}] {done.seconds:.1f} s", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
