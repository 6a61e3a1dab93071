"""The project's own files, each parsed once a session: Python as trees, YAML as values that nobody changes."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, in the order of `ast.walk`."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@functools.cache
def python(*folders: str) -> tuple[Path, ...]:
    """The Python files below these folders of the repository."""
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


def table(path: Path) -> Any:
    """What a YAML file says, as it stands now."""
    return _values(path.read_text(encoding="utf-8"))


@functools.cache
def _values(text: str) -> Any:
    """By libyaml where PyYAML has it, in a tenth of the time; netdoctor's own reader is another, and its tests are of that."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
