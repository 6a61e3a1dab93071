"""What is recorded is read by somebody: a field that no rule looks at is asked of every machine for nothing."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping

import pytest

from netdoctor.facts.kernel import Module
from netdoctor.facts.registry import RUNS, SOURCES, unread
from netdoctor.facts.runs import NcclFacts, TorchFacts
from netdoctor.model import Kind, Unavailable
from tests.support.sources import nodes, python

ELSEWHERE = {
    "Kernel.command_line",  # the example of a check of one's own in docs/checks.md
    "Expected.peers",  # facts/peers.py, out of the configuration itself
    "Vantage.user",  # report/values.py, out of the report's own section
}


@pytest.mark.slow
def test_every_field_of_a_fact_is_read() -> None:
    facts = (type(unread(name, Unavailable(Kind.NOT_READ))) for name in (*SOURCES, *RUNS))
    kinds = (*facts, Module, TorchFacts, NcclFacts)
    fields = {kind.__name__: [field.name for field in dataclasses.fields(kind)] for kind in kinds}
    code = itertools.chain.from_iterable(map(nodes, python("netdoctor", "checks")))
    assert set(_unread(fields, code)) == ELSEWHERE


def test_a_field_that_nobody_reads_is_found() -> None:
    source = """
class Box:
    wide: int
    high: int
    deep: int
    kind: str
    @property
    def flat(self) -> bool:
        return not self.high
def probe() -> Box:
    return Box(wide=1, high=2, deep=3, kind="x")
def look(found: Box | None, other: Other) -> None:
    found.wide, other.deep, found.high
    found.kind = "y"
"""
    assert set(_unread({"Box": ["wide", "high", "deep", "kind"]}, ast.walk(ast.parse(source)))) == {"Box.deep", "Box.kind"}


def _unread(fields: Mapping[str, Collection[str]], code: Iterable[ast.AST]) -> Iterator[str]:
    """Fields that no code reads of a name that is annotated with their class, or bound to it, nor their class of itself."""
    called: dict[str, set[str]] = {kind: set() for kind in fields}
    read = set()
    for node in code:
        of: ast.AST | None = None
        if isinstance(node, ast.arg | ast.AnnAssign):
            target, of = getattr(node, "target", node), node.annotation
        elif isinstance(node, ast.Assign | ast.NamedExpr):
            target, of = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            read.add((_last(node.value), node.attr))
        elif isinstance(node, ast.ClassDef) and node.name in fields:
            own = (part for part in ast.walk(node) if isinstance(part, ast.Attribute) and _last(part.value) == "self")
            read |= {(node.name, part.attr) for part in own}
        for part in ast.walk(of) if of is not None else ():
            if isinstance(part, ast.Name) and part.id in called:
                called[part.id].add(_last(target))
    for kind, names in fields.items():
        homes = {kind, *called[kind]} - {"self", ""}
        yield from (f"{kind}.{name}" for name in names if not any((home, name) in read for home in homes))


def _last(node: ast.AST) -> str:
    """ "device" of `device`, of `gpu.device` and of a parameter."""
    return next((name for key in ("id", "attr", "arg") if isinstance(name := getattr(node, key, None), str)), "")
