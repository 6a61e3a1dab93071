"""Can the tests of the checks fail?  Each mutant of each check against that check's tables, machines and faults, in process.

``make mutants`` runs all, ``make mutants DRAW=50 SEED=7`` a sample.  Mutants that change nothing that anybody could see are
listed with their reason in tests/lab/equivalent.yaml and do not count.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import random
import signal
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from netdoctor import engine
from netdoctor.api import CheckSpec, Finding
from tests.lab import faults, fixtures
from tests.lab.mutate import Mutant, mutants

TESTS: Final = fixtures.ROOT / "tests" / "unit" / "checks"
EQUIVALENT: Final = fixtures.ROOT / "tests" / "lab" / "equivalent.yaml"
GOAL: Final = 0.90
PATIENCE_S: Final = 10
_DATA: Final = (int, float, tuple, frozenset, str, dict)  # constants of a module
Case = Callable[[], None]


def main() -> int:
    draw, seed = int(os.environ.get("DRAW") or 0), int(os.environ.get("SEED") or 0)
    only = os.environ.get("CHECK", "")
    known = _equivalent()
    work = [(path.stem, one) for path in sorted((fixtures.ROOT / "checks").glob("[a-z]*.py")) if only in path.stem
            for one in mutants(path.read_text(encoding="utf-8"))]  # fmt: skip
    work = [(stem, one) for stem, one in work if one.name not in known.get(stem, {})]
    if draw:
        work = sorted(random.Random(seed).sample(work, min(draw, len(work))), key=lambda w: (w[0], w[1].line))
    killed, survived, begin = 0, [], time.monotonic()
    for stem, group in itertools.groupby(work, key=lambda w: w[0]):
        bench = Bench(stem)
        here = [one for _, one in group]
        alive = [one for one in here if not bench.kills(one)]
        killed += len(here) - len(alive)
        survived += [f"checks/{stem}.py:{one.line} {one.name}" for one in alive]
        took = time.monotonic() - begin
        print(f"{stem:24} {len(here) - len(alive)}/{len(here)} killed, {len(bench.cases)} cases, {took:.0f} s", flush=True)
    print(*survived, sep="\n")
    share = killed / len(work) if work else 1.0
    drawn = f" (drawn with SEED={seed})" if draw else ""
    print(f"mutants{drawn}: {killed} of {len(work)} killed, {share:.1%}; goal {GOAL:.0%}; "
          f"{sum(map(len, known.values()))} equivalent ones left out")  # fmt: skip
    return int(share < GOAL)


def _equivalent() -> dict[str, dict[str, str]]:
    import yaml

    return yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {} if EQUIVALENT.exists() else {}


class Bench:
    """One check's module, and every case that speaks about it."""

    def __init__(self, stem: str) -> None:
        self.module = importlib.import_module(f"netdoctor.checks.{stem}")
        self.cases = [case for case in _cases(stem, self.module) if not self._fails(case)]
        # A test may import the file under its other name: then it is another module.
        also = sys.modules.get(f"checks.{stem}")
        self.modules = [self.module, *([also] if also is not None else [])]

    def kills(self, mutant: Mutant) -> bool:
        try:
            with contextlib.ExitStack() as stack:
                for module in self.modules:
                    stack.enter_context(planted(module, mutant.tree))
                return any(self._fails(case) for case in self.cases)
        except (NameError, SyntaxError):  # the mutated module does not even load
            return True

    @staticmethod
    def _fails(case: Case) -> bool:
        try:
            with patience():
                case()
        except Exception:  # an assertion, a crash of the mutant, an endless loop: all of them are noticed
            return True
        return False


