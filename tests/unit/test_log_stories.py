"""Logs as people post them: what is named first, what is found, and what nobody can tell.

The logs of `data/log_stories.txt` are made after the formats of NCCL, torch, Gloo, Slurm, Kubernetes, Ray, MPI and nccl-tests,
in the order and with the noise of public threads; names and numbers are made up.  A title begins with the right causes:
"none" is a healthy log, "unknown" one that does not say why.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netdoctor.model import Status
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
