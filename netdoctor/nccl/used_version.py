"""Which NCCL the job uses: what a run loaded, else what its torch takes by the loader's rules; and which plugins fit."""

from __future__ import annotations

from typing import Final

from netdoctor.facts.libraries import Libraries, NcclLibrary
from netdoctor.facts.nccl_version import Version, parse
from netdoctor.facts.runs import Baseline
from netdoctor.model import Kind, Unavailable

# Interfaces of network plugins: (first NCCL version, oldest and newest ncclNetPlugin_vN that it looks for).  The newest are
# rounded up where the source of a version was not read: only a plugin that certainly does not fit may be called so.
# Source: NCCL src/plugin/net.cc, before 2.27 src/net.cc (the list of getNcclNet_v*).
_PLUGIN_INTERFACES: Final[tuple[tuple[Version, int, int], ...]] = (
    ((0, 0, 0), 1, 8),
    ((2, 19, 0), 5, 9),
    ((2, 24, 0), 5, 10),
    ((2, 26, 0), 6, 10),
    ((2, 28, 0), 6, 11),
    ((2, 30, 0), 6, 12),
    ((2, 31, 0), 6, 99),
)


def plugin_interfaces(version: Version) -> tuple[int, int]:
    """(oldest, newest) plugin interface that this NCCL version may load."""
    return next((low, high) for since, low, high in reversed(_PLUGIN_INTERFACES) if version >= since)


def library_at(path: str, libraries: Libraries) -> NcclLibrary | None:
    """The library of this path."""
    known = () if isinstance(libraries.nccl, Unavailable) else libraries.nccl
    return next((one for one in known if path in (one.path, one.real_path)), None)


def used_nccl(libraries: Libraries | Unavailable, baseline: Baseline | Unavailable) -> Version | Unavailable:
    """The version that the job uses.  A torch that netdoctor installed for itself says nothing about the job."""
    if isinstance(baseline, Baseline) and baseline.run and baseline.nccl_ran and (found := parse(baseline.run.nccl_version)):
        return found
    if isinstance(libraries, Unavailable):
        return libraries
    if isinstance(libraries.torch, Unavailable):
        return libraries.torch
    if isinstance(libraries.nccl, Unavailable):
        return libraries.nccl
    if isinstance(libraries.python, Unavailable) or libraries.python.ours:
        return Unavailable(Kind.NOT_READ, "the job's own Python is not known")
    path = libraries.torch.nccl_path
    used = library_at(path, libraries) if isinstance(path, str) else None
    return used.version if used else Unavailable(Kind.NOT_READ, "which NCCL the job uses is not known")
