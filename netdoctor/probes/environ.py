"""Variables that NCCL, torch, Gloo, UCX, libfabric, CUDA, OpenMP and launchers read, and nccl.conf with NCCL's precedence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class ConfFile:
    """One nccl.conf that NCCL would read."""

    path: str
    entries: tuple[tuple[str, str, int], ...] | Unavailable  # name, value, line number


@dataclass(frozen=True)
class Setting:
    """A variable in effect, and where it comes from."""

    name: str
    value: str
    source: str  # "environment" or "PATH:LINE"


@dataclass(frozen=True)
class Launcher:
    """What a launcher set: torchrun, srun, mpirun, Kubernetes operators."""

    name: str | None  # "torchrun" "slurm" "openmpi" "mpich" …; None: none found
    rank: int | None
    world: int | None
    local_rank: int | None
    local_world: int | None


@dataclass(frozen=True)
class Environ:
    """The variables of the job."""

    variables: Mapping[str, str] | Unavailable  # the process environment, as far as these programs read it
    conf_files: tuple[ConfFile, ...]  # in NCCL's order
    nccl: Mapping[str, Setting] | Unavailable  # effective NCCL_*: environment, then conf files, first writer wins
    launcher: Launcher

    def get(self, name: str) -> str | None | Unavailable:
        """A variable's value; None where it is not set."""
        if isinstance(self.variables, Unavailable):
            return self.variables
        if name.startswith("NCCL_") and not isinstance(self.nccl, Unavailable) and name in self.nccl:
            return self.nccl[name].value
        return self.variables.get(name)
