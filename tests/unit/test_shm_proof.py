"""What a child is asked to take of /dev/shm, and where none is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.facts.cgroups import Cap, Cgroups
from netdoctor.facts.intent import Intent
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.shm_proof import REFUSED, ShmProof, probe
from tests.support import facts as f

ASKED = "ask:shm?beside=0&each=33034240&files=8"
FREE = "MemTotal: 9000000 kB\nMemAvailable: {} kB\n"
NO_LIMIT = Cgroups((), (), (), hidden=False)
FILE = "/sys/fs/cgroup/job/memory.max"


def asked(
    *, answer: Answer, free: int = 8 << 20, cgroups: Cgroups = NO_LIMIT, vantage: Vantage | None = None
) -> ShmProof | Unavailable:
    answers: dict[str, Answer] = {ASKED: answer, "file:/proc/meminfo": FREE.format(free)}
    job = Intent(ranks_here=8, ranks_most=8)
    return probe(ReplayHost(answers), f.libraries(), f.gpus(), job, cgroups, vantage or f.vantage())


@pytest.mark.parametrize("error", ["", "ENOSPC", "EACCES"])
def test_a_pool_for_each_rank_is_asked_for(error: str) -> None:
    assert asked(answer={"error": error}) == ShmProof(8 * 33_034_240, error)


def test_an_answer_of_another_shape_is_none() -> None:
    found = asked(answer={"error": 28})
    assert isinstance(found, ShmProof) and isinstance(found.error, Unavailable) and found.error.kind is Kind.MALFORMED
    assert asked(answer=Unavailable(Kind.TIMED_OUT, "5 s")) == Unavailable(Kind.TIMED_OUT, "5 s")


@pytest.mark.parametrize("told", [{}, [], "", {"error": None}, {"error": []}, {"error": True}, {"errno": ""}, {"error": " "}])
def test_a_garbled_answer_neither_acquits_nor_accuses(told: Answer) -> None:
    found = asked(answer=told)
    error = found if isinstance(found, Unavailable) else found.error
    assert error != "" and error not in REFUSED


@pytest.mark.parametrize(
    ("free", "memory", "kind"),
    [
        (500_000, None, Kind.REFUSED),  # kB: less than twice 252 MiB
        (530_000, None, None),
        (8 << 20, Cap(FILE, 1 << 30, 200 << 20), None),
        (8 << 20, Cap(FILE, 1 << 30, 600 << 20), Kind.REFUSED),
        (8 << 20, Cap(FILE, 1 << 30, Unavailable(Kind.DENIED)), None),  # its ranks take as much in any case
        (8 << 20, Cap(FILE, 1 << 28, Unavailable(Kind.DENIED)), Kind.REFUSED),
        (8 << 20, Unavailable(Kind.DENIED), None),
    ],
)
def test_nobody_is_killed_for_a_question(free: int, memory: Cap | Unavailable | None, kind: Kind | None) -> None:
    limits = NO_LIMIT if memory is None else replace(NO_LIMIT, memory=(memory,))
    found = asked(answer={"error": ""}, free=free, cgroups=limits)
    assert (found.kind if isinstance(found, Unavailable) else None) is kind


def test_nobody_asks_from_outside_or_without_a_gpu() -> None:
    outside = asked(answer={"error": ""}, vantage=f.vantage(job_environment=False))
    assert isinstance(outside, Unavailable) and outside.kind is Kind.REFUSED
    none = probe(ReplayHost({}), f.libraries(), f.gpus(0), Intent(ranks_here=8, ranks_most=8), NO_LIMIT, f.vantage())
    assert isinstance(none, Unavailable) and none.kind is Kind.UNSUPPORTED


def test_the_jobs_own_share_is_not_tried_blindly() -> None:
    hidden = replace(NO_LIMIT, memory=(Unavailable(Kind.DENIED),))
    job = Intent(ranks_here=8, ranks_most=8, shm_bytes=1 << 20)
    free = {"file:/proc/meminfo": FREE.format(8 << 20)}
    found = probe(ReplayHost(free), f.libraries(), f.gpus(), job, hidden, f.vantage())
    assert isinstance(found, Unavailable) and found.kind is Kind.NOT_READ
    asked = "ask:shm?beside=1048576&each=33034240&files=8"
    given = probe(ReplayHost({asked: {"error": ""}, **free}), f.libraries(), f.gpus(), job, NO_LIMIT, f.vantage())
    assert given == ShmProof(8 * 33_034_240 + (1 << 20), "")


def test_without_a_gpu_the_job_s_own_is_asked_for() -> None:
    answers: dict[str, Answer] = {
        "ask:shm?beside=4096&each=0&files=0": {"error": "ENOSPC"},
        "file:/proc/meminfo": FREE.format(8 << 20),
    }
    told = (f.libraries(), f.gpus(0))
    assert probe(ReplayHost(answers), *told, Intent(shm_bytes=4096), NO_LIMIT, f.vantage()) == ShmProof(4096, "ENOSPC")
    found = probe(ReplayHost({}), *told, Intent(), NO_LIMIT, f.vantage())
    assert found == Unavailable(Kind.UNSUPPORTED, "no GPU is seen")
