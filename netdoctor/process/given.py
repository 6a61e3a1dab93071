"""What somebody names to be read: a file, a pipe, standard input.  All of it, up to a size, and in a time that ends.

A document (a snapshot, a configuration, a job script) has an end.  A pipe that nobody closes, a FIFO to which nobody writes,
/dev/zero and a file on a server that is gone have none, and whoever waits for one of these should read why.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Generator
from typing import Final

from netdoctor.process import far
from netdoctor.process.streams import readable
from netdoctor.textsafe import clean

STDIN: Final = "-"
DOCUMENT: Final = 64 << 20  # bytes; the snapshot of a node with 16 GPUs and all runs is below 1 MB
# What comes by a pipe may be made meanwhile, by a look with its runs: `ssh NODE netdoctor snapshot | netdoctor diagnose -`.
PATIENCE: Final = 900.0  # as long as the ranks of a node wait for the look of their first one (docs/vantage.md)
SILENT: Final = 10.0  # seconds after which is told what is waited for
READING: Final = 60.0  # for a file: a slow server brings megabytes in that
_BLOCK: Final = 1 << 20


def text(path: str, limit: int = DOCUMENT, errors: str = "strict") -> str:
    """A document in UTF-8, whatever the locale.  OSError (also of what is longer than `limit` bytes), UnicodeDecodeError."""
    return whole(path, limit).decode("utf-8", errors)


def whole(path: str, limit: int = DOCUMENT, patience: float = PATIENCE) -> bytes:
    """A document; OSError also where it is longer than `limit` bytes, or its end does not come in time."""
    data = start(path, limit + 1, patience)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit >> 20} MiB")
    return data


def start(path: str, size: int, patience: float = PATIENCE) -> bytes:
    """The first `size` bytes of a document, or all that it has.  Raises OSError."""
    if path != STDIN:
        place = os.path.abspath(path)
        if stat.S_ISREG(far.call(os.stat, path, path=place).st_mode):
            return far.call(_of_a_file, path, size, path=place, limit=min(READING, patience))
    data = bytearray()
    for block in blocks(path, patience):
        data += block
        if len(data) >= size:
            break
    return bytes(data[:size])


def _of_a_file(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def blocks(path: str, patience: float | None = None) -> Generator[bytes, None, None]:
    """What comes, as it comes, until the writers of a pipe end: within `patience` seconds in all, None: whenever that is."""
    until = None if patience is None else time.monotonic() + patience
    fd = sys.stdin.fileno() if path == STDIN else os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    told = False
    try:
        while True:
            came = readable(fd, SILENT if until is None else min(SILENT, until - time.monotonic()))
            block = _there(fd) if came or path != STDIN else None
            if block:
                yield block
            elif came and block is not None:
                return
            elif until is not None and block is not None:  # a FIFO is at its end where nobody opened it to write (fifo(7))
                raise OSError(errno.EPIPE, "a pipe to which nobody writes")
            elif until is not None and time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, f"its end did not come within {patience:g} s")
            elif not came and not told:
                name = "standard input" if path == STDIN else clean(path)
                print(f"netdoctor: waiting for {name}: it is read until its writers end", file=sys.stderr, flush=True)
                told = True
    finally:
        if path != STDIN:
            os.close(fd)


def _there(fd: int) -> bytes | None:
    """What can be read at once, b"" at the end; None where a writer is there and silent, or another reader was quicker."""
    try:
        return os.read(fd, _BLOCK)
    except BlockingIOError:
        return None
