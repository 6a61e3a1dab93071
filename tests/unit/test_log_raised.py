"""Exceptions by what they came of: a chain's root, a message of several lines, a statement; what was caught or served."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_text

HEAD = "Traceback (most recent call last):\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
SITE = "/opt/v/lib/python3.11/site-packages"
BUILT = f"ImportError: {SITE}/quick_ops_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105Error4whatEv"


def traced(*frames: tuple[str, int, str, str], said: str, mark: str = "", head: str = "") -> str:
    text = f"{mark}{head}{HEAD}"
    for file, line, name, statement in frames:
        text += f'{mark}  File "{file}", line {line}, in {name}\n' + (f"{mark}    {statement}\n" if statement else "")
    return text + f"{mark}{said}\n"


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


MAIN = ("/home/u/fit.py", 40, "<module>", "main()")
IMPORTED = traced((f"{SITE}/quick_ops/__init__.py", 3, "<module>", "import quick_ops_cuda as ops"), said=BUILT)


@pytest.mark.parametrize("between", [DIRECT, DURING])
def test_of_a_chain_the_root_comes_first_its_end_behind(between: str) -> None:
    outer = traced(MAIN, ("/home/u/model.py", 7, "build", "raise RuntimeError('no model')"), said="RuntimeError: no model")
    found = first(IMPORTED + between + outer)
    assert found.cause == "rank_died"
    assert "undefined symbol" in found.message
    assert "it came to RuntimeError: no model (/home/u/model.py:7)" in found.message
    assert len(found.evidence["lines"]) == 2
    assert found.fix is not None and "quick_ops_cuda" in found.fix.summary


def test_without_pythons_words_between_there_is_no_chain() -> None:
    outer = traced(MAIN, said="RuntimeError: no model")
    assert "it came to" not in first(IMPORTED + outer).message


def test_a_message_that_quotes_an_exception_is_told_by_that() -> None:
    """As Ray's of an actor that could not be imported."""
    outer = traced(
        (f"{SITE}/ray/_private/function_manager.py", 608, "temporary_actor_method", "raise RuntimeError("),
        said="RuntimeError: The actor with name Learner failed to import on the worker, for these reasons:",
    )
    found = first(outer + "\n" + IMPORTED)
    assert "undefined symbol" in found.message
    assert "Learner" not in found.message


def test_what_stands_indented_below_is_of_the_message() -> None:
    """As pydantic tells which field was wrong, and why."""
    said = (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for ServeConfig\n"
        "(Front pid=7)   Value error, block (48) is no multiple of 32. [type=value_error, input_value=48]\n"
        "(Front pid=7)     For further information visit https://errors.pydantic.dev/2.12/v/value_error"
    )
    found = first(traced(MAIN, said=said, mark="(Front pid=7) "))
    assert "block (48) is no multiple of 32" in found.message


@pytest.mark.parametrize(
    "after",
    [
        pytest.param("[rank1]:   all is well\n", id="another rank's"),
        pytest.param("2026-02-03 10:00:00 INFO done with it\n", id="a record"),
        pytest.param('Traceback (most recent call last):\n  File "/w/a.py", line 1, in f\n', id="another traceback"),
        pytest.param("\nand what is below a blank line\n", id="below a blank line"),
    ],
)
def test_what_another_says_below_is_not_of_the_message(after: str) -> None:
    said = "ValueError: these are missing:"
    message = first(traced(MAIN, said=said) + after).message
    assert said in message
    assert after.split("\n")[-2].strip() not in message


def test_a_bare_exception_is_told_by_its_statement() -> None:
    frames = (MAIN, ("/home/u/model.py", 12, "build", "check(width % heads == 0)"), (f"{SITE}/lib/check.py", 4, "check", ""))
    found = first(traced(*frames, said="AssertionError"))
    assert "/home/u/model.py:12" in found.message
    assert "check(width % heads == 0)" in found.message


def test_a_key_alone_is_told_with_the_statement() -> None:
    found = first(traced(MAIN, ("/home/u/model.py", 12, "build", "width = table[size]"), said="KeyError: '7B'"))
    assert "width = table[size]" in found.message


