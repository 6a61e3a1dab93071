"""Whether execve(2) takes the file of the job's command, as far as the file itself tells."""

from __future__ import annotations

import os
import re
import shlex
import stat
from typing import Final, NamedTuple

from netdoctor.process import far


class Obstacle(NamedTuple):
    """Why a file will not start, what mends that, and what a shell exits with (POSIX, 2.8.2: 127 where execve says ENOENT)."""

    why: str
    mend: str
    code: int = 126


# "#!", the interpreter, at most one argument: a blank or the line ends the name (Linux, fs/binfmt_script.c).
_INTERPRETER: Final = re.compile(rb"#![ \t]*([^ \t\n]+)[ \t\n]")


def in_the_way(program: str, path: str | None) -> Obstacle | None:
    """Why execvp(3) starts nothing of that name; None where it does, or that is not known."""
    if "/" not in program and path is None:  # its default is the C library's
        return None
    tried = [program] if "/" in program else [os.path.join(folder or ".", program) for folder in str(path).split(os.pathsep)]
    there = [file for file in tried if far.call(os.path.lexists, file, path=file)]
    why = [far.call(obstacle, file, path=file) for file in there]
    return Obstacle("no such command", "", 127) if not there else why[0] if all(why) else None


def obstacle(path: str) -> Obstacle | None:
    """None where nothing speaks against it; never raises."""
    name = shlex.quote(path)
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return Obstacle("it is a directory" if stat.S_ISDIR(mode) else "it is no regular file", "name a program")
        if not mode & 0o111:
            return Obstacle(f"it may not be executed (mode {stat.S_IMODE(mode):04o})", f"chmod +x {name}, or: … -- bash {name}")
        if not os.access(path, os.X_OK, effective_ids=True):
            return Obstacle("it may not be executed here", f"namei -l {name}; findmnt -T {name} (noexec); id")
        with open(path, "rb") as file:
            first = file.read(256)
    except FileNotFoundError:
        return Obstacle("it is a link to nothing", f"readlink -f {name}", 127)
    except OSError:
        return None
    return _of_script(first, name)


def _of_script(first: bytes, name: str) -> Obstacle | None:
    found = _INTERPRETER.match(first)
    if found is None or os.path.exists(found[1]):
        return None
    interpreter = os.fsdecode(found[1])
    if interpreter.endswith("\r"):
        return Obstacle("its lines end in CR LF, and so does the name of its interpreter", f"sed -i 's/\\r$//' {name}", 127)
    return Obstacle(
        f"its first line names {interpreter}, which is not there",
        f"install {interpreter}, or name another in its first line",
        127,
    )
