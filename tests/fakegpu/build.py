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
from dataclasses import dataclass
from typing import Final

from tests.support.machines.native import trusted_folder

SOURCES: Final = pathlib.Path(__file__).parent / "c"
ROOT: Final = pathlib.Path(__file__).parents[2]
BUILD: Final = trusted_folder("fakegpu")
# Parameters that a function of the interface has and the fake does not look at are the rule.
FLAGS: Final = ("-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-format-zero-length")
LIBRARY: Final = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,defs")
CUDA: Final = ("device", "context", "memory", "share", "stream", "event", "graph", "module", "tables", "lookup")


@functools.cache
def missing() -> str:
    """Why the fakes cannot be built here; "" where they can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the fake driver is for Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    return "" if shutil.which("gcc") else "no gcc to build the fake driver with"


@dataclass(frozen=True)
class Library:
    """One fake library: what it is called in a trace, its file, its sources beside machine.c, more flags."""

    name: str
    folder: str
    soname: str
    sources: Sequence[str]
    flags: Sequence[str] = ()

    @property
    def path(self) -> pathlib.Path:
        return BUILD / self.folder / self.soname

    @property
    def files(self) -> list[pathlib.Path]:
        return [SOURCES / "machine.c", *(SOURCES / one for one in self.sources)]

    @property
    def fresh(self) -> bool:
        watched: Iterable[pathlib.Path] = (*self.files, *SOURCES.rglob("*.h"), *SOURCES.glob("*.map"), pathlib.Path(__file__))
        # The name without a version: NCCL before 2.20 opens libcuda.so, some versions libibverbs.so.
        return (
            self.path.with_suffix("").is_symlink()
            and self.path.exists()
            and self.path.stat().st_mtime >= max(one.stat().st_mtime for one in watched)
        )

    def build(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        raw = self.path.with_name(f".{self.soname}.{os.getpid()}")
        command = ["gcc", *FLAGS, *LIBRARY, f'-DFAKE_LIBRARY="{self.name}"', f"-Wl,-soname,{self.soname}", *self.flags]
        command += ["-o", str(raw), *map(str, self.files), "-lpthread", "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"the fake {self.soname} does not build:\n{done.stderr}")
        raw.replace(self.path)
        plain = self.path.with_suffix("")
        if not plain.is_symlink():
            plain.symlink_to(self.soname)


ALL: Final = (
    Library("cuda", "lib", "libcuda.so.1", [f"cuda_{one}.c" for one in CUDA]),
    Library("nvml", "lib", "libnvidia-ml.so.1", ["nvml.c", "nvml_health.c"]),
    Library(
        "verbs",
        "libib",
        "libibverbs.so.1",
        ["verbs.c", "verbs_qp.c", "verbs_place.c"],
        [f"-Wl,--version-script={SOURCES}/verbs.map"],
    ),
)

# NCCL's kernels on the CPU, for who asks for them (kernel_hook.h).
KERNELS: Final = Library(
    "kernels",
    "kernels",
    "libfakekernels.so.1",
    [f"kernels/{one}.c" for one in ("kernel", "list", "batch", "work", "primitives", "reduce", "layout")],
    ["-O2"],
)


def _build(wanted: Sequence[Library]) -> None:
    if why := missing():
        raise RuntimeError(why)
    if not all(one.fresh for one in wanted):
        BUILD.mkdir(parents=True, exist_ok=True)
        with open(BUILD / ".lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for one in wanted:
                if not one.fresh:
                    one.build()


def libraries() -> tuple[pathlib.Path, pathlib.Path]:
    """The folders of the driver's libraries and of libibverbs, built where a source is newer; raises what `missing` says."""
    _build(ALL)
    return BUILD / "lib", BUILD / "libib"


def kernels() -> pathlib.Path:
    """The library that does what NCCL's kernels do, built where a source is newer."""
    _build([KERNELS])
    return KERNELS.path


if __name__ == "__main__":
    print(*libraries(), sep="\n")
