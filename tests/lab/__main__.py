"""``python -m tests.lab WHAT``: compose, golden, ignorance, matrix, mutants; no word: what `make lab` runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

# what -> module, function; each returns an exit code or None
PARTS: dict[str, tuple[str, str]] = {
    "compose": ("tests.lab.fixtures", "compose"),
    "golden": ("tests.lab.fixtures", "golden"),
    "ignorance": ("tests.lab.ignorance", "main"),
    "live": ("tests.lab.live", "main"),
    "matrix": ("tests.lab.matrix", "main"),
    "rxe": ("tests.lab.rxe", "main"),
    "mutants": ("tests.lab.mutants", "main"),
}
LAB = ("ignorance", "matrix", "live")


def main(words: list[str]) -> int:
    worst = 0
    for word in words or list(LAB):
        module, name = PARTS[word]
        function: Callable[[], int | None] = getattr(importlib.import_module(module), name)
        worst = max(worst, function() or 0)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
