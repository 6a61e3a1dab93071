"""A way from a GPU to an HCA, and which of several NCCL may take: src/graph/topo.cc, ncclTopoGetLocal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import record
from netdoctor.nccl import net_path
from netdoctor.nccl.gpudirect import rank


@record
class Way:
    """A device and the way to it."""

    device: RdmaDevice
    nic: net_path.Bandwidth  # of the device itself
    path: net_path.NetPath | None  # None: where it sits is not known

    @cached_property
    def alone(self) -> net_path.Bandwidth:
        """Without what it shares with other ways."""
        return self.nic if self.path is None else net_path.narrowest(self.nic, self.path.rest)

    def bandwidth(self, shared: float, between: float) -> net_path.Bandwidth:
        """With the GPU's own link and the one between sockets of these bandwidths."""
        if self.path is None:
            return net_path.narrowest(self.alone, net_path.Bandwidth(0.0, shared))
        here = net_path.narrowest(self.alone, net_path.Bandwidth(shared, shared))
        if self.path.crosses is False:
            return here
        there = net_path.narrowest(here, net_path.Bandwidth(between, between))
        return there if self.path.crosses else net_path.Bandwidth(there.low, here.high)

    def exact(self, own: net_path.Bandwidth, between: net_path.Bandwidth) -> net_path.Bandwidth | None:
        """Its bandwidth with the GPU's link and the one between sockets; None where either, or the distance, is not known."""
        least, most = self.bandwidth(own.low, between.low), self.bandwidth(own.high, between.high)
        return most if least == most and most.low == most.high and self.ranks[0] == self.ranks[1] else None

    @cached_property
    def ranks(self) -> tuple[int, int]:
        """Of the distance: nearest and farthest that it may be."""
        if self.path is None:
            return rank("PIX"), rank("SYS")
        return rank("P2C") if self.path.crosses is None else rank(self.path.kind), rank(self.path.kind)

    @property
    def beside(self) -> int:
        """The distance of one that is not the GPU's best, where NVLink-C2C is for the best alone."""
        return rank("PHB") if self.ranks[0] == rank("P2C") else self.ranks[0]


def values(of: net_path.Bandwidth, steps: Sequence[float]) -> tuple[float, ...]:
    """The values that a bandwidth may have, as far as they can change an order."""
    return tuple(dict.fromkeys((of.low, *(step for step in steps if of.low < step < of.high), of.high)))


def best_of(ways: list[tuple[Way, net_path.Bandwidth]]) -> list[Way]:
    """Those that none of the others certainly beats."""
    most = max(bandwidth.low for _, bandwidth in ways)
    rivals = [way for way, bandwidth in ways if bandwidth.low == most]

    def nearer(mine: Way, theirs: Way) -> bool:
        gap = mine.ranks[1] - theirs.ranks[0]
        return gap < 0 or (gap == 0 and theirs.path is None and mine.path is not None)

    return [way for way, (_, high) in ways if high > most or (high == most and not any(nearer(one, way) for one in rivals))]
