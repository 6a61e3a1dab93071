"""The project's own Python files as trees, each parsed once a session."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, in the order of `ast.walk`."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@functools.cache
def python(*folders: str) -> tuple[Path, ...]:
    """The Python files below these folders of the repository."""
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))
