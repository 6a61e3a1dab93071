"""What a stream can show: how wide it is, and whether colours may be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def width(stream: TextIO, environ: Mapping[str, str]) -> int | None:
    """Columns of the terminal, or of COLUMNS; None where the text goes to a file or a pipe and lines may be long."""
    if not _is_terminal(stream):
        return None
    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return int(columns)
    import os

    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Only on a terminal, and not with NO_COLOR (no-color.org: present and not empty) or TERM=dumb."""
    return _is_terminal(stream) and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
