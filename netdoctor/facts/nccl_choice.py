"""Which interface NCCL itself takes: ncclGetUniqueId of a real libnccl, in a child process."""

from __future__ import annotations

from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.library_search import Linkage
from netdoctor.facts.loader import Rule, Taken
from netdoctor.facts.nccl_version import Version
from netdoctor.host.base import Host, mapping, question
from netdoctor.model import Kind, Unavailable, record


@record
class NcclChoice(Fact):
    """The interface that the job's libnccl takes, as it answered itself."""

    library: str | Unavailable
    version: Version | Unavailable
    interface: str | None | Unavailable  # None: it found none ("no socket interface found")
    address: str | None | Unavailable
    code: int | Unavailable  # ncclResult_t of ncclGetUniqueId
    error: str = ""  # its last error or WARN line


def probe(host: Host, libraries: Libraries) -> NcclChoice | Unavailable:
    """What the libnccl of the job takes."""
    path = wanted(libraries)
    if isinstance(path, Unavailable):
        return path
    told = mapping(host, question("nccl", path=path))
    if isinstance(told, Unavailable):
        return told
    try:
        major, minor, patch = (int(one) for one in told["version"])
        interface, address = _text(told["interface"]), _text(told["address"])
        code = int(told["code"])
    except (KeyError, TypeError, ValueError) as error:
        return Unavailable(Kind.MALFORMED, f"ask:nccl: {error!r}")
    return NcclChoice(path, (major, minor, patch), interface, address, code, str(told.get("error", "")))


def _text(got: object) -> str | None | Unavailable:
    return got if got is None or isinstance(got, str) else Unavailable(Kind.MALFORMED, f"ask:nccl: {str(got)[:40]}")


def wanted(libraries: Libraries) -> str | Unavailable:
    """The libnccl that the job loads: by its torch, or as far as can be told without one."""
    torch = libraries.torch
    if isinstance(torch, Unavailable):
        if torch.kind == Kind.ABSENT or (isinstance(libraries.python, Unavailable) and libraries.python.kind == Kind.ABSENT):
            return without_torch(libraries)
        return Unavailable(Kind.NOT_READ, f"the job's torch: {torch}")
    if isinstance(torch.nccl_path, str):
        return torch.nccl_path
    if isinstance(torch.nccl_path, Unavailable):
        return Unavailable(Kind.NOT_READ, f"the libnccl of the job's torch: {torch.nccl_path}")
    if torch.nccl_linkage == Linkage.STATIC:
        return Unavailable(Kind.UNSUPPORTED, "NCCL is linked into torch: there is no library to ask")
    return Unavailable(Kind.ABSENT, "the job's torch has no NCCL")


def without_torch(libraries: Libraries) -> str | Unavailable:
    """The libnccl that a job loads which has no torch.

    What the environment names counts most, then the wheel of the job's Python (JAX and TensorRT-LLM bring folders of their own
    that lead there), then what the loader finds by itself.
    """
    found, loaded = libraries.nccl, libraries.by_loader
    if isinstance(found, Unavailable):
        return Unavailable(Kind.NOT_READ, f"NCCL libraries: {found}")
    if (own := brought(libraries)) is not None:
        return own
    if isinstance(loaded, Taken):
        return loaded.path
    if isinstance(loaded, Unavailable):
        return Unavailable(Kind.NOT_READ, f"which libnccl the loader takes: {loaded}")
    return found[0].path if found else Unavailable(Kind.ABSENT, "no torch and no libnccl")


def brought(libraries: Libraries) -> str | None:
    """The libnccl that the environment names, or the job's Python brings with it; None: neither does."""
    loaded = libraries.by_loader
    if isinstance(loaded, Taken) and loaded.rule in (Rule.PRELOAD, Rule.LIBRARY_PATH):
        return loaded.path
    own = (one.path for place in _OF_A_PYTHON for one in libraries.nccl or () if place in one.found_by)
    return next(own, None)


_OF_A_PYTHON: Final = ("site-packages", "the Python's prefix")  # of NcclLibrary.found_by
