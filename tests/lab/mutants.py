"""Can the tests of the checks fail?  Each mutant of each check against that check's tables, machines and faults, in process.

``make mutants`` runs all and writes build/mutants.json; with CHECK=nccl_version it runs one check, with DRAW=50 SEED=7 some.

Killed means: a case that passes on the check as it is fails on the mutant, by an assertion, a crash or an endless loop.
Mutants that change nothing that anybody could see are listed with their reason in tests/lab/equivalent.yaml and do not count;
one that is listed and killed all the same is an error, and so is a case that fails on the check as it is.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import random
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil, comb
from typing import Any, Final

import pytest

from netdoctor import engine
from netdoctor.api import CheckSpec
from tests.lab import faults, fixtures
from tests.lab.mutate import Mutant, mutants

CHECKS: Final = fixtures.ROOT / "checks"
TESTS: Final = fixtures.ROOT / "tests" / "unit" / "checks"
EQUIVALENT: Final = fixtures.ROOT / "tests" / "lab" / "equivalent.yaml"
FIGURES: Final = fixtures.ROOT / "build" / "mutants.json"
GOAL: Final = 0.90
RARELY: Final = 1e-6
PATIENCE_S: Final = 10  # of CPU time, so that a busy machine kills nothing; a case takes some milliseconds
_DATA: Final = (int, float, tuple, frozenset, str, dict)  # constants of a module
PARAM: Final = type(pytest.param())
Case = Callable[[], None]
Cases = list[tuple[str, Case]]


def main() -> int:
    draw, seed = int(os.environ.get("DRAW") or 0), int(os.environ.get("SEED") or 0)
    every = tuple(path.stem for path in sorted(CHECKS.glob("[a-z]*.py")))
    stems = _wanted(os.environ.get("CHECK") or "", every)
    listed = equivalent()
    work = [(stem, one) for stem in stems for one in all_of(stem) if not draw or one.name not in listed.get(stem, {})]
    total = len(work)
    if draw:
        work = sorted(random.Random(seed).sample(work, min(draw, total)), key=lambda w: (w[0], w[1].line))
    results = []
    for stem, group in itertools.groupby(work, key=lambda w: w[0]):
        results.append(examine(stem, [one for _, one in group], listed.get(stem, {})))
        print(results[-1].line, flush=True)
    wrong = [text for r in results for text in r.wrong]
    for text in (
        *(f"survived: checks/{r.stem}.py:{one.line} {one.name}" for r in results for one in r.survived),
        *(f"ERROR: {text}" for text in wrong),
    ):
        print(text)
    killed, count = sum(r.killed for r in results), sum(r.mutants for r in results)
    least = most_survivors(total, count) if draw else 0
    goal = f"drawn of {total} with SEED={seed}; at most {least} may survive" if draw else f"goal {GOAL:.0%} of each check"
    left_out = f"{sum(r.equivalent for r in results)} equivalent ones left out, " if not draw else ""
    print(f"mutants: {killed} of {count} killed, {killed / count if count else 1:.1%}; {left_out}{goal}")
    if draw:
        return int(bool(wrong) or count - killed > least)
    _write(results, every)
    return int(bool(wrong) or any(r.killed < GOAL * r.mutants for r in results))


def _wanted(asked: str, every: tuple[str, ...]) -> tuple[str, ...]:
    """The checks that CHECK names: by file (nccl_version), by id (nccl.version), several with commas; nothing is all."""
    names = [name.strip().replace(".", "_") for name in asked.split(",") if name.strip()]
    if strange := [name for name in names if name not in every]:
        raise SystemExit(f"no such check: {', '.join(strange)}; there are {', '.join(every)}")
    return tuple(names) or every


def all_of(stem: str) -> list[Mutant]:
    """Every mutant of one check."""
    return list(mutants((CHECKS / f"{stem}.py").read_text(encoding="utf-8")))


def equivalent() -> dict[str, dict[str, str]]:
    """Check -> mutant -> why nobody can see it."""
    import yaml

    return yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {} if EQUIVALENT.exists() else {}


def most_survivors(total: int, drawn: int) -> int:
    """How many of `drawn` may survive before a suite that kills `GOAL` of `total` mutants is ruled out, but for `RARELY`.

    Drawn without putting back: hypergeometric.  50 of 1,500 with 150 survivors among them: 5 on average, more than 17 once in a
    million draws.
    """
    alive, chance = total - ceil(GOAL * total), 0.0
    for count in range(drawn, -1, -1):
        chance += comb(alive, count) * comb(total - alive, drawn - count) / comb(total, drawn)
        if chance >= RARELY:
            return count
    return drawn


def _write(results: list[Result], every: tuple[str, ...]) -> None:
    """build/mutants.json; where only some checks were run, what it says of the others stays."""
    have: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        have = json.loads(FIGURES.read_text(encoding="utf-8"))
    have = {stem: figures for stem, figures in have.items() if stem in every} | {r.stem: r.figures for r in results}
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(have, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@dataclass
class Result:
    """What became of the mutants of one check."""

    stem: str
    mutants: int = 0  # without the equivalent ones
    killed: int = 0
    looping: int = 0  # of those killed: by their patience
    equivalent: int = 0
    cases: int = 0
    survived: list[Mutant] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)  # tests that need fixtures of pytest
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        looping = f" ({self.looping} ran on and on)" if self.looping else ""
        over = f", not run: {', '.join(self.passed_over)} (fixtures of pytest)" if self.passed_over else ""
        return (
            f"{self.stem:24} {self.killed}/{self.mutants} killed{looping}, {self.equivalent} equivalent, "
            f"{self.cases} cases, {self.seconds:.0f} s{over}"
        )

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "mutants": self.mutants,
            "killed": self.killed,
            "survived": [one.name for one in self.survived],
            "equivalent": self.equivalent,
            "cases": self.cases,
            "wrong": self.wrong,
        }


def examine(stem: str, todo: list[Mutant], listed: dict[str, str], cases: Cases | None = None) -> Result:
    """Try each of `todo` on the check; `listed` are the equivalent ones, `cases` all that speak about the check."""
    begin = time.monotonic()
    over: list[str] = []
    bench = Bench(stem, list(_cases(stem, over)) if cases is None else cases)
    result = Result(stem, cases=len(bench.cases), passed_over=over)
    result.wrong = [f"{stem}: fails on the check as it is, so it proves nothing: {one}" for one in bench.left_out]
    for one in todo:
        how = bench.kills(one)
        if one.name in listed:
            result.equivalent += 1
            result.wrong += [f"{stem}: listed as equivalent, and killed: {one.name}"] if how else []
            continue
        result.mutants += 1
        result.killed += bool(how)
        result.looping += how == "time"
        if not how:
            result.survived.append(one)
    result.wrong += [f"{stem}: fails after the mutants are gone: {one}" for one in bench.failing()]
    result.seconds = time.monotonic() - begin
    return result


class Bench:
    """One check's module, and every case that speaks about it and passes."""

    def __init__(self, stem: str, cases: Cases) -> None:
        self.cases = cases
        # A test may import the file under its other name: then it is another module.
        also = sys.modules.get(f"checks.{stem}")
        self.modules = [_module(stem), *([also] if also is not None else [])]
        # As it is, planted as a mutant is: what fails here would fail on every mutant.
        with self._planted(ast.parse((CHECKS / f"{stem}.py").read_text(encoding="utf-8"))):
            self.left_out = self.failing()
        self.cases = [(name, case) for name, case in self.cases if name not in self.left_out]

    def failing(self) -> list[str]:
        return [name for name, case in self.cases if _failure(case)]

    def kills(self, mutant: Mutant) -> str:
        """How a case failed on it; "" where it survives."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._planted(mutant.tree))
            except Exception:  # noqa: BLE001  (the mutated file does not even load)
                return "load"
            for index, (_, case) in enumerate(self.cases):
                if how := _failure(case):
                    self.cases.insert(0, self.cases.pop(index))  # what killed one soon kills its neighbour
                    return how
        return ""

    @contextmanager
    def _planted(self, tree: ast.Module) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in self.modules:
                stack.enter_context(planted(module, tree))
            yield


def _failure(case: Case) -> str:
    """ "" or how it failed."""
    try:
        with patience():
            case()
    except TimeoutError:
        return "time"
    except (Exception, pytest.fail.Exception, pytest.skip.Exception):  # noqa: BLE001  (pytest's own are no Exception)
        return "failed"
    return ""


@contextmanager
def patience() -> Iterator[None]:
    def over(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


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
    try:
        _exchange(module.__dict__, shadow.__dict__, module.__name__, undo)
        yield
    finally:
        for one in undo:
            one()


def _exchange(old: Any, new: Any, owner: str, undo: list[Callable[[], None]]) -> None:
    for name, value in list(old.items()):
        other = new.get(name)
        if isinstance(value, types.FunctionType) and isinstance(other, types.FunctionType) and value.__module__ == owner:
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                undo.append(partial(setattr, value, part, getattr(value, part)))
                setattr(value, part, getattr(other, part))
        elif isinstance(value, property) and isinstance(other, property):
            _exchange({"fget": value.fget}, {"fget": other.fget}, owner, undo)
        elif isinstance(value, type) and isinstance(other, type) and value.__module__ == owner:
            _exchange(dict(vars(value)), vars(other), owner, undo)
        elif "__builtins__" in old and isinstance(value, _DATA) and not name.startswith("__") and name in new:
            undo.append(partial(old.__setitem__, name, value))
            old[name] = other


def _module(stem: str) -> types.ModuleType:
    return importlib.import_module(f"netdoctor.checks.{stem}")


def _cases(stem: str, passed_over: list[str]) -> Iterator[tuple[str, Case]]:
    """The rows of the check's own tables, every machine, and the faults of this check, each with its name."""
    spec: CheckSpec = next(v.__netdoctor_check__ for v in vars(_module(stem)).values() if hasattr(v, "__netdoctor_check__"))
    for path in sorted(TESTS.glob(f"test_{stem}*.py")):
        yield from _of_module(path.stem, lambda function, arguments: True, passed_over)
    golden = faults.golden()
    for fault in faults.every():
        if fault.expect["check"] == spec.id:
            yield fault.name, partial(_same, spec, fixtures.facts_of(fault.after()), golden[fault.name])
    for slug in fixtures.slugs():
        if (told := _golden(slug, spec.id)) is not None:
            yield slug, partial(_reported, spec, fixtures.facts_of(fixtures.snapshot(slug)), told)
    tables = tuple(f"test_{path.stem}" for path in CHECKS.glob("[a-z]*.py"))
    for path in sorted(TESTS.glob("test_*.py")):  # tests of many checks; slower than the others, so they come last
        if not path.stem.startswith(tables):
            yield from _of_module(path.stem, partial(_speaks_of, spec), [])


