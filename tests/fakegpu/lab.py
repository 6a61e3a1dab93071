"""Runs ranks of the real libnccl on a machine that is not there, and reads what they did from their logs."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu import build, machine, namespace
from tests.fakegpu.machine import Machine
from tests.support.machines import fetch, libnccl

RANK: Final = pathlib.Path(__file__).with_name("rank.py")
# Everything that a decision is printed under; lines of COLL and of each call are left out.
SUBSYSTEMS: Final = "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING,P2P,SHM,REG"
_VIA: Final = re.compile(r"Channel (\d+)[^\n]*? via ([A-Z0-9][A-Za-z0-9/]*)")


@dataclass(frozen=True)
class Rank:
    """What one rank has of its own."""

    device: int | None = None  # None: its number among the ranks of its host
    env: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None  # another than the run's


@dataclass(frozen=True)
class Outcome:
    """What one rank left behind."""

    code: int | None  # of rank.py; None: it was still there at the deadline
    log: str

    @property
    def steps(self) -> tuple[dict[str, Any], ...]:
        """What rank.py said of its steps."""
        return tuple(json.loads(one[6:]) for one in self.log.splitlines() if one.startswith("rank: {"))

    @property
    def failed(self) -> str:
        """What the step that failed says; "" where none did."""
        return next((" ".join(one["what"]) for one in self.steps if one["step"] == "failed"), "")

    @property
    def via(self) -> tuple[str, ...]:
        """The transports of its connections as NCCL prints them: "P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA"."""
        return tuple(dict.fromkeys(found.group(2) for found in _VIA.finditer(self.log)))

    @property
    def moved(self) -> bool | None:
        """Whether the data arrived and are right; None where no collective ran, or nothing could move them (no kernels)."""
        rows = [one for one in self.steps if "wrong" in one]
        if not rows or any(one.get("moved") is False for one in rows):
            return None
        return not any(one["wrong"] for one in rows)

    @property
    def unable(self) -> str:
        """Why the kernels' stand-in could not move data; "" where it could, or nothing stood in."""
        found = re.search(r"\[fake kernels \d+\] could not move data: ([^\n]*)", self.log)
        return found.group(1) if found else ""

    def lines(self, *patterns: str) -> list[str]:
        """NCCL's lines with one of these in them, without what stands before the message."""
        told = (re.sub(r"^.*?NCCL (INFO|WARN|ATTN|VERSION) ?", "", one) for one in self.log.splitlines() if " NCCL " in one)
        return [one for one in told if any(re.search(pattern, one) for pattern in patterns)]


@dataclass(frozen=True)
class Run:
    """All ranks of one run."""

    ranks: tuple[Outcome, ...]
    seconds: float

    @property
    def via(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for rank in self.ranks for one in rank.via))

    @property
    def log(self) -> str:
        return "".join(rank.log for rank in self.ranks)

    @property
    def ok(self) -> bool:
        """Every rank came to its end; what it says of the data is another question (`moved`)."""
        return all(rank.code in (0, 2) for rank in self.ranks)


def library(version: str) -> pathlib.Path:
    """The libnccl of PyPI with this version, as ``make libnccl`` fetches it; KeyError where it is not there."""
    return libnccl.everywhere()[fetch.numbers(version)]


def run(
    one: Machine,
    version: str,
    ranks: int | Sequence[Rank] = 2,
    *,
    hosts: int = 1,
    steps: str = "id",
    env: Mapping[str, str] | None = None,
    kernels: pathlib.Path | None = None,
    count: int = 1024,
    seconds: float = 20.0,
    deadline: float = 60.0,
    network: bool = False,
    trace: bool = False,
    keep: pathlib.Path | None = None,
) -> Run:
    """Start the ranks and wait for them; who is not done at the deadline is killed.

    `hosts`: NCCL takes the ranks for so many hosts (NCCL_HOSTID), as many on each.  `keep`: a folder that gets the logs.
    `network`: the interfaces of the (first) machine, in a namespace of their own, instead of this machine's.
    Connections are made at init (NCCL_RUNTIME_CONNECT=0), so that a run without kernels tells the transports, too.
    """
    every = [Rank() for _ in range(ranks)] if isinstance(ranks, int) else list(ranks)
    each = -(-len(every) // hosts)
    nccl = library(version)
    settings = {**({"kernels": str(kernels)} if kernels else {}), **({"trace": "1"} if trace else {})}
    with namespace.scratch() as folder:
        shown: dict[int, pathlib.Path] = {}
        spec: list[dict[str, Any]] = []
        for n, rank in enumerate(every):
            own = rank.machine or one
            if id(own) not in shown:
                shown[id(own)] = namespace.prepare(own, folder / f"machine{len(shown)}", network)
                own.write(folder / f"machine{len(shown) - 1}.txt", **settings)
            where = shown[id(own)]
            device = n % each if rank.device is None else rank.device
            command = [sys.executable, "-I", str(RANK), str(n), str(len(every)), str(folder / "id"), "--device", str(device)]
            spec.append(
                {
                    "shown": str(where),
                    "log": str(folder / f"rank{n}.log"),
                    "command": [*command, "--steps", steps, "--count", str(count), "--seconds", str(seconds)],
                    "env": {
                        **environment(where.with_suffix(".txt"), nccl, n // each if hosts > 1 else None),
                        **(env or {}),
                        **rank.env,
                    },
                }
            )
        (folder / "run.json").write_text(json.dumps(spec), encoding="utf-8")
        started = time.monotonic()
        _wait([sys.executable, "-m", "tests.fakegpu.launch", str(folder / "run.json")], deadline)
        took = time.monotonic() - started
        outcomes = tuple(_outcome(pathlib.Path(rank["log"])) for rank in spec)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for n, outcome in enumerate(outcomes):
            (keep / f"rank.{n}").write_text(outcome.log, encoding="utf-8")
    return Run(outcomes, took)


def environment(file: pathlib.Path, nccl: pathlib.Path, host: int | None) -> dict[str, str]:
    """A rank's environment: nothing of NCCL from the outside."""
    lib, libib = build.libraries()
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": os.devnull,  # no ~/.nccl.conf, and no driver that makes the folder for its cache, as a real one does
        "LD_LIBRARY_PATH": f"{lib}:{libib}",
        "FAKEGPU_MACHINE": str(file),
        "NCCL_LIB": str(nccl),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        "NCCL_RUNTIME_CONNECT": "0",
        **({} if host is None else {"NCCL_HOSTID": f"host{host}"}),
    }


def _wait(command: Sequence[str], deadline: float) -> None:
    with subprocess.Popen(command, cwd=build.ROOT, start_new_session=True, stdin=subprocess.DEVNULL) as process:
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _outcome(log: pathlib.Path) -> Outcome:
    code = log.with_name(log.name + ".code")
    number = code.read_text(encoding="ascii") if code.exists() else ""  # "": the deadline came while it was written
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Outcome(int(number) if number else None, text)


def read(name: str, changes: Mapping[str, Any] | None = None) -> Machine:
    """A machine by name with changes by path ("gpus.0.state.lost")."""
    return machine.read(name).with_changes(changes or {})
