"""cpu.numa_affinity inside a launcher's rank: the masks are those that the launcher gave, one a rank (srun --cpus-per-task)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.cpu_numa_affinity import numa_affinity
from netdoctor.facts.cpu import Cpu
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.ranks import Ranks, SeenRank
from netdoctor.facts.runs import Baseline
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
SRUN = Launcher("slurm", 0, 8, 0, 8, 1, 0)
LOST = Unavailable("denied")


def block(n: int, many: int = 4) -> frozenset[int]:
    """`many` CPUs for local rank n: on its own GPU's socket, as --cpu-bind=closest gives them."""
    first = (0 if n < 4 else 56) + (n % 4) * many
    return frozenset(range(first, first + many))


def seen(*masks: Any, mask: str | None = None, same: bool = True) -> Ranks:
    return Ranks(tuple(SeenRank(100 + n, n, mask, same, cpus) for n, cpus in enumerate(masks)))


def judged(ranks: Ranks, launcher: Launcher = SRUN, **changes: Any) -> dict[str | None, Finding]:
    mine = ranks.seen[0].cpus if ranks.seen else block(0)
    same = sorted(mine or ())
    run = f.run(ranks=tuple(f.rank(n, affinity=tuple(same), thread_affinity=tuple(same)) for n in range(8)))
    facts = {Cpu: f.cpu(allowed=mine), Environ: f.environ(launcher=launcher), Ranks: ranks, Baseline: f.baseline(run)}
    extra = {{"gpus": Gpus, "baseline": Baseline}[name]: value for name, value in changes.items()}
    return {one.subject: one for one in f.judge(numa_affinity, f.machine({**facts, **extra}))}


def test_each_rank_has_cores_of_its_own() -> None:
    found = judged(seen(*(block(n) for n in range(8))))
    assert {found[f"GPU{n}"].status for n in range(8)} == {PASS}
    assert "other ranks" not in found


def test_one_mask_for_all_ranks_is_shared() -> None:
    found = judged(seen(*([block(0)] * 8)))
    assert {found[f"GPU{n}"].status for n in range(8)} == {FAIL}
    assert found["GPU3"].message == "8 ranks share 4 CPUs"


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_rank_on_the_other_socket_is_found(wrong: int) -> None:
    found = judged(seen(*(block(7 if n == wrong else n) for n in range(8))))
    assert [n for n in range(8) if found[f"GPU{n}"].status is FAIL] == [wrong]
    assert f"local rank {wrong} may run only on node 1" in found[f"GPU{wrong}"].message


def test_one_rank_with_a_single_core() -> None:
    assert judged(seen(*(block(n, 1 if n == 5 else 4) for n in range(8))))["GPU5"].status is FAIL


@pytest.mark.parametrize(
    "ranks",
    [
        seen(*(block(n) for n in range(7))),
        seen(*(LOST if n == 4 else block(n) for n in range(8))),
        seen(*(block(n) for n in range(8)), same=False),
        Ranks(LOST),
    ],
    ids=["one not seen", "one mask lost", "their GPUs are their cgroups'", "none could be read"],
)
def test_who_was_not_seen_does_not_pass(ranks: Ranks) -> None:
    found = judged(ranks)
    assert found["GPU0"].status is PASS and found["other ranks"].status is UNKNOWN


def test_ranks_with_a_gpu_each_by_their_own_mask() -> None:
    all_gpus = f.gpus(8).all
    one = replace(f.gpus(1), all=all_gpus)
    ranks = Ranks(tuple(SeenRank(100 + n, n, str(n), True, block(0)) for n in range(8)))
    found = judged(ranks, gpus=one)
    assert sum(x.status is FAIL for x in found.values()) == 8  # all of them on one mask
    mine = Ranks(tuple(SeenRank(100 + n, n, str(n), True, block(n if n != 6 else 1)) for n in range(8)))
    assert [x.status for x in judged(mine, gpus=one).values()].count(FAIL) == 1


def test_other_ranks_look_at_themselves_alone() -> None:
    launcher = replace(SRUN, rank=3, local_rank=3)
    assert {name for name in judged(seen(*(block(n) for n in range(8))), launcher) if name} == {"GPU3", "memory", "interrupts"}


def test_without_a_run_nobody_saw_what_torch_does_to_the_mask() -> None:
    found = judged(seen(*(block(n) for n in range(8))), baseline=LOST)
    assert {found[f"GPU{n}"].status for n in range(8)} == {UNKNOWN}


def test_a_reason_that_ranks_share_is_said_once() -> None:
    lost = judged(Ranks((*(seen(block(0)).seen or ()), *(SeenRank(100 + n, n, "0", True, LOST) for n in range(1, 8)))))
    assert lost["other ranks"].message == "CPU masks of this node's other ranks: ranks 1, 2, 3, 4, 5, 6, 7: denied"
    without = judged(Ranks(tuple(SeenRank(100 + n, n, "0,1", True, block(n)) for n in range(8))))
    assert "ranks 2, 3, 4, 5, 6, 7: no GPU is left for it" in without["other ranks"].message
