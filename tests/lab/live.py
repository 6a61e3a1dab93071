"""The live rows of the fault matrix: each fault on its scene, compared with the healthy scene."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import pytest

from netdoctor.model import Json
from tests.lab.row import ERRORS, Row
from tests.support.machines import libnccl, native
from tests.support.namespaces.dgx import Scene, Seen, machine

TRIES: Final = 3
CGROUPS: Final = Path("/sys/fs/cgroup")
PACKAGES: Final = Path(sysconfig.get_path("purelib"))


class Place(Protocol):
    """Where a scene is laid over this machine: tests.support.namespaces.dgx.Machine, or containers."""

    def look(self, scene: Scene) -> Seen: ...


def _controller(name: str) -> Callable[[], str]:
    def reason() -> str:
        there = os.access(CGROUPS / name / "cgroup.procs", os.W_OK)
        return "" if there else f"no cgroup v1 hierarchy of {name} that can be written"

    return reason


def _unlimited() -> str:
    tried = subprocess.run(["prlimit", "--memlock=unlimited:unlimited", "true"], capture_output=True, text=True, check=False)
    return f"the hard limit of locked memory cannot be raised here: {tried.stderr.strip()}" if tried.returncode else ""


# What a row may need beside programs: why it is not there, "" where it is.
NEEDS: Final[Mapping[str, Callable[[], str]]] = {
    **{f"cgroup {name}": _controller(name) for name in ("cpuset", "cpu", "memory", "pids")},
    "unlimited memlock": _unlimited,
    "loop devices": lambda: "" if os.path.exists("/dev/loop-control") else "no loop devices",
    "overlay": lambda: "" if "\toverlay\n" in Path("/proc/filesystems").read_text() else "no overlay file systems",
    # podman 4.3 keeps the overlay of --rootfs below folders of mode 0700, which a mapped root cannot pass.
    "mapped root file system": lambda: "podman's folders of a --rootfs are closed to a mapped root",
}


def lacking(row: Row) -> str:
    """Why this row cannot run here; "" where it can."""
    for name in row.needs:
        why = NEEDS[name]() if name in NEEDS else "" if shutil.which(name) else f"no {name}"
        if why:
            return why
    return ""


@dataclass(frozen=True)
class Outcome:
    row: Row
    way: str
    found: bool | None  # None: not run
    disturbed: tuple[str, ...] = ()
    seconds: float = 0.0
    seen: Seen | None = None
    why: str = ""  # it was not run

    @property
    def good(self) -> bool:
        return self.found is not False and not self.disturbed

    def as_row(self) -> dict[str, Json]:
        return {
            "fault": self.row.fault,
            "way": self.way,
            "expected": dict(self.row.expected),
            "found": self.found,
            "disturbed": list(self.disturbed),
            "seconds": round(self.seconds, 2),
            **({"why": self.why} if self.found is None else {}),
        }

    def __str__(self) -> str:
        if self.found is None:
            return f"none    -    {self.row.fault}: not run: {self.why}"
        lines = [f"{'ok  ' if self.good else 'BAD '} {self.seconds:5.1f} s  {self.row.fault}"]
        if not self.found and self.seen is not None:
            lines.append(f"      expected {dict(self.row.expected)}")
            each = ((s, c) for c in self.row.expected for s in ("fail", "unknown", "pass", "skip", "error"))
            lines += [f"      {status} {check} {text}" for status, check in each for text in self.seen.of(check, status)]
        return "\n".join([*lines, *(f"      {text}" for text in self.disturbed)])


def compare(row: Row, before: Seen, after: Seen) -> tuple[bool, tuple[str, ...]]:
    """Whether all that is expected came, and what changed that should not have."""
    was_all, now_all = before.statuses(), after.statuses()
    changes = {
        key: (was_all.get(key, "nothing"), now_all.get(key, "nothing"))
        for key in sorted({*was_all, *now_all})
        if was_all.get(key) != now_all.get(key) and not _of_the_moment(row, key[0], now_all.get(key, "nothing"))
    }
    found = all(_came(check, status, changes, before, after) for check, status in row.expected.items())
    found = found and (not row.source or any(row.source in after.sources(check) for check in row.expected))
    disturbed = tuple(
        f"{check} {subject}: {was} -> {now}"
        for (check, subject), (was, now) in changes.items()
        if check not in row.expected and check not in row.also
    )
    # A fault never makes a pass of what was none; what takes evidence away makes no pass and no skip anywhere.
    blind = bool(row.expected) and all(status.startswith("unknown") for status in row.expected.values())
    blind = blind and row.scene.options == row.base.options  # a run that the healthy scene did not have is evidence
    better = tuple(
        f"{check} {subject}: {was} -> {now}"
        for (check, subject), (was, now) in changes.items()
        if (now == "pass" and was != "nothing" and check not in row.also) or (blind and now in ("pass", "skip"))
    )
    broken = tuple(f"{check} {subject}: error" for (check, subject), now in now_all.items() if now == "error")
    return found, tuple(dict.fromkeys((*disturbed, *better, *broken)))


def _of_the_moment(row: Row, check: str, now: str) -> bool:
    """Packets sent again while other programs load this machine make one look unsure and the next not, whatever the scene."""
    return check == ERRORS and check not in row.expected and not now.startswith(("fail", "error"))


def _came(check: str, expected: str, changes: Mapping[tuple[str, str], tuple[str, str]], before: Seen, after: Seen) -> bool:
    status, _, words = expected.partition(": ")
    if words:
        return any(words in said for said in after.of(check, status)) and not any(
            words in said for said in before.of(check, status)
        )
    return any(check == key[0] and now.startswith(status) for key, (_, now) in changes.items())


def _resolved(scene: Scene) -> Scene:
    """With the real libraries and folders in the place of their names."""
    old, _ = libnccl.both()
    places = {"OLD_NCCL": old, "OLD_FOLDER": old.parent, "FAKES": native.FAKES, "PACKAGES": PACKAGES, "ROOT": native.ROOT}
    places |= {"IBVERBS": native.ibverbs(), "OTHER_TIME": native.clock()}
    env = {name: _placed(value, places) for name, value in scene.env.items()}
    return replace(scene, env=env, site=_placed(scene.site, places))


def _placed(value: str, places: Mapping[str, Path]) -> str:
    for name, path in places.items():
        value = value.replace(name, str(path))
    return value


class UnwellError(Exception):
    """The scene without the fault is not healthy: nothing can be told of the fault."""


class Lab:
    """Rows of one way; a healthy scene is looked at once."""

    def __init__(self, way: str, place: Place) -> None:
        self.way, self.place = way, place
        self.healthy: dict[str, Seen] = {}

    def outcome(self, row: Row) -> Outcome:
        began = time.monotonic()
        if why := lacking(row):
            return Outcome(row, self.way, None, why=why)
        try:
            before = self._healthy(row.base)
            seen = self.place.look(_resolved(row.scene))
        except pytest.skip.Exception as skipped:  # a library or compiler that is not here
            return Outcome(row, self.way, None, why=str(skipped))
        except UnwellError as unwell:
            return Outcome(row, self.way, False, (str(unwell),), time.monotonic() - began)
        except subprocess.TimeoutExpired as late:
            return Outcome(row, self.way, False, (f"no report within {late.timeout:.0f} s",), time.monotonic() - began)
        if seen.report is None:
            gone = (f"no report: exit {seen.exit}, {' '.join(seen.err.split())[-300:]}",)
            return Outcome(row, self.way, False, gone, time.monotonic() - began, seen)
        return Outcome(row, self.way, *compare(row, before, seen), time.monotonic() - began, seen)

    def _healthy(self, base: Scene) -> Seen:
        """The healthy scene, looked at once; again where it is not, for a busy machine may be slow for a moment."""
        key, wrong = repr(base), [""]
        if key in self.healthy:
            return self.healthy[key]
        for _ in range(TRIES):
            seen = self.place.look(_resolved(base))
            if seen.report is None:
                raise UnwellError(f"no report of the healthy scene: exit {seen.exit}, {seen.err[-300:]}")
            wrong = [f"{one} {status}" for one, status in seen.statuses().items() if status.startswith(("fail", "error"))]
            # Locked memory cannot be raised everywhere, and without capabilities the limit of this machine holds.
            wrong = [text for text in wrong if "memlock" not in text or not base.wrap]
            if not wrong:
                self.healthy[key] = seen
                return seen
        raise UnwellError(f"the healthy scene is not: {wrong}")


def every() -> tuple[Row, ...]:
    """The rows of this way."""
    from tests.lab.live_clock import CLOCK_ROWS
    from tests.lab.live_expected import EXPECTED_ROWS
    from tests.lab.live_hardware import HARDWARE_ROWS
    from tests.lab.live_parts import PART_ROWS
    from tests.lab.live_platforms import PLATFORM_ROWS
    from tests.lab.live_reach import REACH_ROWS
    from tests.lab.live_rows import ROWS
    from tests.lab.live_runs import RUN_ROWS
    from tests.lab.live_system import SYSTEM_ROWS

    return (
        *ROWS,
        *HARDWARE_ROWS,
        *PLATFORM_ROWS,
        *EXPECTED_ROWS,
        *PART_ROWS,
        *RUN_ROWS,
        *SYSTEM_ROWS,
        *REACH_ROWS,
        *CLOCK_ROWS,
    )


def chosen(rows: Iterable[Row], words: list[str] | None) -> list[Row]:
    """All, or those whose name has one of `words` in it."""
    return [row for row in rows if not words or any(word in row.fault for word in words)]


def outcomes(words: list[str] | None = None) -> Iterator[Outcome]:
    with machine() as place:
        yield from map(Lab("live", place).outcome, chosen(every(), words))


def main(words: list[str] | None = None) -> int:
    """Print a line a row; 1 where one was not found or something else was disturbed.  All rows go into the matrix's file."""
    return told("live", outcomes(words), whole=not words)


def told(way: str, each: Iterable[Outcome], whole: bool) -> int:
    """Print them as they come, and what became of all; the `whole` goes into the matrix's file."""
    from tests.lab import matrix

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is cleaned up
    done = []
    for one in each:
        done.append(one)
        print(one, flush=True)
    rows = [one.as_row() for one in done]
    print(matrix.summary(rows, f"{way}: "))
    if whole:
        matrix.write(rows, way)
    return int(not all(one.good for one in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
