"""A file to which several jobs were appended is about the last of them."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_bytes, parse_text

REPORT = "Sender: LSF System <lsf@c4>\nSubject: Job {n}: <t> in cluster <k> {how}\n\n{words}\n\n"
ABOVE = "The output (if any) is above this job summary.\n\nPS:\n\nRead file <t.err> for stderr output of this job.\n\n"
FOLLOWS = "The output (if any) follows:\n\n"
BAD = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3\n"
GOOD = "".join(f"step {n} loss 2.0\n" for n in range(5)) + "Training finished.\n"


def above(*outputs: str) -> str:
    return "".join(
        one
        + REPORT.format(n=n, how="Exited" if one == BAD else "Done", words="Exited with exit code 1." if one == BAD else "")
        + ABOVE
        for n, one in enumerate(outputs)
    )


def follows(*outputs: str) -> str:
    return "".join(
        REPORT.format(n=n, how="Exited" if one == BAD else "Done", words="Exited with exit code 1." if one == BAD else "")
        + FOLLOWS
        + one
        for n, one in enumerate(outputs)
    )


@pytest.mark.parametrize("form", [above, follows])
def test_the_last_job_of_a_file_is_judged(form) -> None:  # type: ignore[no-untyped-def]
    (well,) = diagnose(parse_text(form(BAD, BAD, GOOD)))
    assert well.status is Status.PASS
    ill = diagnose(parse_text(form(GOOD, GOOD, BAD)))[0]
    assert (ill.status, ill.evidence["fault"]) == (Status.FAIL, "GPU memory exhausted")
    assert all("holds the output of 3 jobs" in f.notes[-1] for f in (well, ill))


@pytest.mark.parametrize("form", [above, follows])
def test_a_file_of_one_job_is_of_that_job(form) -> None:  # type: ignore[no-untyped-def]
    finding = diagnose(parse_text(form(BAD)))[0]
    assert finding.status is Status.FAIL
    assert not any("jobs" in note for note in finding.notes)


def test_earlier_jobs_of_a_long_file_are_seen_too() -> None:
    noise = "reading shard\n" * 90000
    log = parse_bytes(above(noise + BAD, noise + BAD, noise + GOOD).encode())
    assert (log.runs, [f.status for f in diagnose(log)]) == (3, [Status.PASS])


def test_a_line_of_an_earlier_job_is_not_shown() -> None:
    log = parse_text(above(BAD, "loading\n" + BAD))
    (line,) = {e.line for e in log.of("oom")}
    assert line > above(BAD).count("\n")
