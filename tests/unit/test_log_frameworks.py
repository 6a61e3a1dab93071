"""What frameworks and launchers beside torch say, a name that does not resolve, logs that break off in a traceback."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Severity, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_text

STALL = (
    "[1,0]<stderr>:[2026-01-02 10:00:00.1: W horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be "
    "reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.\n"
    "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:grad_3 [missing ranks: 2, 5]\n"
)
STUCK = (
    "2026-01-02 10:00:00.1: E external/xla/xla/service/rendezvous.cc:38] This thread has been waiting for `init clique for "
    "rank 2` for 10 seconds and may be stuck.\n"
)
STEPS = "".join(f"[1,0]<stdout>:step {n} loss 2.0\n" for n in range(9))
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.9:1234: Failed to connect to remote host: "
FRAME = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    assert total == ranks\n'


def findings(text: str) -> tuple[Finding, ...]:
    return diagnose(parse_text(text))


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        pytest.param(STALL, "hang", "rank 2, 5 did not come", id="Horovod's stall check"),
        pytest.param(
            STALL.replace("missing ranks: 2, 5", "ready ranks: 0, 1"), "hang", "ranks 0, 1 wait for", id="an old Horovod's"
        ),
        pytest.param(STUCK, "hang", "did not come to init clique for rank 2", id="XLA's rendezvous"),
        pytest.param(f"[rank3] {REFUSED}Connection refused\n", "firewall_connect", "10.0.0.9:1234: nobody listens", id="gRPC"),
        pytest.param(
            "x/client.cc:96] Coordination service agent in error status: DEADLINE_EXCEEDED: Deadline Exceeded\n",
            "firewall_connect",
            "no answer in time",
            id="JAX's coordination service",
        ),
        pytest.param(
            "srun: error: Task launch for StepId=36.0 failed on node n131: Invalid job credential\n",
            "missing_node",
            "not started on n131: Invalid job credential",
            id="Slurm's task launch",
        ),
        pytest.param(
            "slurmstepd: error: execve(): /w/run.sh: No such file or directory\n",
            "missing_node",
            "not started: /w/run.sh: No such file or directory",
            id="a program that a node does not have",
        ),
        pytest.param(
            "  Warning  BackOff  2m  kubelet  Back-off restarting failed container init in pod job-worker-1_ns(8d68)\n",
            "missing_node",
            "not started on job-worker-1: init",
            id="a container that ends again and again",
        ),
        pytest.param(
            "Warning  FailedScheduling  default-scheduler  0/8 nodes are available: 8 Insufficient nvidia.com/gpu.\n",
            "missing_node",
            "no node has the free GPUs",
            id="a pod that no node has room for",
        ),
        pytest.param(
            "Open MPI detected an inbound MPI TCP connection request from a peer\nthat appears to be part of this MPI job\n",
            "socket_ifname",
            "another process than it means",
            id="Open MPI's addresses",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "/w/a.py", line 4, in init\nValueError: host not found: Name or '
            "service not known\n",
            "missing_node",
            "the name of a host does not resolve",
            id="a master's name that does not resolve",
        ),
        pytest.param(
            "Container rank 3 status failed cmd ['python3', 'train.py'] code 1 log log/workerlog.3\n",
            "rank_died",
            "rank 3 ended first with exit code 1",
            id="Paddle's launcher",
        ),
        pytest.param(
            "[rank: 1] Child process with PID 77 terminated with code 1. Forcefully terminating all other processes.\n",
            "rank_died",
            "rank 1 ended first with exit code 1",
            id="Lightning's launcher",
        ),
        pytest.param(
            "[c10d] The server socket has failed to bind to [::]:97 (errno: 13 - Permission denied).\n",
            "bootstrap_ports",
            "may not listen on the rendezvous port (Permission denied)",
            id="a port of root's",
        ),
        pytest.param(
            "torch/THCGeneral.cpp line=50 error=802 : system not yet initialized\n",
            "fabric_manager",
            "CUDA error 802",
            id="what CUDA says of NVSwitch",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "/w/a.py", line 4, in init\nsocket.herror: [Errno 1] Unknown\n',
            "rank_died",
            "socket.herror at /w/a.py:4",
            id="a class of Python whose name begins small",
        ),
        pytest.param(
            "[n1:19:0] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)\n",
            "ib_timeout",
            "no answer on mlx5_0:1",
            id="UCX",
        ),
        pytest.param(
            "mlx5: n1: got completion with error:\n"
            + "00000000 00000000 00000000 00000000\n" * 3
            + "00000000 00008115 08000123 00a1b2d2\n",
            "ib_timeout",
            "no answer (transport retries exceeded)",
            id="what libmlx5 dumps",
        ),
        pytest.param(
            "n1:14:14 [0] process_err_completion:17 NCCL WARN NET/OFI Operation with NULL context completed with error\n",
            "firewall_connect",
            "a libfabric request failed (Operation with NULL context)",
            id="a completion of libfabric that belongs to no request",
        ),
        pytest.param(
            "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /p/THC/THCGeneral.cpp:265\n",
            "other",
            "could not correct: uncorrectable ECC error encountered",
            id="CUDA's errors in torch's words up to 1.4",
        ),
        pytest.param(
            "[rank4]:[E6 x.cpp:7] [Rank 4] Work WorkNCCL(SeqNum=9, OpType=BROADCAST, NumelIn=32) timed out in blocking wait.\n",
            "hang",
            "did not finish in time",
            id="torch's blocking wait",
        ),
        pytest.param(
            "ERROR shard-manager: launcher: Shard process was signaled to shutdown with signal 11 rank=2\n",
            "rank_died",
            "rank 2 ended first by SIGSEGV",
            id="a shard of TGI",
        ),
        pytest.param("Failed. Reason: AlgorithmError:\nExitCode 3\n", "rank_died", "with exit code 3", id="SageMaker"),
        pytest.param(
            "(raylet) node_manager.cc:999: Exiting because this node manager has mistakenly been marked as dead by the GCS\n",
            "rank_died",
            "lost a node",
            id="a raylet that Ray lost",
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "/w/a.py", line 4, in init\nRuntimeError: Address already in use\n',
            "bootstrap_ports",
            "taken by another process",
            id="a port in use, in torch's words up to 1.7",
        ),
        pytest.param(
            "ERROR: OOM when allocating tensor with shape[9]\n", "other", "memory of a GPU is used up", id="TensorFlow"
        ),
        pytest.param(
            'RuntimeError: handle INTERNAL ASSERT FAILED at "x.cpp":15, please report\n', "rank_died", "ASSERT", id="an assert"
        ),
        pytest.param("TimeoutError: RPC call to step timed out\n", "hang", "did not come to step", id="vLLM's workers"),
        pytest.param(
            "slurmstepd: error: pyxis: couldn't start container\nsrun: error: n16: task 0: Exited with exit code 1\n",
            "missing_node",
            "pyxis: couldn't start container",
            id="a container that a node does not start",
        ),
        pytest.param(
            "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n",
            "rank_died",
            "rank 2 ended first",
            id="MPI_ABORT",
        ),
        pytest.param(
            '  File "/w/ray/worker.py", line 25, in get\nray.exceptions.RayTaskError(ValueError): ray::run() (pid=2)\n',
            "rank_died",
            "a task of Ray failed with ValueError",
            id="the exception of another worker",
        ),
    ],
)
def test_what_others_than_torch_say_is_known(text: str, cause: str, words: str) -> None:
    first = findings(text)[0]
    assert (first.status, first.cause) == (Status.FAIL, cause)
    assert words in first.message


def test_a_stall_that_passed_is_none() -> None:
    assert [f.status for f in findings(STALL + STEPS)] == [Status.PASS]
    assert Status.FAIL not in [f.status for f in findings(STUCK + STUCK.replace("This thread", "Thread is unstuck! This"))]


def test_a_pod_that_waited_for_a_node_was_placed() -> None:
    waits = "Warning  FailedScheduling  9m  default-scheduler  0/8 nodes are available: 8 Insufficient nvidia.com/gpu.\n"
    placed = "Normal  Scheduled  8m  default-scheduler  Successfully assigned ns/job-worker-0 to n7\n"
    assert Status.FAIL not in [f.status for f in findings(waits + placed)]
    assert findings(placed + waits)[0].status is Status.FAIL


def test_a_lost_coordinator_is_the_echo_of_a_death() -> None:
    death = "x.cc:954] UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.\n"
    assert "task 37" in findings(death + "WatchTasksAsync failed for task 3: UNAVAILABLE\n")[0].message


def test_an_actor_that_the_watchdog_ended_is_no_first_fault() -> None:
    late = (
        "[rank3]:[E1 10:00:00 ProcessGroupNCCL.cpp:6] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2"
    )
    died = "(raylet) A worker died or was killed while executing a task by an unexpected error. Worker IP address: 10.0.0.5\n"
    assert findings(late + ", OpType=ALLREDUCE)\n" + died)[0].cause == "hang"
    assert findings(died)[0].cause == "rank_died"


def test_a_log_that_breaks_off_in_a_traceback() -> None:
    """What was raised is not in it; that something was, and where, is."""
    (finding, *_) = findings("[rank0]: ".join(["", *FRAME.splitlines(keepends=True)]))
    assert finding.status is Status.FAIL
    assert "beyond the end of the log, at /w/train.py:9: assert total == ranks" in finding.message
    other = "node01:1:2 [0] init.cc:4 NCCL WARN Cuda failure 'invalid argument'\n"
    assert findings(other + FRAME)[0].message == "CUDA failed: invalid argument"  # what is told outranks what is not
    assert findings(FRAME + "step 1 loss 2.0\n" * 9)[0].status is Status.PASS  # the end of a traceback is not always known
    ignored = "Exception ignored in atexit callback:\n"
    assert Status.FAIL not in [f.status for f in findings(ignored + FRAME)]


def test_an_exception_ends_a_job_whatever_it_says() -> None:
    """Its family says why; that nobody caught it says that the job failed."""
    text = "RuntimeError: world_size (1) is not divisible by 2\n"
    assert outcome(parse_text(text)).ending is Ending.FAILED
    assert findings(text)[0].severity is Severity.CRITICAL
    assert outcome(parse_text(text + "step 1 loss 2.0\n" * 9)).ending is not Ending.FAILED


def test_a_launchers_summary_hides_no_error_of_nccl() -> None:
    error = "Failed, NCCL error x.cpp:295 'internal error - please report this issue to the NCCL developers'\n"
    (finding,) = findings(error + "mpirun detected that one or more processes exited with non-zero status\n")
    assert finding.status is Status.UNKNOWN
    assert any("internal error" in line for line in finding.evidence["lines"])


def test_sigbus_may_be_a_full_shared_memory() -> None:
    text = "failed (exitcode: -7) local_rank: 0 (pid: 52) of binary: /usr/bin/python\n"
    assert [f.cause for f in findings(text)][:2] == ["rank_died", "shm_disabled_or_small"]


def test_hints_of_trouble_are_shown_where_nothing_else_is() -> None:
    (finding,) = findings("launching\nthe fabricator on n3 is unreachable, giving up\n")
    assert finding.status is Status.UNKNOWN
    assert finding.evidence["lines"] == ["-:2: the fabricator on n3 is unreachable, giving up"]
    assert "lines" not in findings("batch size cannot be changed\n" + "step 1 loss 2.0\n" * 9)[0].evidence
