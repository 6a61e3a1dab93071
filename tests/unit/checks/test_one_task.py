"""A launcher's one task on a node is all, or starts a rank for each GPU (srun --ntasks-per-node=1 torchrun …)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.checks.cpu_numa_affinity import numa_affinity
from netdoctor.checks.nccl_shared_memory import shared_memory
from netdoctor.checks.net_port_range import port_range
from netdoctor.checks.process_limits import limits
from netdoctor.facts.cgroups import Cap, Cgroups
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.net import LocalPorts
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
ONE, EIGHT = Launcher("slurm", 0, 2, 0, 1, 2, 0), Launcher("slurm", 0, 16, 0, 8, 2, 0)
NO_RUN = Baseline(Unavailable("refused", "--no-allreduce"), False)


def groups(most: float) -> Cgroups:
    caps = (Cap("/job", most, 0),)
    return Cgroups(pids=caps, cpu=caps, memory=(Cap("/job", most * (1 << 30), 0),), hidden=False, rdma=caps)


def status(check: object, subject: str | None, launcher: Launcher, changes: dict[type, object]) -> Finding:
    base = f.machine({Intent: f.job(nodes=2), Environ: f.environ(launcher=launcher), Baseline: NO_RUN, PathRun: f.path_run()})
    return next(one for one in f.judge(check, {**base, **changes}) if subject in (None, one.subject))


@pytest.mark.parametrize(("subject", "most"), [("pids", 11), ("cpu", 4), ("rdma", 4)])
def test_limits_for_one_rank_only_are_not_enough(subject: str, most: float) -> None:
    changes: dict[type, object] = {Cgroups: groups(most)}
    assert status(limits, subject, EIGHT, changes).status is FAIL
    found = status(limits, subject, ONE, changes)
    assert found.status is UNKNOWN and "8 ranks" in found.message


def test_what_is_too_little_for_one_rank_fails() -> None:
    assert status(limits, "pids", ONE, {Cgroups: groups(1)}).status is FAIL
    assert status(limits, "memory", ONE, {Cgroups: groups(1 / 64)}).status is FAIL


def test_limits_that_do_for_all_pass() -> None:
    found = status(limits, "cpu", ONE, {Cgroups: groups(16)})
    assert found.status is PASS and "8 ranks can do with 16" in found.message


@pytest.mark.parametrize("launcher", [replace(ONE, name="torchrun"), replace(ONE, by_options=True), replace(ONE, name="env")])
def test_who_starts_ranks_and_says_one_has_one(launcher: Launcher) -> None:
    assert status(limits, "cpu", launcher, {Cgroups: groups(2)}).status is PASS


def test_a_task_with_one_gpu_has_one_rank() -> None:
    assert status(limits, "cpu", ONE, {Cgroups: groups(2), Gpus: f.gpus(1)}).status is PASS


def test_gpus_that_could_not_be_counted_pass_nothing() -> None:
    lost = f.gpus(all=Unavailable("timed out"), visible=Unavailable("timed out"))
    assert f.only(f.judge(limits, f.machine({Environ: f.environ(launcher=ONE), Gpus: lost}))).status is UNKNOWN


def test_shared_memory_for_one_rank_only() -> None:
    small: dict[type, object] = {Kernel: f.kernel(shm_size=64 << 20, shm_free=64 << 20)}
    assert status(shared_memory, None, EIGHT, small).status is FAIL
    found = status(shared_memory, None, ONE, small)
    assert found.status is UNKNOWN and found.perhaps is not None and found.perhaps.status is FAIL
    tiny: dict[type, object] = {Kernel: f.kernel(shm_size=1 << 20, shm_free=1 << 20)}
    assert status(shared_memory, None, ONE, tiny).status is FAIL


def test_ports_for_one_rank_only() -> None:
    few: dict[type, object] = {LocalPorts: f.ports(low=50000, high=50020)}
    assert status(port_range, "listeners", EIGHT, few).status is FAIL
    assert status(port_range, "listeners", ONE, few).status is UNKNOWN
    none: dict[type, object] = {LocalPorts: f.ports(low=50000, high=50001)}
    assert status(port_range, "listeners", ONE, none).status is FAIL


def test_the_mask_of_one_task_is_every_ranks() -> None:
    with_run = {Baseline: f.baseline(f.run())}
    of = {
        one: [x.subject for x in f.judge(numa_affinity, f.machine({Environ: f.environ(launcher=one), **with_run}))]
        for one in (ONE, EIGHT)
    }
    assert sum(name.startswith("GPU") for name in of[ONE]) == 8
    assert sum(name.startswith("GPU") for name in of[EIGHT]) == 1
