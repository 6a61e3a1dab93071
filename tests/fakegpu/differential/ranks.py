"""Ranks of the real NCCL as forks of a process that has its library loaded: a fork a rank, so that a draw costs no start."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu.lab import SUBSYSTEMS
from tests.fakegpu.rank import FLOAT, Rank, StepError, say

# NCCL 2.28.9 dies where IB devices are present and GIN finds none (paths.py says more).
NEEDED: Final = {(2, 28, 9): {"NCCL_GIN_TYPE": "2"}}
# Small buffers: what is asked is which way, not how fast.  They are of the fake's memory, and to clear them is most of a run.
SMALL: Final = {"NCCL_BUFFSIZE": "65536", "NCCL_LL128_BUFFSIZE": "65536", "NCCL_WORK_FIFO_BYTES": "262144"}


class LateError(Exception):
    """Somebody was not done at the deadline: on a machine that does much besides, this says nothing yet."""


@dataclass(frozen=True)
class Process:
    """What one rank is started with."""

    env: Mapping[str, str]
    device: int = 0


@dataclass
class Done:
    """What the ranks left behind: their logs, and their exit codes."""

    logs: list[str] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(code == 0 for code in self.codes)

    def said(self, pattern: str, rank: int = 0) -> list[re.Match[str]]:
        return list(re.finditer(pattern, self.logs[rank]))

    @property
    def failure(self) -> str:
        """What went wrong, in NCCL's words."""
        found = [m[1].strip() for log in self.logs for m in re.finditer(r"NCCL WARN (.*)", log)]
        found += [m[1] for log in self.logs for m in re.finditer(r'rank: \{"step": "failed", "what": (.*)\}', log)]
        return "; ".join(dict.fromkeys(found))[:300] or f"exit codes {self.codes}"


def environment(library: pathlib.Path, version: tuple[int, int, int], settings: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment: nothing of NCCL from the outside, no nccl.conf but the one that a draw names."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "FAKEGPU_MACHINE") if name in os.environ}
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_LIB": str(library), "HOME": os.devnull}
    return {**kept, **log, **NEEDED.get(version, {}), **settings}


def run(
    processes: Sequence[Process],
    folder: pathlib.Path,
    work: Callable[[int, Process], None],
    deadline: float = 60.0,
    look: Callable[[], None] | None = None,
) -> Done:
    """Fork a child for each, wait for all; who is not done at the deadline is killed, and LateError raised.

    `look` is called once, when all have met and none goes on.
    """
    children: dict[int, int] = {}
    logs = [folder / f"rank{n}.log" for n in range(len(processes))]
    for n, one in enumerate(processes):
        logs[n].unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            _child(n, one, logs[n], work)
        children[pid] = n
    done = Done(codes=[None] * len(processes))
    end = time.monotonic() + deadline
    while children and time.monotonic() < end:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in children:
            done.codes[children.pop(pid)] = os.waitstatus_to_exitcode(status)
        elif not pid:
            if look is not None and all((folder / f"met.{n}").exists() for n in range(len(processes))):
                look()
                look = None
                (folder / "met.go").touch()
            time.sleep(0.002)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if children:
        said = "".join(log.read_text("utf-8", "replace")[-1500:] for log in logs if log.exists())
        raise LateError(f"{len(children)} of {len(processes)} not done after {deadline:g} s: {said}")
    done.logs = [log.read_text("utf-8", "replace") if log.exists() else "" for log in logs]
    return done


def _child(n: int, one: Process, log: pathlib.Path, work: Callable[[int, Process], None]) -> None:
    code = 1
    try:
        os.environ.clear()
        os.environ.update(one.env)
        target = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115 - it ends with the process
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # _IOLBF
        work(n, one)
        code = 0
    except StepError as error:
        say("failed", what=[str(part) for part in error.args])
    except BaseException as error:  # noqa: BLE001 - a fork must not go on with its parent's work
        say("failed", what=[repr(error)])
    finally:
        sys.stdout.flush()
        os._exit(code)


def joined(ranks: int, id_file: pathlib.Path, *, exchange: bool = False, held: bool = False) -> Callable[[int, Process], None]:
    """The work of a rank that joins a communicator of so many; `exchange`: it sends to and receives from the rank half round.

    Nobody leaves before all are there, or with `held` before somebody has looked: who leaves early makes an error of the
    others' open transfers.
    """
    for old in (id_file, *id_file.parent.glob("met.*")):
        old.unlink(missing_ok=True)
    awaited = [id_file.with_name(f"met.{rank}") for rank in range(ranks)]
    awaited += [id_file.with_name("met.go")] if held else []

    def work(n: int, one: Process) -> None:
        rank = Rank(n, ranks, 1024, 20.0)
        rank.open(one.device)
        rank.init(id_file)
        if exchange:
            peer, count = (n + ranks // 2) % ranks, ctypes.c_size_t(1024)
            rank.call("ncclGroupStart")
            rank.call("ncclSend", rank.source, count, FLOAT, peer, rank.comm, rank.stream)
            rank.call("ncclRecv", rank.target, count, FLOAT, peer, rank.comm, rank.stream)
            rank.call("ncclGroupEnd")
            rank.finish()
        say("ready")
        id_file.with_name(f"met.{n}").touch()
        end = time.monotonic() + 30.0
        while not all(file.exists() for file in awaited) and time.monotonic() < end:
            time.sleep(0.002)

    return work


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns (as JSON has it), of a fork: namespaces that it enters end with it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        told: Any = {"error": "killed"}
        try:
            told = {"value": work()}
        except BaseException as error:  # noqa: BLE001 - a fork must not go on with its parent's work
            told = {"error": f"{type(error).__name__}: {error}"}
        finally:
            os.write(writing, json.dumps(told).encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = json.loads(file.read() or b'{"error": "no answer"}')
    os.waitpid(pid, 0)
    if "error" in answer:
        raise (LateError if answer["error"].startswith("LateError") else RuntimeError)(answer["error"])
    return answer["value"]