def test_a_text_that_is_executed_has_lines_of_its_own() -> None:
    frames = (("/home/u/fit.py", 40, "<module>", "exec(open('settings.py').read())"), ("<string>", 29, "<module>", ""))
    found = first(traced(*frames, said="AssertionError"))
    assert "/home/u/fit.py:40, line 29 of what it executes there" in found.message
    assert "settings.py" in found.message


def test_an_exception_of_others_files_alone_is_a_library_s() -> None:
    frames = (("uvloop/loop.pyx", 1518, "uvloop.loop.Loop.run", ""), (f"{SITE}/words/__init__.py", 9, "load", "inner(name)"))
    found = first(traced(*frames, said="words.WordError: invalid file of words"))
    assert f"{SITE}/words/__init__.py:9, in words alone" in found.message
    assert found.fix is not None and "words" in found.fix.summary


STEPS = "".join(f"step {n} | loss 0.{n}\n" for n in range(1, 30))


def logged(pid: int, item: int) -> str:
    mark = f"(Player pid={pid}) "
    head = f"ERROR:2026-02-03 10:{item:02d}:00,123:"
    return traced(
        ("/home/u/game.py", 270, "move", "x, y = read(answer)"), said="TypeError: cannot unpack None", mark=mark, head=head
    ).replace(f"{mark}{head}{mark}", f"{mark}{head}")


def test_what_a_process_logs_time_and_again_ended_nothing() -> None:
    text = "".join(logged(7, n) for n in range(4))
    assert outcome(parse_text(STEPS + text)).ending is Ending.OPEN
    assert not any(f.status is Status.FAIL for f in diagnose(parse_text(STEPS + text)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(logged(7, 1), id="once"),
        pytest.param(logged(7, 1) + traced(MAIN, said="TypeError: cannot unpack None"), id="and raised again"),
        pytest.param("".join(logged(pid, 1) for pid in range(8)), id="once by each of several"),
    ],
)
def test_what_a_process_logs_once_may_have_ended_it(text: str) -> None:
    assert outcome(parse_text(STEPS + text)).ending is Ending.FAILED


def test_what_was_caught_often_is_told_beside_the_end() -> None:
    text = "".join(logged(7, n) for n in range(4))
    found = first(STEPS + text + traced(MAIN, said="ValueError: need at least one array to stack"))
    assert "ValueError" in found.message and "before it, 4 times: TypeError" in found.message


def test_a_step_that_fails_each_time_comes_before_a_later_one() -> None:
    solve = traced(("/w/solve.py", 5, "<module>", "main()"), said="TypeError: get() takes 1 argument")
    judge = traced(("/w/judge.py", 9, "<module>", "merge()"), said="ValueError: No objects to concatenate")
    found = first((STEPS + solve) * 3 + (STEPS + judge) * 2)
    assert "solve.py" in found.message
    assert any("judge.py" in note for note in found.notes)


def test_of_one_script_started_again_the_last_end_counts() -> None:
    early = traced(MAIN, said="TypeError: get() takes 1 argument")
    late = traced(MAIN, said="ValueError: a wrong size")
    assert "a wrong size" in first((STEPS + early) * 3 + (STEPS + late) * 2).message


SERVED = (
    'INFO:     10.0.0.5:5 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
    "ERROR:    Exception in ASGI application\n"
    + traced((f"{SITE}/hub/cache.py", 3, "get", "raise BadName(name)"), said="hub.BadName: no such name")
    + DIRECT
    + traced((f"{SITE}/hub/load.py", 9, "load", "raise OSError(name)"), said="OSError: '/models/x/' is no folder here")
)
CANCELLED = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-02-03T11:00:00 ***\n"
LISTENS = "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"


def test_requests_that_failed_before_the_end_are_no_nothing() -> None:
    found = first(LISTENS + SERVED * 3 + CANCELLED)
    assert found.status is Status.UNKNOWN
    assert "nothing failed before" not in found.message and "is no folder here" in found.message
    assert any(note.startswith("3 requests") for note in found.notes)
    assert not any("no such name" in note for note in found.notes)


