"""Two ways to real ranks without a GPU: torch with Gloo, and the real libnccl on the machine that is not there.

What is planted in a rank (FAULT="PHASE:ACTION") is the same: by tests/fakes/faulty_torch, or by faulty_nccl.c before the real
library.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from netdoctor.facts.runs import AllReduce
from tests.fakegpu import build, machine
from tests.support.machines import libnccl, native


@dataclass(frozen=True)
class Way:
    """How a test's ranks reach each other."""

    name: str
    small: AllReduce
    variables: Mapping[str, str]  # of the job
    faulty: Mapping[str, str]  # beside them, where a fault is planted
    library: str = ""  # of `Session`
    faulty_library: str = ""
    # What a planted failure looks like; the first rank alone has something to call in NCCL's rendezvous.
    raised: str = "RuntimeError: planted failure / with a second line"
    meets: int = 1  # the rank that can fail in the rendezvous
    actions: tuple[str, ...] = ("kill", "segv", "0", "3", "raise", "rubbish", "flood", "stop", "wrong")
    options: Mapping[str, str] = field(default_factory=dict)

    def ranks(self, count: int, *sizes: int) -> AllReduce:
        gpus = tuple(range(count)) if self.small.device == "cuda" else ()
        return replace(self.small, ranks=count, gpus=gpus, sizes=sizes or self.small.sizes)


def before(folder: pathlib.Path) -> str:
    """A PYTHONPATH with `folder` first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@contextmanager
def folder_of_root() -> Iterator[pathlib.Path]:
    """A folder that root alone can change, where root runs the tests."""
    with tempfile.TemporaryDirectory(dir="/run" if os.geteuid() == 0 else None) as made:
        os.chmod(made, 0o755)
        yield pathlib.Path(made)


@contextmanager
def torch() -> Iterator[Way]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch in this Python")
    with folder_of_root() as made:
        shutil.copytree(native.FAKES, made, dirs_exist_ok=True)
        for path in (made, *made.rglob("*")):
            path.chmod(0o755)
        yield Way("torch", AllReduce("gloo", 2, sizes=(4096, 1 << 20)), {}, {"PYTHONPATH": before(made / "faulty_torch")})


@functools.cache
def real() -> pathlib.Path:
    """The libnccl on which the stand-in for its kernels is tried most: the newest before 2.28; skips the test without one."""
    if why := build.missing():
        pytest.skip(why)
    return libnccl.both()[0]


@contextmanager
def nccl(name: str = "two-a100") -> Iterator[Way]:
    library = real()
    faulty = native.shared_library("faulty_nccl.c", "libnccl-faulty.so.2")
    with folder_of_root() as made:
        machine.read(name).write(made / "machine", kernels=str(build.kernels()))
        yield Way(
            "nccl",
            AllReduce("nccl", 2, "cuda", (4096, 1 << 20), gpus=(0, 1)),
            {"LD_LIBRARY_PATH": os.pathsep.join(map(str, build.libraries())), "FAKEGPU_MACHINE": str(made / "machine")},
            {"FAULTY_NCCL": str(library)},
            str(library),
            str(faulty),
            raised=": nccl",
            meets=0,
        )


WAYS = {"torch": torch, "nccl": nccl}
