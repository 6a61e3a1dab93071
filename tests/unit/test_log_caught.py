"""What ended a program, and what somebody caught: bottoms of tracebacks, refusals, shells' words, tests, requests."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

HEAD = "Traceback (most recent call last):\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
SITE = "/opt/v/lib/python3.11/site-packages"
MAIN = ("/home/u/fit.py", 40, "<module>", "main()")
TOLD = "".join(f"part {n} of the table is written\n" for n in range(6))
STEPS = "".join(f"step {n} loss 2.0\n" for n in range(6))
CANCELLED = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-02-03T11:00:00 ***\n"


def traced(*frames: tuple[str, int, str, str], said: str, mark: str = "") -> str:
    text = f"{mark}{HEAD}"
    for file, line, name, statement in frames:
        text += f'{mark}  File "{file}", line {line}, in {name}\n{mark}    {statement}\n'
    return text + f"{mark}{said}\n"


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


def test_below_the_programs_line_a_library_raised_it() -> None:
    found = first(traced(MAIN, (f"{SITE}/nets/core.py", 7, "join", "raise ValueError(n)"), said="ValueError: 3 is no width"))
    assert "ValueError at /home/u/fit.py:40, raised in nets (nets/core.py:7)" in found.message
    assert found.fix is not None and found.fix.summary.startswith("see what nets was given at /home/u/fit.py:40")


def test_nothing_is_to_be_mended_in_the_standard_library() -> None:
    inner = ("/usr/lib/python3.11/json/decoder.py", 355, "raw_decode", "raise JSONDecodeError()")
    found = first(traced(MAIN, inner, said="json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"))
    assert found.fix is not None and found.fix.summary.startswith("see what the program does at /home/u/fit.py:40")


def test_the_place_is_the_programs_where_the_root_has_none() -> None:
    inner = traced((f"{SITE}/nets/core.py", 7, "join", "load()"), said="OSError: 3 is no file of nets")
    outer = traced(MAIN, (f"{SITE}/nets/hub.py", 9, "get", "raise"), said="nets.HubError: cannot load")
    found = first(inner + DURING + outer)
    assert "OSError at /home/u/fit.py:40, raised in nets (nets/core.py:7)" in found.message
    assert "it came to nets.HubError: cannot load" in found.message


def test_a_variable_that_is_not_set_is_named() -> None:
    text = traced(MAIN, ("<frozen os>", 679, "__getitem__", "raise KeyError(key)"), said="KeyError: 'SLURM_PROCID'")
    assert first(text).message.startswith("the environment variable SLURM_PROCID is not set; ")
    assert "environment variable" not in first(traced(MAIN, said="KeyError: 'SLURM_PROCID'")).message


def test_a_module_that_is_not_there_is_named() -> None:
    found = first(traced(MAIN, said="ModuleNotFoundError: No module named 'words.fast'"))
    assert found.message.startswith("the job's Python has no module words.fast; ")
    assert found.fix is not None and "pip show words;" in found.fix.commands[0]


SOCKET = ("/usr/lib/python3.11/socket.py", 833, "create_connection", "sock.connect(sa)")


@pytest.mark.parametrize(
    ("said", "cause", "words", "mend"),
    [
        ("OSError: [Errno 98] Address already in use ('0.0.0.0', 8000)", "bootstrap_ports", "the port 8000 on which", ":8000"),
        ("OSError: [Errno 98] Address already in use", "bootstrap_ports", "the port on which the program listens", "ss -ltnp"),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "rank_died", "may not use /data/x", "ls -ld '/data/x'"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/m/w.pt'",
            "rank_died",
            "did not find /m/w.pt",
            "ls -l '/m/w.pt'",
        ),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example'): [Errno 101] Network is unreachable",
            "other",
            "from hub.example and this node has no way there",
            "HTTPS_PROXY",
        ),
    ],
    ids=["a port", "a port without its number", "a folder", "a file", "the Internet"],
)
def test_what_the_system_refused_is_known_whoever_met_it(said: str, cause: str, words: str, mend: str) -> None:
    found = first(traced(MAIN, SOCKET, said=said))
    assert (found.cause, words in found.message) == (cause, True)
    assert found.fix is not None and mend in " ".join((found.fix.summary, *found.fix.commands))


def test_an_address_of_this_node_alone_is_behind_no_firewall() -> None:
    said = (
        "[E1026 18:54:43.118 socket.cpp:1010] [c10d] The client socket has timed out after 600000ms while trying to connect to"
    )
    findings = diagnose(parse_text(f"{said} (127.0.0.1, 35933).\n"))
    assert [f.cause for f in findings if f.status is Status.FAIL] == ["hang"]
    assert "firewall" not in findings[0].message


PRINTED = traced((f"{SITE}/words/__init__.py", 154, "initialize", "move(cache)"), said="words.CacheError: no room for it")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(STEPS + PRINTED + STEPS + "training finished\n", Status.PASS, id="steps and a good end follow"),
        pytest.param(PRINTED + TOLD, Status.UNKNOWN, id="it spoke on"),
        pytest.param(TOLD + PRINTED, Status.FAIL, id="the last that is told"),
        pytest.param(
            PRINTED + TOLD + "failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: python\n",
            Status.FAIL,
            id="a launcher's word",
        ),
        pytest.param(traced(MAIN, said="KeyError: 'k'") + TOLD, Status.FAIL, id="from the bottom: nobody caught it"),
        pytest.param("Error executing job with overrides: []\n" + PRINTED + TOLD, Status.FAIL, id="Hydra cuts the bottom off"),
        pytest.param(
            PRINTED + DURING + traced(MAIN, said="KeyError: 'k'") + TOLD, Status.FAIL, id="one that nobody caught came of it"
        ),
    ],
)
def test_what_was_caught_and_printed_is_no_end(text: str, status: Status) -> None:
    assert first(text).status is status


def test_what_was_caught_is_told_beside_the_end() -> None:
    assert any("was caught and printed" in note for note in first(STEPS + PRINTED + STEPS + "training finished\n").notes)


def test_what_was_caught_time_and_again_is_named_before_the_end() -> None:
    found = first((PRINTED + TOLD) * 4 + traced(MAIN, said="ValueError: nothing to join"))
    assert "ValueError: nothing to join" in found.message and "; before it, 4 times: words.CacheError" in found.message


def test_who_pressed_ctrl_c_wins_over_what_was_being_tried_again() -> None:
    tried = traced(("/home/u/fit.py", 9, "wait", "connect()"), said="ConnectionRefusedError: [Errno 111] Connection refused")
    found = first(tried + DURING + traced(MAIN, said="KeyboardInterrupt"))
    assert (found.status, "Ctrl-C" in found.message) == (Status.UNKNOWN, True)


def test_ranks_that_raise_alike_are_told_together() -> None:
    text = "".join(traced(MAIN, said="ValueError: no width", mark=f"[rank{rank}]: ") for rank in range(4))
    found = first(text)
    assert found.subject == "4 ranks (0-3)" and found.message.startswith("4 ranks (0-3) ended by an uncaught exception")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("epochs:  20%|██        | 3/15 [1:27:15<5:56:40, 1783.41s/it, loss=3.71]Killed", "killed from outside"),
        ("[1]+  Killed                  python fit.py", "killed from outside"),
        ("zsh: killed     python fit.py", "killed from outside"),
        ("Command terminated by signal 9", "killed from outside"),
        ("zsh: segmentation fault (core dumped)  python fit.py", "segmentation fault"),
        ("epochs:  20%|██        | 3/15 [1:27:15<5:56:40]Segmentation fault (core dumped)", "Segmentation fault"),
    ],
)
def test_a_shells_word_of_a_signal_is_read_wherever_it_stands(line: str, words: str) -> None:
    found = first(STEPS + line + "\n")
    assert (found.status, found.cause, words in found.message) == (Status.FAIL, "rank_died", True)


@pytest.mark.parametrize(
    "line",
    ["epochs:  20%|██   | 3/15 [1:27:15<5:56:40]Terminated", "Terminated", "job.sh: line 4: 77 Terminated  python fit.py"],
)
def test_a_shells_word_of_an_order_is_an_order(line: str) -> None:
    found = first(STEPS + line + "\n")
    assert (found.status, found.message) == (Status.UNKNOWN, "it was asked to end (SIGTERM)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "FAILED tests/test_ops.py::test_width[3] - AssertionError: assert 3 == 4\n=== 1 failed, 5 passed in 3.1s ===\n",
            "test_width[3]",
        ),
        ("FAIL: test_width (ops.Widths)\nTraceback (most recent call last):\n", "test_width (ops.Widths)"),
        ("[  FAILED  ] Widths.Three (4 ms)\n", "Widths.Three"),
        ("/w/ops.jl: Test Failed at /w/ops.jl:250\n  Expression: width == 3\n   Evaluated: 4 == 3\n", "Evaluated: 4 == 3"),
    ],
    ids=["pytest", "unittest", "googletest", "Julia"],
)
def test_a_test_that_failed_is_named(text: str, words: str) -> None:
    found = first(STEPS + text)
    assert (found.status, words in found.message) == (Status.FAIL, True)


def test_requests_that_were_answered_with_an_error_are_told() -> None:
    listens = "INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
    answer = 'INFO:     10.0.0.5:5 - "POST /v1/chat/completions HTTP/1.1" {} {}\n'
    found = first(listens + answer.format(200, "OK") + answer.format(500, "Internal Server Error") * 3 + CANCELLED)
    assert "answered on" in found.message
    assert any(note.startswith("a server answered 3 requests with an error") for note in found.notes)
    assert not first(listens + answer.format(200, "OK") * 3 + CANCELLED).notes


@pytest.mark.parametrize(
    "line",
    [
        "The scene has been preserved and they are investigating a fatal stabbing at the road this evening.",
        "He said that the program crashed with a Segmentation fault when it was run on the old machine of his.",
    ],
)
def test_what_a_model_writes_happened_to_nobody(line: str) -> None:
    (found,) = diagnose(parse_text(STEPS + line + "\n" + CANCELLED))
    assert found.message == "the scheduler or its user cancelled it"


def test_runs_one_after_the_other_may_take_different_networks() -> None:
    line = "n1:{pid}:{pid} [0] NCCL INFO {said}\n"
    up = "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x{pid} - Init COMPLETE"
    text = "".join(
        line.format(pid=pid, said=said)
        for pid, network in ((11, "IB"), (12, "Socket"))
        for said in (f"Using network {network}", up.format(pid=pid))
    )
    assert "different networks" not in " ".join(f.message for f in diagnose(parse_text(text)))
    apart = text.replace("n1:12:12", "n2:12:12").replace("0x12", "0x11")
    one = apart[: apart.rindex("rank 0")] + apart[apart.rindex("rank 0") :].replace("rank 0", "rank 1")
    assert "different networks" in " ".join(f.message for f in diagnose(parse_text(one)))


def test_a_warning_before_a_crash_is_the_first_fault() -> None:
    warned = "n2:7:9 [0] include/socket.h:406 NCCL WARN Connect to 192.168.184.61<42427> failed : No route to host\n"
    text = warned + "srun: error: n2: task 4: Segmentation fault\nsrun: Force Terminated job step 14.1\nAll done!\n"
    assert first(text).cause == "firewall_connect"
