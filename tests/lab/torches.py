"""CUDA builds of torch with all that they require, on the machine that is not there: the newest two minors and an old one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

from tests.fakegpu import build, namespace
from tests.support.machines import fetch, torches

OLD: Final = "2.1.2"  # NCCL 2.18 is what it asks for


def newest_two(releases: Iterable[str]) -> list[str]:
    """The newest release of each of the newest two minors; `releases` has the newest first."""
    minors: dict[tuple[int, ...], str] = {}
    for one in releases:
        minors.setdefault(fetch.numbers(one)[:2], one)
    return list(minors.values())[:2]


def main() -> int:
    if why := namespace.missing():
        print(f"torches: {why}", file=sys.stderr)
        return 0
    try:
        wanted = [*newest_two(fetch.releases("torch")), OLD]
    except fetch.FetchError as error:
        print(f"torches: {error}", file=sys.stderr)
        return 0
    # One after the other: each takes 10 GB for a while.
    command = [sys.executable, "-m", "pytest", "-q", "tests/live/test_torch_versions.py"]
    env = {**os.environ, "TORCHES": " ".join(f"{torches.WHOLE}{one}" for one in wanted)}
    return subprocess.run(command, cwd=build.ROOT, env=env, check=False).returncode
