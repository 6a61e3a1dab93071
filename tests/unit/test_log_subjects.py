"""Who is named: the rank that is late, the pod that was killed, the task that ended, the GPU and the host that failed."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Severity, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import CAME_UP

WATCH = "[rank{0}]:[E1122 06:40:00.5 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600080 milliseconds before timing out.\n"  # noqa: E501
VICTIM = "trainer-worker-0:100:130 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer trainer-worker-1<42818>\n"  # noqa: E501
RAY = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n"
FINGERPRINT = "CollectiveFingerPrint(SequenceNumber=21, OpType={}, TensorShape=[1], TensorDtypes=Long, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"  # noqa: E501


def first(text: str) -> Finding:
    """The first fail of a job that came up and then printed this."""
    return next(f for f in diagnose(parse_text(CAME_UP + text)) if f.status is Status.FAIL)


@pytest.mark.parametrize(
    ("text", "cause", "subject", "words"),
    [
        pytest.param(
            WATCH.format(0, 7, "ALLREDUCE", 8) + WATCH.format(1, 7, "BROADCAST", 8),
            "hang",
            "job",
            "different collectives at sequence number 7: rank 0 ALLREDUCE of 8 elements, rank 1 BROADCAST of 8 elements",
            id="two operations at one number",
        ),
        pytest.param(
            WATCH.format(0, 7, "ALLREDUCE", 8) + WATCH.format(1, 7, "ALLREDUCE", 9), "hang", "job", "of 9 elements", id="sizes"
        ),
        pytest.param(
            WATCH.format(0, 7, "ALLREDUCE", 8) + WATCH.format(1, 6, "ALLREDUCE", 8),
            "hang",
            "rank 1",
            "behind",
            id="one is late",
        ),
        pytest.param(
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
            + FINGERPRINT.format("ALLREDUCE")
            + ", but Rank 0 is running collective: "
            + FINGERPRINT.format("BROADCAST")
            + ".\n",
            "hang",
            "job",
            "rank 1 calls ALLREDUCE, rank 0 BROADCAST",
            id="torch's fingerprints",
        ),
        pytest.param(
            "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined any\n",
            "hang",
            "rank 3",
            "did not come",
            id="torch's report of a desynchronised job",
        ),
        pytest.param(
            "Not all ranks joining collective, sequence number: 2\nmissing ranks: {5}\n",
            "hang",
            "rank 5",
            "",
            id="torchfrtrace",
        ),
        pytest.param(
            "error msg: Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH\n",
            "hang",
            "job",
            "same collectives",
            id="its errors",
        ),
        pytest.param(
            VICTIM + "trainer-worker-0   1/1     Running     0   9m\ntrainer-worker-1   0/1     OOMKilled   0   9m\n",
            "rank_died",
            "trainer-worker-1",
            "limit of its container, pod or Slurm step was used up",
            id="the pod that was killed",
        ),
        pytest.param(
            "0: srun: error: node7: task 3: Exited with exit code 1\n1: srun: error: node7: task 4: Aborted\n",
            "rank_died",
            "task 3 on node7",
            "",
            id="the task, not the one whose line it is",
        ),
        pytest.param(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.\nsrun: error: node8: task 12: Out Of Memory\n",
            "rank_died",
            "task 12 on node8",
            "memory",
            id="Slurm's out of memory",
        ),
        pytest.param(
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
            "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict\n\tactor_id: 17f730\n\tpid: 16424\n"
            f"\tname: wd6rCqWorkerDict_0:5\n\tnamespace: bd54\n\tip: 11.11.12.211\n{RAY}",
            "rank_died",
            "wd6rCqWorkerDict_0:5 on 11.11.12.211",
            "",
            id="an actor of Ray",
        ),
        pytest.param(
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: "
            "192.168.111.204 Worker port: 10110 Worker PID: 1508038\n",
            "rank_died",
            "192.168.111.204",
            "",
            id="raylet",
        ),
        pytest.param(
            "E0801 api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 18758) of binary: /usr/bin/python3\n",
            "rank_died",
            "local rank 3",
            "ended first",
            id="torchrun's own word",
        ),
        pytest.param(
            "ERROR:torch.distributed.elastic:failed (exitcode: -9) local_rank: 7 (pid: 202107) of binary: /usr/bin/python\n",
            "rank_died",
            "local rank 7",
            "SIGKILL",
            id="one of torchrun's that was killed",
        ),
        pytest.param(
            "".join(WATCH.format(rank, 7, "BROADCAST", 8) for rank in (1, 2, 3)),
            "hang",
            "rank 0",
            "silent",
            id="rank 0 is silent",
        ),
        pytest.param(
            "ssh: Could not resolve hostname w-3.job.default.svc: Name or service not known\n"
            "ORTE was unable to reliably start one or more daemons.\n",
            "missing_node",
            "w-3.job.default.svc",
            "does not resolve",
            id="a host that mpirun cannot reach",
        ),
        pytest.param(
            "Nov 12 10:00:00 gpu07 kernel: [ 12.3] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n",
            "inventory",
            "GPU 0000:1b:00 on gpu07",
            "fallen off the bus",
            id="Xid with its place",
        ),
    ],
)
def test_the_one_that_failed_is_named(text: str, cause: str, subject: str, words: str) -> None:
    finding = first(text)
    assert (finding.cause, finding.subject) == (cause, subject)
    assert words in finding.message


def test_a_refused_call_is_the_callers() -> None:
    """A world of 2 and 16 tasks: NCCL refuses a rank beyond the number of ranks, and Slurm only counts the dead."""
    text = "RuntimeError: NCCL error in: NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8\nsrun: error: n1: tasks 2-7: Exited with exit code 1\n"  # noqa: E501
    finding = first(text)
    assert finding.cause == "other" and finding.evidence["fault"] == "argument error of the caller"


def test_an_internal_error_in_the_words_of_jax_fails_the_job() -> None:
    """XLA says what NCCL returned and NCCL's last warning in one line."""
    finding = first(
        "INTERNAL: nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: internal error - please report "  # noqa: E501
        "this issue to the NCCL developers. Last NCCL warning(error) log entry (may be unrelated) 'Attribute busid of node nic not "  # noqa: E501
        "found'.\n"
    )
    assert finding.cause == "env_misuse" and finding.severity is Severity.CRITICAL


