"""What happened, from recorded events: who failed first, who hangs, and what may be said of a run that was cut short."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.allreduce.verdict import build, busbw, facts_of
from netdoctor.facts.runs import PHASES, AllReduce, NcclFacts, TorchFacts

STALLED, DEADLINE, FAILURE, LOST = InterruptionKind
EXPERIMENT = AllReduce("gloo", 2, sizes=(4096, 1 << 20))
RECORDED = Path(__file__).parent / "data" / "allreduce"


def phases(rank: int, last: str, at: float = 0.0) -> list[dict[str, Any]]:
    names = PHASES[: PHASES.index(last) + 1]
    began = [{"event": "forked", "rank": rank, "pid": 100 + rank, "t": at}]
    return began + [{"event": "phase", "rank": rank, "phase": p, "t": at + i / 10} for i, p in enumerate(names)]


def work(rank: int, seconds: float = 0.001, wrong: int = 0) -> list[dict[str, Any]]:
    sizes = [{"event": "size", "rank": rank, "bytes": b, "seconds": seconds * b / 4096} for b in EXPERIMENT.sizes]
    checked = [{"event": "verified", "rank": rank, "bytes": b, "wrong": wrong} for b in EXPERIMENT.sizes]
    return [*sizes, *checked, {"event": "result", "rank": rank, "bytes_moved": 10**9, "system_cpu": 0.5, "user_cpu": 0.1}]


def error(rank: int, text: str, at: float) -> dict[str, Any]:
    return {"event": "error", "rank": rank, "error": text, "t": at}


def ended(rank: int, status: int, at: float) -> dict[str, Any]:
    return {"event": "exit", "rank": rank, "status": status, "t": at}


RESET = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:4242"


def test_a_run_that_finished() -> None:
    events = [e for r in (0, 1) for e in (*phases(r, "done"), *work(r, 0.001 * (r + 1)), ended(r, 0, 9))]
    run = build(EXPERIMENT, events, None)
    assert (run.state, run.verified, run.reason) == ("finished", True, "")
    assert run.latency == {4096: 0.002, 1 << 20: 0.512}  # the slowest rank's
    assert run.busbw[4096] == pytest.approx(4096 / 0.002 / 1e9)
    assert run.system_cpu_per_gb == pytest.approx(0.5)
    assert run.ranks[0].phase_seconds["init"] == pytest.approx(0.1)


def test_a_crash_after_the_work_is_told_and_no_failure() -> None:
    events = [e for r in (0, 1) for e in (*phases(r, "done"), *work(r), ended(r, -11 * r, 9))]
    run = build(EXPERIMENT, events, None)
    assert (run.state, run.verified) == ("finished", True)
    assert run.reason == "rank 1 was ended by SIGSEGV after its work was done"


@pytest.mark.parametrize(
    ("events", "blamed"),
    [
        # the victim's cry comes before the dead can be reaped
        ([error(0, RESET, 5.0), ended(0, 70, 5.1), ended(1, -9, 5.2)], (1,)),
        ([error(0, "RuntimeError: something new", 5.0), ended(0, 70, 5.1), ended(1, -9, 5.2)], (1,)),
        ([error(1, "ValueError: mine", 5.0), error(0, RESET, 5.1)], (1,)),
        ([error(0, RESET, 5.0), error(1, "ValueError: mine", 5.3)], (1,)),
        ([error(0, RESET, 5.0), error(1, RESET, 5.1)], (0,)),  # nobody failed by itself: the first
        # torch's watchdog aborts a rank that lost its peer
        ([error(0, "RuntimeError: CUDA error", 5.0), ended(1, -6, 5.5)], (0,)),
        ([ended(0, -6, 5.0)], (0,)),
        ([ended(1, 0, 5.0)], (1,)),
        ([error(1, "a", 5.0), ended(1, 70, 5.1), ended(0, -15, 7.0)], (1,)),  # 0 was ended by us
    ],
)
def test_the_first_that_failed_by_itself_is_blamed(events: list[dict[str, Any]], blamed: tuple[int, ...]) -> None:
    run = build(EXPERIMENT, [*phases(0, "first"), *phases(1, "first"), *events], Interruption(FAILURE, 6.0))
    assert (run.state, run.blamed) == ("failed", blamed)
    assert run.verified is None


def test_ranks_that_we_ended_have_no_exit_of_their_own() -> None:
    events = [*phases(0, "first"), *phases(1, "first"), ended(1, -9, 5.0), ended(0, -15, 7.0)]
    assert [r.exit for r in build(EXPERIMENT, events, Interruption(FAILURE, 6.0)).ranks] == [None, -9]


@pytest.mark.parametrize(
    ("first", "second", "interruption", "state", "blamed"),
    [
        ("first", "init", Interruption(STALLED, 9, 75), "hung", (1,)),
        ("first", "rendezvous", Interruption(STALLED, 9, 75), "hung", (1,)),
        ("timed", "timed", Interruption(STALLED, 9, 75, (7, 6), (6, 6)), "hung", (1,)),
        ("timed", "timed", Interruption(STALLED, 9, 75, (6, 7), (6, 6)), "hung", (0,)),
        ("timed", "timed", Interruption(STALLED, 9, 75, (6, 6), (6, 5)), "hung", (0,)),  # does not come out to the next
        (
            "timed",
            "timed",
            Interruption(STALLED, 9, 75, (7, 6), (6, 5)),
            "hung",
            (),
        ),  # inside: its peers were only done earlier
        ("timed", "timed", Interruption(STALLED, 9, 75, (6, 7), (5, 6), stopped=(1,)), "hung", (1,)),  # so it was here
        ("timed", "verify", Interruption(STALLED, 9, 75, (6, 7), (5, 6), stopped=(1,)), "hung", (1,)),
        ("timed", "verify", Interruption(STALLED, 9, 75, (6, 7), (5, 6)), "hung", ()),
        ("timed", "timed", Interruption(STALLED, 9, 75, (7, 7), (6, 6), stopped=(1,)), "hung", (1,)),
        ("timed", "timed", Interruption(STALLED, 9, 75, (7, 7), (6, 6), blocked=(1,)), "hung", (1,)),
        (
            "timed",
            "timed",
            Interruption(STALLED, 9, 75, (7, 6), (6, 6), blocked=(0,)),
            "hung",
            (1,),
        ),  # short waits are common
        ("timed", "timed", Interruption(STALLED, 9, 75, (9, 4), (2, 2)), "hung", (1,)),  # begun ahead, as on a GPU
        ("timed", "timed", Interruption(STALLED, 9, 75, (7, 7), (6, 6)), "hung", ()),
        ("timed", "timed", Interruption(STALLED, 9, 75, (7, 7), (7, 7)), "hung", ()),
        ("timed", "timed", Interruption(STALLED, 9, 75), "hung", ()),
        ("verify", "done", Interruption(STALLED, 9, 75, (7, 7), (7, 7)), "hung", (0,)),
        ("init", "init", Interruption(STALLED, 9, 75, stopped=(0,)), "hung", (0,)),
        ("init", "init", Interruption(STALLED, 9, 75), "hung", ()),
        ("verify", "done", Interruption(STALLED, 9, 75), "hung", ()),
        ("device", "init", Interruption(STALLED, 9, 60), "unfinished", ()),
        ("first", "import", Interruption(STALLED, 9, 60), "not started", ()),
        ("timed", "timed", Interruption(DEADLINE, 9, 1), "unfinished", ()),
        ("timed", "init", Interruption(DEADLINE, 9, 1), "unfinished", ()),
        ("spawn", "spawn", Interruption(LOST, 9, text="the process that forks the ranks ended"), "not started", ()),
        ("timed", "timed", Interruption(LOST, 9, text="the process that forks the ranks ended"), "unfinished", ()),
    ],
)
def test_interrupted_runs(first: str, second: str, interruption: Interruption, state: str, blamed: tuple[int, ...]) -> None:
    run = build(EXPERIMENT, [*phases(0, first), *phases(1, second)], interruption)
    assert (run.state, run.blamed) == (state, blamed)
    assert run.reason


def test_partial_numbers_are_those_that_every_rank_has() -> None:
    events = [*phases(0, "timed"), *work(0)[:2], *phases(1, "timed"), *work(1)[:1]]
    run = build(EXPERIMENT, events, Interruption(DEADLINE, 9.0))
    assert list(run.busbw) == [4096]
    assert run.verified is None


def test_wrong_data_counts_even_when_the_run_was_cut() -> None:
    events = [*phases(0, "verify"), *work(0, wrong=3)[:3], *phases(1, "verify")]
    assert build(EXPERIMENT, events, Interruption(DEADLINE, 9.0)).verified is False
    right = [*phases(0, "verify"), *work(0)[:3], *phases(1, "verify")]
    assert build(EXPERIMENT, right, Interruption(DEADLINE, 9.0)).verified is None


def test_data_is_right_where_all_was_compared_to_the_end() -> None:
    both = [e for r in (0, 1) for e in (*phases(r, "verify"), *work(r))]
    assert build(EXPERIMENT, [*both, ended(1, -9, 5.0)], Interruption(FAILURE, 6.0)).verified is None
    done = [e for r in (0, 1) for e in (*phases(r, "done"), *work(r))]
    less = [e for e in done if not (e["event"] == "verified" and e["bytes"] == 4096 and e["rank"] == 1)]
    assert build(EXPERIMENT, done, None).verified is True
    assert build(EXPERIMENT, less, None).verified is None


def test_lines_as_they_were_recorded() -> None:
    """Two real Gloo ranks, the second killed in its first collective."""
    events = [json.loads(line) for line in (RECORDED / "killed_in_first.jsonl").read_text().splitlines()]
    run = build(EXPERIMENT, [e for e in events if e.get("run") == 1], Interruption(FAILURE, events[-1]["t"] + 1))
    assert (run.state, run.blamed) == ("failed", (1,))
    assert run.reason == "rank 1 was ended by SIGKILL in phase first"
    facts = facts_of(TorchFacts, events)
    assert facts.backends == {"cpu": "gloo"}
    assert facts.error == ""


def test_questions_that_ended_early_say_so() -> None:
    facts = facts_of(TorchFacts, [{"event": "fact", "version": "2.9.1"}, {"event": "facts", "status": -11}])
    assert (facts.version, facts.cuda_available) == ("2.9.1", None)
    assert facts.error.endswith("was ended by SIGSEGV")
    alone = facts_of(NcclFacts, [{"event": "fact", "nccl": "2.27.5"}, {"event": "facts", "status": -9}])
    assert (alone.nccl, alone.device_count) == ("2.27.5", None)
    assert alone.error == "the child that asks libnccl and the driver was ended by SIGKILL"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(), lambda c: st.lists(c, max_size=2)
)
names = st.sampled_from(
    ["event", "rank", "phase", "t", "status", "bytes", "seconds", "wrong", "bytes_moved", "pid", "error", "mapped"]
)
kinds = st.sampled_from(["forked", "phase", "error", "exit", "size", "verified", "result", "affinity", "fact", "facts"])


@pytest.mark.slow
@given(st.lists(st.dictionaries(names, anything | kinds | st.sampled_from([0, 1, *PHASES]), max_size=6), max_size=12))
def test_whatever_a_rank_sends_is_no_exception(events: list[dict[str, Any]]) -> None:
    for interruption in (None, Interruption(STALLED, 1.0)):
        run = build(EXPERIMENT, events, interruption)
        assert run.state in ("finished", "failed", "hung", "unfinished", "not started")
        assert run.state != "finished" or all(r.phase == "done" for r in run.ranks)


@pytest.mark.parametrize(
    ("size", "seconds", "ranks", "expected"),
    [(1 << 30, 1.0, 2, 1.073741824), (10**9, 1.0, 8, 1.75), (10**9, 0.5, 4, 3.0), (10**9, 1.0, 1, 0.0), (1, 0.0, 2, 0.0)],
)
def test_formula_of_nccl_tests(size: int, seconds: float, ranks: int, expected: float) -> None:
    assert busbw(size, seconds, ranks) == pytest.approx(expected)
