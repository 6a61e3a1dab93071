"""Words that mean another thing than they seem to: by who says them, what level it is said at, and what comes after."""

# ruff: noqa: E501  (log lines)

from __future__ import annotations

import pytest

from netdoctor.cli.log import report
from netdoctor.model import Command, Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_text
from netdoctor.policy import decide
from tests.support.facts.nccl_logs import STEPS
from tests.unit.test_log_rules import CAME_UP, first


def fails(text: str) -> list[Finding]:
    return [f for f in diagnose(parse_text(text)) if f.status is Status.FAIL]


def exit_code(text: str) -> int:
    return report(parse_text(text), lambda checks, _: decide(checks, command=Command.LOG)).verdict.exit_code


# c10's warning of each try, then its error: torch/csrc/distributed/c10d/socket.cpp
_TRIED = "[W socket.cpp:558] [c10d] The IPv{} network addresses of (trainer-0.train, 29511) cannot be retrieved (gai error: -2 - Name or service not known).\n"
GAVE_UP = (
    "[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (trainer-0.train, 29511).\n"
)
TRIED = _TRIED.format(6) + _TRIED.format(4)


def test_an_error_after_warnings_of_the_same_kind_is_one() -> None:
    found = fails(TRIED * 3 + GAVE_UP)
    assert found[0].cause == "missing_node"
    assert "trainer-0.train" in found[0].message
    assert not fails(TRIED * 3 + CAME_UP + STEPS)


UCX_STATUS = "[n4:2107:1:2140]        rndv.c:943  Fatal: failed to unpack the peer's key received from <no debug data>: Input/output error\n"


@pytest.mark.parametrize("line", [UCX_STATUS, "the peer's endpoint was reset: Input/output error\n"])
def test_a_status_text_is_no_word_of_a_file_system(line: str) -> None:
    assert first(line) != "node_storage"


@pytest.mark.parametrize(
    "line", ["cp: error reading '/data/a.bin': Input/output error\n", "OSError: [Errno 5] Input/output error\n"]
)
def test_of_files_it_is(line: str) -> None:
    assert first(line) == "node_storage"


TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in <module>\n'
# Two ranks write one file at once: torchrun without --log-dir, python 3.8
BOTH = '  File "train.py", line 71\n  File "train.py", line 71\n    batch="8"  # each\nbatch="8"  # each\n    ^\n^\nSyntaxErrorSyntaxError: : invalid syntaxinvalid syntax\n'


def test_two_ranks_write_one_exception_at_once() -> None:
    (found,) = fails(TRACE + "ModuleNotFoundError: No module named 'apple'\n" + STEPS + BOTH)
    assert found.cause == "rank_died"
    assert "SyntaxError at train.py:71: SyntaxError: invalid syntax" in found.message


def test_what_the_job_worked_on_after_is_not_what_ended_it() -> None:
    text = TRACE + "NameError: name 'pear' is not defined\n" + STEPS + TRACE + "KeyError: 'plum'\n"
    assert "KeyError" in fails(text)[0].message


# vLLM's API server raises it in its handler of SIGTERM
ASKED = TRACE + '    raise KeyboardInterrupt("terminated")\nKeyboardInterrupt: terminated\n'


def test_a_handler_of_sigterm_is_not_its_user() -> None:
    assert "SIGTERM" in outcome(parse_text(ASKED)).how
    assert "Ctrl-C" in outcome(parse_text(TRACE + "KeyboardInterrupt\n")).how


NO_THREAD = "OpenBLAS blas_thread_init: pthread_create failed for thread 17 of 32: Resource temporarily unavailable\n"
SPAWNED = (
    TRACE
    + "KeyboardInterrupt\n"
    + TRACE
    + "torch.multiprocessing.spawn.ProcessRaisedException: \n\nRuntimeError: can't start new thread\n"
)


def test_a_job_that_could_start_no_thread_failed() -> None:
    assert outcome(parse_text(NO_THREAD + SPAWNED)).ending is Ending.FAILED
    assert exit_code(NO_THREAD + SPAWNED) == 3
    assert exit_code(NO_THREAD) == 3
    assert exit_code(NO_THREAD + CAME_UP + STEPS) == 0


def test_a_job_that_somebody_ended_did_not_end_well() -> None:
    moved = "node01:100:130 [0] NCCL INFO NET/IB : mlx5_4:1 Got async event : GID table changed\n"
    assert outcome(parse_text(CAME_UP + moved + TRACE + "KeyboardInterrupt\n")).ending is Ending.ENDED
    assert exit_code(CAME_UP + moved + TRACE + "KeyboardInterrupt\n") == 4


UP = CAME_UP[: CAME_UP.index("step ")]
TABLE = "# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n#\n"
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
ROW = "           8             2     float     sum      -1    12.34    0.00    0.00      0\n"


def test_a_tables_head_is_no_progress() -> None:
    assert exit_code(TABLE + UP + COLUMNS) == 4
    assert exit_code(TABLE + UP + COLUMNS + ROW * 4) == 0


PORT = "node01:100:140 [0] transport/net_ib.cc:105 NCCL WARN NET/IB : mlx5_{}:1 Got non-fatal async event: port {}\n"
DOWN, BACK = PORT.format(4, "error(10)"), PORT.format(4, "active(9)")
TWO = "[rank0]: step 41 loss 2.0\n[rank0]: step 42 loss 2.0\n"


def test_a_port_that_came_back_stopped_nothing() -> None:
    (found,) = fails(CAME_UP + TWO + DOWN + BACK + TWO)
    assert found.cause == "link_degraded"
    assert "came back" in found.message
    assert exit_code(CAME_UP + TWO + DOWN + BACK + TWO) == 0


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(BACK, id="no work after it"),
        pytest.param(BACK + "[rank0]: step 41 loss 2.0\n", id="one step, which may have been done before"),
        pytest.param(PORT.format(5, "active(9)") + TWO, id="another port"),
        pytest.param(PORT.format(5, "error(10)") + PORT.format(5, "active(9)") + TWO, id="another port, which went down too"),
        pytest.param(BACK + TWO + DOWN, id="down again"),
    ],
)
def test_one_that_did_not_is_critical(after: str) -> None:
    assert exit_code(CAME_UP + TWO + DOWN + after) == 3


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            "(raylet) [2026-01-02 10:11:12,345 E 77 99] (raylet) file_system_monitor.cc:111: /tmp/ray/session_1 is over 95% full, available space: 15301; capacity: 372178. Object creation will fail if spilling is required.\n",
            id="Ray, of what it has not met",
        ),
        pytest.param(
            "(main_task pid=7) ERROR:2026-01-02 10:11:12,3:git root error: Cmd('git') failed due to: exit code(128)\n", id="git"
        ),
        pytest.param(
            "(main_task pid=7)   stderr: 'fatal: detected dubious ownership in repository at '/w/code'\n", id="git's words"
        ),
        pytest.param("(main_task pid=7) To add an exception for this directory, call:\n", id="git's advice"),
    ],
)
def test_what_alleges_nothing_of_the_job(line: str) -> None:
    assert exit_code(STEPS + line) == 0
