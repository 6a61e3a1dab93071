"""The same comparisons on the machine that is here and its own driver: settings are drawn, the machine is what it is.

python -m tests.fakegpu.differential.here [DRAWS]     exit status 1 below 99.5 %, 77 where there is no GPU or no libnccl

The libraries are those of `make libnccl`, and the one that came with the torch of NETDOCTOR_TORCH_PYTHON.

Not one of the fakes takes part, unless this runs where they are shown: then they stand for a driver that nobody has here.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from netdoctor.model import Unavailable
from tests.fakegpu import lab
from tests.fakegpu.differential import runner
from tests.fakegpu.differential.case import Draw, Result, Version
from tests.fakegpu.differential.world import World, of_version

AREAS: Final = ("hca", "paths", "intra")  # what asks the driver; the others' answers are the kernel's and the library's
OUT: Final = runner.OUT.with_name("differential-here.json")
WHEEL: Final = """
import ctypes, nvidia.nccl
path, number = list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2", ctypes.c_int()
ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
print(number.value // 10000, number.value // 100 % 100, number.value % 100, path)
"""


class Here(World):
    """This machine, by what netdoctor reads of it."""

    def __init__(self, folder: pathlib.Path, libraries: Mapping[Version, pathlib.Path]) -> None:
        super().__init__(None, folder)
        self._libraries = libraries
        gpus, devices = self.facts["Gpus"].visible, self.facts["Rdma"].devices
        self.machine = SimpleNamespace(
            name="here",
            gpus=() if isinstance(gpus, Unavailable) else gpus,
            hcas=() if isinstance(devices, Unavailable) else tuple(map(_as_described, devices)),
        )

    def library(self, version: str) -> pathlib.Path:
        return self._libraries[runner.numbers(version)]


def of_the_job(python: str) -> dict[Version, pathlib.Path]:
    """The libnccl of the wheel that this Python has; none where it has none, or where it is linked into torch."""
    try:
        told = subprocess.run([python, "-c", WHEEL], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    major, minor, patch, path = told.rstrip("\n").split(" ", 3)
    return {(int(major), int(minor), int(patch)): pathlib.Path(path)}


def _as_described(device: Any) -> Any:
    """What the areas ask of a description's HCA."""
    ports = () if isinstance(device.ports, Unavailable) else device.ports
    shown = tuple(SimpleNamespace(state=port.state, rate=port.rate_gbps) for port in ports)
    return SimpleNamespace(name=device.name, ports=shown, link=None)


def run(count: int, seed: str, seconds: float = 3600.0) -> list[Result]:
    """As many draws as there is time for, version by version.  Raises LookupError where there is nothing to ask."""
    end = time.monotonic() + seconds
    libraries = {one: lab.library(".".join(map(str, one))) for one in runner.available()}
    libraries |= of_the_job(os.environ.get("NETDOCTOR_TORCH_PYTHON", sys.executable))
    versions = sorted(libraries)
    if not versions:
        raise LookupError("no libnccl below build/nccl (make libnccl), and none in the job's Python")
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        world = Here(pathlib.Path(folder), libraries)
        if not world.machine.gpus:
            raise LookupError(f"no GPU: {world.facts['Gpus'].visible}")
        for number in range(count):
            version = versions[number % len(versions)]
            draw = Draw(AREAS[number // len(versions) % len(AREAS)], version, f"{seed}.{number}")
            if time.monotonic() > end:
                break
            rows = of_version(world, [draw])
            failure = {"area": draw.area, "version": draw.text, "seed": draw.seed, "what": "the draw itself"}
            found += [Result(**one) for one in rows or ()]
            found += [Result(**failure, predicted="no error", seen="the process ended", agrees=False)] if rows is None else []
    return found


def main(arguments: list[str]) -> int:
    try:
        results = run(int(arguments[0]) if arguments else 60, "here")
    except LookupError as error:
        print(error, file=sys.stderr)
        return 77
    runner.write(results, OUT)
    print(runner.table(results))
    return int(runner.agreement(results) < runner.WANTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
