"""No false alarm: every check on every healthy machine, zero fails; and no check needs a fact that a machine lacks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from netdoctor.facts.intent import Intent
from netdoctor.model import Finding, Status
from tests.support import facts as f
from tests.support.facts.healthy import HEALTHY, Machine
from tests.support.facts.judging import arguments

Judge = Callable[..., Iterable[Finding]]


def every_check() -> dict[str, Judge]:
    """All built-in checks by id."""
    folder = Path(__file__).parents[3] / "checks"
    modules = (importlib.import_module(f"netdoctor.checks.{p.stem}") for p in sorted(folder.glob("[a-z]*.py")))
    specs = (getattr(one, "__netdoctor_check__", None) for module in modules for one in vars(module).values())
    return {spec.id: spec.judge for spec in specs if spec is not None}


CHECKS = every_check()


def machines(**stated: int) -> Iterator[tuple[str, str, Machine]]:
    """(check, name, healthy machine) of a job of which that is stated; of two that a check cannot tell apart the first."""
    every = {name: {**made(), Intent: f.job(**stated)} for name, made in HEALTHY.items()}
    for check, judge in CHECKS.items():
        had: list[dict[str, object]] = []
        for name, machine in every.items():
            if (told := arguments(judge, machine)) not in had:
                had.append(told)
                yield check, name, machine


def test_there_are_checks() -> None:
    assert {"rdma.gpudirect", "rdma.dev_infiniband", "cpu.numa_affinity", "nccl.version", "hardware.accelerator"} <= set(CHECKS)


@pytest.mark.parametrize("stated", [{}, {"nodes": 1}, {"nodes": 2}], ids=["nothing stated", "one node", "two nodes"])
def test_a_healthy_machine_has_no_fail(stated: dict[str, int]) -> None:
    for check, name, machine in machines(**stated):
        found = f.judge(CHECKS[check], machine)
        assert found, f"{check} says nothing about {name}"
        assert not [x for x in found if x.status in (Status.FAIL, Status.ERROR)], (check, name)