def test_who_ended_a_job_is_quoted() -> None:
    found = first(LISTENS + CANCELLED)
    assert found.message.endswith("cancelled it")  # that nothing failed before, a log does not show
    assert "JOB 77 ON n1 CANCELLED" in found.evidence["shown"][0]


def test_a_kernel_that_the_driver_cannot_read_is_named() -> None:
    found = first(traced(MAIN, said="RuntimeError: Triton Error [CUDA]: device kernel image is invalid"))
    assert found.cause == "cuda_driver_mismatch"
    assert found.fix is not None and "ptxas" in found.fix.summary


LAST = "[2026-02-03 05:33:49] step 005222 | loss 0.446048 | dt_ms 1000.4\n"


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("[2026-02-03 05:37:31] run complete @ step 5223: 89.7 min, 12.001/12 h used\n", id="shows work itself"),
        pytest.param("2026-02-03 16:38:37 - LOGS    - Training took 00:43:00.58\n", id="how long it took"),
    ],
)
def test_an_end_by_whatever_words(end: str) -> None:
    assert outcome(parse_text(STEPS + LAST + end)).ending is Ending.FINISHED


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("[2026-02-03 05:37:31] run complete @ step 522 of 5000\n", id="with a count that is not full"),
        pytest.param("2026-02-03 16:38:37 - LOGS    - Training took 00:43:00.58\n" * 2, id="told of each part"),
        pytest.param("the run will be complete at step 5300\n", id="not yet"),
    ],
)
def test_the_words_of_a_part_are_no_end(end: str) -> None:
    assert outcome(parse_text(STEPS + "epoch 3/50 | " + LAST + end)).ending is Ending.OPEN


def test_a_library_s_error_is_no_doubt_behind_a_good_end() -> None:
    said = "[1724685304.16] [n1:102320:f] vfs_fuse.c:281 UCX  ERROR inotify_add_watch(/tmp) failed: No space left on device\n"
    found = first(said + "training ...\n[after training is done] datetime: 2026-02-03 15:18:23 \n")
    assert found.status is Status.PASS
    assert "nothing failed" not in found.message


def test_what_a_worker_raised_is_told_and_not_that_it_did() -> None:
    """torch tells of a DataLoader's worker what the worker itself met behind its own words."""
    outer = traced(MAIN, said="FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0.")
    inner = traced(("/home/u/data.py", 9, "read", "open(path)"), said="FileNotFoundError: No such file: '/d/a.jpg'")
    found = first(STEPS + outer + "Original " + inner)
    assert "/home/u/data.py:9" in found.message and "/d/a.jpg" in found.message


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("SystemExit: no configuration was given", "an uncaught exception"),
        ("SystemExit: 1", "another process"),
    ],
)
def test_a_program_that_ends_itself_may_say_why(said: str, words: str) -> None:
    assert words in first(traced(MAIN, said=said)).message


def test_a_message_that_begins_below_its_name() -> None:
    message = first(traced(MAIN, said="ImportError: \nthis needs fastwords:\npip install fastwords\n")).message
    assert "this needs fastwords: pip install fastwords" in message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Usage: fit.py [OPTIONS]\nTry 'fit.py --help' for help.\n\nError: No such option: --lr2\n", id="click"),
        pytest.param("Could not override 'trainer.gpus'.\nKey 'gpus' is not in struct\n", id="Hydra"),
    ],
)
def test_a_command_line_is_refused_in_other_words(text: str) -> None:
    assert "refused its command line" in first(text).message


def test_what_was_complained_of_before_is_told() -> None:
    items = "".join(f"ERROR: item {n} failed: HTTP 401 invalid key\n" for n in range(9))
    found = first(STEPS + items + traced(MAIN, said="ZeroDivisionError: division by zero"))
    assert any(note.startswith("said before it time and again: ERROR: item 0 failed: HTTP 401") for note in found.notes)
    assert len(found.notes) == 1
    once = first(STEPS + "Failed to import an optional module\n" + traced(MAIN, said="ZeroDivisionError: division by zero"))
    assert not once.notes
