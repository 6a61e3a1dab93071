"""Logs as people post them: what is named first, what is found, and what nobody can tell.

The logs of `data/log_stories.txt` are made after the formats of NCCL, torch, Gloo, Slurm, Kubernetes, Ray, MPI and nccl-tests,
in the order and with the noise of public threads; names and numbers are made up.  A title begins with the right causes:
"none" is a healthy log, "unknown" one that does not say why.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netdoctor.model import Severity, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_bytes, parse_text
from tests.unit.test_log_rules import CAME_UP

_, *PARTS = re.split(rb"^## (.*)\n", (Path(__file__).parent / "data" / "log_stories.txt").read_bytes(), flags=re.MULTILINE)
STORIES = {title.decode(): text for title, text in zip(PARTS[::2], PARTS[1::2], strict=True)}
WARN = "node01:100:130 [0] graph/topo.cc:9 NCCL WARN "


@pytest.mark.parametrize("title", STORIES)
def test_the_story_is_told(title: str) -> None:
    accepted = set(title.split(" | ")[0].split(","))
    findings = diagnose(parse_bytes(STORIES[title]))
    fails = [f.cause for f in findings if f.status is Status.FAIL]
    rest = [f.status for f in findings if f.status is not Status.FAIL]
    if fails:
        assert fails[0] in accepted, findings
    else:
        assert rest == [Status.PASS] if accepted == {"none"} else rest == [Status.UNKNOWN] and accepted & {"none", "unknown"}


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("step 1 loss 2.0\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100\n", Ending.FINISHED),
        ("step 1 loss 2.0\n{'train_runtime': 9.1}\n", Ending.FINISHED),
        ("step 1 loss 2.0\n", Ending.OPEN),
        ("step 1 loss 2.0", Ending.OPEN),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n", Ending.ENDED),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nKeyboardInterrupt\n', Ending.ENDED),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15\n", Ending.ENDED),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x\n', Ending.FAILED),
        ("srun: error: node7: task 3: Exited with exit code 1\n", Ending.FAILED),
        ("E0419 api.py:869] failed (exitcode: -9) local_rank: 3 (pid: 133) of binary: /usr/bin/python\n", Ending.FAILED),
    ],
)
def test_how_a_job_ended_comes_before_why(text: str, ending: Ending) -> None:
    assert outcome(parse_text(CAME_UP + text)).ending is ending


@pytest.mark.parametrize(
    "line",
    [
        WARN + "The flux capacitor is empty",
        "node01:100:130 [0] NCCL INFO transport/net.cc:12 -> 3",
        "[rank1]:[E205 18:11:06.1 ProcessGroupNCCL.cpp:1870] [PG ID 1 Rank 1] a message that nobody has seen before",
        "ZeroError: a message that nobody has seen before",
    ],
)
def test_trouble_that_nothing_explains_is_no_pass(line: str) -> None:
    (finding,) = diagnose(parse_text(CAME_UP + line + "\n"))
    assert finding.status is Status.UNKNOWN
    assert line.rpartition("NCCL WARN ")[2].rpartition("NCCL INFO ")[2] in finding.evidence["lines"][0]


def test_a_warning_that_does_no_harm_is_no_trouble() -> None:
    (finding,) = diagnose(parse_text(CAME_UP + WARN + "User asked for a maximum of 3 channels, setting it to 1\n"))
    assert finding.status is Status.PASS


def test_an_exception_is_named_with_its_place() -> None:
    text = "".join(
        f"[rank3]: {line}\n[rank1]: some other line\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 180, in main',
            "    loss = criterion(out)",
            '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1532, in _call_impl',
            "    return forward_call(*args, **kwargs)",
            "KeyError: 'labels'",
        )
    )
    first = diagnose(parse_text(CAME_UP + text))[0]
    assert "KeyError at /home/u/train.py:180" in first.message
    assert (first.evidence["fault"], first.evidence["rank"]) == ("uncaught exception", 3)


def test_what_came_first_is_the_story() -> None:
    died = "slurmstepd: error: Detected 1 oom_kill event in StepId=777.0. Some of the step tasks have been OOM Killed.\n"
    echo = "node01:100:130 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4000> with status=12 opcode=0 len=0 vendor err 129\n"  # noqa: E501
    assert diagnose(parse_text(CAME_UP + died + echo))[0].cause == "rank_died"


def test_ranks_that_differ_in_how_they_cut_messages() -> None:
    def rank(n: int, proto: str) -> str:
        return f"node0{n}:1:1 [0] NCCL INFO NCCL_PROTO set by environment to {proto}\n"

    echo = (
        "node01:1:9 [0] transport/net_socket.cc:1 NCCL WARN NET/Socket : message truncated : receiving 9 bytes instead of 5\n"
    )
    first = diagnose(parse_text(rank(1, "LL") + rank(2, "Simple") + echo))[0]
    assert first.cause == "env_misuse" and "NCCL_PROTO=LL and Simple" in first.message


@pytest.mark.parametrize(
    ("host", "words", "not_words"),
    [
        ("train-worker-0", "emptyDir", "docker"),
        ("vllm-6f47c67945-s59dl", "emptyDir", "docker"),
        ("c2211f46f318", "docker", "emptyDir"),
        ("gpu-17", "docker", ""),
    ],
)
def test_the_mend_fits_the_place(host: str, words: str, not_words: str) -> None:
    full = "misc/shmutils.cc:70 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637892 bytes"
    fix = diagnose(parse_text(f"{host}:1:2 [0] {full}, error: No space left on device (28)\n"))[0].fix
    assert fix is not None and words in repr(fix)
    assert not not_words or not_words not in repr(fix)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (WARN + "NET/IB : mlx5_0:1 Got async event : local work queue catastrophic error", "other"),
        (WARN + "NET/IB : mlx5_0:1 async fatal event on QP 0x7f: local work queue catastrophic error", "other"),
        (WARN + "[Proxy Service] Poll failed: Invalid argument", "bootstrap_ports"),  # descriptors: poll(2), EINVAL
        (WARN + "Could not open XML topology file /x.xml : No such file or directory", "env_misuse"),
        (WARN + "Call to ibv_query_gid failed with error -1", "roce_gid"),
        (WARN + "lib wrapper not initialized.", None),
        ("wandb: Network error (ConnectionError), entering retry loop. Connection reset by peer", None),
        (
            "urllib3.connectionpool Retrying after connection broken by 'ConnectionResetError(104, Connection reset by peer)'",
            None,
        ),
        ("node01:100:130 [0] NCCL INFO fewer channels to avoid out of memory", None),
    ],
)
def test_what_a_line_says_of_a_job_that_works(line: str, cause: str | None) -> None:
    """Lines of real NCCL that nothing knew, and lines of others that allege nothing."""
    (finding,) = diagnose(parse_text(f"{CAME_UP}{line}\n"))[:1]
    assert (finding.status, finding.cause) == ((Status.FAIL, cause) if cause else (Status.PASS, None))


_GOT_15 = (
    "Traceback (most recent call last):\n"
    '  File "/opt/bin/torchrun", line 8, in <module>\n'
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15\n"
    "srun: error: n1: task 0: Exited with exit code 1\n"
)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***\n", "preempted"),
        (f"slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***\n{_GOT_15}", "limit"),
        ("Received SIGTERM death signal, shutting down workers\n", "SIGTERM"),
        ("  Normal  Killing  3m  kubelet  Container vllm failed liveness probe, will be restarted\n", "liveness probe"),
        ("KeyboardInterrupt\n", "Ctrl-C"),
    ],
)
def test_who_ended_a_job_is_said_and_is_no_pass(end: str, words: str) -> None:
    """What the job would have come to nobody can tell, and what its processes print after the order is the order's."""
    (finding,) = diagnose(parse_text(CAME_UP + "step 1 loss 2.0\n" + end))
    assert (finding.status, words in finding.message) == (Status.UNKNOWN, True)


