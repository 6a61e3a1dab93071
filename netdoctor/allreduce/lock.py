"""One netdoctor at a time loads a GPU: flock in /run/netdoctor (root) or $XDG_RUNTIME_DIR, a file a GPU.

Jobs of other GPUs of the node share the node's own file; who cannot name his GPUs has it alone.  Two netdoctors in different
containers cannot see each other's lock; there the look at the GPUs' memory and utilisation protects.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from netdoctor.facts.runs import AllReduce, Obstacle, Reason

ROOT_FOLDER: Final = "/run/netdoctor"
HELD: Final = Reason(Obstacle.LOCK, "another netdoctor holds the lock")
WAIT: Final = 15.0  # seconds, where nobody sets a time
PATIENCE: Final = 2 / 3  # of the time that is left: the rest is for the all-reduce itself
CPU: Final = "cpu"  # in the place of a GPU's UUID: ranks without one
_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,80}")


class Lock:
    """Held from `take` to `release`; the kernel releases it however we end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._held: list[int] = []
        self.note = ""  # why there is none

    def take(self, deadline: float, gpus: Sequence[str] = (), *, across: bool = False) -> Reason | None:
        """None when it is held, or when there can be none (`note` says why); else why it could not be had.

        `gpus` are the UUIDs of those that are to be loaded; () where they are not known: then nobody else may load any.
        `across`: for a part of a run of several nodes: two of its nodes on one machine share the CPU.
        Waits for `PATIENCE` of the time until `deadline` (time.monotonic).
        """
        if self._held or self.note:
            return None
        end = time.monotonic() + PATIENCE * max(0.0, deadline - time.monotonic())
        try:
            folder = self._folder()
            if folder < 0:
                self.note = "no lock: XDG_RUNTIME_DIR is not set"
                return None
            try:
                for name, how in _files(gpus, across):
                    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
                    self._held.append(fd)
                    if not _locked(fd, how, end):
                        self.release()
                        return HELD
            finally:
                os.close(folder)
        except OSError as error:
            self.release()
            self.note = f"no lock: {error.filename or ''} {error.strerror}".strip()
        return None

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def _folder(self) -> int:
        """Where the files are, opened; -1: nowhere."""
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
        except OSError:
            os.close(at)
            raise
        return at


def loaded(experiment: AllReduce, known: Sequence[str]) -> tuple[str, ...]:
    """What an experiment loads, by name; () where that is not known.  `known` are UUIDs by ordinal."""
    if experiment.device != "cuda":
        return (CPU,)
    return tuple(known[n] for n in experiment.gpus) if experiment.gpus and max(experiment.gpus) < len(known) else ()


def _files(gpus: Sequence[str], across: bool) -> Iterator[tuple[str, int]]:
    """Each file and how it is locked, in one order for all, so that no two wait for each other."""
    named = bool(gpus) and all(_NAME.fullmatch(one) for one in gpus)
    yield "netdoctor.lock", fcntl.LOCK_SH if named else fcntl.LOCK_EX
    if named:
        for one in sorted(set(gpus)):
            yield f"netdoctor-{one}.lock", fcntl.LOCK_SH if across and one == CPU else fcntl.LOCK_EX


def _locked(fd: int, how: int, end: float) -> bool:
    while not _at_once(fd, how):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def _at_once(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
