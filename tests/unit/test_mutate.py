"""The mutator itself: what it changes, that it changes one thing, and that it leaves nothing behind."""

from __future__ import annotations

import ast
import types

from tests.lab.mutants import planted
from tests.lab.mutate import mutants

SOURCE = '''
LIMIT = 3

def judge(x, flag):
    """Not > a comparison."""
    if not flag:
        return "off"
    return "high" if x > LIMIT and x != 9 else f"low {1 + 1}"

def speak(x):
    yield x
'''


def test_every_kind_once() -> None:
    names = [one.name for one in mutants(SOURCE)]
    assert names == [
        "module: 3 -> 4",
        "judge: not flag -> flag",
        "judge: return 'off' -> return None",
        "judge: return 'high' if x > LIMIT and x != 9 else f'low {1 + 1}' -> return None",
        "judge: x > LIMIT and x != 9 -> x > LIMIT or x != 9",
        "judge: x > LIMIT -> x >= LIMIT",
        "judge: x != 9 -> x == 9",
        "judge: 9 -> 10",
        "speak: yield x -> pass",
    ]
    assert len({ast.dump(one.tree) for one in mutants(SOURCE)}) == len(names)


def test_a_planted_mutant_goes_again() -> None:
    module = types.ModuleType("planted_example")
    exec(compile(SOURCE, "planted_example", "exec"), module.__dict__)
    judge = module.judge
    mutant = next(one for one in mutants(SOURCE) if one.name == "judge: x > LIMIT -> x >= LIMIT")
    assert judge(3, True) == "low 2"
    with planted(module, mutant.tree):
        assert judge(3, True) == "high", "whoever holds the function meets the mutant"
    assert judge(3, True) == "low 2"
