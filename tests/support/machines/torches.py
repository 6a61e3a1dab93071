"""A job's Python with a real torch of PyPI, in one wheel.

A CUDA build needs 4 GB of libraries beside its own wheel, of which an all-reduce calls two: the runtime and NCCL.  These are
the real ones, of the releases that this torch asks for.  The others (cuBLAS, cuDNN, …) are empty here: their names are there,
so that the loader is content, and who calls one is ended and told which.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.machines import fetch

# What `import torch` imports; its other requirements are NVIDIA's, triton and setuptools.
PURE: Final = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec")
GIB: Final = 1 << 30
SPACE: Final = 6 * GIB  # a wheel and what is in it, twice: two may be made at once
WHOLE: Final = "whole:"  # before a release: with all that it requires, and no stand-in
WHOLE_SPACE: Final = 14 * GIB
# Of the wheel, what nobody loads here: headers, compilers, the linear algebra of CUDA.
_UNUSED: Final = re.compile(r"torch/(include|test|share)/|torch/bin/(?!torch_shm)|\.a$|/libtorch_cuda_linalg\.so")
_OF_THE_SYSTEM: Final = re.compile(r"(libc|libm|libdl|libpthread|libgcc_s|libstdc\+\+|librt|libz|libutil|ld-linux.*)\.so")
_DRIVER: Final = "libcuda.so.1"
_PLAIN: Final = {"libcufile": "cuFile", "libcusparseLt": "cusparseLt", "libnvshmem": "nvshmem", "libcudss": "cudss"}


@dataclass(frozen=True)
class Torch:
    """A Python whose torch was fetched."""

    python: Path
    version: str
    cuda: int  # as the driver counts: 13020; 0: a CPU build


@contextmanager
def fetched(version: str, folder: Path) -> Iterator[Torch]:
    """A virtual environment in `folder` with that torch ("newest": of all); gone at the end.  Raises FetchError."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, version = version.startswith(WHOLE), version.removeprefix(WHOLE)
    space = WHOLE_SPACE if whole else SPACE
    if shutil.disk_usage(folder).free < space:
        raise fetch.FetchError(f"less than {space // GIB} GiB of disk are free")
    version = fetch.releases("torch")[0] if version == "newest" else version
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made = Path(name)
        made.chmod(0o755)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", name], check=True, timeout=60)
        (site,) = made.glob("lib/python*/site-packages")
        if whole:
            _install(site, f"torch=={version}")
        else:
            _one_wheel(site, version)
        yield Torch(made / "bin" / "python3", version, _cuda(site))


def _install(site: Path, *requirements: str) -> None:
    fetch.pip("install", "--quiet", "--no-compile", "--no-cache-dir", "--target", str(site), *requirements)


def _one_wheel(site: Path, version: str) -> None:
    _install(site, *PURE)
    fetch.unpack(f"torch=={version}", site, lambda one: not _UNUSED.search(one))
    if needs := _requirements(site):
        for requirement in needs:
            fetch.unpack(requirement, site)
        stand_ins(site)


def _requirements(site: Path) -> list[str]:
    """The wheels of the CUDA runtime and of NCCL; none for a CPU build."""
    (metadata,) = site.glob("torch-*.dist-info/METADATA")
    found = re.findall(
        r"^Requires-Dist: ([\w-]+)(?:\[[\w,-]+\])? ?\(?==([\w.]+)", metadata.read_text(encoding="utf-8"), re.MULTILINE
    )
    wanted = {name: version for name, version in found if re.match(r"nvidia-(cuda-runtime|nccl)|cuda-toolkit", name)}
    toolkit = wanted.pop("cuda-toolkit", "")
    requirements = [f"{name}=={version}" for name, version in wanted.items()]
    if toolkit:  # a package of extras alone: its runtime has its major and minor number
        requirements.append(f"nvidia-cuda-runtime=={toolkit.rpartition('.')[0]}.*")
    return requirements


def _cuda(site: Path) -> int:
    text = (site / "torch" / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*= '(\d+)\.(\d+)'", text, re.MULTILINE)
    return int(found[1]) * 1000 + int(found[2]) * 10 if found else 0


def stand_ins(site: Path) -> None:
    """Libraries with the names and versions of symbols that torch's own need and nobody has, beside them."""
    files = [*site.glob("torch/lib/*.so*"), *site.glob("torch/_C*.so")]
    needed: dict[str, set[str]] = defaultdict(set)  # library -> its versions of symbols
    undefined: dict[str, set[str]] = defaultdict(set)  # version -> symbols
    for file in files:
        library = ""
        for line in _told("readelf", "-dVW", file):
            if found := re.search(r"\(NEEDED\).*\[(.*)\]", line):
                needed[found[1]].update()
            elif found := re.search(r"Version needs", line):
                library = ""
            elif found := re.search(r"File: (\S+)", line):
                library = found[1]
            elif library and (found := re.search(r"Name: (\S+)", line)):
                needed[library].add(found[1])
        for line in _told("nm", "-D", "--undefined-only", file):
            symbol, _, version = line.split()[-1].partition("@")
            undefined[version].add(symbol)
    there = {file.name for file in [*files, *site.glob("nvidia/**/*.so*")]}
    for library in sorted(set(needed) - there - {_DRIVER}):
        if not _OF_THE_SYSTEM.match(library):
            prefix = next((begins for name, begins in _PLAIN.items() if library.startswith(name)), "")
            plain = {one for one in undefined[""] if prefix and one.startswith(prefix)}
            _stand_in(site / "torch" / "lib" / library, {one: undefined[one] for one in needed[library]} | {"": plain})


def _stand_in(made: Path, symbols: dict[str, set[str]]) -> None:
    """A library whose every function ends the process and says its name."""
    say = 'void {0}(void) {{ fputs("NOT THERE, and called: {0}\\n", stderr); abort(); }}\n'
    every = sorted(set().union(*symbols.values()))
    nodes = {version: " ".join(f"{one};" for one in sorted(names)) for version, names in symbols.items() if version}
    versions = [f"{version} {{ {f'global: {names}' if names else ''} }};" for version, names in nodes.items()]
    with tempfile.TemporaryDirectory() as name:
        source, script = Path(name, "stand_in.c"), Path(name, "versions.map")
        source.write_text("#include <stdio.h>\n#include <stdlib.h>\n" + "".join(map(say.format, every)), encoding="ascii")
        script.write_text("\n".join(versions), encoding="ascii")
        # -w: a name may be a builtin's
        command = [
            "gcc",
            "-O0",
            "-w",
            "-fno-builtin",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{made.name}",
            "-o",
            str(made),
            str(source),
        ]
        command += [f"-Wl,--version-script={script}"] if versions else []
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise fetch.FetchError(f"no stand-in of {made.name}: {done.stderr}")


def _told(*command: str | Path) -> list[str]:
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()
