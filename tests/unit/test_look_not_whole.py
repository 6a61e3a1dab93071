"""What did not answer in time leaves a look that is not whole: no profile gives a verdict of it."""

from __future__ import annotations

import pytest

from netdoctor.host.base import Answer
from netdoctor.live import silent
from netdoctor.model import Kind, Unavailable

LATE = Unavailable(Kind.TIMED_OUT, "/scratch/x (nfs4 of server:/x on /scratch) did not answer within 2 s")
DRIVER = Unavailable(Kind.TIMED_OUT, "no answer within 10 s")
INSIDE = {"unavailable": "timed out", "detail": LATE.detail}


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, None),
        ({"file:/etc/x": "text", "stat:/y": Unavailable(Kind.DENIED, "EACCES"), "ask:nvml": {"gpus": [1, None]}}, None),
        ({"file:/scratch/x": LATE}, LATE.detail),
        ({"file:/scratch/x": LATE, "stat:/scratch/x": LATE}, LATE.detail),
        ({"ask:nvml": DRIVER}, "nvml: no answer within 10 s"),
        ({"ask:libraries?python=/x": {"found": [{"torch": INSIDE}]}}, LATE.detail),
        ({"ask:resolve?name=a": DRIVER}, None),  # a name server that is silent has a finding of its own
        ({"ask:verbs": {"unavailable": "denied", "detail": "EACCES"}}, None),
    ],
)
def test_what_did_not_answer(answers: dict[str, Answer], told: str | None) -> None:
    assert silent(answers) == told
