"""One story, one critical: what follows from the cause, or says it again, is a note of it and no second cause."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

HEAD = "w3:71:90 [1] "
SHM = (
    f"{HEAD}include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    f"{HEAD}include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv-a-0-1-2 (size 4718592)\n"
)
MEMLOCK = f"{HEAD}misc/ibvwrap.cc:9 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"
MPIRUN = (
    "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n  Process name: [[51203,1],5]\n  Exit code:    7\n"
)
NOTICED = "mpirun noticed that process rank 3 with PID 88 on node w3 exited on signal 11 (Segmentation fault).\n"
SGLANG = (
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    "[2026-01-05 10:00:00] Received sigquit from a child process. It usually means the child failed.\nKilled\n"
)
XID = "[9.1] NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus.\n"


def fails(text: str) -> list[Finding]:
    return [f for f in diagnose(parse_text(text)) if f.status is Status.FAIL]


@pytest.mark.parametrize(
    ("text", "causes"),
    [
        pytest.param(SHM + "ncclCommInitRank failed: unhandled system error\n", ["shm_disabled_or_small"], id="/dev/shm"),
        pytest.param(MEMLOCK + MPIRUN, ["memlock", "gdr_disabled"], id="a process that mpirun names"),
        pytest.param(
            "subprocess.CalledProcessError: Command 'ssh -p 22 w9 hostname' returned non-zero exit status 255.\n",
            ["missing_node"],
            id="the exit code of ssh",
        ),
        pytest.param(SGLANG, ["other"], id="a server that ends itself"),
        pytest.param(
            "RuntimeError: CUDA error: unspecified launch failure\nFatal Python error: Aborted\n" + XID,
            ["inventory"],
            id="a kernel on a GPU that has left the bus",
        ),
        pytest.param(
            "x/Gather.cu:7: block: [1,0,0], thread: [2,0,0] Assertion `i < n` failed.\n"
            "RuntimeError: CUDA error: device-side assert triggered\n",
            ["rank_died"],
            id="one kernel",
        ),
    ],
)
def test_a_victim_is_no_second_cause(text: str, causes: list[str]) -> None:
    assert [f.cause for f in fails(text)] == causes


def test_who_fell_stands_in_a_note_of_the_cause() -> None:
    (first, *_) = fails(MEMLOCK + MPIRUN)
    assert any("rank 5 ended first with exit code 7" in note for note in first.notes)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param("slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.\n", "rank_died", id="the OOM killer"),
        pytest.param("[w4:1] Caught signal 11 (Segmentation fault)\n", "rank_died", id="a death before it"),
    ],
)
def test_a_death_of_its_own_stays(text: str, cause: str) -> None:
    assert cause in {f.cause for f in fails(text + MEMLOCK)}


def test_a_bare_killed_is_from_outside_where_nobody_ends_itself() -> None:
    assert "killed from outside" in fails("loading\nKilled\n")[0].message


def test_the_rank_is_the_one_that_mpirun_noticed() -> None:
    assert fails("[w3:88  :0:88] Caught signal 11 (Segmentation fault)\n" + NOTICED)[0].subject == "rank 3 on w3"
    assert fails(MPIRUN)[0].subject == "rank 5"


def test_a_full_disk_is_still_a_full_disk() -> None:
    assert fails("OSError: [Errno 28] No space left on device: 'ckpt.pt'\n")[0].cause == "node_storage"