@pytest.mark.parametrize(
    "end",
    [
        "INFO:torch.distributed.elastic.agent.server.api:[default] worker group successfully finished. Waiting 300 seconds.\n",
        "======================== 12 passed, 3 warnings in 61.10s =======================\n",
    ],
)
def test_an_end_that_speaks_for_all_that_came_before(end: str) -> None:
    died = "E0612 09:52:41.7 203 api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 113) of binary: /bin/python\n"
    watchdog = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 1005 ms\n"
    (finding,) = diagnose(parse_text(CAME_UP + died + watchdog + end))
    assert finding.status is Status.PASS
    assert diagnose(parse_text(CAME_UP + end + died + watchdog))[0].status is Status.FAIL


def test_an_abort_that_nothing_explains_is_no_pass() -> None:
    abort = "node01:100:100 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 2 busId b000 - Abort COMPLETE\n"
    (job,) = diagnose(parse_text(CAME_UP + abort))
    assert job.status is Status.UNKNOWN and "Abort COMPLETE" in job.evidence["lines"][0]
    (job,) = diagnose(parse_text(CAME_UP + "training complete\n" + abort))  # torch up to 2.3 leaves so in good order
    assert job.status is Status.PASS


def test_an_empty_log_is_said_to_be_empty() -> None:
    assert [one.message for one in diagnose(parse_text(""))] == ["the log is empty"]


