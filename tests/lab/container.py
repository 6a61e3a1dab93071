"""The rows of the fault matrix in real containers: ``python -m tests.lab.container [WORDS]``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.lab import live
from tests.lab.container_rows import ROWS
from tests.support.clusters import containers


def outcomes(words: list[str] | None = None) -> Iterator[live.Outcome]:
    """Every row, or those whose name has one of `words` in it; not run, with the reason, where no container can be."""
    rows = live.chosen(ROWS, words)
    if reason := containers.missing():
        yield from (live.Outcome(row, "container", None, why=reason) for row in rows)
        return
    with containers.boxes() as place:
        yield from map(live.Lab("container", place).outcome, rows)


def main(words: list[str] | None = None) -> int:
    return live.told("container", outcomes(words), whole=not words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
