"""The whole of what a test run takes a slice of: every way to die in every phase, and all of ansible-test's sanity tests."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from typing import Final

WHOLE: Final = bool(os.environ.get("NETDOCTOR_WHOLE"))
FILES: Final = ("tests/live/test_allreduce_faults.py", "tests/live/test_ansible_linters.py")


def product(
    first: Iterable[str], second: Iterable[str], always: Collection[str], once: Collection[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Each of `first` with each of `second`; a test run takes those of `first` in `always`, and the pairs of `once`."""
    return [pair for pair in itertools.product(first, second) if WHOLE or pair[0] in always or pair in once]


def main() -> int:
    command = [sys.executable, "-m", "pytest", "-q", *FILES]
    return subprocess.run(command, env={**os.environ, "NETDOCTOR_WHOLE": "1"}, check=False).returncode
