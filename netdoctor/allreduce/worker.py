"""One job's Python with its keeper: started, listened to, and ended without a trace.

A thread of our own starts the keeper and lives as long as it (PR_SET_PDEATHSIG follows the thread that forked, prctl(2)),
reads everything that comes, and keeps the end of what the libraries print.
"""

from __future__ import annotations

import array
import errno
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from netdoctor.allreduce.events import tidy
from netdoctor.allreduce.sandbox import User
from netdoctor.allreduce.shared import memory
from netdoctor.facts.runs import Obstacle
from netdoctor.process import proc, signals

PROTOCOL: Final = 1  # of rank.py
MAX_PACKET: Final = 1 << 20
MAX_EVENTS: Final = 16 << 20  # bytes that one worker may say: a run of 8 ranks is about 100 kB
OUTPUT_TAIL: Final = 1 << 16
CLOSE_SECONDS: Final = 6.0  # the keeper's own limits (TERM 0.3 s, KILL 3 s) and some slack

# Reads programs (apart by NUL) from a descriptor and runs them as one __main__.  ``python -c`` puts the working directory first
# in sys.path: taken out, a torch.py lying there is not the job's torch.  argv[2] are trusted folders of a PYTHONPATH that -I
# ignores.
_BOOT: Final = """\
import os,sys
if sys.version_info<(3,8):sys.exit('netdoctor starts ranks in Python 3.8 or newer; this is %d.%d'%sys.version_info[:2])
if sys.path and sys.path[0]=='':del sys.path[0]
n=int(sys.argv.pop(1));i=len(sys.path)*sys.flags.no_site;sys.path[i:i]=[p for p in sys.argv.pop(1).split(':') if p]
s=os.pread(n,os.fstat(n).st_size,0);os.close(n)
for t in s.split(b'\\0'):exec(compile(t,'<netdoctor>','exec',0,True))
"""

_RANK_PROGRAM: Final = ("allreduce/rank.py", "allreduce/by_torch.py", "allreduce/by_nccl.py", "allreduce/zygote.py")

Event = dict[str, Any]


