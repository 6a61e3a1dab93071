"""What a profile requires hangs on what there is: lost evidence never lowers it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.facts import presence
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import AllReduce, Baseline, Obstacle, PathRun, Run, State
from netdoctor.model import Unavailable
from tests.lab import fixtures
from tests.support import facts as f

ONE = AllReduce("gloo", 2)
LOST = Unavailable("denied", "x")
UNREAD = f.pci(0, 0, unclassified=("0000:1b:00.0",))


@pytest.mark.parametrize(
    ("pci", "gpus", "gpu", "rdma"),
    [
        (f.pci(8, 8), f.gpus(8), True, True),
        (f.pci(0, 0), f.gpus(0), False, False),
        (f.pci(0, 0), f.gpus(8, all=LOST), True, False),  # libcuda shows them: no PCI (Tegra), or one that hides them
        (f.pci(0, 0), f.gpus(0, all=LOST, visible=LOST), None, False),  # NVML alone would show a GPU that is not on PCI (Tegra)
        (UNREAD, f.gpus(0, all=LOST, visible=LOST), None, None),
        (UNREAD, f.gpus(8), True, None),
        (f.pci(0, 8, unclassified=("0000:1b:00.0",)), f.gpus(0), None, True),
        (LOST, f.gpus(0), None, None),
    ],
)
def test_what_is_there(pci: Pci | Unavailable, gpus: Gpus, gpu: bool | None, rdma: bool | None) -> None:
    facts = {kind.__name__: fact for kind, fact in f.machine({Pci: pci, Gpus: gpus}).items()}
    seen = presence.seen(facts)
    assert (seen.gpu, seen.rdma) == (gpu, rdma)


@pytest.mark.parametrize("profile", ["default", "gate"])
def test_a_gpu_node_of_which_little_is_read_is_not_healthy(profile: str) -> None:
    """The classes of its GPUs and HCAs, NVML and the all-reduce are lost."""
    taken, lost = fixtures.snapshot("a100-pcie"), Unavailable("timed out", "x")
    answers = {
        question: LOST if question.startswith("ask:nvml") or (question.endswith("/uevent") and _counts(question)) else answer
        for question, answer in taken.answers.items()
    }
    runs = {"Baseline": Baseline.unread(lost), "PathRun": PathRun.unread(lost)}
    verdict = fixtures.report(replace(taken, answers=answers, runs=runs, policy={**taken.policy, "profile": profile})).verdict
    assert (verdict.status, verdict.exit_code) == ("inconclusive", 4)


def _counts(question: str) -> bool:
    devices = fixtures.facts_of(fixtures.snapshot("a100-pcie"))["Pci"].devices
    return any(d.address in question and (d.is_gpu or d.rdma) for d in devices)


@pytest.mark.parametrize(
    ("run", "lost"),
    [
        (Unavailable("not read"), True),  # a snapshot without its runs
        (Unavailable("not recorded"), True),
        (Unavailable("no budget"), True),
        (Unavailable("refused"), False),  # --no-allreduce, prolog
        (Unavailable("absent"), False),  # no Python
        (Run(ONE, State.NOT_STARTED, obstacle=Obstacle.REFUSED), True),  # root does not run what others can change
        (Run(ONE, State.NOT_STARTED, obstacle=Obstacle.NO_TORCH), False),
        (Run(ONE, State.FINISHED), False),
    ],
)
def test_a_run_that_was_to_be_there(run: object, lost: bool) -> None:
    assert presence.seen({"Baseline": Baseline(run)}).run_lost is lost  # type: ignore[arg-type]
    assert presence.seen({}).run_lost
