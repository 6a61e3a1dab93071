"""When a difference between interleaved runs counts."""

from dataclasses import replace

import pytest

from bench import comparison
from netdoctor.allreduce.comparison import compare, cost, decided, order, significant
from netdoctor.facts.runs import AllReduce, Cure, Run

BASE = AllReduce("gloo", 2, sizes=(4096, 1 << 20))
CURE = Cure(replace(BASE, env=(("GLOO_SOCKET_IFNAME", "eth1"),)), BASE, "GLOO_SOCKET_IFNAME=eth1")
LATER = 1e18  # a deadline that does not come


ONES = [1.0] * 6


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ONES, [1.2, 1.3, 1.2, 1.15, 1.2, 1.2], True),
        (ONES, [0.8, 0.7, 0.8, 0.8, 0.8, 0.8], True),
        ([1, 1, 1, 1, 1, 1.18], [1.2, 1.3, 1.2, 1.15, 1.2, 1.2], True),  # one comparison of 36 is the other way round
        ([1, 1, 1, 1, 1, 1.25], [1.2, 1.3, 1.2, 1.15, 1.2, 1.2], False),
        (ONES, [1.05, 1.09, 1.08, 1.2, 1.01, 1.05], False),  # sure, and within 10 %
        (ONES[:5], [2.0] * 5, False),  # too few
        (ONES, [2.0] * 5, False),
        ([1, 1, 1, 1, 1, 0], [2.0] * 6, False),
        ([*ONES, 9, 9], [2.0] * 8, True),  # as of the look after six
        ([*ONES, 9, 9, 9], [2.0] * 9, False),  # and after nine
    ],
)
def test_significance(before: list[float], after: list[float], expected: bool) -> None:
    assert significant(before, after) is expected


@pytest.mark.parametrize(
    ("before", "after", "enough"),
    [
        (ONES[:5], [2.0] * 5, False),
        (ONES, [2.0] * 6, True),
        (ONES, [1.01] * 6, True),  # equal for all that can be told
        (ONES, [1.08] * 6, False),
        ([*ONES, 1.0], [2.0] * 7, False),  # no look
        ([1.0] * 21, [1.08] * 21, True),  # there are no more
    ],
)
def test_when_it_is_enough(before: list[float], after: list[float], enough: bool) -> None:
    assert decided(before, after) is enough


@pytest.mark.parametrize("machine", comparison.MACHINES)
def test_the_rule_keeps_its_promise(machine: str) -> None:
    """`python -m bench comparison` with fewer trials: three standard errors beside the goals."""
    assert comparison.share(machine, 1.0, 600) <= 0.01 + 3 * (0.01 * 0.99 / 600) ** 0.5
    assert comparison.share(machine, 1.25, 600) >= 0.95 - 3 * (0.95 * 0.05 / 600) ** 0.5


def test_the_order_is_balanced() -> None:
    assert order(3) == (False, True, True, False, False, True)


class Replay:
    """A session that gives recorded bandwidths, in order, for the experiments it is asked for."""

    def __init__(self, rates: dict[AllReduce, list[float | str]]) -> None:
        self.rates = rates
        self.asked: list[bool] = []

    def run(self, experiment: AllReduce, deadline: float, *, again: bool = False) -> Run:
        assert again
        self.asked.append(bool(experiment.env))
        rate = self.rates[replace(experiment, sizes=BASE.sizes)].pop(0)
        if isinstance(rate, str):
            return Run(experiment, rate, "a reason")
        return Run(experiment, "finished", verified=rate > 0, busbw={1 << 20: abs(rate)})


def replay(before: list[float | str], after: list[float | str]) -> Replay:
    return Replay({CURE.baseline: before, CURE.change: after})


def test_a_cure_that_helps() -> None:
    session = replay([1.0, 1.1, 1.0, 0.9, 1.0, 1.0], [4.0, 4.1, 4.2, 4.0, 4.0, 4.0])
    found = compare(session, CURE, LATER)  # type: ignore[arg-type]
    assert (found.significant, found.ratio) == (True, pytest.approx(4.0))
    assert found.summary == "1 GB/s; with GLOO_SOCKET_IFNAME=eth1 4 GB/s: 4.0 times"
    assert session.asked == list(order(6))


def test_a_cure_that_does_nothing_or_harm() -> None:
    assert not compare(replay([1.0] * 6, [1.01, 0.99, 1.0, 1.0, 1.0, 1.0]), CURE, LATER).significant  # type: ignore[arg-type]
    harm = compare(replay([2.0] * 6, [1.0] * 6), CURE, LATER)  # type: ignore[arg-type]
    assert harm.significant
    assert harm.summary.endswith("2.0 times slower")


def test_a_run_that_finishes_only_with_the_cure() -> None:
    found = compare(replay(["failed"], [3.0, 3.0]), CURE, LATER)  # type: ignore[arg-type]
    assert (found.significant, found.ratio) == (True, None)
    assert "does not finish (a reason)" in found.summary


@pytest.mark.parametrize(
    ("before", "after"),
    [(["failed"], [3.0, "failed"]), (["not started"], []), ([1.0], ["hung"]), (["unfinished"], []), ([-1.0], [])],
)
def test_nothing_is_claimed_of_what_was_not_measured(before: list[float | str], after: list[float | str]) -> None:
    assert not compare(replay(before, after), CURE, LATER).significant  # type: ignore[arg-type]


def test_no_time() -> None:
    found = compare(replay([1.0], []), CURE, 0.0)  # type: ignore[arg-type]
    assert not found.significant
    assert "no time" in found.summary


def test_the_sentence_where_nothing_stands_out() -> None:
    assert cost("with X=1", 1.0, 1.0, 1.0, False).summary == "1 GB/s; with X=1 1 GB/s: no difference that stands out"
