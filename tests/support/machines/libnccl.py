"""The real libnccl files that tests/support/machines/fetch.py fetches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netdoctor.host.trust import trusted
from tests.support.machines import fetch

FOLDER = Path(os.environ.get("LIBNCCL_FOLDER") or fetch.NCCL)
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
RUNNING_FROM = (2, 28)


def libraries(folder: Path = FOLDER) -> dict[tuple[int, ...], Path]:
    """Version -> libnccl.so.2 of every one that is there."""
    if os.geteuid() == 0 and folder.exists() and (reason := trusted(str(folder))):
        pytest.skip(f"root loads no library from {folder}: {reason}")
    found = (path / LIBRARY for path in sorted(folder.glob("[0-9]*")) if path.suffix != ".part")
    return {fetch.numbers(path.parents[3].name): path for path in found if path.exists()}


def everywhere() -> dict[tuple[int, ...], Path]:
    """`libraries`, and the newest that pip found when it was asked: no test that was not written for it meets it by chance."""
    return {**libraries(fetch.NEWEST), **libraries()}


def both() -> tuple[Path, Path]:
    """The newest library before 2.28 and the newest from then on; skips the test where one is missing."""
    have = libraries()
    old = [v for v in have if v < RUNNING_FROM]
    new = [v for v in have if v >= RUNNING_FROM]
    if not old or not new:
        pytest.skip("no libnccl of both kinds in build/nccl (make libnccl)")
    return have[max(old)], have[max(new)]


def every() -> tuple[Path, ...]:
    """All that there are, the newest of PyPI among them; skips the test where one of the two kinds is missing."""
    both()
    return tuple(everywhere().values())


def newest() -> Path:
    have = libraries()
    if not have:
        pytest.skip("no libnccl in build/nccl (make libnccl)")
    return have[max(have)]


def newest_of_pypi() -> tuple[int, ...]:
    """The newest that pip found when `make newest-nccl` asked it; skips the test where it did not."""
    have = libraries(fetch.NEWEST)
    if not have:
        pytest.skip("nobody asked pip for the newest libnccl (make newest-nccl)")
    return max(have)
