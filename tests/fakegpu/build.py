"""Builds the fake libraries into build/fakegpu: lib (CUDA driver, NVML) and libib (verbs).  gcc and glibc are all it needs."""

from __future__ import annotations

import fcntl
import functools
import os
import pathlib
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from tests.support.machines.native import trusted_folder

SOURCES: Final = pathlib.Path(__file__).parent / "c"
ROOT: Final = pathlib.Path(__file__).parents[2]
BUILD: Final = trusted_folder("fakegpu")
# Parameters that a function of the interface has and the fake does not look at are the rule.
FLAGS: Final = ("-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-format-zero-length")
LIBRARY: Final = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,defs")
CUDA: Final = ("device", "context", "memory", "share", "stream", "event", "module", "tables", "lookup")


@functools.cache
def missing() -> str:
    """Why the fakes cannot be built here; "" where they can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the fake driver is for Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    return "" if shutil.which("gcc") else "no gcc to build the fake driver with"


def _library(name: str, soname: str, sources: Sequence[str], folder: str, *flags: str) -> pathlib.Path:
    made = BUILD / folder / soname
    files = [SOURCES / "machine.c", *(SOURCES / one for one in sources)]
    watched: Iterable[pathlib.Path] = (*files, *SOURCES.glob("*.h"), *SOURCES.glob("*.map"), pathlib.Path(__file__))
    if made.exists() and made.stat().st_mtime >= max(one.stat().st_mtime for one in watched):
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    raw = made.with_name(f".{soname}.{os.getpid()}")
    command = ["gcc", *FLAGS, *LIBRARY, f'-DFAKE_LIBRARY="{name}"', f"-Wl,-soname,{soname}", *flags, "-o", str(raw)]
    done = subprocess.run([*command, *map(str, files), "-lpthread", "-ldl"], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"the fake {soname} does not build:\n{done.stderr}")
    raw.replace(made)
    return made


def libraries() -> tuple[pathlib.Path, pathlib.Path]:
    """The folders of the driver's libraries and of libibverbs, built where a source is newer.  Raises where `missing` says why."""
    if why := missing():
        raise RuntimeError(why)
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cuda = _library("cuda", "libcuda.so.1", [f"cuda_{one}.c" for one in CUDA], "lib")
        _library("nvml", "libnvidia-ml.so.1", ["nvml.c", "nvml_health.c"], "lib")
        verbs = _library(
            "verbs", "libibverbs.so.1", ["verbs.c", "verbs_qp.c"], "libib", f"-Wl,--version-script={SOURCES}/verbs.map"
        )
        for library in (cuda, verbs):  # NCCL before 2.20 opens libcuda.so, some versions libibverbs.so
            plain = library.with_suffix("")
            if not plain.is_symlink():
                plain.symlink_to(library.name)
    return cuda.parent, verbs.parent


if __name__ == "__main__":
    print(*libraries(), sep="\n")
