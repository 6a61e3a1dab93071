"""One network, several MTUs: small messages pass, and frames above the smaller one are dropped without a word."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic

from netdoctor.compare.majority import N, Sides, sides


@dataclass(frozen=True)
class Port(Generic[N]):
    """How one node is in a network."""

    node: N
    network: str
    interface: str
    mtu: int


@dataclass(frozen=True)
class Difference(Generic[N]):
    """Ports of one network that do not have the same MTU."""

    network: str
    ports: tuple[Port[N], ...]

    @property
    def sides(self) -> Sides[N]:
        return sides((port.node, str(port.mtu)) for port in self.ports)


def differences(ports: Iterable[Port[N]]) -> Iterator[Difference[N]]:
    by: dict[str, list[Port[N]]] = {}
    for port in ports:
        by.setdefault(port.network, []).append(port)
    for network, members in sorted(by.items()):
        if len({port.mtu for port in members}) > 1:
            yield Difference(network, tuple(members))
