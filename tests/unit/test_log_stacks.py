"""What stacks write when a job dies: frameworks, servers, launchers, schedulers, containers; and what of it is no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS

# cause | words of the message | the log, with \n for the ends of its lines
ROWS = [
    line.split(" | ", 2)
    for line in (Path(__file__).parent / "data" / "log_stacks.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def findings(text: str) -> tuple[Finding, ...]:
    return diagnose(parse_text(text))


@pytest.mark.parametrize(("cause", "words", "line"), [pytest.param(*row, id=row[2][:60]) for row in ROWS])
def test_what_a_stack_says_is_known(cause: str, words: str, line: str) -> None:
    first = findings(line.replace("\\n", "\n") + "\n")[0]
    assert (first.status, first.cause) == (Status.FAIL, cause)
    assert words in first.message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            'Warning  FailedMount  9m  kubelet  MountVolume.SetUp failed for volume "data"\n'
            "Normal  Started  8m  kubelet  Started container main\n",
            id="a volume that came",
        ),
        pytest.param(
            "(scheduler +9s) Warning: The following resource request cannot be scheduled right now: {'GPU': 1.0}\n" + STEPS,
            id="GPUs that Ray found",
        ),
        pytest.param(
            "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This should not happen.\n" + STEPS,
            id="a connection over another address",
        ),
        pytest.param(
            "[W1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=69): failed to recv, got 0 bytes\n",
            id="a store that ends before its clients",
        ),
        pytest.param(
            "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed\n", id="nobody killed"
        ),
        pytest.param(
            "INFO [shm_broadcast.py:501] No available shared memory broadcast block found in 60 seconds. This typically "
            "happens when some processes are hanging or doing some time-consuming work (e.g. compilation)\n",
            id="vLLM compiles",
        ),
        pytest.param(
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 7 "
            "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. SystemExit is raised "
            "(sys.exit is called). Exit code: 1. The process receives a SIGTERM.\n",
            id="a worker that Ray ends with the job",
        ),
        pytest.param("INFO The server sets --mem-fraction-static 0.88, watchdog_timeout=300\n", id="settings"),
        pytest.param("2026 E cuda_driver.cc:265] failed call to cuInit: no device\n" + STEPS, id="TensorFlow on a CPU"),
    ],
)
def test_what_healthy_stacks_say_is_no_fault(text: str) -> None:
    assert Status.FAIL not in [f.status for f in findings(text)]


def test_any_exception_ends_a_program_where_nothing_else_failed() -> None:
    text = "RuntimeError: the flux is not compensated\n"
    assert findings(text)[0].cause == "rank_died"
    assert findings(text + STEPS)[0].status is not Status.FAIL
    watchdog = (
        "[rank3]:[E1 x.cpp:6] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)\n"
    )
    assert findings(watchdog + text)[0].cause == "hang"
    assert findings("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: something of another's\n")[0].status is Status.UNKNOWN


def test_of_several_refusals_of_slurm_the_reason_is_told() -> None:
    echo = "srun: error: Task launch for StepId=96.0 failed on node n2: No such process\n"
    why = "srun: error: Task launch for StepId=96.0 failed on node n1: Socket timed out on send/recv operation\n"
    assert "not started on n1: Socket timed out" in findings(echo + why)[0].message
    hook = "slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: open failed: /sbin/ldconfig.real\n"
    start = "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    assert "nvidia-container-cli: ldcache error" in findings(start + hook)[0].message


def test_an_abort_says_more_than_a_supervisors_word() -> None:
    abort = (
        "ERROR shard-manager: launcher: Shard process was signaled to shutdown with signal 6 rank=0\nERROR: Shard 0 crashed\n"
    )
    assert findings("Exception raised from ncclCommWatchdog at x.cpp:1521\n" + abort)[0].cause == "hang"
    assert "SIGABRT" in findings(abort)[0].message


def test_a_device_of_libfabric_that_one_rank_cannot_use() -> None:
    up = "n1:1:2 [0] NCCL INFO Using network AWS Libfabric\nn1:1:2 [0] NCCL INFO Ring 00 : 7 -> 8 [send] via NET/Libfabric/0\n"
    fault = "n2:3:4 [7] create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument\n"
    assert findings(up + fault)[0].cause == "plugin_mismatch"
    assert Status.FAIL not in [f.status for f in findings(up + fault + STEPS)]


def test_the_exit_code_of_an_exception_hides_no_error_of_nccl() -> None:
    error = "RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    end = "E1 api.py:833] failed (exitcode: 1) local_rank: 1 (pid: 6833) of binary: /bin/python\n"
    (finding,) = findings(error + end)
    assert finding.status is Status.UNKNOWN and "unhandled system error" in finding.evidence["lines"][0]
    cut = 'Traceback (most recent call last):\n  File "/opt/bin/torchrun", line 33, in <module>\n    sys.exit(main())\n'
    assert [f.status for f in findings(error + end + cut)] == [Status.UNKNOWN]
    assert findings(end + cut)[0].cause == findings(end)[0].cause == "rank_died"
    assert findings(error + end.replace("exitcode: 1", "exitcode: -11"))[0].cause == "rank_died"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param("Last error:\nsocketPollConnect poll() returned 1, no POLLOUT events\n", "firewall_connect", id="POLLERR"),
        pytest.param("what(): NCCL Error 5: invalid usage\n", "other", id="NCCL's code of a wrong call"),
        pytest.param("[rank5]:[E6 x.cpp:6] [Rank 5] Watchdog caught collective operati\n", "hang", id="a line that is cut"),
    ],
)
def test_words_that_a_fresh_set_asked_for(text: str, cause: str) -> None:
    assert findings(text)[0].cause == cause


def test_more_ranks_than_the_rendezvous_counts_are_told() -> None:
    barrier = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: a (world_size={}, "
    )
    many = findings(barrier.format(2) + "worker_count=8, timeout=0:30:00)\n")[0]
    assert (many.cause, many.message.split(":")[0]) == ("env_misuse", "8 ranks came to a rendezvous of 2")
    assert findings(barrier.format(9) + "worker_count=8, timeout=0:30:00)\n")[0].cause == "hang"
