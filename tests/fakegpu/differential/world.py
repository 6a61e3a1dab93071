"""One machine, and the draws that are made on it: a process in its namespace, a fork of it for each NCCL.

python -m tests.fakegpu.differential.world WORLD.json RESULTS.json
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from netdoctor.facts import environ, registry
from netdoctor.facts.environ import Environ
from netdoctor.host.base import Answer
from netdoctor.host.live import LiveHost
from tests.fakegpu import lab, namespace
from tests.fakegpu.differential import ranks, shapes
from tests.fakegpu.differential.case import Draw, Result, Row
from tests.fakegpu.machine import Machine

FACTS: Final = ("Vantage", "Kernel", "Rdma", "Gpus", "Pci", "Net")


class Placed(LiveHost):
    """This machine with other variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(config={}, trust=True)  # the job is root's own: its helpers go by the fakes' variables
        self._variables = dict(variables)

    def ask(self, question: str) -> Answer:
        return dict(self._variables) if question == "env:" else super().ask(question)


class World:
    """The machine, what netdoctor knows of it, and a folder to work in."""

    machine: Any

    def __init__(self, machine: Machine | None, folder: pathlib.Path) -> None:
        self.machine, self.folder = machine, folder

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Probed on the machine as `netdoctor preflight` probes them."""
        host = Placed({"HOME": os.devnull})
        try:
            registry.prefetch(host, FACTS)
            have: dict[str, Any] = {}
            for name in registry.closure(FACTS):
                have[name] = registry.make(host, name, have)
        finally:
            host.close()
        return have

    @staticmethod
    def environ(settings: Mapping[str, str]) -> Environ:
        host = Placed({"HOME": os.devnull, **settings})
        try:
            return environ.probe(host)
        finally:
            host.close()

    def library(self, version: str) -> pathlib.Path:
        return lab.library(version)

    def ranks(
        self,
        draw: Draw,
        every: list[ranks.Process],
        *,
        exchange: bool = False,
        look: Callable[[], None] | None = None,
        deadline: float = 60.0,
    ) -> ranks.Done:
        """The communicator of these ranks, set up; `look` is called while it lives."""
        library = self.library(draw.text)
        filled = [dataclasses.replace(one, env=ranks.environment(library, draw.version, one.env)) for one in every]
        work = ranks.joined(len(filled), self.folder / "id", exchange=exchange, held=look is not None)
        return ranks.run(filled, self.folder, work, deadline, look)


def _of_version(world: World, draws: list[Draw]) -> list[dict[str, Any]]:
    """Every draw of one NCCL, in a child that has it loaded."""
    import ctypes

    ctypes.CDLL(str(world.library(draws[0].text)))
    found = []
    for draw in draws:
        area = importlib.import_module(f"tests.fakegpu.differential.{draw.area}")
        try:
            try:
                rows = list(area.compare(draw, world))
            except ranks.LateError:  # once more, before it counts
                rows = list(area.compare(draw, world))
        except Exception:  # noqa: BLE001 - a draw that breaks is shown as one that disagrees
            rows = [Row("the draw itself", "no error", traceback.format_exc()[-1500:])]
        found += [Result.of(draw, row).data() for row in rows]
    return found


def of_version(world: World, draws: list[Draw]) -> list[dict[str, Any]] | None:
    """The same in a fork, for a process has one NCCL; None where it told nothing."""
    part = world.folder / "part.json"
    part.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            part.write_text(json.dumps(_of_version(world, draws)), encoding="utf-8")
        except BaseException:  # noqa: BLE001 - a fork must not go on with its parent's work
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(part.read_text("utf-8")) if part.exists() else None


def main(plan: str, results: str) -> int:
    told = json.loads(pathlib.Path(plan).read_text("utf-8"))
    folder = pathlib.Path(results).parent
    shown = folder / "shown"
    namespace.enter(shown)
    draws = [Draw(one[0], tuple(one[1]), one[2]) for one in told["draws"]]
    world = World(shapes.draw(told["machine"], {draw.version for draw in draws}), folder)
    if any(draw.area in ("paths", "hca", "intra") for draw in draws):
        _ = world.facts  # once for all forks
    found: list[dict[str, Any]] = []
    for version in sorted({draw.version for draw in draws}):
        rows = of_version(world, [draw for draw in draws if draw.version == version])
        if rows is None:
            return 1
        found += rows
    pathlib.Path(results).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2])
    sys.stdout.flush()
    os._exit(code)
