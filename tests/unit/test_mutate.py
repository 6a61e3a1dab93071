"""The mutator itself: what it changes, that it changes one thing, and that it leaves nothing behind."""

from __future__ import annotations

import ast
import types
from math import ceil, comb

import pytest

from netdoctor.checks.net_port_range import _list
from tests.lab.mutants import GOAL, RARELY, all_of, equivalent, examine, most_survivors, planted
from tests.lab.mutate import mutants

SOURCE = '''
LIMIT = 3

def judge(x, flag):
    """Not > a comparison."""
    if not flag:
        return "off"
    return "high" if x > LIMIT and x != 9 else f"low {x or flag:>3}"

def speak(x, times=1):
    yield x
    [y for y in x if y]
'''


def test_every_kind_once() -> None:
    names = [one.name for one in mutants(SOURCE)]
    assert names == [
        "module: 3 -> 4",
        "judge: not flag -> flag",
        "judge: return 'off' -> return None",
        "judge: return 'high' if x > LIMIT and x != 9 else f'low {x or flag:>3}' -> return None",
        "judge: x > LIMIT and x != 9 -> x > LIMIT or x != 9",
        "judge: x > LIMIT -> x >= LIMIT",
        "judge: x != 9 -> x == 9",
        "judge: 9 -> 10",
        "judge: x or flag -> x and flag",
        "speak: 1 -> 2",
        "speak: yield x -> pass",
        "speak: for y in x if y -> for y in x if not y",
    ]
    assert len({ast.dump(one.tree) for one in mutants(SOURCE)}) == len(names)


def test_a_planted_mutant_goes_again() -> None:
    module = types.ModuleType("planted_example")
    exec(compile(SOURCE, "planted_example", "exec"), module.__dict__)
    judge = module.judge
    mutant = next(one for one in mutants(SOURCE) if one.name == "judge: x > LIMIT -> x >= LIMIT")
    assert judge(3, True) == "low   3"
    with planted(module, mutant.tree):
        assert judge(3, True) == "high", "whoever holds the function meets the mutant"
    assert judge(3, True) == "low   3"


def test_a_planted_default_goes_again() -> None:
    module = types.ModuleType("planted_example")
    exec(compile(SOURCE, "planted_example", "exec"), module.__dict__)
    mutant = next(one for one in mutants(SOURCE) if one.name == "speak: 1 -> 2")
    with planted(module, mutant.tree):
        assert module.speak.__defaults__ == (2,)
    assert module.speak.__defaults__ == (1,)


def one_port() -> None:
    assert _list([7]) == "7"


def never() -> None:
    pytest.fail("on the check as it is, too")


@pytest.mark.slow
def test_a_case_that_fails_without_a_mutant_is_told() -> None:
    todo = [one for one in all_of("net_port_range") if one.name.startswith("_list:")]
    some = examine("net_port_range", todo, {}, [("one port", one_port)])
    assert 0 < some.killed < some.mutants == len(todo) and not some.wrong
    none = examine("net_port_range", todo, {}, [("never", never)])
    assert none.killed == 0 and any("never" in text for text in none.wrong)


def test_a_killed_mutant_listed_as_equivalent_is_told() -> None:
    todo = [
        one
        for one in all_of("net_port_range")
        if one.name == "_list: runs and port == runs[-1][-1] + 1 -> runs or port == runs[-1][-1] + 1"
    ]
    found = examine("net_port_range", todo, {todo[0].name: "no reason"}, [("one port", one_port)])
    assert (found.mutants, found.equivalent, len(found.wrong)) == (0, 1, 1)


def test_equivalent_ones_exist_and_have_a_reason() -> None:
    for stem, listed in equivalent().items():
        assert set(listed) <= {one.name for one in all_of(stem)}, stem
        assert all(len(reason) > 20 for reason in listed.values()), stem


@pytest.mark.parametrize("total", [200, 500, 1514])
def test_a_draw_fails_a_good_suite_once_in_a_million(total: int) -> None:
    alive, most = total - ceil(GOAL * total), most_survivors(total, 50)
    by_chance = sum(comb(alive, n) * comb(total - alive, 50 - n) for n in range(most + 1, 51)) / comb(total, 50)
    assert by_chance < RARELY and 5 < most < 20
