"""A program's last line says that it is done by grammar; a request that a server refuses ends nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import CAME_UP

WORK = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41))
HALF = "".join(f"step {n}/90 loss 2.{n}\n" for n in range(30, 41))
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(30, 41))


def unwritten(text: str) -> list[Status]:
    return [f.status for f in diagnose(replace(parse_text(text), written=False))]


@pytest.mark.parametrize(
    "mark", ["", "[rank0]: ", "0: ", "2026-01-01 10:00:00,123 - INFO - ", "INFO:trainer:", "== ", "[12:00:01] "]
)
@pytest.mark.parametrize(
    "last",
    [
        "Done!",
        "Finished in 33.2 seconds",
        "All tests passed",
        "Benchmark completed successfully",
        "Job finished at Fri Nov 27 10:00:00 UTC 2026",
        "Exit status: 0",
        "RC=0",
        "Model saved to /w/out/final.pt",
        "Total time: 3.4 s",
        "final_val_loss:2.07 val_bpb:1.22",
        "Evaluation results: {'accuracy': 0.91}",
        "Training complete! The model is in out/.",
        "All re-collection frequencies completed.",
        "[I ProcessGroupNCCL.cpp:844] [Rank 1] NCCL watchdog thread terminated normally",
    ],
)
def test_a_last_line_says_that_the_program_is_done(mark: str, last: str) -> None:
    for work in (WORK, STEPS):
        assert unwritten(f"{work}{mark}{last}\n") == [Status.PASS]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("Average time for all_to_all (exclude first iter): 0.00005344\n", id="a mean"),
        pytest.param('{\n  "accuracy": 0.91,\n  "errors": 0\n}\n', id="a document of results"),
        pytest.param("  recall   0.24   0.25\n  rate (B2)   0.77   0.91\n  f1   0.5\n==========\n", id="a ruled table"),
        pytest.param("Requests:   9\nFailed requests:      0\nP99 (ms):   318083.89\n----------\n", id="none failed"),
        pytest.param("|Tasks|Metric|Value|\n|-----|------|----:|\n|boolq|acc   |0.791|\n", id="a table"),
        pytest.param(
            "  error_injection_rate ............................ 0\nEND TIME: Mon Jun 22 10:32:40 CEST 2026\n", id="a setting"
        ),
    ],
)
def test_the_very_last_line_shows_that_nothing_follows(end: str) -> None:
    assert unwritten(STEPS + end) == [Status.PASS]
    if "END TIME" not in end:
        assert Status.PASS not in unwritten(HALF + end)


def test_all_ranks_took_their_communicator_down() -> None:
    done = STEPS + "Total time: 41.2 s\n"
    aborted = [
        f"node01:{100 + rank}:7 [{rank}] NCCL INFO comm 0x5{rank} rank {rank} nranks 4 cudaDev 0 busId 7000 - Abort COMPLETE\n"
        for rank in range(4)
    ]
    assert unwritten(CAME_UP + done + "".join(aborted)) == [Status.PASS]
    assert Status.PASS not in unwritten(CAME_UP + done + "".join(aborted[1:]))


def test_a_program_that_left_a_mess_was_killed() -> None:
    tracker = (
        "  warnings.warn('x')\n/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
    )
    tracker += "There appear to be 4 leaked semaphore objects to clean up at shutdown\n"
    (finding,) = diagnose(replace(parse_text(UP + STEPS + tracker), written=False))
    assert (finding.status, "it was killed" in finding.message) == (Status.UNKNOWN, True)
    assert unwritten(STEPS + tracker + "Done!\n") == [Status.PASS]
    assert "killed" not in diagnose(replace(parse_text(tracker + STEPS), written=False))[0].message


@pytest.mark.parametrize("level", ["INFO", "DEBUG", "WARNING"])
def test_what_python_s_loggers_tell_is_no_trouble(level: str) -> None:
    said = (
        f"2026-02-27 20:53:50,033 - ingest - {level} - Indexed 4 chunks from https://x.org/docs/exceptions.html, 0 timeouts\n"
    )
    assert unwritten(STEPS + said + "Done!\n") == [Status.PASS]
    assert Status.PASS not in unwritten(STEPS + said.replace(level, "ERROR") + "Done!\n")


@pytest.mark.parametrize(
    ("work", "last"),
    [
        pytest.param(HALF, "Model saved to /w/out/step40.pt", id="a checkpoint of the middle"),
        pytest.param(HALF, "Evaluation completed in 3.1 s", id="a part of the middle"),
        pytest.param(STEPS, "Loading model... done", id="a beginning that is done"),
        pytest.param(STEPS, "training is not finished", id="what is denied"),
        pytest.param(STEPS, "will be saved to /w/out", id="what is to come"),
        pytest.param(STEPS, "Epoch 3 done", id="one of many"),
        pytest.param("loading\n", "Results: /w/out.json", id="a result of no work"),
        pytest.param("Error: it could not connect\n" + STEPS, "the writer died\nDone!", id="trouble before it"),
    ],
)
def test_what_is_no_end(work: str, last: str) -> None:
    assert Status.PASS not in unwritten(f"{work}{last}\n")


def test_an_end_of_a_process_makes_no_fault_less() -> None:
    down = "node01:100:130 [0] net_ib.cc:179 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n"
    findings = diagnose(parse_text(STEPS + down + "Done!\n"))
    assert (findings[0].status, findings[0].cause) == (Status.FAIL, "link_degraded")
    assert findings[0].severity is diagnose(parse_text(STEPS + down))[0].severity


UP = 'INFO:     Application startup complete.\nINFO:     10.0.0.9:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
BROKE = 'Traceback (most recent call last):\n  File "/w/serve.py", line 3, in ask\n    raise check(prompt)\n'
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize("mark", ["", "(APIServer pid=1) "])
@pytest.mark.parametrize(
    "refused",
    [
        f"ERROR:    Exception in ASGI application\n{BROKE}ValueError: the prompt is too long\n",
        f"ERROR:    Exception in ASGI application\n{BROKE}KeyError: 'x'\n{CHAIN}{BROKE}RuntimeError: no such model\n",
        f"[2026-01-01 10:00:00] ERROR in app: Exception on /generate [POST]\n{BROKE}ValueError: the prompt is too long\n",
        'INFO:     10.0.0.9:5 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n',
    ],
)
def test_a_refused_request_ends_no_server(mark: str, refused: str) -> None:
    marked = "".join(f"{mark}{line}" if line.strip() else line for line in (UP + refused).splitlines(keepends=True))
    (finding,) = diagnose(parse_text(marked))
    assert (finding.status, "the server came up" in finding.message) == (Status.PASS, True)


def test_what_a_server_answered_after_is_a_request_s() -> None:
    died = f"{BROKE}vllm.exceptions.VLLMValidationError: the prompt is too long\n"
    answered = UP.splitlines(keepends=True)[1] * 4
    assert [f.status for f in diagnose(parse_text(UP + died + answered))] == [Status.PASS]
    assert diagnose(parse_text(UP + died))[0].status is Status.FAIL


def test_a_full_count_of_steps_counts_also_behind_an_evaluation() -> None:
    full = "step:1335/1335 train_time:59ms\nval_loss:3.2\npeak memory allocated: 31266 MiB\n"
    assert unwritten(full) == [Status.PASS]
    assert Status.PASS not in unwritten(full.replace("val_loss:3.2", "val batch 3/9 loss 3.2"))


HEAD = "(APIServer pid=5) ERROR 08-21 10:24:34 [async_llm.py:704] "
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: It encountered an issue. See stack trace (above) for the root cause."
ECHO = "".join(f"{HEAD}{line}\n" for line in (*BROKE.splitlines(), DEAD))
SHUT = "(APIServer pid=5) INFO:     Application shutdown complete.\n"


def test_a_server_that_is_told_to_end_misses_its_engine() -> None:
    order = "(APIServer pid=5) INFO 08-21 10:24:34 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
    assert [f.status for f in diagnose(parse_text(UP + order + ECHO + SHUT))] == [Status.PASS]
    assert diagnose(parse_text(UP + ECHO + order + SHUT))[0].status is Status.FAIL


def test_a_child_that_was_asked_to_end_says_who_ended_the_server() -> None:
    order = "[2026-08-02 00:17:43] Subprocess detokenizer (pid=31379) crashed with exit code -15. Triggering SIGQUIT\n"
    (finding,) = diagnose(parse_text(UP + order))
    assert (finding.status, "asked to end (SIGTERM)" in finding.message) == (Status.UNKNOWN, True)


@pytest.mark.parametrize(
    "said",
    [
        "Training finished with errors, see /var/log/e.log",
        "finished training: FAILED",
        "Training is done but the checkpoint is missing",
        "Training completed unsuccessfully",
        "training finished after rank 3 was lost",
        "Training finished on 7 of 8 workers",
        "completed successfully: 7/8 ranks",
        "No ranks completed successfully",
        "nccl all_reduce ok on 7 of 8 nodes",
        "Benchmark completed: 3 of 8 nodes",
        "Training has finished: status=preempting",
        "Training complete, return code 137",
        "State: OUT_OF_MEMORY, ExitCode 0:125",
        "exit status 0, signal SIGKILL",
        "results saved to /w/x.json: 0 samples, 12 errors",
        "job run_1 succeeded: 3, failed: 5",
        "finished training? no",
        "Training was interrupted",
    ],
)
def test_an_end_that_takes_itself_back_is_none(said: str) -> None:
    """Also where the program's count of its steps is full: something did not go as it should."""
    for work in (WORK, "loading\nbegun\nrunning\n"):
        (found,) = diagnose(replace(parse_text(f"{work}{said}\n"), written=False))
        assert found.status is Status.UNKNOWN


