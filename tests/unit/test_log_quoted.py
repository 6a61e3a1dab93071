"""What a log quotes, or a document tells of, has happened to nobody: a program's text, a sample of a message, a README."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.documents import document
from netdoctor.nccl.log.parser import Parser, parse_text

STEPS = "".join(f"step {n}/9 loss: 3.{n}\n" for n in range(1, 10))
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '{i}File "/w/train.py", line 10, in main\n'
    '{i}{i}raise RuntimeError("CUDA error: an illegal memory access was encountered")\n'
    '{i}File "/w/train.py", line 20, in step\n'
    '{i}{i}report("NCCL WARN Net : Call to ibv_modify_qp failed with error Connection timed out")\n'
    "{marks}ValueError: the batch is empty\n"
)
README = """# A trainer
To train on two nodes, give the address of the first one, and the port that is free on it.

## When it fails
- `NCCL WARN Connect to 10.0.0.1<50001> failed : No route to host`: the firewall of the node is in the way.
- `CUDA out of memory`: take a smaller batch, or a GPU with more of it.
- `RuntimeError: NCCL error: unhandled system error`: run it again with `NCCL_DEBUG=INFO` and look at the lines that it prints.

```
[rank0]: Traceback (most recent call last):
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
```

The job is killed by the scheduler when it is over its limit, and ends with exit code 137 on that node.
A run that is cut off is started again from the last of the checkpoints in the folder.
"""


@pytest.mark.parametrize(
    ("indent", "marks"),
    [
        pytest.param("  ", "", id="as Python prints it"),
        pytest.param("  ", "    ^^^^^^^^\n", id="with the marks of Python 3.11"),
        pytest.param("", "", id="on a page that took the indents away"),
    ],
)
def test_what_a_traceback_quotes_is_no_message(indent: str, marks: str) -> None:
    findings = diagnose(parse_text(TRACEBACK.format(i=indent, marks=marks)))
    assert [f.cause for f in findings if f.status is Status.FAIL] == ["rank_died"]
    assert "ValueError at /w/train.py:20" in findings[0].message


@pytest.mark.parametrize(
    "line",
    [
        '    raise RuntimeError("CUDA error: an illegal memory access was encountered")',
        'logger.error(f"CUDA out of memory. Tried to allocate {n} GiB")',
        '+ echo "slurmstepd: error: Detected 1 oom_kill event"',
        "INFO: look for `n1:1:3 [0] a.cc:3 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out`",
        "2026-01-01 10:00:00 INFO the test writes \"NCCL WARN Cuda failure 'out of memory'\" and greps for it",
        '    print("NCCL WARN Net : Call to ibv_modify_qp failed with error Connection timed out")',
    ],
)
def test_what_is_quoted_was_not_said(line: str) -> None:
    (finding,) = diagnose(parse_text(STEPS + line + "\nTraining complete\n"))
    assert finding.status is Status.PASS


def test_a_message_whose_prefix_was_cut_off_is_said() -> None:
    for mark in ("", "[rank0]: ", "2026-01-01 10:00:00 ", "(EngineCore pid=7) ", '{"x":1,"log":"'):
        log = parse_text(mark + "NCCL WARN Call to ibv_modify_qp failed with error 110 Connection timed out\n")
        assert [e.kind for e in log.events] == ["modify_qp"], mark


def test_a_document_is_no_log() -> None:
    (finding,) = diagnose(parse_text(README))
    assert (finding.status, finding.cause) == (Status.UNKNOWN, None)
    assert "no log of a job" in finding.message


@pytest.mark.slow
def test_a_long_document_is_known_by_both_ends() -> None:
    told = "The ring is closed when the last of the ranks has failed, and this is what the others say of it.\n"
    assert "no log of a job" in diagnose(parse_text(README + told * 9000 + README))[0].message
    assert "no log of a job" not in diagnose(parse_text(README + told * 9000 + STEPS))[0].message
    assert "no log of a job" not in diagnose(parse_text(STEPS + told * 9000 + README))[0].message


def test_a_document_beside_a_log_says_nothing_of_the_job() -> None:
    parser = Parser()
    for name, text in (("README.md", README), ("job.log", STEPS + "Training complete\n")):
        parser.file(name)
        parser.feed(text.encode())
    (finding,) = diagnose(parser.facts())
    assert finding.status is Status.PASS


@pytest.mark.parametrize(
    "end",
    [
        "Traceback (most recent call last):\n  File \"/w/eval.py\", line 3, in ask\nKeyError: 'answer'\n",
        "srun: error: node07: task 3: Killed\n",
        "Primary job  terminated normally, but 1 process returned a non-zero exit code.\n",
        "2026-01-01 10:00:00 ERROR the worker is gone\n",
    ],
)
def test_a_program_that_prints_sentences_is_a_log(end: str) -> None:
    assert document(README.encode() * 20)
    assert not document((README * 20 + end).encode())


LONG = "ValueError: these weights are not in the checkpoint: " + ", ".join(f"'blocks.{n}.norm.weight'" for n in range(200))


def test_an_exception_may_say_much() -> None:
    text = TRACEBACK.format(i="  ", marks="").replace("ValueError: the batch is empty", LONG)
    assert "these weights are not in the checkpoint" in diagnose(parse_text(text))[0].message


def test_a_line_of_another_process_names_no_exception() -> None:
    head = TRACEBACK.partition("ValueError")[0].format(i="  ", marks="")
    other = "2 processes\nGPU: NVIDIA H100 | Peak FLOPS: 1e15\nRuntimeError: the batch is empty\n"
    assert [e.data["type"] for e in parse_text(head + other).of("exception")] == ["RuntimeError"]


def test_a_list_of_what_may_have_been_alleges_none_of_it() -> None:
    told = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: 10.0.0.7"
        " Worker PID: 626 Worker exit type: SYSTEM_ERROR Worker exit detail: connection error code 2. End of file. {} (1) the "
        "process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called\n"
    )
    for words in ("Some common causes include:", "There are some potential root causes."):
        (finding,) = (f for f in diagnose(parse_text(told.format(words))) if f.status is Status.FAIL)
        assert "memory" not in finding.message and "10.0.0.7" in finding.message
    assert "memory" in diagnose(parse_text(told.format("It is certain:")))[0].message


def test_settings_are_no_work() -> None:
    dump = "{'optimization': {'epochs': 300,\n 'iterations': 5000, 'warmup_steps': 15}}\nmax_steps: 700\n" * 3
    assert not parse_text(dump).work
    assert parse_text("epochs: 3/300\nsteps 15\n'epochs': 300, 'loss': 2.1\n").work


def test_who_has_no_process_group_lost_it_before() -> None:
    taken = (
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:40112 (errno: 98 - Address already in use).\n"
    )
    said = "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
    text = TRACEBACK.format(i="  ", marks="").replace("ValueError: the batch is empty", said)
    assert diagnose(parse_text(taken + text))[0].cause == "bootstrap_ports"
    assert "an argument that it refuses" in diagnose(parse_text(text + taken))[0].message


def test_a_child_that_died_is_no_cause_where_the_kernel_says_why() -> None:
    said = "RuntimeError: One of the subprocesses has abruptly died during map operation."
    text = TRACEBACK.format(i="  ", marks="").replace("ValueError: the batch is empty", said)
    killed = (
        "slurmstepd-n1: error: Detected 4 oom_kill events in StepId=2.batch. Some of the step tasks have been OOM Killed.\n"
    )
    assert diagnose(parse_text(text + killed))[0].evidence["fault"] == "host memory exhausted"


@pytest.mark.parametrize(("signal", "words"), [(15, "asked to end (SIGTERM)"), (9, "SIGKILL"), (11, "SIGSEGV")])
def test_mpich_names_the_signal(signal: int, words: str) -> None:
    assert words in diagnose(parse_text(f"I am 0 of 4\nx3103c0s7b0n0: rank 0 died from signal {signal}\n"))[0].message


def test_what_a_program_prints_of_its_items_is_a_log() -> None:
    items = "".join(
        f"==== sample legal_{n} (idx={n}) ====\n  doc DOC1 'The open source language model' anchors=11\n"
        "    -> evidence_found | rounds=3 | evidence='it is one of the models of that year'\n  -> answer: a model\n"
        for n in range(30)
    )
    assert not document(items.encode())
    history = "".join(
        f"commit {n:040x}\nAuthor: A B <a@b.org>\nDate:   Mon Jan 5 2026\n\n    Mend what has failed there\n\n"
        for n in range(30)
    )
    assert document(history.encode())


@pytest.mark.parametrize(
    "said", ["ROCm error: unspecified launch failure", "aborting with error : HSA_STATUS_ERROR_EXCEPTION: x"]
)
def test_amds_runtime_reports_a_broken_kernel(said: str) -> None:
    (finding, *_) = diagnose(parse_text(f"loading\n{said}\n"))
    assert finding.status is Status.FAIL
