"""A FUSE file system of a user that says of its only folder that it is root's: the daemon names any owner it likes."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.support.namespaces import silent

_FORGET, _GETATTR, _OPENDIR, _READDIR, _RELEASEDIR, _BATCH_FORGET = 2, 3, 27, 28, 29, 42  # include/uapi/linux/fuse.h
_ATTRIBUTES: Final = struct.Struct("=QII6Q10I")  # fuse_attr_out
_ENOSYS: Final = -38


def _answers(device: int) -> None:
    while True:
        try:
            data = os.read(device, 1 << 18)  # more than INIT allowed for one write
        except OSError:  # unmounted
            return
        _, operation, unique, *_ = silent.HEAD.unpack(data[: silent.HEAD.size])
        folder = _ATTRIBUTES.pack(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
        known = {_GETATTR: folder, _OPENDIR: bytes(16), _READDIR: b"", _RELEASEDIR: b""}
        if operation not in (_FORGET, _BATCH_FORGET):
            reply = known.get(operation, b"")
            error = 0 if operation in known else _ENOSYS
            with suppress(FileNotFoundError):  # who asked was interrupted and waits no more (fs/fuse/dev.c, fuse_dev_do_write)
                os.write(device, silent.OUT.pack(silent.OUT.size + len(reply), error, unique) + reply)


@contextmanager
def served(folder: Path, uid: int) -> Iterator[None]:
    """An empty folder of root's, by the word of `uid`'s daemon (here a thread)."""
    device = silent.mount(str(folder), uid)
    thread = threading.Thread(target=_answers, args=(device,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(folder), 2)  # MNT_DETACH
        thread.join(10)
        os.close(device)
