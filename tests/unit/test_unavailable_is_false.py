"""`Unavailable` is never true, so `lost or …` drops it: what could not be read would count as read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from netdoctor.expectation import site
from netdoctor.model import Unavailable, missing
from netdoctor.nccl import gid
from tests.support import facts as f
from tests.support.sources import ROOT, nodes, python

LOST = Unavailable("timed out", "5 s")


@pytest.mark.slow
def test_nothing_comes_after_what_is_missing() -> None:
    files = [path for path in python("netdoctor", "checks") if "missing" in path.read_text()]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in dropped(nodes(path))]
    assert not found, "missing(first, second) is the first of them that is Unavailable"


def test_what_drops_it_is_found() -> None:
    def of(source: str) -> list[int]:
        return list(dropped(ast.walk(ast.parse(source))))

    assert of("def f(a, b):\n    lost = missing(a)\n    return lost or b") == [3]
    assert of("def f(a, b):\n    return missing(a) or b") == [2]
    assert of("def f(a, b):\n    lost = None\n    for x in b:\n        lost = lost or missing(x)") == [4]
    assert of("def f(a, b):\n    if (lost := missing(a)) is not None or b:\n        return missing(lost, b)") == []


def dropped(code: Iterable[ast.AST]) -> Iterator[int]:
    """Lines in which `or` follows a call of `missing`, or a name that this function gives its answer."""
    for function in (one for one in code if isinstance(one, ast.FunctionDef)):
        names = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) and node.value is not None and _asks(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
                first = node.values[:-1]
                if any(_asks(one) or (isinstance(one, ast.Name) and one.id in names) for one in first):
                    yield node.lineno


def _asks(node: ast.expr) -> bool:
    """A call of `missing`, or one of several values of which some is."""
    if isinstance(node, ast.BoolOp):
        return any(map(_asks, node.values))
    if isinstance(node, ast.IfExp):
        return _asks(node.body) or _asks(node.orelse)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "missing"


def test_the_first_that_is_missing() -> None:
    assert missing(None, LOST, Unavailable("denied")) is LOST


def test_a_port_that_is_not_read_is_no_rail_less() -> None:
    assert gid.unread(f.hca(0, ports=LOST)) is LOST
    assert gid.unread(f.hca(0, ports=(f.roce_port("eth1", rate_gbps=LOST),))) is LOST


def test_a_rate_that_is_not_read_is_not_zero() -> None:
    lost = {"unavailable": "timed out", "detail": "5 s"}
    for place in range(8):
        nics = [{"ports": [{"state": "ACTIVE", "rate_gbps": lost if n == place else 400}]} for n in range(8)]
        assert isinstance(site._rate(nics, 8, 400.0), Unavailable)
