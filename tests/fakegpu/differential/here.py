"""The same comparisons on the machine that is here and its own driver: settings are drawn, the machine is what it is.

python -m tests.fakegpu.differential.here [DRAWS]     exit status 1 below 99.5 %, 77 where there is no GPU or no libnccl

Not one of the fakes takes part, unless this runs where they are shown: then they stand for a driver that nobody has here.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any, Final

from netdoctor.model import Unavailable
from tests.fakegpu.differential import runner
from tests.fakegpu.differential.case import Draw, Result
from tests.fakegpu.differential.world import World, of_version

AREAS: Final = ("hca", "paths", "intra")  # what asks the driver; the others' answers are the kernel's and the library's
OUT: Final = runner.OUT.with_name("differential-here.json")


class Here(World):
    """This machine, by what netdoctor reads of it."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(None, folder)
        gpus, devices = self.facts["Gpus"].visible, self.facts["Rdma"].devices
        self.machine = SimpleNamespace(
            name="here",
            gpus=() if isinstance(gpus, Unavailable) else gpus,
            hcas=() if isinstance(devices, Unavailable) else tuple(map(_as_described, devices)),
        )


def _as_described(device: Any) -> Any:
    """What the areas ask of a description's HCA."""
    ports = () if isinstance(device.ports, Unavailable) else device.ports
    shown = tuple(SimpleNamespace(state=port.state, rate=port.rate_gbps) for port in ports)
    return SimpleNamespace(name=device.name, ports=shown, link=None)


def run(count: int, seed: str, seconds: float = 3600.0) -> list[Result]:
    """As many draws as there is time for, version by version.  Raises LookupError where there is nothing to ask."""
    versions, end = runner.available(), time.monotonic() + seconds
    if not versions:
        raise LookupError("no libnccl below build/nccl: make libnccl")
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        world = Here(pathlib.Path(folder))
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
