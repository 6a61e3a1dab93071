"""``python -m tests.lab WHAT``: see PARTS; no word: what `make lab` runs, and the matrix of all its ways."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

# what -> module, function; each returns an exit code or None
PARTS: dict[str, tuple[str, str]] = {
    "compose": ("tests.lab.fixtures", "compose"),
    "container": ("tests.lab.container", "main"),
    "fakegpu": ("tests.lab.fakegpu", "main"),
    "fleet": ("tests.lab.live_fleet", "main"),
    "golden": ("tests.lab.fixtures", "golden"),
    "hosts": ("tests.lab.hosts", "main"),
    "ignorance": ("tests.lab.ignorance", "main"),
    "killed": ("tests.lab.killed", "main"),
    "live": ("tests.lab.live", "main"),
    "meeting": ("tests.lab.meeting", "main"),
    "matrix": ("tests.lab.matrix", "main"),
    "rxe": ("tests.lab.rxe", "main"),
    "mutants": ("tests.lab.mutants", "main"),
    "torches": ("tests.lab.torches", "main"),
    "trees": ("tests.lab.trees", "main"),
    "whole": ("tests.lab.whole", "main"),
}
LAB = (
    *("ignorance", "trees", "killed", "matrix", "live", "fleet", "container", "hosts", "meeting"),
    *("rxe", "fakegpu", "torches", "whole"),
)


def main(words: list[str]) -> int:
    worst = 0
    for word in words or LAB:
        module, name = PARTS[word]
        function: Callable[[], int | None] = getattr(importlib.import_module(module), name)
        worst = max(worst, function() or 0)
    if not words:
        from tests.lab import matrix

        matrix.everything()
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
