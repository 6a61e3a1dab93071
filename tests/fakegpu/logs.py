"""Logs made to order: a fault, an NCCL, a level of NCCL_DEBUG; what `netdoctor log` makes of each against the known cause.

    python -m tests.fakegpu.logs [--fault NAME]… [VERSION…]     a table; logs below build/logs, scores in build/logs.json

Each fault is one of faults.py, and its log is NCCL's own: what a framework would print beside it is not there.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.fakegpu import build, faults, lab
from tests.fakegpu.faults import FAULTS
from tests.support.machines import libnccl

FOLDER: Final = pathlib.Path("build/logs")
OUT: Final = pathlib.Path("build/logs.json")
# What a user sets; the last is what netdoctor's own runs set.
LEVELS: Final[Mapping[str, Mapping[str, str]]] = {
    "WARN": {"NCCL_DEBUG": "WARN"},
    "INFO": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV"},  # NCCL's default
    "INFO of more": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": lab.SUBSYSTEMS},
}
# Causes that are right, several where NCCL's own words cannot tell them apart: what a CUDA call or a verb returned says that
# the driver or the device failed, not why.  A knob that is not here changes a path and breaks nothing: nothing may be named.
CAUSES: Final[Mapping[str, frozenset[str]]] = {
    name: frozenset(causes.split())
    for name, causes in {
        **dict.fromkeys(("cuda 2", "memory is limited", "memory is taken"), "other"),
        "cuda 100": "cuda_driver_mismatch inventory other",
        "cuda 101": "device_mapping other",
        "cuda 214": "other",
        "cuda 217": "p2p_disabled",
        "cuda 304": "p2p_disabled other",
        **dict.fromkeys(("cuda 719", "cuda 719 by a kernel", "cuda 999"), "other rank_died"),
        "cuda 802": "fabric_manager",
        "nvml does not start": "cuda_driver_mismatch other",
        "a GPU is lost": "inventory",
        "no registration": "memlock",
        "no registration of GPU memory": "gdr_disabled acs_iommu",
        **dict.fromkeys(("create_qp refused", "create_cq refused"), "memlock other"),
        "modify_qp refused": "roce_gid other",
        "modify_qp times out": "ib_timeout roce_gid",
        "open refused": "dev_infiniband_missing",
        "polling fails": "link_degraded other",
        **{f"completion {n}": "acs_iommu other rank_died" for n in (4, 9, 10)},
        "completion 5": "rank_died other link_degraded",
        "completion 12": "ib_timeout",
        "port error": "link_degraded",
        **dict.fromkeys(("device fatal", "qp fatal"), "link_degraded other inventory"),
        "VLAN differs": "roce_gid ib_timeout",
        "GID kind differs": "roce_gid ib_timeout",
        "GID family differs": "roce_gid",
        **dict.fromkeys(("GID is empty", "GID beyond the table"), "roce_gid"),
        "MTU of the way": "mtu ib_timeout",
    }.items()
}
# What `make test` makes.
SLICE: Final = ("cuda 217", "no registration", "completion 12", "GID beyond the table", "no P2P for a pair")


@dataclass(frozen=True)
class Score:
    """One log: the causes that may be named, and those that were, the likeliest first."""

    version: str
    fault: str  # with "healthy: " before it: the same run without it
    level: str
    wanted: frozenset[str]
    named: tuple[str, ...]
    silent: bool  # nothing at all was printed that a fault could show

    @property
    def verdict(self) -> str:
        if self.wanted and self.named[:1] and self.named[0] in self.wanted:
            return "named"
        if not self.named:
            return "silent" if self.wanted and self.silent else "missed" if self.wanted else "nothing"
        return "wrong" if self.wanted else "false alarm"

    def as_row(self) -> dict[str, Any]:
        return {"version": self.version, "fault": self.fault, "level": self.level, "verdict": self.verdict, "named": self.named}


def score(version: str, name: str, level: str, healthy: bool = False) -> Score:
    """Make one log and ask netdoctor."""
    fault = FAULTS[name]
    done = faults.run(None if healthy else fault, fault, version, more=LEVELS[level])
    label = f"healthy: {name}" if healthy else name
    folder = FOLDER / version / label.replace(" ", "-").replace(":", "") / level.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    texts = ["".join(f"{line}\n" for line in rank.log.splitlines() if _of_nccl(line)) for rank in done.ranks]
    for number, text in enumerate(texts):
        (folder / f"rank{number}.log").write_text(text, encoding="utf-8")
    return Score(
        version,
        label,
        level,
        frozenset() if healthy else CAUSES.get(name, frozenset()),
        named(folder),
        not any(" NCCL WARN " in text or " NCCL INFO " in text for text in texts),
    )


def _of_nccl(line: str) -> bool:
    return not line.startswith(("rank: {", "[fake ", "fakegpu: "))


def named(folder: pathlib.Path) -> tuple[str, ...]:
    """The causes of the findings that fail and are no mere alternatives."""
    command = [sys.executable, "-m", "netdoctor", "log", "-f", "json", str(folder)]
    done = subprocess.run(command, cwd=build.ROOT, capture_output=True, text=True, timeout=60, check=False)
    found = [one for one in json.loads(done.stdout)["findings"] if one["status"] == "fail"]
    return tuple(dict.fromkeys(one["cause"] for one in found))


def walk(versions: Sequence[str], names: Sequence[str], levels: Sequence[str] = tuple(LEVELS)) -> list[Score]:
    """All scores, each healthy run once; a line each."""
    scores: list[Score] = []
    for version in versions:
        healthy: set[str] = set()
        for name in names:
            like = FAULTS[name]
            key = repr(
                (like.base, like.machine, like.hosts, like.steps, [{**one, "NCCL_IB_GID_INDEX": ""} for one in like.env])
            )
            for level in levels:
                scores.append(score(version, name, level))
                if key not in healthy:
                    scores.append(score(version, name, level, healthy=True))
                for one in scores[-1:] if key in healthy else scores[-2:]:
                    print(f"{version:8} {one.level:13} {one.verdict:12} {one.fault:40} {', '.join(one.named)}", flush=True)
            healthy.add(key)
            OUT.write_text(json.dumps([one.as_row() for one in scores], indent=1), encoding="utf-8")
    return scores


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.logs")
    parser.add_argument("--fault", action="append", choices=FAULTS, metavar="NAME")
    parser.add_argument("--level", action="append", choices=LEVELS, metavar="NAME")
    parser.add_argument("versions", nargs="*")
    given = parser.parse_args()
    versions = given.versions or [".".join(map(str, one)) for one in sorted(libnccl.libraries())]
    scores = walk(versions, given.fault or list(FAULTS), given.level or list(LEVELS))
    for level in given.level or LEVELS:
        told = collections.Counter(one.verdict for one in scores if one.level == level)
        print(f"{level:13} " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(told.items())))
    return int(any(one.verdict in ("wrong", "missed", "false alarm") for one in scores))


if __name__ == "__main__":
    sys.exit(main())
