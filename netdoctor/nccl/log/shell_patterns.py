# ruff: noqa: E501  (a row a line)
"""What shells say of a program that a signal ended, and test runners and HTTP servers of what failed within one.

Sources: bash (jobs.c: notify_of_job_status, pretty_print_job), zsh (Src/jobs.c), GNU time (time.c), pytest (terminal.py:
short_test_summary), unittest (runner.py), Julia (Test.jl), googletest (gtest.cc), CTest (cmCTestTestHandler.cxx), and the access
lines of uvicorn, gunicorn, Flask, nginx.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, END, row

# strsignal(3) behind what a program left on its last line: a progress bar's bracket, a per cent sign or a bar
_BEHIND: Final = r"(?:[\])]|%\|?|\|) *"
_JOB: Final = rf"{BEGIN}\[\d+\][+\-]? +(?:\d+ +)?"
_CORE: Final = r"(?: +\(core dumped\))?"

PATTERNS: Final = (
    row(
        "died",
        "killed|segmentation fault|aborted|bus error|terminated by signal|zsh: abort",
        rf"{_BEHIND}(?P<how>(?-i:Killed|Segmentation fault|Aborted|Bus error)){_CORE}{END}"
        rf"|{_JOB}(?P<how2>(?-i:Killed|Segmentation fault|Aborted|Bus error)){_CORE}\s"
        rf"|{BEGIN}zsh: (?P<how3>killed|segmentation fault|abort|bus error)\b"
        rf"|{BEGIN}Command terminated by signal (?P<signal>(?!(?:2|15)\b)\d{{1,2}})\b",
        "how signal",
    ),
    # vLLM's front of its children: v1/engine/core_client.py, v1/executor/multiproc_executor.py
    row("died", "died unexpectedly", r"\b(?:Engine core|Worker) proc (?P<proc>[\w.\-]{1,80}) died unexpectedly", "proc"),
    row(
        "ended",
        "terminated|hangup",
        rf"{BEGIN}(?P<why>(?-i:Terminated)){END}|{_BEHIND}(?P<why2>(?-i:Terminated)){END}|line \d+: +\d+ (?P<why3>(?-i:Terminated|Hangup))\b"
        rf"|{BEGIN}zsh: (?P<why4>terminated|hangup)\b|{BEGIN}Command terminated by signal (?P<why5>2|15)\b",
        "why",
    ),
    row(
        "test_failed",
        "failed |test failed|error during test|tests passed,|failed (|fail: ",
        rf"{BEGIN}FAILED (?P<name>[\w./\-]+::\S{{1,200}})(?: - (?P<said>.{{1,300}}))?"
        r"|\b(?:Test Failed|Error During Test) at (?P<name2>\S{1,200})"
        rf"|{BEGIN}FAIL: (?P<name3>\w{{1,100}} \([\w.]{{1,200}}\)){END}"
        rf"|{BEGIN}\[  FAILED  \] (?P<name4>[\w/.]{{1,200}}\.\w+)"
        rf"|{BEGIN}\d{{1,2}}% tests passed, (?P<n>[1-9]\d*) tests? failed out of \d+|{BEGIN}FAILED \((?:failures|errors)=(?P<n2>\d+)",
        "name",
        follow=2,
    ),
    row(
        "bad_answer",
        '/1.1" 5|/1.0" 5|/2" 5',
        rf"{BEGIN}.{{0,200}}\"(?P<what>[A-Z]{{3,7}} [^\s?\"]{{1,100}})[^\"\s]{{0,400}} HTTP/(?:1\.[01]|2)\" (?P<code>5\d\d)\b",
        "what code",
    ),
)
