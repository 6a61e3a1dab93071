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
    assert all(sum("holds the output of 3 jobs" in note for note in f.notes) == 1 for f in (well, ill))
    assert well.notes[-1].startswith("2 earlier ones failed: ")
    assert ill.notes[-1].startswith("2 earlier ones went well: ")


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


def refusal(said: str, program: str = "fit.py") -> str:
    return f"usage: {program} [-h] [--rate RATE]\n          [--half {{yes,no}}]\n{program}: error: {said}\n"


def test_the_arguments_that_were_refused_last_are_named() -> None:
    first, then = refusal("unrecognized arguments: --raet"), refusal("argument --rate: invalid float value: 'x'")
    named = diagnose(parse_text(first + then + then))[0]
    assert "invalid float value" in named.message
    assert "2 jobs or more" in named.notes[-2]
    assert named.notes[-1].startswith("an earlier one failed: ") and "--raet" in named.notes[-1]
    again = diagnose(parse_text(first + then + first))[0]
    assert "--raet" in again.message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(refusal(f"unrecognized arguments: --local_rank={n}") for n in range(4)), id="ranks of one job"),
        pytest.param(
            refusal("unrecognized arguments: --a") + refusal("unrecognized arguments: --b", "eval.py"), id="two programs"
        ),
        pytest.param(BAD + refusal("unrecognized arguments: --a"), id="what is run after a failure"),
    ],
)
def test_a_refusal_alone_is_no_other_run(text: str) -> None:
    assert parse_text(text).runs == 1


OPEN = "{mark}wandb: Run data is saved locally in /home/u/x/wandb/run-20260105_{at}-{id}\n"
CLOSED = "{mark}\x1b[1;34mwandb\x1b[0m: Find logs at: \x1b[1;35m../x/wandb/run-20260105_{at}-{id}/logs\x1b[0m\n"
RAISED = 'Traceback (most recent call last):\n  File "/home/u/fit.py", line 3, in <module>\n    step()\n{}\n'
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79 GiB"
LATER = RAISED.format("KeyError: 'epoch'")


def tracked(at: str, name: str, end: str, mark: str = "") -> str:
    return OPEN.format(at=at, id=name, mark=mark) + "loading\n" + end + CLOSED.format(at=at, id=name, mark=mark)


def test_the_last_of_a_trackers_runs_is_judged() -> None:
    named = diagnose(parse_text(tracked("101500", "ab1", RAISED.format(MEMORY)) + tracked("113000", "cd2", LATER)))[0]
    assert "KeyError: 'epoch'" in named.message
    well = diagnose(parse_text(tracked("101500", "ab1", RAISED.format(MEMORY)) + tracked("113000", "cd2", GOOD)))[0]
    assert well.status is Status.PASS


FIRST = RAISED.format("IndexError: 7")
RESTARTED = (
    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 3 (pid: 9) of binary: python\n"
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(tracked("101500", "a", FIRST) + tracked("101503", "b", LATER), id="at once: two ranks"),
        pytest.param(OPEN.format(at="101500", id="a", mark="") + FIRST + tracked("113000", "b", LATER), id="not closed"),
        pytest.param(tracked("101500", "a", FIRST, "[rank0]: ") + tracked("113000", "b", LATER, "[rank1]: "), id="marked"),
        pytest.param(
            tracked("101500", "a", FIRST) + RESTARTED + tracked("113000", "b", LATER),
            id="torchrun starts it again",
        ),
    ],
)
def test_a_first_fault_among_ranks_stays_the_first(text: str) -> None:
    log = parse_text(text)
    assert log.runs == 1
    assert "IndexError: 7" in diagnose(log)[0].message


@pytest.mark.slow
def test_a_start_in_the_middle_of_a_long_file_is_seen() -> None:
    noise = "reading shard\n" * 90000
    refused = noise + refusal("unrecognized arguments: --a") + noise + refusal("unrecognized arguments: --b") + noise
    began = noise + tracked("101500", "a", FIRST) + noise + tracked("113000", "b", LATER) + noise
    assert [parse_bytes(text.encode()).runs for text in (refused, began)] == [2, 2]


def dated(at: str, *said: str) -> str:
    lines = ("the trainer reads its configuration file", *said)
    return "".join(f"2026-01-05 {at}:0{n} - trainer - INFO - {line}\n" for n, line in enumerate(lines))


@pytest.mark.parametrize("noise", ["", "reading shard\n" * 90000])
def test_a_file_s_first_line_comes_again_at_a_new_start(noise: str) -> None:
    text = dated("10:00") + FIRST + noise + dated("10:05", "loading") + LATER
    log = parse_text(text)
    assert (log.runs, "KeyError: 'epoch'" in diagnose(log)[0].message) == (2, True)
    assert "IndexError: 7" in diagnose(log)[0].notes[-1]
    assert [f.status for f in diagnose(parse_text(dated("10:00") + FIRST + dated("10:05") + GOOD))] == [Status.PASS]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(dated("10:00") + FIRST + dated("10:00", "loading") + LATER, id="at once: two ranks"),
        pytest.param(dated("10:05") + FIRST + dated("10:00", "loading") + LATER, id="earlier: files that were joined"),
        pytest.param(dated("10:00", "loading") + dated("10:05", "loading") + FIRST + LATER, id="nothing had ended"),
    ],
)
def test_a_first_line_that_comes_again_is_not_always_a_start(text: str) -> None:
    log = parse_text(text)
    assert (log.runs, "IndexError: 7" in diagnose(log)[0].message) == (1, True)


def test_a_sweep_starts_one_run_after_the_other() -> None:
    begins = "2026-01-05 10:00:0{n} - wandb.wandb_agent - INFO - Agent starting run with config:\n\tdepth: {n}\n"
    text = begins.format(n=1) + RAISED.format(MEMORY) + begins.format(n=2) + RAISED.format(MEMORY) + begins.format(n=3) + LATER
    log = parse_text(text)
    assert (log.runs, "KeyError: 'epoch'" in diagnose(log)[0].message) == (3, True)
    assert diagnose(log)[0].notes[-1].startswith("2 earlier ones failed: the memory of GPU 3 is used up")
