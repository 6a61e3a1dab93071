"""Work that runs a site's own code, in a child of which only a word of its own counts.

Such code can end its process at any moment with any exit code: `os._exit`, libc's `exit`, a thread, a handler, a fault of
native code.  So a child runs it, and the exit code counts only if the child's last act wrote it into memory that both share (no
descriptor, which that code may close or a grandchild may keep).
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Final

from netdoctor.model import record
from netdoctor.process import signals

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_WORD: Final = struct.Struct("=ii256s")  # who says it, the exit code, what ran last
_pages: Final[list[mmap.mmap]] = []


@record
class Lost:
    """The child ended without a word."""

    how: str  # "exit code 0", "SIGSEGV"
    during: str  # what ran last of the site's; "" for nothing


def running(name: str) -> None:
    """What is named where the process ends now."""
    for page in _pages:
        _WORD.pack_into(page, 0, 0, 0, name.encode("utf-8", "replace")[:256])


def run(work: Callable[[], int]) -> int | Lost:
    """What `work` returns, in a child.  It hears the signals that come here; its threads and what it left open end with it."""
    page = mmap.mmap(-1, _WORD.size)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.DEFERRED)
    child = os.fork()
    if child == 0:
        _child(work, page, parent, before)
    try:
        with signals.passed_on(child):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    who, code, during = _WORD.unpack_from(page)
    if who == child:
        return int(code)
    how = f"exit code {status}" if status >= 0 else signal.Signals(-status).name
    return Lost(how, during.rstrip(b"\0").decode("utf-8", "replace"))


def _child(work: Callable[[], int], page: mmap.mmap, parent: int, before: set[int | signal.Signals]) -> None:
    """Does not return.  Here Ctrl-C is never a KeyboardInterrupt, so that one is always the site's own."""
    end, here = os._exit, os.getpid()
    try:
        atexit._clear()  # noqa: SLF001 - the parent does that; as multiprocessing does
        _pages.append(page)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            end(1)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = work()
        if os.getpid() == here:  # not a child of the site's that came back from its code
            _WORD.pack_into(page, 0, here, code, b"")
            atexit._run_exitfuncs()  # noqa: SLF001 - as there
            end(code)
    except BaseException:  # noqa: BLE001 - the border: nothing here may go on as the parent
        traceback.print_exc()
    finally:
        end(1)
