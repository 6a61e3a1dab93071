"""The zygote: imports torch once, asks it what it can do, and forks the ranks of each experiment.

The second half of the rank program: the runner hands over rank.py and this text on a descriptor, and both run in one namespace
(standard library and torch, the syntax of Python 3.8, nothing of netdoctor).  One SOCK_SEQPACKET socket (its number is
``sys.argv[1]``) carries everything else, one JSON object a packet: commands come in (``run``, ``abort``), events go out, each
with ``"p": 1``, the protocol's number.  stdout and stderr belong to the libraries (NCCL prints its version there).

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
import warnings
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035  (collections.abc has no subscripts in Python 3.8)

if TYPE_CHECKING:  # in the job's Python these names are there already
    from netdoctor.allreduce.rank import FAILED, MAX_TEXT, Say, die_with_parent, run_rank, text_of

FACTS_SECONDS = 60.0  # cuInit takes seconds where persistence mode is off and there are many GPUs
TERM_SECONDS = 0.3


# torch's classes that carry tensors, and by what library (distributed_c10d.py).  A family has several names for one library:
# from torch 2.15 "nccl" is ProcessGroupNCCL2 ("nccl2"), beside ProcessGroupNCCL ("nccl-legacy") and ProcessGroupNCCLLazy.
CARRIERS = {
    "ProcessGroupNCCL": "nccl",
    "ProcessGroupGloo": "gloo",
    "ProcessGroupMPI": "mpi",
    "ProcessGroupUCC": "ucc",
}


def effective_backends(dist: Any) -> dict[str, str]:
    """Device type -> what carries its tensors in the default group, as this torch made it."""
    module = dist.distributed_c10d
    group = module._get_default_group()
    devices = list(getattr(group, "_device_types", ()))
    if not devices:
        import torch

        config = str(module._world.pg_backend_config[group])  # "cpu:gloo,cuda:nccl": what was asked for, not what came of it
        devices = [torch.device(pair.partition(":")[0]) for pair in config.split(",")]
    return {device.type: carrier(group._get_backend(device)) for device in devices}


def carrier(backend: Any) -> str:
    """What carries the tensors, by torch's own class: "nccl", "gloo", "mpi", "ucc"; of any other, its class and name."""
    while hasattr(backend, "wrapped_pg"):  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        backend = backend.wrapped_pg
    for kind in type(backend).__mro__:
        for family, library in CARRIERS.items():
            if kind.__name__.startswith(family) and kind.__module__.partition(".")[0] == "torch":
                return library
    return f"{type(backend).__name__} ({backend.name()})"


def torch_facts(say: Say) -> None:
    """Tell, piece by piece (what comes next may hang), what this torch has and which backend it would take."""
    import torch
    import torch.distributed as dist

    say("fact", version=str(torch.__version__), path=os.path.dirname(torch.__file__ or ""))
    say("fact", cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None))
    say("fact", nccl_built=dist.is_available() and dist.is_nccl_available())
    with warnings.catch_warnings(record=True) as caught:  # torch says in a warning why CUDA cannot be used
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    say("fact", cuda_available=available, cuda_warning=" / ".join(text_of(w.message) for w in caught)[:MAX_TEXT])
    say("fact", device_count=torch.cuda.device_count() if available else 0)
    try:
        version = torch.cuda.nccl.version()
        say("fact", nccl=version if isinstance(version, str) else ".".join(str(n) for n in version))
    except Exception:  # noqa: BLE001  (a CPU build has no such function; an int (torch < 1.10) is not iterable)
        say("fact", nccl="")
    for name, backend in (("backends", None), ("backends_nccl", "nccl")):
        ask_backend(say, dist, name, backend)


def ask_backend(say: Say, dist: Any, name: str, backend: str | None) -> None:
    """Make a group of one rank with this `backend` and tell what it would carry which tensors with."""
    try:
        store = dist.FileStore(f"/proc/self/fd/{os.memfd_create(name)}", 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        say("fact", **{name: effective_backends(dist)})
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001  (whatever torch says is the answer)
        say("fact", **{name: {}, name + "_error": text_of(error)})


class Zygote:
    """Waits for commands, forks, reaps."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
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
                torch_facts(self.say)
                os._exit(0)
            except BaseException as error:  # noqa: BLE001  (a broken torch may raise anything)
                self.say("fact", error=text_of(error))
            os._exit(FAILED)

        self.deadline[self.fork(None, None, body)] = time.monotonic() + FACTS_SECONDS

    def start(self, run: int, plan: dict[str, Any], descriptors: list[int]) -> None:
        for rank in range(plan["ranks"]):
            say = self.say.also(run=run, rank=rank)
            pid = self.fork(run, rank, lambda parent: run_rank(say, plan, rank, descriptors, parent))  # noqa: B023
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
        while True:
            wait = self.overdue()
            ready, _, _ = select.select([self.control.fileno(), self.wake], [], [], wait)
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
    control = socket.socket(fileno=int(sys.argv[1]))
    say = Say(control)
    say("hello")
    begin = time.perf_counter()
    try:
        import torch.distributed as dist

        if not dist.is_available():
            raise ImportError("this torch was built without torch.distributed")
    except BaseException as error:  # noqa: BLE001  (a broken torch may raise anything, SystemExit included)
        say("no torch", error=text_of(error), absent=isinstance(error, ImportError) and getattr(error, "name", "") == "torch")
        os._exit(FAILED)
    say("imported", seconds=time.perf_counter() - begin)
    zygote = Zygote(control)
    zygote.ask_facts()
    try:
        zygote.serve()
    finally:
        for pid in zygote.children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


if __name__ == "__main__":
    main()
