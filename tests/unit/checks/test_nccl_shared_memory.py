"""nccl.shared_memory: facts to findings."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from netdoctor.checks.nccl_shared_memory import shared_memory
from netdoctor.facts import kernel
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import GpuHealth, Pair
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.peers import Peer
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, CommonRun, State
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.nccl.log.parser import parse_text
from netdoctor.nccl.shared_memory import pool_bytes
from netdoctor.nccl.shm_proof import ShmProof
from tests.support import facts as f

DOCKER, LOST, NO_RUN = 64 << 20, Unavailable("denied"), Unavailable("refused", "--no-allreduce")
PASS, FAIL, SKIP, UNKNOWN = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN
SMALL = {Kernel: f.kernel(shm_size=DOCKER), Baseline: NO_RUN, Intent: f.job(nodes=2)}
TWO = {Intent: f.job(nodes=2)}
OWN = f.job(shm_bytes=1 << 30)
NO_SPACE = (
    "node01:1:1 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 33030532 bytes, "
    "error: No space left on device (28)\n"
)


def judged(changes: dict[type, object]) -> Finding:
    return f.only(f.judge(shared_memory, f.machine({Intent: f.job(), **changes})))


# As measured: 64 MiB are enough for 2 ranks of 2.27.5, for 1 of 2.30.7, and for none of 2.32.3.
@pytest.mark.parametrize(
    ("version", "ranks", "size", "status"),
    [
        ((2, 18, 3), 8, DOCKER, PASS),
        ((2, 27, 5), 2, DOCKER, PASS),
        ((2, 27, 5), 4, DOCKER, FAIL),
        ((2, 30, 7), 1, DOCKER, PASS),
        ((2, 30, 7), 2, DOCKER, FAIL),
        ((2, 32, 3), 1, DOCKER, FAIL),
        ((2, 32, 3), 8, 8 << 30, PASS),
        ((2, 32, 3), 8, 8 * 68_423_680, PASS),
        ((2, 32, 3), 8, 8 * 68_423_680 - 1, FAIL),
        ((2, 31, 0), 1, DOCKER, UNKNOWN),  # between 34 and 68 MB
        ((2, 31, 0), 1, 1 << 30, PASS),
        ((2, 12, 0), 16, 8 << 30, UNKNOWN),  # not measured
        ((2, 33, 0), 1, 8 << 30, UNKNOWN),
        ((2, 33, 0), 1, DOCKER, FAIL),
        ((2, 32, 3), 8, LOST, UNKNOWN),
    ],
)
def test_what_fits(version: tuple[int, int, int], ranks: int, size: Any, status: Status) -> None:
    facts: dict[type, object] = {
        Kernel: f.kernel(shm_size=size),
        Baseline: f.baseline(f.run(nccl_version=".".join(map(str, version)))),
        Intent: f.job(nodes=2, ranks_per_node=ranks),
        Libraries: f.libraries(nccl=(f.library(version=version),)),
    }
    found = judged(facts)
    assert found.status is status
    assert found.status is not UNKNOWN or found.how
    if isinstance(size, int) and version >= (2, 22, 3):  # before it, the run of one node shows what the job of two takes
        assert found.evidence["size"] == size and found.evidence["ranks"] == ranks


def test_a_run_of_one_node_shows_nothing_of_several() -> None:
    """Ranks that all reach each other by P2P do without the pool; by the network none does."""
    facts: dict[type, object] = {
        Kernel: f.kernel(shm_size=DOCKER),
        Baseline: f.baseline(f.run(nccl_version="2.32.3")),
        Libraries: f.libraries(nccl=(f.library(version=(2, 32, 3)),)),
    }
    assert judged(facts).status is PASS
    assert judged({**facts, Net: f.net(master=Peer("node00", ("10.0.0.1",), local=False))}).status is FAIL
    assert judged({**facts, Environ: f.environ(launcher=Launcher("kuberay", None, None, None, None))}).status is UNKNOWN


def test_a_pool_that_is_held_is_not_called_small() -> None:
    """No measured number in the words; the mend is to free it, not to make it larger."""
    found = judged({Kernel: f.kernel(shm_free=1 << 20), Baseline: NO_RUN, **TWO})
    assert found.message == "8 ranks of NCCL 2.27.5 take 252.031 MiB at start, and less than that of /dev/shm is free"
    assert found.measured["free"] == 1 << 20 and found.fix and "lsof +D /dev/shm" in found.fix.commands


def test_a_fail_says_what_is_needed() -> None:
    found = judged(SMALL)
    assert found.message == "/dev/shm has 64 MiB, and 8 ranks of NCCL 2.27.5 take 252.031 MiB at start"
    assert (found.expected, found.evidence["takes"]) == ("at least 252.031 MiB", 8 * 33_034_240)
    assert found.fix and found.why
    one = judged({**SMALL, Kernel: f.kernel(shm_size=1), Intent: f.job(ranks_per_node=1, nodes=2)})
    assert " 1 rank of " in one.message


@pytest.mark.parametrize(
    ("version", "least", "most"),
    [((2, 27, 5), 2, 2), ((2, 12, 0), 0, None), ((2, 28, 3), 2, 3), ((2, 30, 7), 3, 3), ((2, 33, 0), 4, None)],
)
def test_what_a_version_takes(version: tuple[int, int, int], least: int, most: int | None) -> None:
    """By the rows of the table around it; most of an older or newer version than was measured is not known."""
    sizes = (0, 31_854_592, 33_034_240, 34_213_888, 68_423_680)
    assert pool_bytes(version, 2) == (2 * sizes[least], None if most is None else 2 * sizes[most])


def common(**changes: Any) -> Baseline:
    fields = {name: getattr(f.run(), name) for name in f.run().__dataclass_fields__}
    return f.baseline(CommonRun(**{**fields, **changes}, told="", told_cause=""))


ROWS: dict[str, tuple[dict[type, object], Status]] = {
    "as many ranks had theirs": ({Kernel: f.kernel(shm_size=1 << 20)}, PASS),
    "fewer ranks": ({Kernel: f.kernel(shm_size=1 << 20), Intent: f.job(ranks_per_node=16)}, UNKNOWN),
    "fewer ranks, and all connect at start": (
        {
            Kernel: f.kernel(shm_size=1 << 20),
            Intent: f.job(ranks_per_node=16),
            Environ: f.environ({"NCCL_RUNTIME_CONNECT": "0"}),
        },
        FAIL,
    ),
    "as many ranks, but the network comes on top": ({Kernel: f.kernel(shm_size=1 << 20), **TWO}, FAIL),
    "one node, and ranks may reach each other by P2P": ({**SMALL, Intent: f.job()}, UNKNOWN),
    "room, and it is free": ({Baseline: NO_RUN}, PASS),
    "room, and whether it is free": ({Kernel: f.kernel(shm_free=LOST), Baseline: NO_RUN}, UNKNOWN),
    "room, and it is held": ({Kernel: f.kernel(shm_free=1 << 20), Baseline: NO_RUN, **TWO}, FAIL),
    "room, and it is held, and ranks may do without": ({Kernel: f.kernel(shm_free=1 << 20), Baseline: NO_RUN}, UNKNOWN),
    "free, and how much it holds lost": ({Kernel: f.kernel(shm_size=LOST, shm_free=1 << 40), Baseline: NO_RUN}, PASS),
    "ranks of other nodes": ({Kernel: f.kernel(shm_size=1 << 20), Baseline: common(), **TWO}, UNKNOWN),
    "a run that did not finish": (
        {Kernel: f.kernel(shm_size=1 << 20), Baseline: f.baseline(f.run(state=State.UNFINISHED, ranks=())), **TWO},
        FAIL,
    ),
    "a run that failed for it": (
        {Baseline: f.baseline(f.run(state=State.FAILED, ranks=(f.rank(0, error="x"),), blamed=(0,), log=parse_text(NO_SPACE)))},
        FAIL,
    ),
    "a run that failed for another reason": (
        {Baseline: f.baseline(f.run(state=State.FAILED, ranks=(f.rank(0, error="ValueError: x"),), blamed=(0,)))},
        PASS,
    ),
    # A pool a communicator (measured: 2.20.5, 2.27.5, 2.32.3), unless they are split off another with its resources shared.
    # What a child that took it saw.  No errno but those that end NCCL as well is a fault.
    "the child was refused": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(252 << 20, "ENOSPC")}, FAIL),
    "a quota": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(252 << 20, "EDQUOT")}, FAIL),
    "a file's size": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(252 << 20, "EFBIG")}, FAIL),
    "for reading only": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(252 << 20, "EROFS")}, FAIL),
    "refused, and ranks may do without": ({Baseline: NO_RUN, ShmProof: ShmProof(252 << 20, "ENOSPC")}, UNKNOWN),
    "refused more than that": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(253 << 20, "ENOSPC")}, UNKNOWN),
    "closed to the job's user": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(253 << 20, "EACCES", closed=True)}, FAIL),
    "closed to another user": (
        {Baseline: NO_RUN, **TWO, Vantage: f.vantage(job_user=False), ShmProof: ShmProof(252 << 20, "EACCES", closed=True)},
        UNKNOWN,
    ),
    "no inode is left": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(253 << 20, "ENOSPC", inodes=False)}, FAIL),
    "no inode is left, and ranks may do without": ({Baseline: NO_RUN, ShmProof: ShmProof(9, "ENOSPC", inodes=False)}, UNKNOWN),
    "a security module": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(252 << 20, "EACCES")}, UNKNOWN),
    "the child was not there": ({Baseline: NO_RUN, **TWO, ShmProof: LOST}, UNKNOWN),
    "the child asked for less": ({Baseline: NO_RUN, **TWO, ShmProof: ShmProof(252 << 20, "")}, UNKNOWN),
    "no room, whatever the child saw": ({**SMALL, ShmProof: LOST}, FAIL),
    "a run of as many, whatever the child saw": ({ShmProof: LOST}, PASS),
    "refused, where one task may start more": (
        {
            Baseline: NO_RUN,
            Intent: f.intent(nodes=2, others=True, ranks_here=1, ranks_most=8),
            ShmProof: ShmProof(252 << 20, "ENOSPC"),
        },
        UNKNOWN,
    ),
    "the job's own on top": ({Kernel: f.kernel(shm_size=512 << 20), Baseline: NO_RUN, Intent: OWN}, FAIL),
    "the job's own, which a run does not show": ({Kernel: f.kernel(shm_size=512 << 20), Intent: OWN}, FAIL),
    "the job's own has room": ({Kernel: f.kernel(shm_size=2 << 30, shm_free=2 << 30), Intent: OWN}, PASS),
    "several communicators": ({Kernel: f.kernel(shm_size=512 << 20), Intent: f.job(communicators=2)}, PASS),
    "too many": ({Kernel: f.kernel(shm_size=512 << 20), Baseline: NO_RUN, Intent: f.job(communicators=4)}, UNKNOWN),
    "a run has one": ({Kernel: f.kernel(shm_size=512 << 20), Intent: f.job(communicators=4)}, UNKNOWN),
    "too small for one": ({**SMALL, Intent: f.job(communicators=4, nodes=2)}, FAIL),
    "no accelerator": ({Pci: f.pci(0, 0), Gpus: f.gpus(0)}, SKIP),
    "no accelerator, and the job's own has no room": (
        {Pci: f.pci(0, 0), Gpus: f.gpus(0), Kernel: f.kernel(shm_size=4 << 20), Intent: OWN, Baseline: NO_RUN},
        FAIL,
    ),
    "no accelerator, and a child was given the job's own": (
        {Pci: f.pci(0, 0), Gpus: f.gpus(0), Kernel: f.kernel(shm_size=2 << 30, shm_free=2 << 30), Intent: OWN}
        | {ShmProof: ShmProof(1 << 30, "")},
        PASS,
    ),
    "no accelerator, and a child was refused it": (
        {Pci: f.pci(0, 0), Gpus: f.gpus(0), Kernel: f.kernel(shm_size=2 << 30, shm_free=2 << 30), Intent: OWN}
        | {ShmProof: ShmProof(1 << 30, "ENOSPC")},
        FAIL,
    ),
    "no accelerator, and nothing was tried": (
        {Pci: f.pci(0, 0), Gpus: f.gpus(0), Kernel: f.kernel(shm_size=2 << 30, shm_free=2 << 30), Intent: OWN, ShmProof: LOST},
        UNKNOWN,
    ),
    "no accelerator, and the job's own elsewhere": (
        {Pci: f.pci(0, 0), Gpus: f.gpus(0), Intent: OWN, Vantage: f.vantage(job_environment=False, why_not="x")},
        UNKNOWN,
    ),
    "PCI lost": ({**SMALL, Pci: LOST, Gpus: f.gpus(0)}, UNKNOWN),
    "from outside": ({Vantage: f.vantage(job_environment=False, why_not="x")}, UNKNOWN),
    "small, from outside": ({**SMALL, Vantage: f.vantage(job_environment=False)}, UNKNOWN),
    "no torch, no run": ({Baseline: NO_RUN, Libraries: f.libraries(torch=Unavailable("absent"), nccl=())}, UNKNOWN),
    "no torch, no run, but its wheel": ({Baseline: NO_RUN, Libraries: f.libraries(torch=Unavailable("absent"))}, PASS),
    "no torch, and a run": ({Libraries: f.libraries(torch=Unavailable("absent"))}, PASS),
    "the configuration lost": ({Baseline: NO_RUN, Intent: LOST}, UNKNOWN),
    "the launcher lost": ({Baseline: NO_RUN, Environ: LOST}, UNKNOWN),
    "no GPU seen": ({Baseline: NO_RUN, Gpus: f.gpus(0)}, UNKNOWN),
    "the run lost": ({Baseline: LOST}, UNKNOWN),
    "NCCL lost": ({Baseline: NO_RUN, Libraries: f.libraries(nccl=LOST)}, UNKNOWN),
    "small, and what the job sees lost": ({**SMALL, Gpus: f.gpus(8, visible=LOST)}, UNKNOWN),
    "wide, and what the job sees lost": ({**TWO, Gpus: f.gpus(8, visible=LOST)}, PASS),
}


OFF = {"NCCL_P2P_DISABLE": "1"}
OLD = (2, 21, 5)


@pytest.mark.parametrize(
    ("version", "env", "told", "size", "status"),
    [
        (OLD, {}, 0, 64 << 20, PASS),  # 56 MiB of pools
        (OLD, {}, 1, 64 << 20, FAIL),  # and what the connections take
        (OLD, OFF, 0, 64 << 20, FAIL),
        (OLD, {}, LOST, 64 << 20, UNKNOWN),
        (OLD, {}, LOST, 64 << 30, PASS),
        (OLD, {}, 1, 8 << 30, UNKNOWN),  # how many channels only a run shows
        (OLD, {}, 1, 64 << 30, PASS),
        (OLD, {"NCCL_SHM_DISABLE": "1"}, 1, 64 << 20, PASS),
        (OLD, {"NCCL_BUFFSIZE": "65536"}, 1, 64 << 20, UNKNOWN),
        ((2, 20, 5), {}, 1, 64 << 20, FAIL),
        ((2, 25, 1), {}, 1, 280 << 20, UNKNOWN),  # host memory of cuMem instead, where driver and NUMA let it
        ((2, 25, 1), {"NCCL_CUMEM_HOST_ENABLE": "0"}, 1, 280 << 20, FAIL),
    ],
)
def test_connections_of_gpus_without_p2p(version: Any, env: Any, told: Any, size: int, status: Status) -> None:
    cards = tuple(f.gpu(n, name="NVIDIA GeForce RTX 4090", nvlinks=()) for n in range(8))
    pairs = tuple(Pair(one, other, told, told, 5) for one, other in combinations(range(8), 2))
    facts: dict[type, object] = {
        Kernel: f.kernel(shm_size=size, shm_free=size),
        Baseline: NO_RUN,
        Gpus: f.gpus(all=cards),
        GpuHealth: GpuHealth((), pairs),
        Rdma: f.rdma(devices=()),
        Environ: f.environ(env),
        Libraries: f.libraries(nccl=(f.library(version=version),)),
    }
    assert judged(facts).status is status
    # An HCA may be nearer than the other GPU.
    near = judged({**facts, Rdma: f.rdma()}).status
    assert near is (UNKNOWN if status is FAIL else status)


@pytest.mark.parametrize(("facts", "status"), ROWS.values(), ids=list(ROWS))
def test_what_it_says(facts: dict[type, object], status: Status) -> None:
    found = judged(facts)
    assert found.status is status
    assert found.status is not FAIL or (found.fix and found.severity in (None, Severity.CRITICAL))


COVERED = "35 25 0:30 / /dev/shm rw - tmpfs shm rw,size=1k\n36 25 0:31 / {}\n"  # another mount lies over it


@pytest.mark.parametrize(
    ("mount", "told", "size"),
    [
        ("/dev/shm rw,nosuid - tmpfs shm rw,size=65536k,inode64", DOCKER, DOCKER),
        ("/dev rw - tmpfs tmpfs rw", DOCKER, DOCKER),  # a folder of it
        ("/dev/shm rw - ext4 /dev/a rw", DOCKER, DOCKER),
        ("/dev/shm rw - tmpfs tmpfs rw,size=0k", 0, 1000 << 10),  # no limit
        ("/dev/shm rw - ramfs a rw", 0, Unavailable("unsupported", "what is mounted on /dev/shm is no tmpfs")),
    ],
)
def test_the_size_of_what_its_path_leads_to(mount: str, told: int, size: Any) -> None:
    answers = {"file:/proc/self/mountinfo": COVERED.format(mount), "file:/proc/meminfo": "MemTotal:       1000 kB\n"}
    found = kernel.probe(ReplayHost({**answers, "statvfs:/dev/shm": {"size": told, "free": 1}}))
    assert found.shm_size == size


@pytest.mark.parametrize(
    ("answer", "free"),
    [
        ({"size": 100, "free": 40}, 40),
        ({"size": 0, "free": 0}, 1000 << 10),  # no limit
        ({"size": 100}, Unavailable("not read", "statvfs of /dev/shm: not told")),
        (LOST, LOST),
    ],
)
def test_what_is_free(answer: Any, free: Any) -> None:
    mount = "36 25 0:31 / /dev/shm rw - tmpfs tmpfs rw,size=0k\n"
    answers = {"statvfs:/dev/shm": answer, "file:/proc/meminfo": "MemTotal:       1000 kB\n"}
    assert kernel.probe(ReplayHost({**answers, "file:/proc/self/mountinfo": mount})).shm_free == free
    no_tmpfs = kernel.probe(ReplayHost({**answers, "file:/proc/self/mountinfo": mount.replace("tmpfs tmpfs", "ramfs ram")}))
    limitless = answer == {"size": 0, "free": 0}
    assert not no_tmpfs.shm_free if limitless else no_tmpfs.shm_free == free


def test_memory_that_is_not_told() -> None:
    mount: Any = {"file:/proc/self/mountinfo": "36 25 0:31 / /dev/shm rw - tmpfs tmpfs rw\n", "statvfs:/dev/shm": {"size": 0}}
    assert kernel.probe(ReplayHost({**mount, "file:/proc/meminfo": LOST})).shm_size == LOST
    assert not kernel.probe(ReplayHost({**mount, "file:/proc/meminfo": "MemTotal: x\n"})).shm_size
