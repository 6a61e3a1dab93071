"""``netdoctor deploy``: the integrations that come with the package, printed or written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from netdoctor.textsafe import listed

if TYPE_CHECKING:
    from importlib.abc import Traversable


def run(what: str | None, to: str | None) -> int:
    """Print the files of one integration with a line of their name before each, or write them below `to`."""
    from importlib.resources import files

    here = files("netdoctor.deploy")
    known = sorted(one.name for one in here.iterdir() if one.is_dir() and not one.name.startswith(("_", ".")))
    if what is None:
        print("\n".join(known))
        return 0
    if what not in known:
        print(f"netdoctor: deploy: there is {', '.join(known)}; not {what!r}", file=sys.stderr)
        return 2
    found = list(_below(here / what))
    return _print(found) if to is None else _write(found, to)


def _below(folder: Traversable, at: str = "") -> Iterator[tuple[str, bytes]]:
    """(path inside the folder, content) of every file, sorted; the same from a folder and from a zip file."""
    for one in sorted(folder.iterdir(), key=lambda item: item.name):
        if one.is_dir():
            if one.name != "__pycache__":
                yield from _below(one, f"{at}{one.name}/")
        elif not one.name.endswith(".pyc"):
            yield at + one.name, one.read_bytes()


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
        print(f"netdoctor: deploy: not overwritten: {listed(there)}; nothing was written", file=sys.stderr)
        return 2
    try:
        for path, data in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            mode = 0o755 if data.startswith(b"#!") else 0o644
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as stream:
                stream.write(data)
            print(path)
    except OSError as error:
        print(f"netdoctor: deploy: {error.filename or to}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _same(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(data) + 1) == data
    except OSError:
        return False
