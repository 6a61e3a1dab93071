"""Whether execve(2) takes the file of the job's command, as far as the file itself tells."""

from __future__ import annotations

import os
import re
import shlex
import stat
import struct
from typing import Final, NamedTuple

from netdoctor.process import far, given


class Obstacle(NamedTuple):
    """Why a file will not start, what mends that, and what a shell exits with (POSIX, 2.8.2: 127 where execve says ENOENT)."""

    why: str
    mend: str
    code: int = 126


_NONE: Final = Obstacle("no such command", "", 127)
_TEXT: Final = bytes({*range(32, 127), *range(128, 256), *b"\t\n\r\f"})
_REGISTERED: Final = "/proc/sys/fs/binfmt_misc"  # a file a rule (Documentation/admin-guide/binfmt-misc.rst of Linux)
# "#!", the interpreter, at most one argument: a blank or the line ends the name (Linux, fs/binfmt_script.c).
_INTERPRETER: Final = re.compile(rb"#![ \t]*([^ \t\n]+)[ \t\n]")


def in_the_way(program: str, path: str | None, *, direct: bool = False) -> Obstacle | None:
    """Why execvp(3) starts nothing of that name; None where it does, or that is not known.  `direct`: of `obstacle`."""
    if not program:
        return Obstacle("it is empty: a variable of a script that is not set?", "", 127)
    if "/" not in program and path is None:  # its default is the C library's
        return None
    tried = [program] if "/" in program else [os.path.join(folder or ".", program) for folder in str(path).split(os.pathsep)]
    # A folder of PATH that may not be entered is passed over, as by a shell; a file in such a folder is there, or nobody knows.
    there = [file for file in tried if "/" in program or far.call(os.path.lexists, file, path=file)]
    why = [far.call(obstacle, file, direct, path=file) for file in there]
    return _NONE if not there else why[0] if all(why) else None


def obstacle(path: str, direct: bool = False) -> Obstacle | None:
    """None where nothing speaks against it; never raises.

    `direct`: execve(2) alone starts it.  What it refuses by its form, execvp(3) of the C library, and so env(1) and its like,
    hand to /bin/sh.
    """
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
            first, size = file.read(256), os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        return Obstacle("it is a link to nothing", f"readlink -f {name}", 127) if os.path.islink(path) else _NONE
    except PermissionError:  # a file that may be run need not be readable
        return None if os.access(path, os.X_OK, effective_ids=True) else Obstacle("Permission denied", f"namei -l {name}; id")
    except OSError:
        return None
    return _of_script(first, name) or (_of_form(first, size, path) if direct else None)


def _of_form(first: bytes, size: int, path: str) -> Obstacle | None:
    """What no loader of the kernel takes (ENOEXEC), for certain: binary forms besides ELF may be registered with it."""
    if first.startswith(b"#!"):
        return None
    name = shlex.quote(path)
    mend = f"begin it with #!/bin/bash, or: … -- bash {name}"
    if not first:
        return Obstacle("the file is empty", mend)
    if not first.startswith(b"\x7fELF"):
        text = not first.translate(None, _TEXT) and not _registered(path)
        return Obstacle("it is text whose first line names no interpreter (#!)", mend) if text else None
    wide, order = first[4:5] == b"\2", ">" if first[5:6] == b"\2" else "<"
    # e_phoff, e_phentsize and e_phnum (elf(5)): without its whole table of segments nothing is loaded (fs/binfmt_elf.c).
    at, where, form = (32, 54, "Q") if wide else (28, 42, "I")
    if min(size, len(first)) >= (64 if wide else 52):  # of a file that is written meanwhile the beginning may be shorter
        (table,), (each, count) = struct.unpack_from(order + form, first, at), struct.unpack_from(f"{order}HH", first, where)
        if table + each * count <= size:
            return None
    return Obstacle("it is a program whose end is missing", f"ls -l {name}: copy or install it again")


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


def _registered(path: str) -> bool:
    """Whether the end of that name may be registered with the kernel; a container does not see what the host registered."""
    name = os.path.basename(path)
    if "." not in name:
        return False
    try:
        rules = set(os.listdir(_REGISTERED))
        texts = [given.text(os.path.join(_REGISTERED, rule), 4096) for rule in rules - {"register", "status"}]
    except (OSError, ValueError):
        return True
    return "status" not in rules or any(f"extension .{name.rpartition('.')[2]}" in text.splitlines() for text in texts)
