"""A string is never both words and data: no code looks for words in a sentence.

What netdoctor says is an Enum or a field beside its words; what others say in a log is told by a pattern or a `Wording`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from tests.support.sources import ROOT, nodes, python

_FOR_PEOPLE = {"reason", "detail", "why", "notes", "told", "message"}  # attributes that hold a sentence
_SEARCHES = {"startswith", "endswith", "partition", "rpartition", "find", "index"}
_LOGS = ("netdoctor/nccl/diagnosis", "netdoctor/nccl/log")


def _sentences_searched(code: Iterable[ast.AST]) -> list[str]:
    """Where code looks into a sentence: ``"x" in one.reason``, ``one.why == "x"``, ``one.detail.startswith("x")``."""
    found = []
    for node in code:
        looked: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            looked = [node.comparators[0]]
        elif isinstance(node, ast.Compare) and any(_is_text(x) for x in (node.left, *node.comparators)):
            looked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHES:
            looked = [node.func.value]
        for one in looked:
            name = one.attr if isinstance(one, ast.Attribute) else ""
            found += [f"{one.lineno}: {name}"] if name in _FOR_PEOPLE else []
    return found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


@pytest.mark.parametrize(
    "source",
    [
        "'lock' in run.reason",
        "b.detail.startswith('node ')",
        "'within' not in b.detail",
        "p.why != '--python'",
        "'x' == run.why",
        "one.reason.partition(': ')",
    ],
)
def test_a_search_in_a_sentence_is_found(source: str) -> None:
    assert len(_sentences_searched(ast.walk(ast.parse(source)))) == 1


@pytest.mark.slow
def test_no_sentence_is_searched() -> None:
    files = [p for p in python("netdoctor", "checks") if "deploy" not in p.parts]
    found = {f"{p.relative_to(ROOT)}:{one}" for p in files for one in _sentences_searched(nodes(p))}
    assert not found


# The lines of a log: `.text` of an event, and what the pattern caught of it in `.data`

_CAUGHT = {
    "errno",
    "error",
    "why",
    "what",
    "how",
    "event",
    "detail",
}  # groups that hold words; the others hold names and numbers


def _messages_searched(code: Iterable[ast.AST]) -> Iterator[str]:
    """Where code spells others' words out: ``"x" in e.text.lower()``, ``re.search("x", e.text)``, in a name for it as well."""
    for function in (node for node in code if isinstance(node, ast.FunctionDef)):
        inside = list(ast.walk(function))
        named: dict[str, ast.expr] = {}
        for node in inside:
            if isinstance(node, ast.Assign):
                named |= dict(_bound(node.targets[0], node.value))
            elif isinstance(node, ast.NamedExpr):
                named |= dict(_bound(node.target, node.value))
        for node in inside:
            words: ast.expr | None = None
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                words, looked = node.left, node.comparators[0]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if getattr(node.func.value, "id", "") == "re" and len(node.args) > 1:
                    words, looked = node.args[0], node.args[1]
                elif node.func.attr in _SEARCHES and node.args:
                    words, looked = node.args[0], node.func.value
            if words and _is_text(words) and _is_message(looked, named):
                yield f"{node.lineno}: {ast.unparse(words)}"


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _bound(one, its)


def _is_message(node: ast.AST, named: dict[str, ast.expr]) -> bool:
    """A message or a part of one, in small letters, joined or cut as well."""
    if isinstance(node, ast.Name) and node.id in named:
        rest = {name: value for name, value in named.items() if name != node.id}
        return _is_message(named[node.id], rest)
    if isinstance(node, ast.Attribute):
        return node.attr == "text"
    key = node.slice if isinstance(node, ast.Subscript) else node.args[0] if isinstance(node, ast.Call) and node.args else None
    if isinstance(node, ast.Subscript | ast.Call) and getattr(key, "value", "") in _CAUGHT and _is_data(node, named):
        return True
    if isinstance(node, ast.Call):
        parts = [node.func.value, *node.args] if isinstance(node.func, ast.Attribute) else []
    else:
        parts = [*ast.iter_child_nodes(node)]
        if isinstance(node, ast.GeneratorExp | ast.ListComp):
            parts = [node.elt]
        elif not isinstance(node, ast.Subscript | ast.BoolOp | ast.BinOp | ast.JoinedStr | ast.FormattedValue):
            parts = []
    return any(_is_message(part, named) for part in parts)


def _is_data(node: ast.Subscript | ast.Call, named: dict[str, ast.expr]) -> bool:
    """Whether this takes one group out of ``e.data``."""
    of = node.value if isinstance(node, ast.Subscript) else node.func.value if isinstance(node.func, ast.Attribute) else node
    of = named.get(of.id, of) if isinstance(of, ast.Name) else of
    return isinstance(of, ast.Attribute) and of.attr == "data"


@pytest.mark.parametrize(
    "source",
    [
        "return 'no space' in e.text",
        "return 'no space' not in e.text.lower()",
        "return any('oom' in e.text.lower() for e in events)",
        "return '134' in e.data.get('how', '')",
        "return e.data['errno'].startswith('Connection')",
        "return re.search('efa|provider', e.text, re.IGNORECASE)",
        "low, name = e.text.lower(), e.rank; return 'xml' in low",
        "why = (e.data.get('why') or e.text).lower(); return 'broken pipe' in why",
        "d = e.data; reason = d.get('errno', '').lower(); return 'no data' in reason",
        "source = f'{e.source} {e.text[:80]}'.lower(); return 'nvls.cc' in source",
        "errno = ' '.join(e.data.get('errno', '') for e in events); return re.search('bad address', errno)",
    ],
)
def test_a_search_in_a_message_is_found(source: str) -> None:
    assert len(list(_messages_searched(ast.walk(ast.parse(f"def f():\n {source}"))))) == 1


def test_no_message_is_searched_by_words_of_the_place() -> None:
    files = python(*_LOGS)
    assert files
    found = {f"{p.relative_to(ROOT)}:{one}" for p in files for one in _messages_searched(nodes(p))}
    assert not found
