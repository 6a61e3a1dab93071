"""Losing evidence never makes a pass or a skip, and never hides a subject: every fact and every field taken away in turn."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from netdoctor.engine import BY_PARAMETER
from netdoctor.facts.cpu import Cpu
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.rdma import Provider, Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f
from tests.support.facts.healthy import HEALTHY, Machine, dgx_h100, hgx_roce
from tests.unit.checks.test_healthy import CHECKS

LOST = Unavailable("not recorded")


def faulty() -> dict[str, Machine]:
    """Machines with one fault each, so that there are fails to lose."""
    dgx = dgx_h100()
    socket = tuple(range(56, 112))
    refused = tuple(f.hca(i, uverbs=f.uverbs(i, open_errno="EPERM")) for i in range(8))
    return {
        "no GPUDirect": dgx
        | {
            PathRun: f.path_run(*(f.hca_run(i, (i + 1) % 8, f"mlx5_{i}:1", False) for i in range(8))),
            Kernel: f.kernel(modules={"nvidia_peermem": Unavailable("absent")}),
            Rdma: f.rdma(devices=tuple(f.hca(i, provider=Provider(True, "", "EOPNOTSUPP")) for i in range(8))),
        },
        "nodes refused": dgx | {Rdma: f.rdma(devices=refused)},
        "port down": dgx | {Rdma: f.rdma(devices=tuple(f.hca(i, ports=(f.port(state="DOWN"),)) for i in range(8)))},
        "GID elsewhere": hgx_roce() | {Rdma: f.rdma(devices=tuple(f.hca(i, ports=(f.roce_port("gone"),)) for i in range(8)))},
        "memlock": dgx | {Kernel: f.kernel(limits={"memlock": 1 << 16}), PathRun: f.path_run()},
        "wrong socket": dgx
        | {Baseline: f.baseline(f.run(ranks=tuple(f.rank(i, affinity=socket, thread_affinity=socket) for i in range(8))))},
        "memory of one node": dgx | {Cpu: f.cpu(memory_allowed=frozenset({0}))},
        "a GPU lost": dgx | {Gpus: f.gpus(7)},
        "level set": dgx | {Environ: f.environ({"NCCL_NET_GDR_LEVEL": "LOC"}), PathRun: f.path_run()},
        "old library": dgx | {Libraries: f.libraries(nccl=(f.library(version=(2, 21, 5)),)), Baseline: LOST},
    }


def losses(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(name, `value` with one field lost), at every depth; of a tuple of like things the first stands for all."""
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for name, less in losses(value[0], f"{where}[0]"):
            yield name, (less, *value[1:])
        return
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        have = getattr(value, field.name)
        if Unavailable in typing.get_args(hints[field.name]) and not isinstance(have, Unavailable):
            yield f"{where}.{field.name}", dataclasses.replace(value, **{field.name: LOST})
        for name, less in losses(have, f"{where}.{field.name}"):
            yield name, dataclasses.replace(value, **{field.name: less})


def without(machine: Machine, check: str) -> Iterator[tuple[str, Machine]]:
    """The machine with one thing lost that this check looks at."""
    wanted = {one for hint in typing.get_type_hints(CHECKS[check]).values() for one in (hint, *typing.get_args(hint))}
    for kind, value in machine.items():
        if kind not in wanted:
            continue
        yield kind.__name__, machine | {kind: LOST}
        for name, less in losses(value, kind.__name__):
            yield name, machine | {kind: less}


def worse(before: dict[str, Finding], after: dict[str, Finding]) -> list[str]:
    """What must not happen: a pass or skip that was none, a fail that is hidden, nothing said at all.

    Subjects may get another name with less evidence (a GPU by its PCI address), so hidden fails are counted.
    """
    wrong = [f"{subject}: error" for subject, now in after.items() if now.status is Status.ERROR]
    for subject, now in after.items():
        was = before.get(subject)
        if now.status in (Status.PASS, Status.SKIP) and was is not None and was.status is not now.status:
            wrong.append(f"{subject}: {was.status.value} became {now.status.value}: {now.message}")
    fails = sum(x.status is Status.FAIL for x in before.values())
    kept = [x for x in after.values() if x.status in (Status.FAIL, Status.UNKNOWN)]
    if fails and not kept:
        wrong.append(f"{fails} fails are hidden")
    if not after:
        wrong.append("nothing was said")
    if (
        after
        and all(x.status is Status.SKIP for x in after.values())
        and any(x.status is not Status.SKIP for x in before.values())
    ):
        wrong.append("all that is left are skips")
    return wrong


def judged(check: str, machine: Machine) -> dict[str, Finding] | None:
    """None where a fact that the check must have is lost: the engine says unknown itself."""
    needed = [hint for hint in typing.get_type_hints(CHECKS[check]).values() if hint in machine and check in BY_PARAMETER]
    if any(isinstance(machine[kind], Unavailable) for kind in needed):
        return None
    return {x.subject: x for x in f.judge(CHECKS[check], machine)}


FAULTY = faulty()
MACHINES = {name: made() for name, made in HEALTHY.items()} | FAULTY


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("check", CHECKS)
def test_less_evidence_is_never_better(check: str, machine: str) -> None:
    before = judged(check, MACHINES[machine])
    if before is None or (machine in FAULTY and not any(x.status is Status.FAIL for x in before.values())):
        return  # what passes there passes on the healthy machines too
    bad = []
    for name, less in without(MACHINES[machine], check):
        after = judged(check, less)
        bad += [f"without {name}: {one}" for one in worse(before, after)] if after is not None else []
    assert not bad, "\n".join(bad[:20])


def test_the_faults_are_found() -> None:
    for name, machine in FAULTY.items():
        found = [x for check in CHECKS for x in (judged(check, machine) or {}).values()]
        assert any(x.status is Status.FAIL for x in found), name
