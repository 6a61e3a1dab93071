"""Through what the ranks call NCCL, and which libnccl it is where they do so without torch."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.allreduce import choice
from netdoctor.allreduce.runner import Session
from netdoctor.facts.loader import Rule, Taken
from netdoctor.facts.nccl_choice import wanted
from netdoctor.facts.runs import AllReduce, Caller, NcclFacts, Obstacle, Reason
from netdoctor.model import Unavailable
from tests.support import facts as f
from tests.support.machines import rank_program

NONE = Unavailable("absent")
SYSTEM = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5"
WHEEL = "/opt/jax/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
IN_WHEEL = f.library(WHEEL, found_by=("site-packages",))
IN_CACHE = f.library(SYSTEM, (2, 21, 5), found_by=("loader cache",))


def no_torch(by_loader: object = None, *found: Any, **changes: Any) -> Any:
    return f.libraries(torch=NONE, nccl=found, by_loader=by_loader, **changes)


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (f.libraries(), f.LIBNCCL),
        (no_torch(Taken(SYSTEM, Rule.CACHE), IN_CACHE), SYSTEM),
        (no_torch(Taken(SYSTEM, Rule.CACHE), IN_CACHE, IN_WHEEL), WHEEL),
        (no_torch(Taken("/job/libnccl.so.2", Rule.LIBRARY_PATH), IN_CACHE, IN_WHEEL), "/job/libnccl.so.2"),
        (no_torch(Taken("/job/libnccl.so.2", Rule.PRELOAD), IN_CACHE, IN_WHEEL), "/job/libnccl.so.2"),
        (no_torch(None, IN_WHEEL), WHEEL),
        (no_torch(None, f.library("/conda/lib/libnccl.so.2", found_by=("the Python's prefix",))), "/conda/lib/libnccl.so.2"),
        (no_torch(Taken(SYSTEM, Rule.CACHE), IN_CACHE, python=NONE), SYSTEM),
    ],
)
def test_the_library_that_the_job_loads(libraries: Any, expected: str) -> None:
    assert wanted(libraries) == expected


@pytest.mark.parametrize(
    "libraries", [no_torch(Unavailable("denied"), IN_CACHE), no_torch(None), f.libraries(torch=Unavailable("denied"))]
)
def test_a_library_that_is_not_known_is_not_guessed(libraries: Any) -> None:
    assert isinstance(wanted(libraries), Unavailable)


JAX = no_torch(None, IN_WHEEL)
CPU = f.libraries(torch=f.torch(cuda=None, nccl_linkage="none", nccl_path=None), nccl=(IN_WHEEL,), by_loader=None)
GPUS, HIDDEN, BROKEN, ABSENT = f.gpus(), f.gpus(visible=()), f.gpus(visible=Unavailable("failed")), f.gpus(visible=NONE)


@pytest.mark.parametrize(
    ("via", "libraries", "gpus", "expected"),
    [
        (None, JAX, GPUS, WHEEL),
        (None, JAX, BROKEN, WHEEL),  # the run tells what the driver says
        (None, JAX, HIDDEN, None),
        (None, JAX, ABSENT, None),
        (None, no_torch(None), GPUS, None),
        (Caller.TORCH, JAX, GPUS, None),
        (Caller.NCCL, JAX, ABSENT, WHEEL),
        (Caller.NCCL, f.libraries(), GPUS, f.LIBNCCL),
        (Caller.NCCL, CPU, GPUS, WHEEL),
    ],
)
def test_torch_comes_first_where_nobody_says_otherwise(via: Any, libraries: Any, gpus: Any, expected: str | None) -> None:
    assert choice.library(via, libraries, gpus) == expected


@pytest.mark.parametrize("libraries", [no_torch(None), f.libraries(torch=f.torch(nccl_linkage="static", nccl_path=None))])
def test_nccl_that_was_asked_for_and_is_not_there_is_a_reason(libraries: Any) -> None:
    found = choice.library(Caller.NCCL, libraries, GPUS)
    assert isinstance(found, Reason) and found.obstacle is Obstacle.NO_NCCL
    run = Session("/nonexistent", {}, library=found, lock=False).run(AllReduce("nccl", 2, "cuda"))
    assert (run.state, run.obstacle, run.via) == ("not started", Obstacle.NO_NCCL, Caller.NCCL)
    assert run.reason.startswith("--via nccl: ")


@pytest.mark.parametrize(
    ("libraries", "expected"),
    [
        (JAX, True),
        (no_torch(None, python=NONE), True),
        (f.libraries(), False),
        (f.libraries(torch=Unavailable("denied")), False),
        (no_torch(None, python=Unavailable("not read")), False),
    ],
)
def test_that_there_is_no_torch_is_read_and_not_presumed(libraries: Any, expected: bool) -> None:
    assert choice.no_torch(libraries) is expected


def test_floats_are_counted_by_their_bits() -> None:
    parts = rank_program.parts()
    period = memoryview(bytes(4 * parts.PERIOD))
    assert parts.differing(period, period) == 0
    other = bytearray(8 * parts.PERIOD)
    other[3], other[4 * parts.PERIOD + 8], other[-1] = 1, 1, 1
    assert parts.differing(memoryview(bytes(other)), memoryview(bytes(8 * parts.PERIOD))) == 3
    assert parts.differing(memoryview(b"\1\0\0\0"), memoryview(bytes(4))) == 1


def test_what_the_driver_did_not_answer_is_no_count() -> None:
    assert NcclFacts("2.27.5").device_count is None
