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
