"""What led to an end comes before what follows from it, and before what an earlier run of the same file ended in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

STEPS = "".join(f"step {n}/100 loss 2.{n}\n" for n in range(1, 41))
ALL = "".join(f"step {n}/100 loss 2.{n}\n" for n in range(1, 101))
STEP_ENDED = "srun: Terminating StepId=7.0\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-04-03T09:40:00 ***\n"
KILLED = "srun: error: n1: tasks 1,3: Terminated\nsrun: error: n2: tasks 4-7: Killed\n"
CODE = "srun: error: n1: task 0: Exited with exit code 1\n"
UP = "n1:1:9 [0] NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 busId 1 commId 0x1 - Init COMPLETE\n"
SPAWNED = "{at}[2026-01-01 10:00:00,1] [INFO] [launch.py:151:main] nnodes=2, num_local_procs=4, node_rank={node}\n"
TEST = (
    "#  Rank  0 Group  0 Pid {pid} on  n1 device  0 [0x03] NVIDIA A100-SXM4-40GB\n"
    "n1:{pid}:9 [0] NCCL INFO comm 0x5 rank 0 nranks 1 cudaDev 0 busId 3000 commId 0x4 - Init COMPLETE\n"
)
ROWS = (
    "    67108864      16777216     float     sum      -1    105.2  637.72    0.00      0     0.16  419.98    0.00      0\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0 \n"
)
WATCHDOG = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:563] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
    "OpType=ALLGATHER, NumelIn=1, NumelOut=8, Timeout(ms)=120000) ran for 120008 milliseconds before timing out.\n"
    "[rank{r}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {r}] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last "
    "completed NCCL work: {done}.\n"
)
UCX = (
    "[1.8] [g1:1:0] ib_md.c:438  UCX  ERROR ibv_reg_mr(address=0x60ac, length=1024, access=0xf) failed: Cannot allocate memory"
    "\n"
    "[1.8] [g1:1:0] ucp_mm.c:110  UCX  ERROR failed to register address 0x60ac {memory}length 1024 on md[5]=mlx5_0: I/O error\n"
)
HANDLED = """Traceback (most recent call last):
  File "/p/site-packages/lib/config.py", line 52, in load
    return self.table[name]
KeyError: 'tiny'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/w/train.py", line 9, in <module>
    config = load("tiny")
  File "/p/site-packages/lib/config.py", line {line}
"""
ELASTIC = (
    "E0307 22:44:04.9 192252 torch/distributed/elastic/multiprocessing/api.py:862] failed (exitcode: 1) local_rank: 0 (pid: 9) "
    "of binary: /usr/bin/python\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-03-07_22:44:03\n"
    "  host      : n1\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 9)\n  error_file: <N/A>\n"
)
WARMUP = """[2026-06-09 03:35:23] Initialization failed. warmup error: Traceback (most recent call last):
  File "/s/http_server.py", line 2018, in _execute_server_warmup
    assert res.status_code == 200, f"{res.text}"
AssertionError: {"object":"error","message":"the tensor is too large","code":500}

[2026-06-09 03:35:23] kill_process_tree called: parent_pid=4
the test looks at the server
the test looks at the server
the test looks at the server
the test looks at the server
the test looks at the server
Traceback (most recent call last):
  File "/t/serve_test.py", line 1027, in launch
    raise Exception(message)