@pytest.mark.parametrize(
    "said",
    [
        "Training finished with no errors, 0 failed",
        "Training finished. test error: 0.12, error rate 3.1, failures: 0",
        "results saved to /w/errors/failed_cases.json",
        "completed successfully: 8/8 ranks",
        "Training complete in 3/4 of the time, best epoch 7/10",
        "[rank0]:[W302 10:00:00.1 x.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit",
        "Training has finished: status=success",
    ],
)
def test_an_end_that_names_what_did_not_happen_is_one(said: str) -> None:
    assert unwritten(f"{WORK}{said}\n") == [Status.PASS]


@pytest.mark.parametrize("mark", ["", "[rank3]: ", "2026-03-02 11:00:00,123 - trainer - "])
def test_an_error_comes_before_the_words_of_one_process(mark: str) -> None:
    said = f"{mark}ERROR: could not write model.safetensors\n"
    assert unwritten(f"{WORK}{said}All done.\n") == [Status.UNKNOWN]
    assert unwritten(f"{said}{WORK}All done.\n") == [Status.PASS]


NAN = "".join(f"step {n}/99 loss nan grad_norm 1.0\n" for n in range(90, 100))
GOOD = "".join(f"step {n}/99 loss 2.0\n" for n in range(90, 100))


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(GOOD + NAN, Status.UNKNOWN, id="a loss that is no number up to the end"),
        pytest.param(NAN + GOOD, Status.PASS, id="one that is a number again"),
        pytest.param(GOOD + "srun: error: n7: tasks 3,7: Exited with exit code 1\n", Status.FAIL, id="tasks that failed"),
        pytest.param(
            "srun: error: n7: task 3: Exited with exit code 1\n" + GOOD, Status.UNKNOWN, id="a task, and work after it"
        ),
    ],
)
def test_what_the_end_of_a_program_does_not_mend(text: str, status: Status) -> None:
    assert unwritten(f"{text}Training finished\n")[0] is status


@pytest.mark.parametrize(("level", "status"), [("error", Status.UNKNOWN), ("CRITICAL", Status.UNKNOWN), ("info", Status.PASS)])
def test_the_level_that_a_line_of_json_has_is_read(level: str, status: Status) -> None:
    steps = "".join(f'{{"level":"info","msg":"step {n} loss 2.{n}"}}\n' for n in range(9))
    said = f'{{"level":"{level}","msg":"rank 3 is not among them","code":139}}\n{{"level":"info","msg":"job done"}}\n'
    assert unwritten(steps + said) == [status]
