"""Exceptions of which a log has the words and not the frames."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS

CUT = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "/w/launcher.py", line 23, in <module>\n'
    "[rank3]:     launch()\n"
    '[rank3]:   File "/w/workflow.py", line 102, in run\n'
    "[rank3]:     result = trainer.train()\n"
)
BARE = "[rank2]: RuntimeError: the graph of node gemm did not compile, status 26.\n"


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


@pytest.mark.parametrize("kind", ["RuntimeError", "ValueError", "torch._dynamo.exc.Unsupported" + "Error"])
def test_a_ranks_last_line_comes_before_a_cut_traceback(kind: str) -> None:
    found = first(BARE.replace("RuntimeError", kind) + CUT)
    assert (found.status, found.subject, "status 26" in found.message) == (Status.FAIL, "rank 2", True)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BARE + CUT + "[rank3]: ValueError: no such column\n", id="the other one is whole"),
        pytest.param(CUT, id="there is none"),
        pytest.param(BARE.replace("RuntimeError", "torch.distributed.DistBackendError") + CUT, id="it is of a peer"),
        pytest.param(BARE.replace("[rank2]: ", "") + CUT, id="nobody's"),
    ],
)
def test_else_the_traceback_is_told(text: str) -> None:
    assert "status 26" not in first(text).message.partition("also raised")[0]


def test_what_work_follows_is_no_end() -> None:
    assert first(BARE + STEPS + "training finished\n").status is not Status.FAIL


ASSERTED = 'stack.size() INTERNAL ASSERT FAILED at "../torch/csrc/p.cpp":964, please report a bug to PyTorch.\n'
EXITS = "srun: error: c1: task 0: Exited with exit code 1\n"
AGENT = (
    "[2026-02-03 04:05:06,357] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0 "
    "(pid: 33) of binary: /v/bin/python3\n"
)


@pytest.mark.parametrize("end", [EXITS, AGENT, AGENT + EXITS])
@pytest.mark.parametrize(
    ("text", "who"),
    [
        pytest.param("".join(f"[c1] Rank {n}, Local Rank {n}, {ASSERTED}" for n in range(4)), "job", id="all ranks"),
        pytest.param(f"[c1] Rank 3, Local Rank 3, {ASSERTED}", "rank 3", id="one rank"),
        pytest.param(ASSERTED, "job", id="nobody's"),
    ],
)
def test_an_assertion_of_torchs_is_the_cause(text: str, who: str, end: str) -> None:
    found = first(STEPS + text + end)
    assert (found.status, found.subject, "stack.size() INTERNAL ASSERT" in found.message) == (Status.FAIL, who, True)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("srun: error: c1: task 0: Segmentation fault\n", id="a signal"),
        pytest.param(
            'Traceback (most recent call last):\n  File "/w/t.py", line 9, in <module>\nKeyError: 7\n' + EXITS, id="raised"
        ),
        pytest.param(STEPS + "training finished\n", id="it went on"),
    ],
)
def test_an_assertion_before_another_end_is_not_the_cause(end: str) -> None:
    assert not first(ASSERTED + end).message.startswith("torch's own assertion")


ACTORS = (
    "[2026-05-09 08:42:45 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/w/scheduler.py", line 36, in run\n    raise RuntimeError(msg)\n'
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.3\n\n"
)
DRIVERS = (
    'Traceback (most recent call last):\n  File "/w/drive.py", line 282, in <module>\n    generator.pull.call(0).get()\n'
    "monarch.supervision.SupervisionError: Endpoint call generator.pull() failed, {}\n"
)


def test_what_an_actor_printed_comes_before_the_word_of_its_end() -> None:
    failed = first(ACTORS + DRIVERS.format("The actor generator and all its descendants have failed"))
    told, _, behind = failed.message.partition("; who had started it says")
    assert ("Not enough memory" in told, "SupervisionError" in behind) == (True, True)


@pytest.mark.parametrize("said", ["its argument is no tensor", "no actors were asked for"])
def test_another_exception_of_a_driver_is_its_own(said: str) -> None:
    assert "SupervisionError" in first(ACTORS + DRIVERS.format(said)).message.partition("; ")[0]
