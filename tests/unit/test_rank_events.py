"""What a rank says reaches the verdict: a field that `tidy` does not know would be dropped without a word."""

from __future__ import annotations

import ast
import pathlib

from netdoctor import allreduce
from netdoctor.allreduce.events import _FITS, tidy

PROGRAM = ("rank.py", "by_torch.py", "by_nccl.py", "zygote.py")


def said(name: str) -> set[str]:
    """Names of what is given to `say`, and the keys of the dictionaries that busy_link returns."""
    tree = ast.parse((pathlib.Path(allreduce.__path__[0]) / name).read_text())
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute | ast.Name)]
    found = {
        keyword.arg
        for call in calls
        if (call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id) == "say"  # type: ignore[union-attr]
        for keyword in call.keywords
        if keyword.arg
    }
    links = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "busy_link"]
    keys = (key for link in links for one in ast.walk(link) if isinstance(one, ast.Dict) for key in one.keys)
    return found | {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def test_every_field_that_a_rank_says_is_let_in() -> None:
    fields = set().union(*map(said, PROGRAM))
    assert {"gpu", "link_speed", "mapped", "wrong"} <= fields
    assert fields - set(_FITS) == set()


def test_the_link_of_a_gpu_that_worked() -> None:
    event = {"event": "result", "gpu": "0000:53:00.0", "link_speed": 5.0, "more": 1}
    assert tidy(event) == {name: value for name, value in event.items() if name != "more"}
