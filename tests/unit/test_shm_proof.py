"""What a child is asked to take of /dev/shm, and where none is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.facts.cgroups import Cap, Cgroups
from netdoctor.facts.intent import Intent
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.shm_proof import ShmProof, probe
from tests.support import facts as f

ASKED = "ask:shm?beside=0&each=33034240&files=8"
FREE = "MemTotal: 9000000 kB\nMemAvailable: {} kB\n"
NO_LIMIT = Cgroups((), (), (), hidden=False)
LIMIT = replace(NO_LIMIT, memory=(Cap("/sys/fs/cgroup/job/memory.max", 1 << 30),))


def asked(
    *, answer: Answer, free: int = 8 << 20, cgroups: Cgroups = NO_LIMIT, stat: str = "", vantage: Vantage | None = None
) -> ShmProof | Unavailable:
    answers: dict[str, Answer] = {ASKED: answer, "file:/proc/meminfo": FREE.format(free)}
    if stat:
        answers["file:/sys/fs/cgroup/job/memory.stat"] = stat
    return probe(
        ReplayHost(answers), f.libraries(), f.gpus(), Intent(ranks_here=8, ranks_most=8), cgroups, vantage or f.vantage()
    )


@pytest.mark.parametrize("error", ["", "ENOSPC", "EACCES"])
def test_a_pool_for_each_rank_is_asked_for(error: str) -> None:
    assert asked(answer={"error": error}) == ShmProof(8 * 33_034_240, error)


def test_an_answer_of_another_shape_is_none() -> None:
    found = asked(answer={"error": 28})
    assert isinstance(found, ShmProof) and isinstance(found.error, Unavailable) and found.error.kind is Kind.MALFORMED
    assert asked(answer=Unavailable(Kind.TIMED_OUT, "5 s")) == Unavailable(Kind.TIMED_OUT, "5 s")


HELD = f"file {1 << 40}\nanon {{}}\nshmem {100 << 20}\n"


@pytest.mark.parametrize(
    ("free", "cgroups", "stat", "kind"),
    [
        (500_000, NO_LIMIT, "", Kind.REFUSED),  # kB: less than twice 252 MiB
        (530_000, NO_LIMIT, "", None),
        (8 << 20, LIMIT, HELD.format(100 << 20), None),  # what files hold is given back
        (8 << 20, LIMIT, HELD.format(500 << 20), Kind.REFUSED),
        (8 << 20, LIMIT, f"total_rss {600 << 20}\n", Kind.REFUSED),
        (8 << 20, LIMIT, "", None),  # its ranks take as much in any case
        (8 << 20, replace(LIMIT, memory=(Unavailable(Kind.DENIED),)), "", None),
    ],
)
def test_nobody_is_killed_for_a_question(free: int, cgroups: Cgroups, stat: str, kind: Kind | None) -> None:
    found = asked(answer={"error": ""}, free=free, cgroups=cgroups, stat=stat)
    assert (found.kind if isinstance(found, Unavailable) else None) is kind


def test_nobody_asks_from_outside_or_without_a_gpu() -> None:
    outside = asked(answer={"error": ""}, vantage=f.vantage(job_environment=False))
    assert isinstance(outside, Unavailable) and outside.kind is Kind.REFUSED
    none = probe(ReplayHost({}), f.libraries(), f.gpus(0), Intent(ranks_here=8, ranks_most=8), NO_LIMIT, f.vantage())
    assert isinstance(none, Unavailable) and none.kind is Kind.UNSUPPORTED


def test_the_jobs_own_share_is_not_tried_where_limits_are_not_seen() -> None:
    hidden = replace(NO_LIMIT, memory=(Unavailable(Kind.DENIED),))
    job = Intent(ranks_here=8, ranks_most=8, shm_bytes=1 << 20)
    free = {"file:/proc/meminfo": FREE.format(8 << 20)}
    found = probe(ReplayHost(free), f.libraries(), f.gpus(), job, hidden, f.vantage())
    assert isinstance(found, Unavailable) and found.kind is Kind.NOT_READ
    asked = "ask:shm?beside=1048576&each=33034240&files=8"
    given = probe(ReplayHost({asked: {"error": ""}, **free}), f.libraries(), f.gpus(), job, NO_LIMIT, f.vantage())
    assert given == ShmProof(8 * 33_034_240 + (1 << 20), "")
