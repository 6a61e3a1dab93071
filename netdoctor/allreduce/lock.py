"""One netdoctor at a time loads the GPUs of a node: flock in /run/netdoctor (root) or $XDG_RUNTIME_DIR.

Two netdoctors in different containers cannot see each other's lock; there the look at the GPUs' memory and utilisation
protects.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Mapping
from typing import Final

from netdoctor.facts.runs import Obstacle, Reason

ROOT_FOLDER: Final = "/run/netdoctor"
HELD: Final = Reason(Obstacle.LOCK, "another netdoctor holds the lock of this node")
WAIT: Final = 10.0  # seconds; an all-reduce of one node takes less


class Lock:
    """Held from `take` to `release`; the kernel releases it however we end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._fd = -1
        self.note = ""  # why there is none

    def take(self, deadline: float) -> Reason | None:
        """None when it is held, or when there can be none (`note` says why); else why it could not be had.

        Waits until `deadline` (time.monotonic), and no longer than `WAIT`.
        """
        if self._fd >= 0 or self.note:
            return None
        try:
            fd = self._open()
        except OSError as error:
            self.note = f"no lock: {error.filename or ''} {error.strerror}".strip()
            return None
        if fd < 0:
            self.note = "no lock: XDG_RUNTIME_DIR is not set"
            return None
        end = min(deadline, time.monotonic() + WAIT)
        while True:
            if _locked(fd):
                self._fd = fd
                return None
            if time.monotonic() >= end:
                os.close(fd)
                return HELD
            time.sleep(0.05)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        if os.geteuid() == 0:
            folder = ROOT_FOLDER
            try:
                os.mkdir(folder, 0o755)
            except FileExistsError:
                pass
        else:
            folder = self._environment.get("XDG_RUNTIME_DIR", "")
            if not folder.startswith("/"):
                return -1
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            facts = os.fstat(at)
            if facts.st_uid != os.geteuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(1, "is not ours alone", folder)
            return os.open("netdoctor.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at)
        finally:
            os.close(at)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
