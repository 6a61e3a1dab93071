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


VLLM = "({who} pid={pid}) ERROR 02-03 04:05:06 [{file}:7] {said}\n"
FRAME = '  File "/env/site-packages/vllm/v1/{file}", line 9, in run'


def vllm(who: str, pid: int, file: str, raised: str) -> str:
    lines = ("Traceback (most recent call last):", FRAME.format(file=file), raised)
    return "".join(VLLM.format(who=who, pid=pid, file=file, said=said) for said in lines)


TOO_LITTLE = (
    "Free memory on device cuda:{n} (20.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.9, 71.3 GiB)."
)
RELAYED = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        pytest.param("ValueError: " + TOO_LITTLE.format(n=1), "less of it is free", id="that a family knows"),
        pytest.param("KeyError: 'layers.3.scale'", "KeyError: 'layers.3.scale'", id="that is the program's own"),
    ],
)
def test_who_relays_an_exception_is_not_named(raised: str, words: str) -> None:
    (named,) = fails(vllm("Worker", 11, "utils.py", raised) + vllm("EngineCore", 5, "executor.py", RELAYED))
    assert words in named.message


WAITED = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:5] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
    "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.\n"
)
ABORTED = (
    "[2026-01-05 10:10:00,1] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -6) "
    "local_rank: {r} (pid: 4)\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-05_10:10:00\n  host      : n1\n"
    "  rank      : {r} (local_rank: {r})\n  exitcode  : -6 (pid: 4)\n  error_file: <N/A>\n"
    "  traceback : Signal 6 (SIGABRT) received by PID 4\n"
)


def test_a_watchdogs_abort_is_the_end_of_a_hang() -> None:
    (named,) = fails(WAITED.format(r=1, seq=70) + WAITED.format(r=0, seq=75) + ABORTED.format(r=0))
    assert (named.cause, named.subject) == ("hang", "rank 1")
    assert "rank 0 was ended by its own watchdog (exit code -6)" in named.notes


def test_an_abort_of_a_rank_that_waited_for_nobody_is_its_own() -> None:
    named = fails(WAITED.format(r=1, seq=70) + WAITED.format(r=0, seq=75) + ABORTED.format(r=2))[0]
    assert (named.cause, named.subject) == ("rank_died", "rank 2")


OWN = '{before}Traceback (most recent call last):\n  File "/home/u/fit.py", line 3, in <module>\n    main()\n{raised}\n'


@pytest.mark.parametrize("before", ["", "adding folder to artifact (/d/k/7)... ", " 12%|#   | 6/50 [00:10<01:00,  1.3s/it]"])
def test_a_full_disk_is_named_wherever_the_file_lies(before: str) -> None:
    raised = "OSError: [Errno 28] No space left on device: '/d/k/7/a.bin' -> '/home/u/.cache/wandb/x/b.bin'"
    (named,) = fails(OWN.format(before=before, raised=raised))
    assert named.cause == "node_storage"


LOADED = "RuntimeError: Error(s) in loading state_dict for Net:"
MISMATCH = "size mismatch for head.bias: copying a param with shape torch.Size([9]) from checkpoint"


def test_what_does_not_fit_is_quoted() -> None:
    (named,) = fails(OWN.format(before="", raised=f"{LOADED}\n\t{MISMATCH}"))
    assert named.message.endswith(f"{LOADED} {MISMATCH}")


def test_another_ranks_line_is_no_part_of_it() -> None:
    (named,) = fails(OWN.format(before="", raised=LOADED) + "[rank1]:   all is well here\n")
    assert named.message.endswith(LOADED)


def test_a_shells_error_before_the_work_is_no_second_cause() -> None:
    conda = "CommandNotFoundError: Your shell has not been properly configured to use 'conda deactivate'.\n"
    steps = "".join(f"step {n} loss 2.0\n" for n in range(5))
    limit = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-05T10:10:00 DUE TO TIME LIMIT ***\n"
    (job,) = diagnose(parse_text(conda + steps + limit))
    assert job.message.endswith("its time limit")


def test_the_last_word_of_a_proxy_s_caller_is_no_reason() -> None:
    """NCCL 2.18 keeps it in the place of what the proxy thread said, and without NCCL_DEBUG nothing else is printed."""
    where = "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690"
    text = (
        f"[rank0]: torch.distributed.DistBackendError: NCCL error in: {where}, internal error, NCCL version 2.18.3\n"
        "[rank0]: ncclInternalError: Internal check failed.\n[rank0]: Last error:\n"
        "[rank0]: Socket recv failed while polling for opId=0x5600578dcc20\n"
    )
    (one,) = diagnose(parse_text(text))
    assert one.status is Status.UNKNOWN and one.message.endswith("the lines that say why are not in this log")
    assert one.how and "NCCL_DEBUG=INFO" in one.how
