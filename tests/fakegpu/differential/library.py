"""Which libnccl a job maps: a torch as its wheel lays it out, its search path, LD_LIBRARY_PATH, LD_PRELOAD, vLLM's own.

The libraries are the real ones, of the versions that are there; libtorch_cuda.so is a library that needs libnccl.so.2 and no
more.  The loader is this machine's.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from netdoctor.facts import libraries
from netdoctor.facts.nccl_choice import wanted
from netdoctor.model import Unavailable
from tests.fakegpu.differential.case import UNSAID, Draw, Row, settings_text
from tests.fakegpu.differential.world import Placed, World
from tests.support.machines import libnccl

SONAME: Final = "libnccl.so.2"
TAGS: Final = {"RPATH": ("-Wl,--disable-new-dtags",), "RUNPATH": ("-Wl,--enable-new-dtags",), "none": ()}
SEARCH: Final = "$ORIGIN/../../nvidia/nccl/lib"
PROGRAM: Final = """
import ctypes, os, sys
for one in sys.argv[1:]:
    ctypes.CDLL(one)
lines = [line.split(maxsplit=5) for line in open("/proc/self/maps") if "libnccl.so" in line]
print(*sorted({os.path.realpath(line[5].strip()) for line in lines}), sep="\\n")
"""


def compare(draw: Draw, world: World) -> Iterator[Row]:
    rng = draw.random
    every = {".".join(map(str, version)): path for version, path in libnccl.libraries().items()}
    own = every[draw.text]
    folder = world.folder / "job"
    shutil.rmtree(folder, ignore_errors=True)
    tag = rng.choice(tuple(TAGS))
    site = _venv(folder, own, tag, rng)
    env = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(folder), "HOME": os.devnull, **_environment(rng, every)}
    host = Placed(env)
    try:
        found = libraries.probe(host)
    finally:
        host.close()
    assert isinstance(found, libraries.Libraries)
    seen = _mapped(env, site)
    vllm = env.get("VLLM_NCCL_SO_PATH")
    predicted: object = UNSAID
    path = wanted(found)
    if not isinstance(path, Unavailable):
        # vLLM opens the one that is named for itself, by its path.
        predicted = sorted({os.path.realpath(one) for one in (path, vllm) if one})
    shown = {k: v for k, v in env.items() if k.startswith(("LD_", "VLLM"))}
    yield Row(f"{tag} to {draw.text}, {settings_text(shown)}", predicted, seen)


def _venv(folder: pathlib.Path, own: pathlib.Path, tag: str, rng: random.Random) -> pathlib.Path:
    site = folder / "lib" / "python3.12" / "site-packages"
    bundled = site / "nvidia" / "nccl" / "lib"
    bundled.mkdir(parents=True)
    if tag == "none" or rng.random() < 0.9:  # else the wheel of NCCL is missing
        (bundled / SONAME).symlink_to(own)
    library = site / "torch" / "lib" / "libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    source = folder / "torch.c"
    source.write_text("int ncclGetVersion(int *); int use(int *v) { return ncclGetVersion(v); }", encoding="ascii")
    search = (f"-Wl,-rpath,{SEARCH}",) if tag != "none" else ()
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-Wl,--no-as-needed", str(own), *TAGS[tag], *search]
    subprocess.run(command, check=True, timeout=60)
    (site / "torch" / "version.py").write_text(
        "__version__ = '2.9.1+cu129'\ncuda = '12.9'\ngit_version = 'x'\n", encoding="ascii"
    )
    about = site / "torch-2.9.1+cu129.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: torch\n", encoding="ascii")
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n", encoding="ascii")
    return site


def _environment(rng: random.Random, every: Mapping[str, pathlib.Path]) -> dict[str, str]:
    def any_of() -> pathlib.Path:
        return rng.choice(tuple(every.values()))

    env = {}
    if rng.random() < 0.6:
        folders = [rng.choice((str(any_of().parent), "/nosuch", "", "/usr/lib")) for _ in range(rng.choice((1, 2)))]
        env["LD_LIBRARY_PATH"] = rng.choice((":", ":", ";")).join(folders)
    if rng.random() < 0.25:
        env["LD_PRELOAD"] = rng.choice(
            (str(any_of()), "libm.so.6", f"/nosuch/{SONAME}", f"libm.so.6 {any_of()}", f"libm.so.6:{any_of()}")
        )
    if rng.random() < 0.2:
        env["VLLM_NCCL_SO_PATH"] = str(any_of())
    return env


def _mapped(env: Mapping[str, str], site: pathlib.Path) -> list[str]:
    """The libnccl files of a process that loads what the job loads; none where the loader finds none."""
    wanted = [
        str(site / "torch" / "lib" / "libtorch_cuda.so"),
        *([env["VLLM_NCCL_SO_PATH"]] if "VLLM_NCCL_SO_PATH" in env else []),
    ]
    command = [sys.executable, "-I", "-c", PROGRAM, *wanted]
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and "cannot open shared object file" not in done.stderr:
        raise RuntimeError(done.stderr[-600:])
    return [line for line in done.stdout.splitlines() if line]  # a path may hold blanks
