"""Mutants of one source file: one comparison, boolean, constant, negation, return or yield changed in each."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


_BARE: Final = (ast.Name, ast.Call, ast.Attribute)
Path = tuple[tuple[str, int | None], ...]  # field, index in it


@dataclass(frozen=True)
class Mutant:
    """`name` stays when lines move: the function, what stood there, what stands there now, and which of several alike."""

    name: str
    line: int
    original: ast.Module
    path: Path
    change: int

    @property
    def tree(self) -> ast.Module:
        """The whole file with this one change; made when it is asked for, for most of a draw are not."""
        tree = copy.deepcopy(self.original)
        node, _ = _mutated(_at(tree, self.path), self.change)
        field, index = self.path[-1]
        holder = _at(tree, self.path[:-1])
        if index is None:
            setattr(holder, field, node)
        else:
            getattr(holder, field)[index] = node
        return ast.fix_missing_locations(tree)


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant, in the order of the source."""
    original = ast.parse(source)
    seen: Counter[str] = Counter()
    for path, where in _sites(original, (), ""):
        node = _at(original, path)
        for change in range(_changes(node)):
            _, after = _mutated(copy.deepcopy(node), change)
            name = f"{where}: {_short(ast.unparse(node))} -> {_short(after)}"
            seen[name] += 1
            number = "" if seen[name] == 1 else f" #{seen[name]}"
            line = node.iter.lineno if isinstance(node, ast.comprehension) else getattr(node, "lineno", 0)
            yield Mutant(name + number, line, original, path, change)


def _short(text: str) -> str:
    return " ".join(text.split())[:90]


def _sites(node: ast.AST, path: Path, where: str) -> Iterator[tuple[Path, str]]:
    """Paths to nodes that can be mutated, each with the function or name around it."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}".lstrip(".")
    if _changes(node):
        yield path, where or "module"
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment", "format_spec"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(child, ast.AST) and not isinstance(child, ast.expr_context | ast.Import | ast.ImportFrom):
                yield from _sites(child, (*path, (field, index)), where)


def _at(tree: ast.AST, path: Path) -> ast.AST:
    for field, index in path:
        value = getattr(tree, field)
        tree = value if index is None else value[index]
    return tree


def _changes(node: ast.AST) -> int:
    """How many mutants this node gives."""
    if isinstance(node, ast.Compare):
        return len(node.ops)
    if isinstance(node, ast.Constant):
        return int(isinstance(node.value, bool | int | float))
    if isinstance(node, ast.Return):
        # of a constant: None for False changes nothing, and True has a mutant of its own
        return int(
            node.value is not None and not (isinstance(node.value, ast.Constant) and not isinstance(node.value.value, str))
        )
    if isinstance(node, ast.Expr):
        return int(isinstance(node.value, ast.Yield | ast.YieldFrom))
    if isinstance(node, ast.If | ast.IfExp):
        return int(isinstance(node.test, _BARE))
    if isinstance(node, ast.comprehension):
        return len(_bare(node))
    return int(isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)))


def _bare(node: ast.comprehension) -> list[int]:
    """The filters that are no comparison, negation or boolean operation: those have mutants of their own."""
    return [index for index, one in enumerate(node.ifs) if isinstance(one, _BARE)]


def _mutated(node: ast.AST, change: int) -> tuple[ast.AST, str]:
    """What stands in place of `node`, which is changed or taken apart, and how it reads."""
    if isinstance(node, ast.Compare):
        node.ops[change] = _COMPARE[type(node.ops[change])]()
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    elif isinstance(node, ast.Expr):
        node = ast.Pass()
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
        return node, f"not {ast.unparse(node.test.operand)}"
    elif isinstance(node, ast.comprehension):
        index = _bare(node)[change]
        node.ifs[index] = ast.UnaryOp(ast.Not(), node.ifs[index])
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node = node.operand
    return node, ast.unparse(node)
