"""What NET/Socket spreads its channels over, evenly: each interface carries as much as the slowest.

Source: NCCL src/transport/net_socket.cc (a device for each interface), src/graph/topo.cc (ncclTopoGetLocalNet: in turn).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from netdoctor.facts.net import Link, Net
from netdoctor.model import Unavailable, record
from netdoctor.nccl import interfaces
from netdoctor.nccl.ifname import Pick


class Frames(NamedTuple):
    """Interfaces alike of which some have a smaller MTU."""

    names: tuple[str, ...]
    mtu: int
    others: int


@record
class Spread:
    """The interfaces that NET/Socket takes, and the network that they are in."""

    net: Net
    picks: tuple[Pick, ...]
    meant: bool  # the job names them

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return tuple(link for pick in self.picks if (link := self.net.link(pick.interface)))

    @cached_property
    def stray(self) -> tuple[str, ...]:
        """Those by which nothing leads to another node."""
        return tuple(link.name for link in self.links if interfaces.stays(self.net, link, named=self.meant))

    @property
    def inside(self) -> str:
        """What these are, in words."""
        by_usb = any(map(interfaces.of_the_bmc, self.links))
        return f"loopback, container or tunnel networks{', or that of the BMC,' * by_usb}"

    @cached_property
    def outer(self) -> tuple[Link, ...]:
        return tuple(link for link in self.links if link.name not in self.stray)

    @property
    def without_scoped(self) -> str:
        """What leaves out those that it takes by a link-local address."""
        others = ",".join(link.name for link in self.outer if link.name not in self.scoped)
        return f"NCCL_SOCKET_IFNAME=={others} leaves it out" if others else "NCCL_SOCKET_FAMILY=AF_INET, or give them addresses"

    @property
    def names(self) -> str:
        return ", ".join(link.name for link in self.links)

    @property
    def text(self) -> str:
        return ", ".join(f"{name} ({speed} Mb/s)" for name, speed in self.speeds.items())

    @property
    def speeds(self) -> dict[str, int]:
        return {link.name: link.speed_mbps for link in self.outer if link.speed_mbps}

    @property
    def blind(self) -> tuple[str, ...]:
        return tuple(link.name for link in self.outer if not link.speed_mbps)

    @property
    def scoped(self) -> tuple[str, ...]:
        """Those that it takes by a link-local address."""
        return tuple(pick.interface for pick in self.picks if interfaces.is_link_local6(pick.address))

    @property
    def carries(self) -> int:
        """Mb/s of all together; 0: not known."""
        return min(self.speeds.values()) * len(self.speeds) if self.speeds and not self.blind else 0

    @property
    def better(self) -> dict[str, int]:
        """The interfaces that alone carry more than all that it takes do, with their speeds: the fastest among these, or
        of those beside them that lead to every other node that is known."""
        if not self.carries:
            return {}
        best = max(_fastest(self.speeds), _fastest(self._beside), key=lambda some: sum(some.values()))
        return best if sum(best.values()) > self.carries else {}

    @property
    def _beside(self) -> dict[str, int]:
        others = self.net.others
        return {
            link.name: link.speed_mbps
            for link in self.net.links or ()
            if link not in self.links and link.up and link.running and link.addresses and link.speed_mbps
            if others and all(link.name in one.reached_by() for one in others)
        }

    @property
    def smaller_frames(self) -> Frames | None:
        """Of interfaces alike (driver and speed) those with a smaller MTU than most, or than the other of two.

        That of the default route has a purpose of its own: a cloud's first interface has the MTU of its network.
        """
        route = self.net.default_route
        kinds: dict[tuple[object, object], list[Link]] = {}
        for link in self.outer if not isinstance(route, Unavailable) else ():
            if not isinstance(link.driver, Unavailable) and link.speed_mbps and link.name != (route and route.interface):
                kinds.setdefault((link.driver, link.speed_mbps), []).append(link)
        return next(filter(None, map(_smaller, kinds.values())), None)


def _smaller(like: Iterable[Link]) -> Frames | None:
    every = list(like)
    sizes = Counter(link.mtu for link in every)
    size, number = max(sizes.items(), key=lambda one: (one[1], one[0]))
    few = [link for link in every if link.mtu < size]
    if not few or (number * 2 <= len(every) and len(every) > 2):
        return None
    return Frames(tuple(link.name for link in few), min(link.mtu for link in few), size)


def _fastest(speeds: Mapping[str, int]) -> dict[str, int]:
    return {name: speed for name, speed in speeds.items() if speed == max(speeds.values())}