Exception: Server process exited with code -9. Check server logs for errors.
"""


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


def fell(line: int, what: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line {line}, in <module>\n    main()\n{what}\n'


def exits(*pids: int, at: str = "") -> str:
    return "".join(
        f"{at}[2026-01-01 10:09:00,1] [INFO] [launch.py:460:main] Process {pid} exits successfully.\n" for pid in pids
    )


def test_tasks_that_srun_ended_are_no_cause() -> None:
    finding = first(STEPS + CODE + STEP_ENDED + KILLED)
    assert (finding.status, finding.subject) == (Status.FAIL, "task 0 on n1")
    assert "SIGKILL" not in finding.message


@pytest.mark.parametrize("again", [STEPS, UP], ids=["work", "a communicator"])
def test_a_task_that_is_killed_in_a_later_step_counts(again: str) -> None:
    assert "SIGKILL" in first(CODE + STEP_ENDED + again + "srun: error: n1: task 5: Killed\n").message


def test_a_task_that_was_killed_first_counts() -> None:
    assert "SIGKILL" in first("srun: error: n1: task 3: Killed\n" + STEP_ENDED + KILLED).message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "[0] Missing ranks:\n[0] 0: [a.b, c.d ...]\n[0] 1: [a.b]\n[0] 12: [a.b]\n",
            "rank 0, 1, 12 did not come",
            id="horovodrun",
        ),
        pytest.param("[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:3: [a ...]\n", "rank 3 did not come", id="mpirun"),
        pytest.param(
            "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:\n"
            + "".join(f"/job:jax_worker/replica:0/task:{n}\n" for n in (1, 3, 2)),
            "rank 1-3 did not come to the barrier; one alone came",
            id="all tasks but one",
        ),
        pytest.param(
            "Barrier timed out. Id: a. This\n# of tasks that reached the barrier: 6/8.\nThe first task at the barrier: "
            "/job:jax_worker/replica:0/task:0. Some timed out task names:\n/job:jax_worker/replica:0/task:7\n"
            "/job:jax_worker/replica:0/task:5\n",
            "rank 5, 7 did not come to the barrier: 6 of 8 tasks came",
            id="some tasks",
        ),
    ],
)
def test_a_list_of_missing_ranks_is_read_whole(text: str, words: str) -> None:
    assert words in first(text).message


@pytest.mark.parametrize(
    ("memory", "order", "confidence"),
    [
        ("", ["memlock", "gdr_disabled"], "medium"),
        ("(host) ", ["memlock", "gdr_disabled"], "high"),
        ("(cuda) ", ["gdr_disabled", "memlock"], "high"),
        ("mem_type bit 0x2 ", ["gdr_disabled", "memlock"], "high"),
    ],
)
def test_whose_memory_ucx_could_not_register(memory: str, order: list[str], confidence: str) -> None:
    found = [f for f in diagnose(parse_text(UCX.format(memory=memory))) if f.status is Status.FAIL]
    assert [f.cause for f in found] == order
    assert found[0].evidence["confidence"] == confidence


def test_gdrcopy_is_no_cause_where_nothing_needed_it() -> None:
    warned = "libfabric:1:17::core:core:cuda_gdrcopy_hmem_init():201<warn> gdr_open failed!\n"
    assert first(warned).cause == "plugin_mismatch"
    assert first(warned + UP + ALL + "training completed\n").status is Status.PASS
    assert first(warned + UP + WATCHDOG.format(r=0, done=0)).cause == "hang"


@pytest.mark.parametrize("done", [0, 3904955349522264369])
def test_a_rank_ended_no_more_than_it_began(done: int) -> None:
    message = first("".join(WATCHDOG.format(r=r, done=done if r else 0) for r in range(4))).message
    assert "in one order" not in message


def test_nccl_tests_of_one_rank_measure_nothing() -> None:
    alone = first(TEST.format(pid=7) + ROWS)
    assert (alone.status, alone.message[:40]) == (Status.UNKNOWN, "nccl-tests ran to its end with one rank:")
    several = first(TEST.format(pid=7) + TEST.format(pid=8) + ROWS)
    assert (several.status, several.severity) == (Status.FAIL, first(CODE).severity)


@pytest.mark.parametrize(
    ("code", "words"), [("-15", "SIGTERM"), ("-2", "Ctrl-C"), ("-1", "SIGHUP"), ("-9", "SIGKILL"), ("1", "exit code 1")]
)
def test_a_signal_by_deepspeeds_launcher(code: str, words: str) -> None:
    command = "['python', '-u', 't.py', '--report_to', 'tensorboard']"
    line = f"[launch.py:321:sigkill_handler] {command} exits with return code = {code}\n"
    assert words in first(STEPS + line).message


@pytest.mark.parametrize(
    ("exited", "status"),
    [
        pytest.param(exits(*range(901, 909)), Status.PASS, id="a node's processes"),
        pytest.param(exits(*range(901, 908)), Status.UNKNOWN, id="one less"),
        pytest.param(exits(*range(901, 905), at="n1: "), Status.UNKNOWN, id="one of several nodes"),
        pytest.param(
            "".join(SPAWNED.format(at=f"n{n}: ", node=n) for n in (0, 1)) + exits(*range(901, 905), at="n1: "),
            Status.UNKNOWN,
            id="one of two nodes",
        ),
    ],
)
def test_the_end_of_all_that_a_launcher_started(exited: str, status: Status) -> None:
    log = replace(parse_text(STEPS.replace("/100", "") + exited), written=False)
    assert diagnose(log)[0].status is status


def test_at_what_a_job_stood_that_somebody_ended() -> None:
    said = "test 2 on two nodes\nI am 0 of 2\nI am 1 of 2\n"
    assert first(said + "n1.local: rank 0 died from signal 15\n").message.endswith(
        "the last that was said before it: I am 1 of 2"
    )
    assert "said before" not in first(STEPS + "n1.local: rank 0 died from signal 15\n").message


def test_what_a_handler_raised_itself_leads_where_it_says_more() -> None:
    told = HANDLED.format(line="54, in load\n    raise ValueError(\nValueError: unknown config tiny: take one of small, large")
    assert "ValueError: unknown config tiny: take one of small, large; raised in place of KeyError" in first(told).message
    of_itself = HANDLED.format(
        line="90, in close\n    self.file.close()\nAttributeError: 'NoneType' object has no attribute 'close'"
    )
    assert "KeyError: 'tiny'; it came to AttributeError" in first(of_itself).message


def test_the_error_of_a_process_comes_before_its_exit_code() -> None:
    message = first(WARMUP).message
    assert 'AssertionError: {"object":"error","message":"the tensor is too large"' in message
    assert "who had started it says: Exception: Server process exited with code -9" in message


def test_the_last_error_of_the_rank_that_torchrun_names() -> None:
    told = (
        "[default0]:[NeMo W 2026-03-07 22:43:58 x:106] slow: rank 5\n[default0]:[NeMo E 2026-03-07 22:43:58 x:239] too slow\n"
    )
    assert "[NeMo E 2026-03-07 22:43:58 x:239] too slow (right above it: " in first(told + ELASTIC).message
    assert "called an error" not in first(told.replace("default0", "default5") + ELASTIC).message


def test_several_ways_to_fail_are_several_runs() -> None:
    device = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cuda:0!"
    several = fell(3, "NameError: name 'os' is not defined") + fell(9, "KeyError: 'x'") + fell(40, device)
    last = first(several + fell(55, "AttributeError: 'A' object has no attribute 'b'"))
    assert "AttributeError at train.py:55" in last.message
    assert any("an earlier one failed" in note for note in last.notes)
    syntax = first(fell(40, device) + '  File "train.py", line 232\n    x = (\n        ^\nSyntaxError: invalid syntax\n')
    assert "SyntaxError at train.py:232" in syntax.message
    assert first(fell(40, device) + fell(41, "KeyError: 'x'")).cause == "other"  # of two ranks


def test_the_file_that_lsf_names_is_passed_on() -> None:
    report = "['t.py'] exits with return code = 1\n\nPS:\n\nRead file <run/t.err> for stderr output of this job.\n"
    assert first(report).message.endswith("what it wrote to stderr is in another file: run/t.err")


def test_who_was_not_ready_to_the_end() -> None:
    polls = "".join(
        f"node-{n}:80 is {'not ready yet' if n == 2 or turn < 2 else 'ready'}\n" for turn in range(4) for n in range(3)
    )
    raised = fell(3, "RuntimeError: not all nodes came up: {} were ready in 60 s")
    assert "not ready to the end: node-2:80" in first(polls + raised).notes
    assert not any("not ready" in note for note in first(polls + fell(3, "KeyError: 'x'")).notes)
