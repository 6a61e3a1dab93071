"""``netdoctor run [--gate] -- CMD``: the doctor in the job's own process context, then the job.

It is the one place where environment, cgroup, limits, namespaces, interpreter and user are the job's.  Put before a launcher
(``netdoctor run -- torchrun …``) it looks once; put before every rank (``srun netdoctor run -- python train.py``) the rank
that is local rank 0 looks, and the others of its node wait for the verdict.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from netdoctor.cli import deliver, preflight, startable
from netdoctor.cli.command import applied, seen_through
from netdoctor.cli.options import Options
from netdoctor.environment import Of, names_of
from netdoctor.facts.launcher import detect
from netdoctor.process import far, signals
from netdoctor.textsafe import clean

# Seconds that ranks of one node wait for each other to come.  A job whose ranks are further apart fails by itself: so long its
# ranks wait for the first at torch's store (torch/csrc/distributed/c10d/Store.hpp, kDefaultTimeout).
COME: Final = 300.0
LOOK: Final = 900.0  # for the verdict of one that looks: its own budget and a cold import of torch
TOLD: Final = 10.0  # after which a rank says that it waits: ranks of one node start within seconds of each other
EVERY: Final = 30.0  # and again
# Together these name one start of one job on one node; whichever are there.
_NAMES: Final = names_of(Of.START, Of.NODE_START)


def run(options: Options, command: Sequence[str], *, gate: bool) -> int:
    """Does not return where the job is started: this process becomes it, environment and all."""
    if not command:
        return deliver.refuse("run: give the command after --", options)
    if command[0].startswith("-"):  # a misspelt --gate must not become the job's name, nor be left out
        return deliver.refuse(f"run: no such option: {command[0]}", options)
    launcher = detect(os.environ)
    others = (launcher.local_world or 1) - 1
    seen = seen_through(command)
    for word, in_the_way in (
        (command[0] or "''", startable.in_the_way(command[0], os.environ.get("PATH"), direct=True)),
        (seen.words[0], seen.obstacle),
    ):
        if in_the_way:  # of every rank: none waits for the verdict of one that does not look
            mend = f".  {in_the_way.mend}" if in_the_way.mend else ""
            print(clean(f"netdoctor: {word} will not start: {in_the_way.why}; nothing was looked at{mend}"), file=sys.stderr)
            return in_the_way.code
    if launcher.local_rank:
        code = ask_doctor(quiet=options.quiet)
    else:
        with waited_for(others if launcher.local_rank == 0 else 0) as door, applied(seen) as job:
            code = preflight.before_the_job(options, job, gate=gate)
            tell_ranks(code, others if launcher.local_rank == 0 else 0, door)
    signals.restore()
    if (number := signals.pending()) is not None:  # between the verdict and the job
        return 128 + number
    if code in (deliver.USAGE, *(128 + number for number in signals.DEFERRED)):
        return code
    if gate and code != 0:
        print(f"netdoctor: the job was not started (exit {code})", file=sys.stderr)
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    far.close()
    # Python ignores these from its start on, and an ignored signal stays ignored: a pipeline's 141 would become 1.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _without_pythons_locale()
    try:
        os.execvpe(command[0], list(command), os.environ)  # what root keeps to itself is the job's all the same
    except OSError as error:
        mend = f": file {shlex.quote(command[0])}; uname -m" if error.errno == errno.ENOEXEC else ""
        print(f"netdoctor: {command[0]}: {error.strerror}{mend}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _without_pythons_locale() -> None:
    """In the C locale Python puts LC_CTYPE into its environment (PEP 538); a job that was not given it does not get it."""
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read()
    except OSError:
        return
    if given and b"\0LC_CTYPE=" not in b"\0" + given:
        os.environ.pop("LC_CTYPE", None)


def _address(variables: Mapping[str, str]) -> bytes:
    """A name in the abstract namespace of Unix sockets (unix(7)): no file, and gone with its process."""
    names = [f"{name}={variables[name]}" for name in _NAMES if name in variables]
    names = names or [f"parent={_proxy(variables) or os.getppid()}"]
    return b"\0netdoctor-run-" + hashlib.sha256("\0".join([str(os.getuid()), *names]).encode()).hexdigest()[:32].encode()


def _proxy(variables: Mapping[str, str]) -> int | None:
    """Hydra (MPICH) names no job.  Its ranks of one node hold socket pairs to one proxy, each under another number."""
    try:
        with socket.socket(fileno=os.dup(int(variables["PMI_FD"]))) as line:
            return _peer(line)[0] or None  # 0: it is of another PID namespace
    except (KeyError, ValueError, OSError):
        return None


def ask_doctor(*, quiet: bool) -> int:
    """The code of this node's doctor; 4 where none answers in time.  That none is there is said while it is waited for: what
    carries a launcher's variables without being one of its ranks waits for a local rank 0 that nobody started."""
    address = _address(os.environ)
    signals.restore()  # what waits for others ends at once
    if (number := signals.pending()) is not None:
        return 128 + number
    begun = time.monotonic()
    end, tell = begun + COME, math.inf if quiet else begun + TOLD
    while (now := time.monotonic()) < end:
        if now >= tell:
            tell = now + EVERY
            print(_awaited(end - now), file=sys.stderr)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(LOOK)
            try:
                line.connect(address)
                if _peer(line)[1] == os.getuid():
                    return int(line.recv(8) or _gone("ended without a verdict"))
            except ConnectionResetError:  # unix(7): its door closed before it came to us
                return _gone("ended without a verdict")
            except TimeoutError:
                return _gone(f"has looked for more than {LOOK:g} s")
            except (OSError, ValueError):
                pass
        time.sleep(0.2)  # until the doctor of local rank 0 listens there is nothing to wait on
    return _gone(f"did not come within {COME:g} s: no verdict")