@pytest.mark.parametrize(
    ("text", "fails", "said"),
    [
        ("Memory access fault by GPU node-2 (Agent handle: 0x1a2b) on address 0x7f00. Reason: Unknown.\n", True, "kernel"),
        (
            STORIES["unknown | a time limit, after a shell's complaint"].decode(),
            False,
            "the scheduler ended it: its time limit",
        ),
        (STORIES["plugin_mismatch | GDRCopy is the first fault"].decode(), True, "GDRCopy is not usable"),
        ("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.5\n", False, "whether 2.5 GB/s"),
        ("1 CCOM WARN NET/OFI aws-ofi-nccl initialization failed\nCompiler status PASS\n", False, "how the job ended"),
    ],
)
def test_what_comes_first_is_said_first(text: str, fails: bool, said: str) -> None:
    first = diagnose(parse_text(text))[0]
    assert said in first.message
    assert (first.severity is Severity.CRITICAL) if fails else (first.status is not Status.FAIL)


_PG = "[rank{0}]:[E710 18:00:32.4 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID {1} Rank {0}] "
_DUMP = _PG + "Received a dump signal due to a collective timeout from this local rank. Last enqueued NCCL work: {2}, "
_DUMP += "last completed NCCL work: {3}.This is most likely caused by incorrect usages of collectives\n"
_STACK = "[rank{0}]:[E725 02:39:41.2 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: \n"
_STACK += "#0 all_reduce from /x/site-packages/torch/distributed/distributed_c10d.py:3068\n#1 {1} from /app/model.py:24\n\n"
_CRASH = "Fatal Python error: PyThreadState_Get: the function must be called with the GIL held\n"
_CRASH += '[TP1]   File "/app/utils.py", line 950, in broadcast_pyobj\n'
_CRASH += "[TP1] RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534]\n"
_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 39.49 GiB "
_OOM += "of which {} MiB is free. Including non-PyTorch memory, this process has {} GiB memory in use.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "".join(_DUMP.format(rank, "0(default_pg)", 57 if rank == 7 else 98, 57) for rank in range(8)),
            "rank 7 has begun no collective after 57, in the next of which the others wait",
        ),
        # Ranks of other groups count their own collectives; a rank that is merely behind in its calls waits like the others.
        (_DUMP.format(0, "0(default_pg)", 98, 57) + _DUMP.format(1, "1(mesh_tp)", 57, 57), "watchdog ended a rank"),
        (_DUMP.format(0, "0(default_pg)", 98, 57) + _DUMP.format(1, "0(default_pg)", 58, 57), "watchdog ended a rank"),
        (
            _STACK.format(2, "_warm_up") + _STACK.format(3, "_reduce") + _STACK.format(1, "_warm_up"),
            "the ranks wait in collectives of different calls: rank 1, 2 in _warm_up; rank 3 in _reduce",
        ),
        (_OOM.format("119.38", "8.38"), "31.0 of its 39.5 GiB are held by other processes"),
        (_OOM.format("119.38", "38.38"), "the memory of GPU 0 is used up: 112.00 MiB more were asked for"),
        ("[ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -11\n", "ended by SIGSEGV"),
        ("mpirun noticed that process rank 3 with PID 9 on node gpu7 exited on signal 9 (Killed).\n", "a process was killed"),
        # What another rank says of it, its head left out, is no exception of a program's own.
        (
            _CRASH,
            "a process ended (PyThreadState_Get",
        ),
    ],
)
def test_who_or_what_it_was_is_told(text: str, said: str) -> None:
    first = diagnose(parse_text(text))[0]
    assert said in first.message
    assert ("held by other" in first.message) == ("held by other" in said)


def test_mpiruns_words_name_the_rank_and_its_host() -> None:
    text = "mpirun noticed that process rank 3 with PID 9 on node gpu7 exited on signal 9 (Killed).\n"
    assert diagnose(parse_text(text))[0].subject == "rank 3 on gpu7"


def test_ranks_that_wait_in_the_same_call_are_told_of_no_other() -> None:
    assert "different" not in diagnose(parse_text(_STACK.format(1, "_reduce") + _STACK.format(2, "_reduce")))[0].message


def test_what_ray_supposes_is_no_evidence() -> None:
    text = "ActorDiedError: The actor died unexpectedly. There are some potential root causes. (1) The process is killed by "
    text += "SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called.\n"
    assert "memory" not in diagnose(parse_text(text))[0].message
