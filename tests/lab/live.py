"""The live rows of the fault matrix: `rows()` runs each fault on its scene and compares with the healthy scene."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from netdoctor.model import Json
from tests.lab.live_rows import ROWS, Row
from tests.support import libnccl, native
from tests.support.scene import Machine, Scene, Seen, machine

Statuses = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Outcome:
    row: Row
    found: bool
    disturbed: tuple[str, ...]
    seconds: float
    seen: Seen

    def as_row(self) -> dict[str, Json]:
        return {
            "fault": self.row.fault,
            "way": "live",
            "expected": dict(self.row.expected),
            "found": self.found,
            "disturbed": list(self.disturbed),
            "seconds": round(self.seconds, 2),
        }


def compare(row: Row, before: Statuses, after: Statuses) -> tuple[bool, tuple[str, ...]]:
    """Whether all that is expected came, and what changed that should not have."""
    changes = {
        key: (before.get(key, "nothing"), after.get(key, "nothing"))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }
    found = all(
        any(check == key[0] and now.startswith(status) for key, (_, now) in changes.items())
        for check, status in row.expected.items()
    )
    disturbed = tuple(
        f"{check} {subject}: {was} -> {now}"
        for (check, subject), (was, now) in changes.items()
        if check not in row.expected and check not in row.also
    )
    # A fault never makes a pass of what was none.
    better = tuple(
        f"{check} {subject}: {was} -> pass"
        for (check, subject), (was, now) in changes.items()
        if now == "pass" and was != "nothing" and check not in row.also
    )
    return found, tuple(dict.fromkeys((*disturbed, *better)))


def _resolved(scene: Scene) -> Scene:
    """With the real libraries and folders in the place of their names."""
    old, _ = libnccl.both()
    places = {"OLD_NCCL": old, "OLD_FOLDER": old.parent, "FAKES": native.FAKES, "ROOT": native.ROOT}
    return replace(scene, env={name: _placed(value, places) for name, value in scene.env.items()})


def _placed(value: str, places: Mapping[str, Path]) -> str:
    for name, path in places.items():
        value = value.replace(name, str(path))
    return value


def outcomes(words: list[str] | None = None) -> Iterator[Outcome]:
    """Every row, or those whose name has one of `words` in it."""
    with machine() as place:
        healthy: dict[str, Statuses] = {}
        for row in ROWS:
            if not words or any(word in row.fault for word in words):
                yield _one(place, row, healthy)


def _one(place: Machine, row: Row, healthy: dict[str, Statuses]) -> Outcome:
    began = time.monotonic()
    key = repr(row.base)
    if key not in healthy:
        seen = place.look(_resolved(row.base))
        assert seen.report is not None, seen.err[-2000:]
        healthy[key] = seen.statuses()
        # Locked memory cannot be raised everywhere, and without capabilities the limit of this machine holds.
        wrong = [f"{one} {status}" for one, status in healthy[key].items() if status.startswith(("fail", "error"))]
        wrong = [text for text in wrong if "memlock" not in text or not row.base.wrap]
        assert not wrong, f"the healthy scene is not: {wrong}"
    seen = place.look(_resolved(row.scene))
    if seen.report is None:
        return Outcome(row, False, (f"no report: exit {seen.exit}, {seen.err[-300:]}",), time.monotonic() - began, seen)
    found, disturbed = compare(row, healthy[key], seen.statuses())
    return Outcome(row, found, disturbed, time.monotonic() - began, seen)


def main(words: list[str] | None = None) -> int:
    """Print a line a row; 1 where one was not found or something else was disturbed.  All rows go into the matrix's file."""
    from tests.lab import matrix

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is cleaned up
    bad, done = 0, []
    for one in outcomes(words):
        good = one.found and not one.disturbed
        bad += not good
        done.append(one.as_row())
        print(f"{'ok  ' if good else 'BAD '} {one.seconds:5.1f} s  {one.row.fault}", flush=True)
        if not one.found:
            print(f"      expected {dict(one.row.expected)}")
            said = [(s, c, t) for c in one.row.expected for s in ("fail", "unknown", "pass", "skip") for t in one.seen.of(c, s)]
            print(*(f"      {status} {check} {text}" for status, check, text in said), sep="\n")
        for text in one.disturbed:
            print(f"      {text}")
    if not words:
        matrix.write(done, "live")
        print(f"{len(done)} live faults, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
