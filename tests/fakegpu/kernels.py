"""What the stand-in for NCCL's kernels (c/kernels) can run, each with the functions that NCCL must launch for it.

python -m tests.fakegpu.kernels [VERSION…]     a table: version × algorithm × protocol × ranks
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.fakegpu import build, lab, machine
from tests.fakegpu.paths import VERSION_ENV
from tests.support.machines import libnccl

# NCCL_ALGO and NCCL_PROTO leave NCCL no choice; trees are for all-reduce alone.
RING: Final = ("AllReduce Sum f32", "AllGather", "ReduceScatter Sum f32", "Broadcast")


@dataclass(frozen=True)
class Case:
    """Settings of a run, and the functions that must have run on every rank."""

    steps: str
    env: Mapping[str, str]
    functions: tuple[str, ...]


def _ring(protocol: str) -> Case:
    sent = () if protocol == "LL128" else (f"SendRecv {protocol}",)  # send and receive have no LL128
    env = {"NCCL_ALGO": "Ring", "NCCL_PROTO": protocol, "NCCL_P2P_LL_THRESHOLD": "0" if protocol == "Simple" else "1048576"}
    return Case("irgcbsd", env, (*(f"{one} Ring {protocol}" for one in RING), *sent))


def _tree(protocol: str) -> Case:
    return Case("ird", {"NCCL_ALGO": "Tree", "NCCL_PROTO": protocol}, (f"AllReduce Sum f32 Tree {protocol}",))


CASES: Final[Mapping[str, Case]] = {
    **{f"Ring {one}": _ring(one) for one in ("LL", "LL128", "Simple")},
    **{f"Tree {one}": _tree(one) for one in ("LL", "LL128", "Simple")},
    "types": Case("itd", {}, ()),
    "mixed": Case("imd", {}, ()),
}


def run(case: Case, version: str, ranks: int = 2, hosts: int = 1, **more: Any) -> lab.Run:
    """That case on four A100; of each function that ran there is a line in the log."""
    env = {"FAKEGPU_KERNELS_TRACE": "1", **VERSION_ENV.get(version, {}), **case.env}
    settings = {"count": 20_001 if case.functions else 1_001, "seconds": 30.0, "deadline": 90.0, **more}
    return lab.run(
        machine.read("two-a100"), version, ranks, hosts=hosts, steps=case.steps, env=env, kernels=build.kernels(), **settings
    )


def ran(rank: lab.Outcome) -> set[str]:
    """The functions that ran on a rank."""
    return set(re.findall(r"\[fake kernels \d+\] runs (.*) on channel \d+", rank.log))


def right(case: Case, done: lab.Run) -> bool:
    """Every rank ended, all sums are exact, and what was asked for is what ran."""
    return all(rank.code == 0 and rank.moved is True and ran(rank) >= set(case.functions) for rank in done.ranks)


def main(versions: list[str]) -> int:
    bad = 0
    for version in versions or [".".join(map(str, one)) for one in sorted(libnccl.libraries())]:
        for name, case in CASES.items():
            for ranks, hosts in ((2, 1), (4, 2)):
                done = run(case, version, ranks, hosts)
                works = right(case, done)
                bad += not works
                why = " ".join(dict.fromkeys(one for rank in done.ranks for one in (rank.unable, rank.failed) if one))
                less = sorted({one for rank in done.ranks for one in set(case.functions) - ran(rank)})
                print(
                    f"{version:8} {name:11} {ranks} ranks, {hosts} hosts {'ok ' if works else 'NOT'} {', '.join(done.via)}",
                    why,
                    f"not run: {less}" if less else "",
                    flush=True,
                )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
