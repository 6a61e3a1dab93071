"""The zygote: loads torch or a libnccl once, asks what it can do, and forks the ranks of each experiment.

The last part of the rank program: the runner hands over rank.py, the engines and this text on a descriptor, and all run in one
namespace (standard library and torch, the syntax of Python 3.8, nothing of netdoctor).  ``sys.argv[2]`` is the libnccl that is
used without torch, "" where torch is.  One SOCK_SEQPACKET socket (its number is ``sys.argv[1]``) carries everything else, one
JSON object a packet: commands come in (``run``, ``abort``), events go out, each with ``"p": 1``, the protocol's number.  stdout
and stderr belong to the libraries (NCCL prints its version there).

This process never touches CUDA: a forked child cannot use a context that its parent made (CUDA C++ programming guide,
"CUDA Initialization").  So the questions to CUDA are asked in a child of their own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035  (collections.abc has no subscripts in Python 3.8)

if TYPE_CHECKING:  # in the job's Python these names are there already
    from netdoctor.allreduce.by_nccl import NcclEngine
    from netdoctor.allreduce.by_torch import TorchEngine
    from netdoctor.allreduce.rank import FAILED, Engine, Say, die_with_parent, run_rank, text_of

FACTS_SECONDS = 60.0  # cuInit takes seconds where persistence mode is off and there are many GPUs
TERM_SECONDS = 0.3


class Zygote:
    """Waits for commands, forks, reaps."""

    def __init__(self, control: socket.socket, kind: type[Engine]) -> None:
        self.control, self.kind = control, kind
        self.say = Say(control)
        self.children: dict[int, tuple[int | None, int | None]] = {}  # pid -> (run, rank); the facts' child is (None, None)
        self.deadline: dict[int, float] = {}  # pid -> when to kill it
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def fork(self, run: int | None, rank: int | None, body: Callable[[int], None]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            body(parent)
            os._exit(FAILED)
        self.children[pid] = (run, rank)
        return pid

    def ask_facts(self) -> None:
        def body(parent: int) -> None:
            try:
                die_with_parent(parent)
                self.kind.tell_facts(self.say)
                os._exit(0)
            except BaseException as error:  # noqa: BLE001  (a broken library may raise anything)
                self.say("fact", error=text_of(error))
            os._exit(FAILED)

        self.deadline[self.fork(None, None, body)] = time.monotonic() + FACTS_SECONDS

    def start(self, run: int, plan: dict[str, Any], descriptors: list[int]) -> None:
        for rank in range(plan["ranks"]):
            say = self.say.also(run=run, rank=rank)
            pid = self.fork(run, rank, lambda parent: run_rank(self.kind, say, plan, rank, descriptors, parent))  # noqa: B023
            say("forked", pid=pid)
        for descriptor in descriptors:
            os.close(descriptor)

    def reap(self) -> None:
        while self.children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            run, rank = self.children.pop(pid, (None, -1))
            self.deadline.pop(pid, None)
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if run is not None:
                self.say("exit", run=run, rank=rank, status=code)
                if not any(r == run for r, _ in self.children.values()):
                    self.say("ended", run=run)
            elif rank is None:
                self.say("facts", status=code)

    def abort(self, run: int) -> None:
        """TERM now, KILL soon."""
        for pid, (of, _) in self.children.items():
            if of == run:
                os.kill(pid, signal.SIGTERM)
                self.deadline[pid] = time.monotonic() + TERM_SECONDS

    def overdue(self) -> float | None:
        now = time.monotonic()
        for pid, end in list(self.deadline.items()):
            if now >= end:
                os.kill(pid, signal.SIGKILL)
                self.deadline[pid] = now + 3600  # one that cannot be killed hangs in the kernel: the runner tells
        return max(0.0, min(self.deadline.values()) - now) if self.deadline else None

    def serve(self) -> None:
        waiting = select.poll()  # select(2) takes no descriptor from 1024 on
        for descriptor in (self.control.fileno(), self.wake):
            waiting.register(descriptor, select.POLLIN)
        while True:
            wait = self.overdue()
            ready = {descriptor for descriptor, _ in waiting.poll(None if wait is None else wait * 1000)}
            if self.wake in ready:
                os.read(self.wake, 4096)
            self.reap()
            if self.control.fileno() in ready and not self.command():
                return

    def command(self) -> bool:
        data, ancillary, _, _ = self.control.recvmsg(1 << 20, socket.CMSG_SPACE(4 * 250))
        if not data:
            return False  # the runner is gone
        descriptors: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += list(struct.unpack(f"{len(payload) // 4}i", payload))
        message = json.loads(data.decode())
        if message["do"] == "run":
            self.start(message["run"], message["plan"], descriptors)
        elif message["do"] == "abort":
            self.abort(message["run"])
        return True


def main() -> None:
    control, library = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    kind: type[Engine] = NcclEngine if library else TorchEngine
    say = Say(control)
    say("hello")
    begin = time.perf_counter()
    try:
        kind.load(library)
    except BaseException as error:  # noqa: BLE001  (a broken torch may raise anything, SystemExit included)
        say("not loaded", error=text_of(error), absent=kind.absent(error))
        os._exit(FAILED)
    say("imported", seconds=time.perf_counter() - begin)
    zygote = Zygote(control, kind)
    zygote.ask_facts()
    try:
        zygote.serve()
    finally:
        for pid in zygote.children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":
    main()
