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
