"""Which CPUs serve the interrupts of network interfaces.  Read only where sockets may carry data: RDMA polls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.facts.cpu import cpu_list
from netdoctor.host.base import Host, names, read
from netdoctor.model import Kind, Unavailable, record

_NET: Final = "/sys/class/net"
MAX_VECTORS: Final = 64  # per interface; drivers make one queue a core, and 64 of them show where they lie


@record
class Interrupts(Fact):
    """The CPUs that the interrupts of network interfaces may go to.

    Of interfaces that have message-signalled interrupts of their own.
    """

    cpus: Mapping[str, frozenset[int] | Unavailable] | Unavailable


def probe(host: Host) -> Interrupts:
    """The effective affinity of each vector (Documentation/core-api/irq/irq-affinity.rst)."""
    rdma = names(host, "/sys/class/infiniband")
    if not isinstance(rdma, Unavailable) and rdma:
        return Interrupts(Unavailable(Kind.UNSUPPORTED, "there are RDMA devices, and RDMA does not wait for interrupts"))
    listed = names(host, _NET)
    if isinstance(listed, Unavailable):
        return Interrupts(listed)
    found: dict[str, frozenset[int] | Unavailable] = {}
    for name in listed:
        vectors = _vectors(host, name)
        if isinstance(vectors, Unavailable):
            found[name] = vectors
        elif vectors:
            found[name] = _served(host, vectors)
    return Interrupts(found)


def _vectors(host: Host, name: str) -> tuple[str, ...] | Unavailable:
    """IRQ numbers; a virtio interface has them one level up, at its PCI function."""
    for where in (f"{_NET}/{name}/device/msi_irqs", f"{_NET}/{name}/device/../msi_irqs"):
        listed = names(host, where)
        if not isinstance(listed, Unavailable):
            return tuple(n for n in listed if n.isdecimal())[:MAX_VECTORS]
        if listed.kind is not Kind.ABSENT:
            return listed
    return ()


def _served(host: Host, vectors: tuple[str, ...]) -> frozenset[int] | Unavailable:
    cpus: set[int] = set()
    for vector in vectors:
        path = f"/proc/irq/{vector}/effective_affinity_list"
        one = cpu_list(read(host, path), path)
        if isinstance(one, Unavailable):
            if one.kind == Kind.ABSENT:  # a vector that no handler uses has no folder
                continue
            return one
        cpus |= one
    return frozenset(cpus) if cpus else Unavailable(Kind.EMPTY, "no vector in use")