class Worker:
    """A zygote (the rank program in `python`) and its keeper.  `library`: the libnccl that is used without torch."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        user: User | None,
        flags: Sequence[str] = (),
        path: Sequence[str] = (),
        library: str = "",
    ) -> None:
        self.events: list[Event] = []
        self.started = time.monotonic()
        self.keeper = 0
        self.zygote = 0  # pid, 0 before it was started
        self.gone = False  # the keeper has ended, and all below it
        self.ended: str | None = None  # how the zygote ended
        self.refused: Obstacle | None = None  # this process may not start it: a limit of its own, no fault of the job's Python
        self.abandoned: tuple[int, ...] = ()
        self.folder = ""  # that it is started in; "": ours
        self.changed = threading.Condition()
        self._output = bytearray()
        self._printed = 0
        self._heard = 0
        self._python, self._environment, self._user = python, environment, user
        self._flags = ["-B", *flags]
        self._path, self._library = ":".join(path), library
        self._control: socket.socket | None = None  # with the ranks: commands and events
        self._life_write = -1  # the keeper ends everything when this is closed
        self._ending = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it; where this process may have no descriptor or no thread more (limits count both), `ended` says so."""
        theirs: list[int] = []  # closed by the thread, where there is one
        try:
            self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.append(other.detach())
            life, self._life_write = os.pipe()
            theirs.append(life)
            thread = threading.Thread(target=self._live, args=theirs, name="netdoctor-allreduce", daemon=True)
            thread.start()
            self._thread = thread
        except (OSError, RuntimeError) as error:
            for descriptor in theirs:
                os.close(descriptor)
            self._lost(error)
            self.gone = True  # nothing was begun

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> bool:
        """Send a command with descriptors; False where nobody listens any more."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        if self._control is None:
            return False
        try:
            self._control.sendmsg([json.dumps(message).encode()], rights, socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def first(self, *kinds: str) -> Event | None:
        """The first event of one of these kinds that has come."""
        return next((e for e in list(self.events) if e.get("event") in kinds), None)

    def wait(self, until: Callable[[], bool], deadline: float) -> bool:
        """Wait until `until()` or the end of the zygote or `deadline` (time.monotonic); whether `until()` holds."""
        with self.changed:
            while not until():
                left = deadline - time.monotonic()
                if left <= 0 or self.gone:
                    return until()
                self.changed.wait(min(left, 1.0))
        return True

    def output(self, since: int = 0) -> str:
        """The end of what was printed after `mark()` gave `since`."""
        kept = min(len(self._output), max(0, self._printed - since))
        return bytes(self._output[len(self._output) - kept :]).decode("utf-8", "backslashreplace") if kept else ""

    def mark(self) -> int:
        return self._printed

    def kill(self) -> None:
        """Let the keeper end everything; returns at once."""
        with self._ending:
            if self._life_write >= 0:
                os.close(self._life_write)
                self._life_write = -1

    def close(self) -> None:
        """End everything and wait for it, but not for what hangs in the kernel."""
        self.kill()
        if self._control is not None:
            self._control.close()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    # The thread

    def _live(self, control: int, life: int) -> None:
        """`control` and `life` are the keeper's ends: closed here as soon as it has them."""
        process, ours, theirs = None, list[int](), [control, life]
        try:
            try:
                for _ in ("output", "status"):
                    read, write = os.pipe()
                    ours.append(read)
                    theirs.append(write)
                process = self._spawn(*theirs)
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            self.keeper = process.pid
            self._listen(ours[0], ours[1])
        except Exception as error:  # noqa: BLE001  (whatever it is: somebody waits for what this thread says)
            self._lost(error)
        if process is not None:
            self.kill()  # where the keeper was not listened to until its end, this ends it
            try:
                process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        for descriptor in ours:
            os.close(descriptor)
        with self.changed:
            self.gone = True
            self.changed.notify_all()

    def _lost(self, error: Exception) -> None:
        with self.changed:
            self.refused = short_of(error) if not self.keeper and isinstance(error, (OSError, RuntimeError)) else None
            self.ended = self.ended or f"{'was lost' if self.keeper else 'could not start'}: {error}"
            self.changed.notify_all()

    def _spawn(self, control: int, life: int, output: int, status: int) -> subprocess.Popen[bytes]:
        with ExitStack() as held:
            program = memory(held, "rank", _programs(*_RANK_PROGRAM))
            keeper = memory(held, "keeper", _programs("process/become.py", "process/proc.py", "allreduce/keeper.py"))
            order = {
                "parent": os.getpid(),
                "life": life,
                "status": status,
                "output": output,
                "keep": [control, program],
                "argv": [self._python, *self._flags, "-c", _BOOT, str(program), self._path, str(control), self._library],
                "env": dict(self._environment),
                "folder": self.folder,
                "user": [self._user.uid, self._user.gid, list(self._user.groups), self._user.locks] if self._user else None,
            }
            orders = memory(held, "order", json.dumps(order).encode())
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _BOOT, str(keeper), "", str(orders)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[control, program, keeper, orders, life, status, output],
                start_new_session=True,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            )

    def _listen(self, output: int, status: int) -> None:
        """Read until the keeper closes its end of `status`."""
        poll = select.poll()
        assert self._control is not None
        control = self._control.fileno()
        for descriptor in (output, status, control):
            poll.register(descriptor, select.POLLIN)
        said = select.poll()
        said.register(control, select.POLLIN)
        line = bytearray()
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == control:
                    if not self._receive():
                        poll.unregister(control)
                    continue
                data = os.read(descriptor, 1 << 16)
                if descriptor == output:
                    self._print(data)
                    if not data:
                        poll.unregister(output)
                    continue
                # What the zygote said before it ended comes before the news of its end.
                while said.poll(0) and self._receive():
                    pass
                line += data
                while b"\n" in line:
                    first, _, line = line.partition(b"\n")
                    self._keeper_says(json.loads(first))
                if not data:
                    return

    def _receive(self) -> bool:
        assert self._control is not None
        try:
            data = self._control.recv(MAX_PACKET)
        except OSError:  # closed by close()
            return False
        if not data:
            return False
        self._heard += len(data)
        if self._heard > MAX_EVENTS:
            raise ValueError(f"said more than {MAX_EVENTS >> 20} MiB")
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return True  # ranks share the socket with other people's code
        event = tidy(event) if isinstance(event, dict) else {}
        if event.get("p") == PROTOCOL and self._credible(event):
            with self.changed:
                self.events.append(event)
                self.changed.notify_all()
        return True

    def _credible(self, event: Event) -> bool:
        """Whether it came when it says, and of a process below our keeper: what a rank says of others is only its word."""
        if not self.started <= event.get("t", 0.0) <= time.monotonic():
            return False
        if event.get("event") == "forked" and event.get("pid") not in proc.below(self.keeper):
            event["pid"] = 0  # already gone, or somebody else's
        return True

    def _print(self, data: bytes) -> None:
        self._printed += len(data)
        self._output += data
        if len(self._output) > 2 * OUTPUT_TAIL:
            del self._output[:-OUTPUT_TAIL]

    def _keeper_says(self, event: Event) -> None:
        with self.changed:
            if event["event"] == "started":
                self.zygote = event["pid"]
            elif event["event"] == "not started":
                self.ended = event["error"]
            elif event["event"] == "ended" and self.ended is None:
                self.ended = signals.ended(event["status"])
            elif event["event"] == "gone":
                self.abandoned = tuple(event["abandoned"])
                self.gone = True
            self.changed.notify_all()


def _programs(*names: str) -> bytes:
    """Programs that `_BOOT` runs as one."""
    return b"\0".join(map(_source, names))


def _source(name: str) -> bytes:
    """The text of a program of ours (also inside a zipapp)."""
    return pkgutil.get_data("netdoctor", name) or b""


def short_of(error: Exception) -> Obstacle:
    """What there is too little of to begin, by the errno of the call that failed."""
    return Obstacle.FILES if isinstance(error, OSError) and error.errno == errno.EMFILE else Obstacle.MEMORY