def test_no_code_for_a_gpu_of_amds() -> None:
    finding = first("n:1:1 [0] NCCL INFO RCCL version 2.22.3+hip6.3\nRuntimeError: HIP error: invalid device function\n")
    assert finding.cause == "cuda_driver_mismatch" and "no code for this GPU" in finding.message


TWO_PORTS = (
    "n1:5:5 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/{} ; OOB ib0:10.0.0.2<0>\n"
    "NCCL version 2.18.3+cuda12.1\n"
    "n1:5:9 [0] NCCL INFO comm 0x1 rank 3 nranks 4 cudaDev 0 busId 1a000 - Init START\n"
    "n1:5:9 [0] NCCL INFO Channel 00/0 : 3[0] -> 0[0] [send] via NET/IB/{}\n"
    "n1:5:9 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[0] [receive] via NET/IB/1\n"
    "n1:5:9 [0] NCCL INFO comm 0x1 rank 3 nranks 4 cudaDev 0 busId 1a000 - Init COMPLETE\n"
    "n1:5:9 [0] transport/net_ib.cc:789 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129\n"
)


def test_the_only_device_of_a_rank_that_got_no_answer_is_named() -> None:
    found = next(f for f in diagnose(parse_text(TWO_PORTS.format("RoCE", 1))) if f.status is Status.FAIL)
    assert found.cause == "roce_gid"
    assert "this NCCL takes GID index 0" in found.message and "no answer (status 12) over mlx5_1" in found.message
    assert any("NCCL_IB_HCA=^=mlx5_1" in note for note in found.notes)


def test_of_two_devices_of_a_rank_none_is_named() -> None:
    found = next(f for f in diagnose(parse_text(TWO_PORTS.format("RoCE", 0))) if f.status is Status.FAIL)
    assert "over mlx5" not in found.message and not found.notes


_DEAD = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 15, in main
[rank1]:     raise RuntimeError(f"loss is NaN at step {step}")
[rank1]: RuntimeError: loss is NaN at step 7
"""
_LEFT = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 12, in main
[rank0]:     dist.all_reduce(t)
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:31234
"""
_AGENT = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_06:00:01
  host      : node1
  rank      : {0} (local_rank: {0})
  exitcode  : 1 (pid: 130)
  error_file: <N/A>
============================================================
"""


@pytest.mark.parametrize("named", [0, 1])
@pytest.mark.parametrize("ranks", [_DEAD + _LEFT, _LEFT + _DEAD])
def test_the_line_of_the_rank_that_raised_is_the_evidence(ranks: str, named: int) -> None:
    finding = next(f for f in diagnose(parse_text(ranks + _AGENT.format(named))) if f.status is Status.FAIL)
    assert (finding.subject, finding.evidence["rank"]) == ("rank 1", 1)
    assert "loss is NaN at step 7" in finding.message
    assert any("RuntimeError: loss is NaN at step 7" in line for line in finding.evidence["lines"])
