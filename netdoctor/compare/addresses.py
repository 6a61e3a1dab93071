"""One address on several hosts: who answers there depends on whose ARP reply comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic

from netdoctor.compare.majority import N


@dataclass(frozen=True)
class Holder(Generic[N]):
    """A node that has an address, and the interface that has it there."""

    node: N
    ip: str
    interface: str


def shared(holders: Iterable[Holder[N]], one_host: Callable[[N, N], bool]) -> Iterator[tuple[str, list[Holder[N]]]]:
    """Each address that several nodes have, unless all of these are one host under several names."""
    by: dict[str, list[Holder[N]]] = {}
    for holder in holders:
        by.setdefault(holder.ip, []).append(holder)
    for ip, having in sorted(by.items()):
        first = having[0].node
        others = [one.node for one in having[1:] if one.node != first]
        if others and not all(one_host(first, other) for other in others):
            yield ip, having
