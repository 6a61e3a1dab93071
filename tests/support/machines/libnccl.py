"""The real libnccl files that tests/support/machines/fetch_libnccl.sh fetches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netdoctor.host.trust import trusted

FOLDER = Path(os.environ.get("LIBNCCL_FOLDER") or Path(__file__).parents[3] / "build" / "nccl")
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
RUNNING_FROM = (2, 28)


def libraries() -> dict[tuple[int, ...], Path]:
    """Version -> libnccl.so.2 of every one that is there."""
    if os.geteuid() == 0 and FOLDER.exists() and (reason := trusted(str(FOLDER))):
        pytest.skip(f"root loads no library from {FOLDER}: {reason}")
    found = (path / LIBRARY for path in sorted(FOLDER.glob("[0-9]*")) if path.suffix != ".part")
    return {tuple(int(n) for n in path.parents[3].name.split(".")): path for path in found if path.exists()}


def both() -> tuple[Path, Path]:
    """The newest library before 2.28 and the newest from then on; skips the test where one is missing."""
    have = libraries()
    old = [v for v in have if v < RUNNING_FROM]
    new = [v for v in have if v >= RUNNING_FROM]
    if not old or not new:
        pytest.skip("no libnccl of both kinds in build/nccl (make libnccl)")
    return have[max(old)], have[max(new)]


def every() -> tuple[Path, ...]:
    """All that there are; skips the test where one of the two kinds is missing."""
    both()
    return tuple(libraries().values())


def newest() -> Path:
    have = libraries()
    if not have:
        pytest.skip("no libnccl in build/nccl (make libnccl)")
    return have[max(have)]
