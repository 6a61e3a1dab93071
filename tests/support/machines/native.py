"""Fake native libraries, compiled when a test first needs them."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess

import pytest

from netdoctor.host.trust import trusted

ROOT = pathlib.Path(__file__).parents[3]
FAKES = ROOT / "tests" / "fakes"


def trusted_folder(name: str) -> pathlib.Path:
    """Root loads nothing that others can change: for a checkout below such a folder (/tmp) fakes are built in /run."""
    own = ROOT / "build" / name
    own.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or trusted(str(own)) is None:
        return own
    return pathlib.Path("/run/netdoctor-tests") / name


BUILD = trusted_folder("fakes")


def gcc() -> str:
    """The compiler; skips the test without one."""
    found = shutil.which("gcc") or shutil.which("cc")
    if not found:
        pytest.skip("no C compiler")
    return found


@functools.cache
def shared_library(source: str, soname: str) -> pathlib.Path:
    """`source` of tests/fakes as a shared library; built again when it is older than its sources."""
    compiler = gcc()
    made = BUILD / source.removesuffix(".c") / soname
    newest = max(file.stat().st_mtime for file in (FAKES / source, *FAKES.glob("*.h")))
    if not made.exists() or made.stat().st_mtime < newest:
        made.parent.mkdir(parents=True, exist_ok=True)
        raw = made.with_name(f"{soname}.{os.getpid()}")
        flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{soname}")
        subprocess.run([compiler, *flags, "-o", str(raw), str(FAKES / source)], check=True, timeout=60)
        raw.replace(made)
    return made


def nvml() -> pathlib.Path:
    """The folder of the fake libnvidia-ml.so.1."""
    return shared_library("fake_nvml.c", "libnvidia-ml.so.1").parent


def cuda() -> pathlib.Path:
    """The folder of the fake libcuda.so.1."""
    return shared_library("fake_cuda.c", "libcuda.so.1").parent


def ibverbs() -> pathlib.Path:
    """The folder of the fake libibverbs.so.1."""
    return shared_library("fake_ibverbs.c", "libibverbs.so.1").parent


def clock() -> pathlib.Path:
    """What LD_PRELOAD takes for another time of day (FAKE_CLOCK_AHEAD)."""
    return shared_library("fake_clock.c", "libfake-clock.so")
