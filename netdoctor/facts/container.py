"""The container, if any: runtime, user mapping, /dev/shm, memlock."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.facts.vantage import runtime_of, uid_map
from netdoctor.host.base import Host, mapping, read
from netdoctor.model import Kind, Unavailable


@dataclass(frozen=True)
class Container:
    """What the runtime gave this process."""

    runtime: str | None | Unavailable  # as Vantage.runtime; None: no container
    uid_map: tuple[tuple[int, int, int], ...] | Unavailable
    shm_size: int | Unavailable  # bytes of /dev/shm
    shm_free: int | Unavailable
    devices_from_host: bool | Unavailable  # /dev is a devtmpfs (the host's) rather than a container's tmpfs


def probe(host: Host) -> Container:
    """What this process was given, read where it stands."""
    size, free = _shared_memory(host)
    return Container(runtime_of(host), uid_map(host), size, free, _devices_from_host(host))


def _shared_memory(host: Host) -> tuple[int | Unavailable, int | Unavailable]:
    facts = mapping(host, "statvfs:/dev/shm")
    if isinstance(facts, Unavailable):
        return facts, facts
    size, free = facts.get("size"), facts.get("free")
    if type(size) is int and type(free) is int:
        return size, free
    why = Unavailable(Kind.MALFORMED, "statvfs of /dev/shm")
    return why, why


def _devices_from_host(host: Host) -> bool | Unavailable:
    """Whether /dev is the kernel's own devtmpfs; the last mount on a path is the one that is seen (proc_pid_mountinfo(5))."""
    text = read(host, "/proc/self/mountinfo")
    if isinstance(text, Unavailable):
        return text
    kinds = {}
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if dash and len(fields) > 4 and right:
            kinds[fields[4]] = right.split()[0]
    if "/" not in kinds:
        return Unavailable(Kind.MALFORMED if text.strip() else Kind.EMPTY, "/proc/self/mountinfo")
    return kinds.get("/dev") == "devtmpfs"
