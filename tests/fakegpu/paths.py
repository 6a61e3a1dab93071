"""The ways by which NCCL can move data, each with the settings on which the real NCCL must choose it.

python -m tests.fakegpu.paths [VERSION…]     a table: version × path, what NCCL printed
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu import lab
from tests.support.machines import libnccl


@dataclass(frozen=True)
class Path:
    """Settings of a run, and the transport that NCCL has to print: its beginning, and whether with GPUDirect."""

    begins: str
    direct: bool | None = None
    hosts: int = 1
    machine: str = "two-a100"
    changes: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, ...] = ()

    def fits(self, via: str) -> bool:
        return via.startswith(self.begins) and self.direct in (None, "/GDRDMA" in via)


NO_GPUDIRECT: Final = {
    "gpu.attributes.110": 0,
    "gpu.attributes.116": 0,
    "gpu.attributes.124": 0,
    "modules.nvidia_peermem": None,
}
ROCE: Final = {"hca.layer": "Ethernet"}
PATHS: Final[Mapping[str, Path]] = {
    # cuMem was off by default up to 2.23, and its P2P began with 2.18
    "P2P/CUMEM": Path("P2P/CUMEM", env={"NCCL_CUMEM_ENABLE": "1"}, since=(2, 19)),
    "P2P/IPC": Path("P2P/IPC", env={"NCCL_CUMEM_ENABLE": "0"}),
    "SHM": Path("SHM", changes={"p2p": [[0, 1, "none"]]}),
    "NET/Socket": Path("NET/Socket", hosts=2, env={"NCCL_IB_DISABLE": "1"}),
    "NET/IB": Path("NET/IB/", False, hosts=2, changes=NO_GPUDIRECT),
    # nv_mem is what every version takes for a sign; the module alone only those from 2.23 on
    "NET/IB peermem": Path("NET/IB/", True, hosts=2, changes={"gpu.attributes.124": 0, "memory_peers": ["nv_mem"]}),
    "NET/IB dma-buf": Path("NET/IB/", True, hosts=2, changes={"modules.nvidia_peermem": None}),
    "NET/IB RoCE": Path("NET/IB/", True, hosts=2, changes=ROCE),
}


# 2.28.9 takes the machine's lack of GIN for a network and dies of it where IB devices are present (plugin/net.cc:216).
VERSION_ENV: Final[Mapping[str, Mapping[str, str]]] = {"2.28.9": {"NCCL_GIN_TYPE": "2"}}


def run(path: Path, version: str, **more: Any) -> lab.Run:
    """Two ranks on that path."""
    env = {**VERSION_ENV.get(version, {}), **path.env}
    return lab.run(lab.read(path.machine, path.changes), version, 2, hosts=path.hosts, env=env, **more)


def main(versions: list[str]) -> int:
    bad = 0
    for version in versions or [".".join(map(str, one)) for one in sorted(libnccl.libraries())]:
        for name, path in PATHS.items():
            if path.since > tuple(int(one) for one in version.split(".")):
                continue
            done = run(path, version, keep=pathlib.Path("build/fakegpu/logs") / version / name.replace("/", "-"))
            fits = done.ok and bool(done.via) and all(map(path.fits, done.via))
            bad += not fits
            why = " ".join(dict.fromkeys(rank.failed or ("" if rank.code == 0 else f"exit {rank.code}") for rank in done.ranks))
            print(
                f"{version:8} {name:15} {'ok ' if fits else 'NOT'} {', '.join(done.via)} {why} {done.seconds:.1f} s", flush=True
            )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
