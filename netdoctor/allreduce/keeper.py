"""The keeper: stands between netdoctor and the job's Python, so that nothing is left behind whoever dies first.

Runs in netdoctor's own Python (``-I -S``, standard library only), in a session of its own, as a child subreaper
(prctl(2)): whatever a rank leaves behind becomes the keeper's child.  It ends all of them when the pipe to netdoctor
closes, when it gets SIGTERM (also by PR_SET_PDEATHSIG: netdoctor got SIGKILL), or when the job's Python ends.

``argv[1]`` is the number of a descriptor that holds the order as JSON: ``parent`` (pid), ``life`` and ``status``
(descriptors), ``argv``, ``env``, ``keep`` (descriptors for the job's Python), ``output`` (its stdout and stderr), ``user``
(None, or [uid, gid, groups, whether it may lock memory]), ``folder`` (to start in; "": this one).  Events go to ``status``, one
JSON object a line.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # their texts are put before this one
    from netdoctor.process.become import become_user
    from netdoctor.process.proc import below

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TERM_SECONDS = 0.3  # the children's SIGTERM is the default action; this is for those that changed it
KILL_SECONDS = 3.0  # after SIGKILL; what is still there then hangs in the kernel


def main() -> None:
    number = int(sys.argv[1])
    order = json.loads(os.pread(number, os.fstat(number).st_size, 0))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted netdoctor ends us when its report is made
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != order["parent"]:
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        become(order, libc, os.getppid())
    for descriptor in (*order["keep"], order["output"], number):
        os.close(descriptor)
    tell(order, "started", pid=pid)
    waiting = select.poll()  # select(2) takes no descriptor from 1024 on
    for descriptor in (order["life"], wake):
        waiting.register(descriptor, select.POLLIN)
    while not stop and pid:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if wake in ready:
            os.read(wake, 4096)
        if order["life"] in ready:
            stop.append(1)
        for gone, status in reaped():
            if gone == pid:
                tell(order, "ended", status=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
                pid = 0
    tell(order, "gone", abandoned=end_all())
    os._exit(0)


def become(order: dict[str, Any], libc: Any, parent: int) -> None:
    """Turn this forked child into the job's Python; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]  # 1 also stops a dump into a pipe (core(5), fs/coredump.c)
        resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))
        if order["folder"]:
            os.chdir(order["folder"])
        if order["user"]:
            uid, gid, groups, locks = order["user"]
            become_user(uid, gid, groups, locks=locks)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which clears it
        if os.getppid() != parent:
            os._exit(1)
        for descriptor in order["keep"]:
            os.set_inheritable(descriptor, True)
        os.dup2(order["output"], 1)
        os.dup2(order["output"], 2)
        os.execve(order["argv"][0], order["argv"], order["env"])
    except BaseException as error:  # noqa: BLE001  (told to the parent, whatever it is: the child is not the job's Python yet)
        tell(order, "not started", error=f"{type(error).__name__}: {error}")
    os._exit(127)


def tell(order: dict[str, Any], event: str, **fields: Any) -> None:
    try:
        os.write(order["status"], json.dumps({"event": event, **fields}).encode() + b"\n")
    except OSError:
        pass  # netdoctor is gone


def reaped() -> list[tuple[int, int]]:
    """Every child that has ended: pid and status."""
    out: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return out
        if pid == 0:
            return out
        out.append((pid, status))


def end_all() -> list[int]:
    """TERM, then KILL, every descendant; the pids that are still there after that."""
    for sign, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        end = time.monotonic() + seconds
        told: set[int] = set()
        while True:
            reaped()
            left = sorted(below(os.getpid()))
            if not left:
                return []
            for pid in set(left) - told:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    pass
                told.add(pid)
            if time.monotonic() >= end:
                break
            time.sleep(0.005)
    return sorted(below(os.getpid()))


if __name__ == "__main__":
    main()