def _speaks_of(spec: CheckSpec, function: Any, arguments: dict[str, Any]) -> bool:
    """Whether this row of a test of many checks is about this one: a parameter is its id, or the test names its function."""
    return spec.id in map(str, arguments.values()) or spec.judge.__name__ in function.__code__.co_names


def _golden(slug: str, id: str) -> list[dict[str, Any]] | None:
    """What the reviewed report of a machine says of this check; None: a machine alone is not judged by it, or it is off."""
    off = fixtures.snapshot(slug).policy.get("disabled")
    if isinstance(off, list) and id in off:
        return None
    report = json.loads((fixtures.HOSTS / slug / "report.json").read_text(encoding="utf-8"))
    findings = next((one["findings"] for one in report["checks"] if one["id"] == id), None)
    return None if findings is None else [{name: finding[name] for name in faults.TOLD} for finding in findings]


def _same(spec: CheckSpec, have: dict[str, Any], told: object) -> None:
    assert faults.told(engine.judge(spec, have)) == told


def _reported(spec: CheckSpec, have: dict[str, Any], told: object) -> None:
    """As `_same`, but for what no report shows: the variables that a fix sets."""
    found = faults.told(engine.judge(spec, have))
    for one in found:
        if one["fix"]:
            one["fix"] = {name: value for name, value in one["fix"].items() if name != "tries"}
    assert found == told


def _of_module(stem: str, wanted: Callable[[Any, dict[str, Any]], bool], passed_over: list[str]) -> Iterator[tuple[str, Case]]:
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
        for number, arguments in enumerate(_rows(function)):
            if not set(inspect.signature(function).parameters) <= set(arguments):
                passed_over.append(f"{stem}.{key}")
                break
            if wanted(function, arguments):
                yield f"{stem}.{key} row {number}", partial(function, **arguments)


def _rows(function: Any) -> Iterator[dict[str, Any]]:
    tables = []
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            names = mark.args[0]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
            rows = [row.values if isinstance(row, PARAM) else row if len(names) > 1 else (row,) for row in mark.args[1]]
            tables.append([dict(zip(names, row, strict=True)) for row in rows])
    for combination in itertools.product(*tables):
        yield {name: value for row in combination for name, value in row.items()}
