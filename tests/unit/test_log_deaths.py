"""A job that died never reads as one that went well, whatever killed it and whatever others print afterwards."""

from __future__ import annotations

import pytest

from netdoctor.cli.log import report
from netdoctor.model import Command, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from netdoctor.policy import decide
from tests.unit.test_log_rules import CAME_UP

STEPS = "".join(f"step {n} loss 2.{n} 1.2 it/s\n" for n in range(60))
RAISED = (
    '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 10, in <module>\n[rank0]: ValueError: 7\n'
)
DESTROYED = "node01:100:130 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE\n"
CALLED = 'Traceback (most recent call last):\n  File "/usr/lib/python3.10/x.py", line 1, in f\n'


def code(text: str) -> int:
    return report(parse_text(CAME_UP + text), lambda checks, _: decide(checks, command=Command.LOG)).verdict.exit_code


@pytest.mark.parametrize(
    "end",
    [
        "Killed",
        "Floating point exception (core dumped)",
        "Illegal instruction (core dumped)",
        # In the language of the node: glibc's strsignal, and bash's own words around it.
        "Speicherzugriffsfehler (Speicherabzug geschrieben)",
        "Getötet",
        "./job.sh: Zeile 12: 88123 Getötet                  python train.py",
        "./job.sh : ligne 12 : 88123 Processus arrêté         python train.py",
        "./job.sh: 第 12 行：  4711 已杀死               python train.py",
        "Violación de segmento (`core' generado)",
        "段错误（核心已转储）",
        "セグメントエラー (コアダンプ)",
        "Abandon (core dumped)",
        "double free or corruption (!prev)",
        "free(): invalid pointer",
        "*** stack smashing detected ***: terminated",
        "terminate called without an active exception",
        "python: /x/y.cpp:33: void f(): Assertion `a == b' failed.",
        "libc++abi: terminating due to uncaught exception",
        "panic: runtime error: index out of range",
        "slurmstepd: error: *** STEP 12.0 ON n1 FAILED (non-zero exit code or other failure mode) ***",
        "Primary job  terminated normally, but 1 process returned",
        "make: *** [Makefile:3: train] Error 1",
        "make[2]: *** [Makefile:3 : train] Erreur 1",
        # what no family knows: words of trouble after the last sign of work
        "    Reason:       Error\n    Exit Code:    1",
        "SystemExit: 1",
        'Traceback (most recent call last):\n  File "train.py", line 10, in <module>',
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "Training failed!",
        "CRITICAL:root:rank 0 died",
        '{"level":"error","msg":"rank 3 crashed","ts":1}',
    ],
)
def test_work_and_then_death(end: str) -> None:
    assert code(STEPS) == 0
    assert code(f"{STEPS}{end}\n") in (3, 4)


@pytest.mark.parametrize(
    "death",
    [RAISED, "srun: error: n1: task 3: Exited with exit code 1\n", "torch.OutOfMemoryError: CUDA out of memory.\n"],
)
@pytest.mark.parametrize("after", ["", DESTROYED, "upload of the logs completed successfully\n", "worker 1: exit code 0\n"])
def test_good_ends_of_others_excuse_no_death(death: str, after: str) -> None:
    assert code(STEPS + death + after) == 3


def test_a_part_that_was_completed_is_not_the_end() -> None:
    lost = "[rank1]:[E1203 10:00:00.123 socket.cpp:12] frobnication\n"
    assert code("preparing the data completed successfully\n" + STEPS + lost) == 4


@pytest.mark.parametrize(
    "end",
    [
        "s3 upload failed, retrying\nupload ok\nstep 61 loss 2.1\n",
        "test error: 0.12\n",
        "evaluation: 120 passed, 0 failed\n",
        "caught torch.OutOfMemoryError: CUDA out of memory.; retrying\nstep 61 loss 2.1\ntraining complete\n",
        DESTROYED,
        # what Python prints while it leaves, of exceptions that end nothing
        f"Training complete\nError in atexit._run_exitfuncs:\n{CALLED}BrokenPipeError: [Errno 32] Broken pipe\n",
        f"Training finished\nException ignored in: <function x.__del__ at 0x7f>\n{CALLED}AssertionError: can only\n",
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>\nBrokenPipeError: [Errno 32] x\n",
    ],
)
def test_what_did_no_harm_is_no_death(end: str) -> None:
    assert code(STEPS + end) == 0


def test_what_python_ignored_may_still_tell_of_a_gpu() -> None:
    ignored = f"Exception ignored in: <f>\n{CALLED}"
    assert code(STEPS + ignored + "RuntimeError: CUDA error: an illegal memory access was encountered\n") == 3
    assert code(STEPS + ignored + "KeyError: 1\n" + RAISED) == 3


def test_last_words_are_shown_as_they_stand() -> None:
    (job,) = diagnose(parse_text(CAME_UP + STEPS + "CRITICAL:root:rank 0 died\n"))
    assert job.status is Status.UNKNOWN and "rank 0 died" in job.evidence["lines"][0]


def _steps(mark: str, number: int = 5) -> str:
    return "".join(f"{mark}step {n} loss 2.{n}\n" for n in range(61, 61 + number))


@pytest.mark.parametrize(
    ("after", "exit_code"),
    [
        pytest.param("", 3, id="nothing comes after it"),
        pytest.param(_steps("[rank0]: "), 0, id="the rank itself goes on"),
        pytest.param(_steps("[rank1]: "), 4, id="another rank's steps, which may have waited in its buffer"),
        pytest.param(_steps("[rank1]: ", 2), 3, id="another rank ends what it began"),
        pytest.param(_steps(""), 4, id="somebody goes on, and nobody says who"),
        pytest.param(_steps("", 2), 3, id="somebody ends what was begun"),
    ],
)
def test_what_shows_that_a_death_was_overcome(after: str, exit_code: int) -> None:
    assert code(STEPS + RAISED + after) == exit_code


def test_a_rank_whose_steps_end_is_gone() -> None:
    assert code(_steps("[rank0]: ") + RAISED + _steps("[rank1]: ")) == 3


def test_nobody_knows_is_said() -> None:
    (job,) = diagnose(parse_text(CAME_UP + STEPS + RAISED + _steps("")))
    assert (
        job.status is Status.UNKNOWN and "work went on after it" in job.message and "ValueError: 7" in job.evidence["lines"][0]
    )


def test_a_test_that_was_right_needs_no_line_of_nccl() -> None:
    (job,) = diagnose(parse_text("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 92.3\n"))
    assert job.status is Status.PASS
