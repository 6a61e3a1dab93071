"""``netdoctor deploy``: the integrations that come with the package, printed or written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from netdoctor.cli import deliver
from netdoctor.cli.options import Options
from netdoctor.textsafe import listed

if TYPE_CHECKING:
    from importlib.abc import Traversable


def run(what: str | None, to: str | None) -> int:
    """Print the files of one integration with a line of their name before each, or write them below `to`."""
    from importlib.resources import files

    here = files("netdoctor.deploy")
    known = sorted(entry.name for entry in here.iterdir() if entry.is_dir() and not entry.name.startswith(("_", ".")))
    if what is None:
        print("\n".join(known))
        return 0
    if what not in known:
        return deliver.refuse(f"deploy: there is {', '.join(known)}; not {what!r}", Options())
    found = list(_below(here / what))
    return _print(found) if to is None else _write(found, to)


def _below(folder: Traversable, at: str = "") -> Iterator[tuple[str, bytes]]:
    """(path inside the folder, content) of every file, sorted; the same from a folder and from a zip file."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _below(entry, f"{at}{entry.name}/")
        elif not entry.name.endswith(".pyc"):
            yield at + entry.name, entry.read_bytes()


def _print(found: list[tuple[str, bytes]]) -> int:
    for name, data in found:
        text = data.decode("utf-8", "replace")
        print(f"# ---- {name}\n{text}", end="" if text.endswith("\n") else "\n")
    return 0


def _write(found: list[tuple[str, bytes]], to: str) -> int:
    """Nothing that is there is overwritten: it may have been edited."""
    paths = [(os.path.join(to, name), data) for name, data in found]
    there = [path for path, data in paths if os.path.lexists(path) and not _same(path, data)]
    if there:
        return deliver.refuse(f"deploy: not overwritten: {listed(there)}; nothing was written", Options())
    try:
        for path, data in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            mode = 0o755 if data.startswith(b"#!") else 0o644
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as stream:
                stream.write(data)
            print(path)
    except OSError as error:
        print(f"netdoctor: deploy: {error.filename or to}: {error.strerror}", file=sys.stderr)
        return deliver.BROKEN
    return 0


def _same(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(data) + 1) == data
    except OSError:
        return False
