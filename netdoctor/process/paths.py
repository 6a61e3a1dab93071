"""Following a path component by component, each opened relative to the one before: nothing is exchanged behind our back.

Who may own a folder, and whether a link may be followed, is the caller's rule.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

MAX_LINKS: Final = 40  # the kernel's own limit (path_resolution(7))
_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# (descriptor, name, None) of a folder that was opened; (descriptor of its folder, name, lstat) of a link.  Raises to refuse.
Judge = Callable[[int, str, "os.stat_result | None"], None]


@contextlib.contextmanager
def walk(path: str, judge: Judge, access: int = os.O_PATH) -> Iterator[tuple[int, str]]:
    """(descriptor of the folder, last name) of what `path` leads to; it need not be there.  "" is the folder itself.

    `judge` sees every folder and every link on the way, a link in the last place included.  `access` is what folders are opened
    with.  Raises OSError with the component as its `filename`.
    """
    begin = "/" if path.startswith("/") else "."
    way = [os.open(begin, _FOLDER | access)]
    try:
        judge(way[0], begin, None)
        todo, links, name = _parts(path), 0, ""
        while todo:
            name = todo.pop()
            if name == "..":
                _up(way, judge, access)
            elif target := _target(way[-1], name, judge, last=not todo):
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, "too many links", name)
                if target.startswith("/"):
                    _close(way)
                    way.append(os.open("/", _FOLDER | access))
                todo += _parts(target)
            elif todo:
                way.append(os.open(name, _FOLDER | access, dir_fd=way[-1]))
                judge(way[-1], name, None)
            else:
                break
            name = ""
        yield way[-1], name
    finally:
        _close(way)


def _parts(path: str) -> list[str]:
    """The components, the next one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _target(folder: int, name: str, judge: Judge, *, last: bool) -> str | None:
    """Where a link leads; None for anything else, and for a last name that is not there."""
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if last:
            return None
        raise
    if not stat.S_ISLNK(facts.st_mode):
        return None
    judge(folder, name, facts)
    return os.readlink(name, dir_fd=folder)


def _up(way: list[int], judge: Judge, access: int) -> None:
    """Back on the way that was taken; from its begin to the parent of that folder."""
    if len(way) > 1:
        os.close(way.pop())
        return
    way.append(os.open("..", _FOLDER | access, dir_fd=way[0]))
    os.close(way.pop(0))
    judge(way[0], "..", None)


def _close(way: list[int]) -> None:
    while way:
        os.close(way.pop())


def locked(path: str) -> str:
    """Why nobody can tell what is at a path that is not seen: a folder before it may not be entered; "": it is not there."""
    try:
        os.stat(path)
    except PermissionError as error:
        return str(error.strerror)
    except OSError:
        return ""
    return ""
