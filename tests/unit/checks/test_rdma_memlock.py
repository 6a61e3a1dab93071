"""rdma.dev_infiniband: locked memory, against what NCCL registers in a rank of the job."""

from __future__ import annotations

import pytest

from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import UNLIMITED, Kernel
from netdoctor.facts.runs import PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

LOST = Unavailable("not recorded")
Changes = dict[type, object]


def judged(changes: Changes) -> dict[str, Finding]:
    """Findings by subject; without a path run, so that only what was read speaks."""
    return {one.subject: one for one in f.judge(dev_infiniband, f.machine({PathRun: f.path_run(), **changes}))}


def memlock(soft: int) -> Kernel:
    return f.kernel(limits={"memlock": soft})


LOCK: dict[str, tuple[Changes, Status]] = {
    "unlimited": ({Kernel: memlock(UNLIMITED)}, Status.PASS),
    "8 MiB": ({Kernel: memlock(8 << 20)}, Status.FAIL),
    "8 MiB, and the path run went over RDMA": ({Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run())}, Status.PASS),
    "8 MiB, and a job of more nodes than the path run": (
        {Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run()), Intent: f.job(nodes=64)},
        Status.UNKNOWN,
    ),
    "8 MiB, and nobody counts the nodes": (
        {Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run()), Intent: Intent(others=True, ranks_here=8, ranks_most=8)},
        Status.UNKNOWN,
    ),
    "4 GiB, and a job of many nodes": ({Kernel: memlock(4 << 30), Intent: f.job(nodes=64)}, Status.PASS),
    "8 MiB with IPC_LOCK": (
        {Kernel: memlock(8 << 20), Vantage: f.vantage(capabilities=frozenset({"CAP_IPC_LOCK"}))},
        Status.PASS,
    ),
    "IPC_LOCK inside a user namespace": (
        {
            Kernel: memlock(8 << 20),
            Vantage: f.vantage(capabilities=frozenset({"CAP_IPC_LOCK"}), root_is_root=False),
        },
        Status.FAIL,
    ),
    "IPC_LOCK, uid_map lost": (
        {
            Kernel: memlock(8 << 20),
            Vantage: f.vantage(capabilities=frozenset({"CAP_IPC_LOCK"}), root_is_root=LOST),
        },
        Status.UNKNOWN,
    ),
    "8 MiB, and the path run took sockets": (
        {Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run(log=f.log(net="Socket")))},
        Status.FAIL,
    ),
    "8 MiB, and the path run failed over RDMA": (
        {Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run(state="failed"))},
        Status.FAIL,
    ),
    "8 MiB, and the path run left no log": ({Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run(log=None))}, Status.FAIL),
    "8 MiB, and the runs are lost": ({Kernel: memlock(8 << 20), PathRun: LOST}, Status.FAIL),
    "8 MiB, and whether there are other nodes is lost": ({Kernel: memlock(8 << 20), Intent: LOST}, Status.UNKNOWN),
    "a byte less than 64 MiB": ({Kernel: memlock((64 << 20) - 1)}, Status.FAIL),
    "64 MiB": ({Kernel: memlock(64 << 20)}, Status.UNKNOWN),
    "1 GiB": ({Kernel: memlock(1 << 30)}, Status.UNKNOWN),
    "a byte less than 4 GiB": ({Kernel: memlock((4 << 30) - 1)}, Status.UNKNOWN),
    "4 GiB": ({Kernel: memlock(4 << 30)}, Status.PASS),
    "16 GiB": ({Kernel: memlock(16 << 30)}, Status.PASS),
    "4 GiB for two communicators": ({Kernel: memlock(4 << 30), Intent: f.job(nodes=2, communicators=2)}, Status.PASS),
    "4 GiB for three": ({Kernel: memlock(4 << 30), Intent: f.job(nodes=2, communicators=3)}, Status.UNKNOWN),
    "8 GiB for three": ({Kernel: memlock(8 << 30), Intent: f.job(nodes=2, communicators=3)}, Status.PASS),
    "5 GiB for two, between all ranks": (
        {Kernel: memlock(5 << 30), Intent: f.job(nodes=2, communicators=2, all_to_all=True)},
        Status.UNKNOWN,
    ),
    "4 GiB, and buffers of 32 MiB": (
        {Kernel: memlock(4 << 30), Environ: f.environ({"NCCL_BUFFSIZE": "33554432"})},
        Status.UNKNOWN,
    ),
    "8 MiB for two communicators, and the path run had one": (
        {Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run()), Intent: f.job(nodes=2, communicators=2)},
        Status.FAIL,
    ),
    "8 MiB, all to all, and the path run was none": (
        {Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run()), Intent: f.job(nodes=2, all_to_all=True)},
        Status.FAIL,
    ),
    "lost": ({Kernel: LOST}, Status.UNKNOWN),
    "of a shell outside the job": ({Vantage: f.outside()}, Status.UNKNOWN),
}


@pytest.mark.parametrize(("changes", "status"), LOCK.values(), ids=LOCK)
def test_memory_lock(changes: Changes, status: Status) -> None:
    assert judged(changes)["memlock"].status is status


@pytest.mark.parametrize(("soft", "size"), [(1 << 20, "1 MiB"), ((1 << 20) - 1024, "1023 KiB"), (65536, "64 KiB")])
def test_the_memory_limit_in_words(soft: int, size: str) -> None:
    assert f"locked memory is limited to {size} a process:" in judged({Kernel: memlock(soft)})["memlock"].message
