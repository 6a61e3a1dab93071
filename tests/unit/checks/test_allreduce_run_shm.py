"""allreduce.run: /dev/shm holds what the ranks take at start."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.facts import kernel
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.runs import Baseline
from netdoctor.host.base import ReplayHost
from netdoctor.model import Status, Unavailable
from tests.support import facts as f

DOCKER, LOST = 64 << 20, Unavailable("denied")


# As measured: 64 MiB are enough for 2 ranks of 2.27.5, for 1 of 2.30.7, and for none of 2.32.3.
@pytest.mark.parametrize(
    ("version", "ranks", "size", "small"),
    [
        ((2, 18, 3), 8, DOCKER, False),
        ((2, 27, 5), 2, DOCKER, False),
        ((2, 27, 5), 4, DOCKER, True),
        ((2, 30, 7), 1, DOCKER, False),
        ((2, 30, 7), 2, DOCKER, True),
        ((2, 32, 3), 1, DOCKER, True),
        ((2, 32, 3), 8, 8 << 30, False),
        ((2, 32, 3), 8, None, False),
        ((2, 32, 3), 8, LOST, False),
    ],
)
def test_what_fits(version: tuple[int, int, int], ranks: int, size: Any, small: bool) -> None:
    facts: dict[type, object] = {
        Kernel: f.kernel(shm_size=size),
        Gpus: f.gpus(ranks),
        Baseline: LOST,
        Libraries: f.libraries(nccl=(f.library(version=version),)),
    }
    found = f.statuses(f.judge(allreduce_run, f.machine(facts)))
    assert (found.get("/dev/shm") is Status.FAIL) is small


def test_a_run_of_as_many_ranks_shows_that_it_is_enough() -> None:
    assert "/dev/shm" not in f.statuses(f.judge(allreduce_run, f.machine({Kernel: f.kernel(shm_size=1 << 20)})))


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("36 25 0:31 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k,inode64", DOCKER),
        ("36 25 0:31 / /dev/shm rw,nosuid - tmpfs tmpfs rw,inode64", None),
        ("36 25 0:31 / /dev rw - tmpfs tmpfs rw,size=64k", None),
    ],
)
def test_the_size_of_its_mount(line: str, size: int | None) -> None:
    assert kernel.probe(ReplayHost({"file:/proc/self/mountinfo": f"{line}\n"})).shm_size == size
