"""Every libnccl and network plugin that the loader could take, and the one that the job's torch does take."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class NcclLibrary:
    """One libnccl file on this machine."""

    path: str
    real_path: str
    version: tuple[int, int, int] | Unavailable
    version_text: str  # "2.27.5+cuda12.9" where it is known
    how: str  # "dlopen" "file" "wheel metadata"
    found_by: tuple[str, ...]  # "loader cache" "LD_LIBRARY_PATH" "LD_PRELOAD" "site-packages" "torch"


@dataclass(frozen=True)
class Plugin:
    """A libnccl-net*.so that NCCL could load."""

    path: str
    name: str  # "libnccl-net.so" "libnccl-net-ofi.so" …
    found_by: tuple[str, ...]
    symbols: tuple[str, ...] | Unavailable = Unavailable("not read")  # ncclNetPlugin_v8 …


@dataclass(frozen=True)
class JobPython:
    """The interpreter that the job uses, as far as it can be told."""

    path: str
    why: str  # "--python" "VIRTUAL_ENV" "CONDA_PREFIX" "torchrun on PATH" "python3 on PATH"
    ours: bool  # netdoctor's own Makefile installed its torch (marker file): never judged


@dataclass(frozen=True)
class Torch:
    """The job's torch, read without importing it."""

    version: str | Unavailable  # "2.13.0+cpu"
    path: str
    cuda: str | None | Unavailable  # "12.8"; None: a CPU build
    nccl_linkage: str | Unavailable  # "dynamic" "static" "none"
    rpath_kind: str | Unavailable  # "RPATH" "RUNPATH" "none"
    nccl_path: str | None | Unavailable  # the libnccl that its loader rules take
    nccl_compiled: tuple[int, int, int] | None | Unavailable  # what it was compiled against, where it says so


@dataclass(frozen=True)
class Libraries:
    """Libraries around the job."""

    python: JobPython | Unavailable
    torch: Torch | Unavailable  # Unavailable("absent"): the job's Python has none
    nccl: tuple[NcclLibrary, ...] | Unavailable
    plugins: tuple[Plugin, ...] | Unavailable
