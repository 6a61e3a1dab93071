"""Healthy machines of many shapes, each with every NCCL: a whole preflight finds nothing wrong with any of them.

python -m tests.fakegpu.shapes [--shape NAME]… [VERSION…]     a line each; build/fakegpu-healthy.json keeps the newest of each
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu import doctor, machine
from tests.fakegpu.machine import Machine
from tests.fakegpu.paths import VERSION_ENV
from tests.support.machines import libnccl

OUT: Final = pathlib.Path("build/fakegpu-healthy.json")


@dataclass(frozen=True)
class Shape:
    """A machine by name, and what is changed of it."""

    machine: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    nodes: bool = False  # as many NUMA nodes as it has; else one, for the memory of others is out of a process's reach here

    @property
    def made(self) -> Machine:
        one = machine.read(self.machine)
        return (one if self.nodes else one.on_one_node()).with_changes(self.changes)


SHAPES: Final[Mapping[str, Shape]] = {
    "one GPU, no RDMA": Shape("one-gpu"),
    "4 L40S, one RoCE card, no GPUDirect": Shape("pcie-l40s"),
    "4 A100, two switches, InfiniBand": Shape("two-a100"),
    "4 A100, sockets alone": Shape("two-a100", {"hcas": []}),
    "4 A100 in NVLink pairs, AMD, four nodes a socket": Shape("epyc-nps4", nodes=True),
    "HGX H100, 8 RoCE rails": Shape("hgx-h100"),
    "DGX H100, 8 InfiniBand rails and storage": Shape("dgx-h100"),
    "GB200 tray": Shape("gb200-nvl72"),
}
SLICE: Final = ("one GPU, no RDMA", "4 A100, two switches, InfiniBand")


def around(version: str) -> doctor.Around:
    """A node of two: what is a fault of several nodes alone counts, too.

    With the words that a version needs on any machine with InfiniBand; netdoctor says them.
    """
    return doctor.Around(env=VERSION_ENV.get(version, {}), config="{job: {nodes: 2}}")


def wrong(report: doctor.Report) -> list[str]:
    """What is said of a healthy machine and is not so; and a run that proved nothing though it could."""
    ran = {one["status"] for one in report.of("allreduce.run")}
    return report.fails + ([] if ran == {"pass"} else [f"allreduce.run: {', '.join(sorted(ran))}"])


def kept() -> dict[str, dict[str, Any]]:
    """What earlier calls found, by version and shape."""
    return json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}


def look(version: str, name: str, python: pathlib.Path) -> dict[str, Any]:
    """One preflight as a row."""
    try:
        report = doctor.preflight(SHAPES[name].made, python, around(version))
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:  # no report is the worst of all
        return {"findings": {}, "wrong": [f"{type(error).__name__}: {error}"]}
    return {
        "findings": dict(collections.Counter(one["status"] for _, one in report.findings)),
        "fails": len(report.fails),
        "wrong": wrong(report),
    }


def walk(versions: Sequence[str], names: Sequence[str]) -> int:
    """All of them; 1 where one is called anything but healthy."""
    rows = {}
    for version in versions:
        with doctor.job(version) as python:
            for name in names:
                row = rows[f"{version} {name}"] = look(version, name, python)
                print(f"{version:8} {name:50} {row['findings']}", *row["wrong"], sep="\n    ", flush=True)
                OUT.write_text(json.dumps({**kept(), **rows}, indent=1), encoding="utf-8")
    bad = sum(bool(row["wrong"]) for row in rows.values())
    print(f"{len(rows)} preflights of healthy machines: {bad} called wrong")
    return int(bad > 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.shapes")
    parser.add_argument("--shape", action="append", help="; ".join(SHAPES))
    parser.add_argument("versions", nargs="*")
    given = parser.parse_args()
    return walk(given.versions or [".".join(map(str, one)) for one in sorted(libnccl.libraries())], given.shape or list(SHAPES))


if __name__ == "__main__":
    sys.exit(main())
