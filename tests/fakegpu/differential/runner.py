"""Shares the draws out to machines, runs two machines at a time, and counts."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tests.fakegpu import build, namespace
from tests.fakegpu.differential import shapes
from tests.fakegpu.differential.case import Draw, Result, Version
from tests.support.machines import libnccl

WANTED: Final = 0.995
AREAS: Final = {
    "values": 12,
    "interfaces": 10,
    "hca": 6,
    "paths": 8,
    "intra": 2,
    "library": 2,
    "shm": 1,
    "ports": 1,
}  # module -> its share
# Of the results: `paths` tells two things.
NAMES: Final = frozenset({*AREAS, "gpudirect"} - {"paths"})
PER_MACHINE: Final = 20
OUT: Final = build.ROOT / "build" / "differential.json"


def available() -> list[Version]:
    """The versions of libnccl that are there."""
    return sorted((one[0], one[1], one[2]) for one in libnccl.libraries())


def missing() -> str:
    """Why networks cannot be drawn here; "" where they can."""
    return "" if shutil.which("ip") else "no ip command (iproute2) to make interfaces with"


def plan(count: int, seed: str, versions: Sequence[Version], areas: Sequence[str]) -> list[list[Draw]]:
    """The draws of each machine: areas in their shares, and two versions a machine, for each costs a process that loads it."""
    turn = [name for name in areas for _ in range(AREAS[name])]
    random.Random(seed).shuffle(turn)
    found: list[list[Draw]] = []
    for machine in range(-(-count // PER_MACHINE)):
        own = [versions[(2 * machine + k) % len(versions)] for k in (0, 1)]
        turns = range(machine * PER_MACHINE, min(count, (machine + 1) * PER_MACHINE))
        # An even number of areas' turns would give each area the same half of the versions for ever.
        found.append([Draw(turn[n % len(turn)], own[(n + n // len(turn)) % 2], f"{seed}.{n}") for n in turns])
    return found


def run(count: int, seed: str, versions: Sequence[Version], areas: Sequence[str]) -> list[Result]:
    build.libraries()
    worlds = plan(count, seed, versions, areas)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        found = pool.map(_world, (f"{seed}.{n}" for n in range(len(worlds))), worlds)
        return [one for rows in found for one in rows]


def _world(seed: str, draws: list[Draw]) -> list[Result]:
    """A machine and its draws, in a process in the machine's namespace."""
    with namespace.scratch() as folder:
        machine = shapes.draw(seed, {one.version for one in draws})
        namespace.prepare(machine, folder / "shown", network=True)
        machine.write(folder / "machine")
        (folder / "plan.json").write_text(json.dumps({"machine": seed, "draws": draws}), encoding="utf-8")
        results = folder / "results.json"
        command = [sys.executable, "-m", "tests.fakegpu.differential.world", str(folder / "plan.json"), str(results)]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "LD_"))}
        done = subprocess.run(
            command,
            cwd=build.ROOT,
            env={**env, **namespace.environment(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        if done.returncode or not results.exists():
            return [
                Result(one.area, one.text, one.seed, "the machine's process", "no error", done.stderr[-1500:], False)
                for one in draws[:1]
            ]
        return [Result(**one) for one in json.loads(results.read_text("utf-8"))]


def agreement(results: Iterable[Result]) -> float:
    """Of what netdoctor says."""
    said = [one.agrees for one in results if one.agrees is not None]
    return sum(said) / len(said) if said else 0.0


def draws(results: Iterable[Result]) -> int:
    """Draws that compared anything; most compare one thing, those of `paths` up to eight."""
    return len({one.seed for one in results})


def write(results: Sequence[Result], path: pathlib.Path = OUT) -> None:
    """By area and version: draws, comparisons (`agree`, `unsaid`: netdoctor does not say, and each that disagrees)."""
    rows: list[dict[str, Any]] = []
    for area, version in sorted({(one.area, one.version) for one in results}, key=lambda pair: (pair[0], numbers(pair[1]))):
        own = [one for one in results if (one.area, one.version) == (area, version)]
        count = Counter(one.agrees for one in own)
        wrong = [
            {k: v for k, v in one.data().items() if k not in ("area", "version", "agrees")}
            for one in own
            if one.agrees is False
        ]
        rows.append(
            {
                "area": area,
                "version": version,
                "draws": draws(own),
                "comparisons": len(own),
                "agree": count[True],
                "unsaid": count[None],
                "disagree": wrong,
            }
        )
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def table(results: Sequence[Result]) -> str:
    """Areas by versions, in comparisons: agree/said, and what netdoctor did not say; then every disagreement."""
    versions = sorted({one.version for one in results}, key=numbers)
    lines = [" ".join(["area      ", *(f"{one:>9}" for one in versions), "      all  unsaid"])]
    for area in (*sorted({one.area for one in results}), "all"):
        own = [one for one in results if area in (one.area, "all")]
        cells = [_cell([one for one in own if one.version == version]) for version in versions]
        unsaid = sum(one.agrees is None for one in own)
        lines.append(" ".join([f"{area:10}", *cells, f"{_cell(own)} {unsaid:7}"]))
    lines += [
        f"{one.version} {one.area} seed {one.seed}: {one.what}: netdoctor {one.predicted}, NCCL {one.seen}"
        for one in results
        if one.agrees is False
    ]
    said = sum(one.agrees is not None for one in results)
    lines.append(f"{draws(results)} draws compared something, {len(results)} comparisons, netdoctor says something in {said}")
    lines.append(f"agreement {100 * agreement(results):.2f} % of the {said} comparisons that netdoctor says something in")
    return "\n".join(lines)


def _cell(own: Sequence[Result]) -> str:
    said = [one.agrees for one in own if one.agrees is not None]
    return f"{f'{sum(said)}/{len(said)}':>9}"


def numbers(version: str) -> Version:
    return tuple(int(one) for one in version.split("."))  # type: ignore[return-value]