@contextmanager
def patience() -> Iterator[None]:
    def over(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def planted(module: types.ModuleType, tree: ast.Module) -> Iterator[None]:
    """The module with the code of `tree`: functions keep their identity, for tests and other modules hold them."""
    fresh: dict[str, Any] = {
        "__name__": module.__name__,
        "__file__": getattr(module, "__file__", module.__name__),
        "__package__": module.__package__,
    }
    shadow = types.ModuleType(module.__name__)
    shadow.__dict__.update(fresh)
    sys.modules[module.__name__] = shadow  # dataclasses look their module up
    try:
        exec(compile(tree, str(fresh["__file__"]), "exec"), shadow.__dict__)
    finally:
        sys.modules[module.__name__] = module
    undo: list[Callable[[], None]] = []
    _exchange(module.__dict__, shadow.__dict__, module.__name__, undo)
    try:
        yield
    finally:
        for one in undo:
            one()


def _exchange(old: Any, new: Any, owner: str, undo: list[Callable[[], None]]) -> None:
    for name, value in list(old.items()):
        other = new.get(name)
        if isinstance(value, types.FunctionType) and isinstance(other, types.FunctionType) and value.__module__ == owner:
            undo.append(lambda f=value, c=value.__code__: setattr(f, "__code__", c))  # type: ignore[misc]
            value.__code__ = other.__code__
        elif isinstance(value, property) and isinstance(other, property):
            _exchange({"fget": value.fget}, {"fget": other.fget}, owner, undo)
        elif isinstance(value, type) and isinstance(other, type) and value.__module__ == owner:
            _exchange(dict(vars(value)), vars(other), owner, undo)
        elif "__builtins__" in old and isinstance(value, _DATA) and not name.startswith("__") and name in new:
            undo.append(lambda n=name, v=value: old.__setitem__(n, v))  # type: ignore[misc]
            old[name] = other


def _cases(stem: str, module: types.ModuleType) -> Iterator[Case]:
    """The rows of the check's own tables, every machine, and the faults of this check."""
    spec: CheckSpec = next(v.__netdoctor_check__ for v in vars(module).values() if hasattr(v, "__netdoctor_check__"))
    for path in sorted(TESTS.glob(f"test_{stem}*.py")):
        yield from _of_module(path.stem, lambda arguments: True)
    for name in ("test_healthy", "test_ignorance", "test_net_lost_evidence"):
        if (TESTS / f"{name}.py").exists():
            yield from _of_module(name, lambda arguments: spec.id in map(str, arguments.values()))
    golden = faults.golden()
    for fault in faults.every():
        if fault.expect["check"] == spec.id:
            broken = fixtures.facts_of(fault.after())
            yield lambda broken=broken, told=golden[fault.name]: _same(engine.judge(spec, broken), told)  # type: ignore[misc]
    for slug in fixtures.slugs():
        have = fixtures.facts_of(fixtures.snapshot(slug))
        told = faults.told(engine.judge(spec, have))  # as the golden report has it
        yield lambda have=have, told=told: _same(engine.judge(spec, have), told)  # type: ignore[misc]


def _same(found: Iterable[Finding], told: object) -> None:
    assert faults.told(found) == told


def _of_module(stem: str, wanted: Callable[[dict[str, Any]], bool]) -> Iterator[Case]:
    """Each test function with each row of its parametrize marks; tests that need fixtures of pytest are passed over."""
    name = f"tests.unit.checks.{stem}"
    spec = importlib.util.spec_from_file_location(name, TESTS / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    for key, function in vars(module).items():
        if not key.startswith("test_") or not callable(function):
            continue
        for arguments in _rows(function):
            if set(inspect.signature(function).parameters) <= set(arguments) and wanted(arguments):
                yield lambda function=function, arguments=arguments: function(**arguments)  # type: ignore[misc]


def _rows(function: Any) -> Iterator[dict[str, Any]]:
    tables = []
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            names = mark.args[0]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            rows = [getattr(row, "values", row) if not isinstance(row, dict) else row for row in mark.args[1]]
            tables.append([dict(zip(names, row if len(names) > 1 else (row,), strict=True)) for row in rows])
    for combination in itertools.product(*tables):
        yield {name: value for row in combination for name, value in row.items()}