def _awaited(left: float) -> str:
    found = detect(os.environ)
    return (
        f"netdoctor: local rank {found.local_rank} (by {found.called}) waits for local rank 0 of this node, which is "
        f"not there; {left:.0f} s left.  One process a node is enough: srun --ntasks-per-node=1"
    )


def _peer(line: socket.socket) -> tuple[int, int]:
    """pid and uid of who is behind a Unix socket: SO_PEERCRED (unix(7))."""
    import struct

    pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _gone(why: str) -> int:
    print(f"netdoctor: this node's local rank 0 {why}", file=sys.stderr)
    return 4


@contextmanager
def waited_for(others: int) -> Iterator[socket.socket | None]:
    """The door at which the other ranks of the node wait while this one looks: they see it close should this process die.
    None: there are no others, or an earlier start of this job still answers there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        yield door if others > 0 and _listen(door, others) is None else None


def _listen(door: socket.socket, others: int) -> OSError | None:
    try:
        door.bind(_address(os.environ))
        door.listen(others)
    except OSError as error:
        return error
    return None


def tell_ranks(code: int, others: int, waiting: socket.socket | None) -> None:
    """Tell the other ranks of the node, from a child that ends by itself; the job does not wait for it."""
    if others < 1:
        return
    signals.restore()
    with waiting or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        if waiting is None and (error := _listen(door, others)) is not None:
            print(f"netdoctor: the other ranks cannot be told: {error.strerror}", file=sys.stderr)
            return
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
            return
        try:
            if os.fork() == 0:  # a grandchild: nobody's zombie
                for stream in {0, 1, 2} - {door.fileno()}:  # who reads the job's output must see its end
                    with suppress(OSError):
                        os.close(stream)
                end = time.monotonic() + COME
                while others > 0 and time.monotonic() < end:
                    door.settimeout(max(0.1, end - time.monotonic()))
                    line, _ = door.accept()
                    with line:
                        if _peer(line)[1] == os.getuid():
                            line.sendall(str(code).encode())
                            others -= 1
        except OSError:
            pass
        finally:
            os._exit(0)
