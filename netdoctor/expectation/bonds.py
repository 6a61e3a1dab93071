"""Source: the device's own capability.  A bond, against all the ports that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from netdoctor.expectation.model import Expectation, Quantity, Source
from netdoctor.facts.net import Link, Net
from netdoctor.model import Unavailable

# Modes that spread what they carry (linux/if_bonding.h; Documentation/networking/bonding.rst): in active-backup (1) all ports
# but one wait, and broadcast (3) sends everything by each.
_SPREADING: Final = frozenset({0, 2, 4, 5, 6})


@dataclass(frozen=True)
class Bond:
    """The ports of a bond that spreads its traffic, and how many of them carry any."""

    ports: tuple[str, ...]
    idle: tuple[str, ...]
    slow: Mapping[str, tuple[int, int]]  # ports that carry, and are slower than the fastest: their Mb/s and its own

    @property
    def carry(self) -> float:
        """Ports, a slower one by its share of a fast one."""
        return round(len(self.ports) - len(self.idle) - sum(1 - now / best for now, best in self.slow.values()), 2)

    def expectation(self, subject: str) -> Expectation:
        idle = f"; idle: {', '.join(self.idle)}" if self.idle else ""
        slow = ", ".join(f"{name} ({now:g} of {best:g} Mb/s)" for name, (now, best) in self.slow.items())
        because = f"it has {', '.join(self.ports)}{idle}{f'; slower: {slow}' if slow else ''}"
        return Expectation(subject, Quantity.BOND, len(self.ports), Source.DEVICE, because)


def of(link: Link | None | Unavailable, net: Net) -> Bond | None:
    """None: no bond, one whose mode is not told or spreads nothing, or one of a single port, which is whole."""
    if not link or link.bond_mode not in _SPREADING:
        return None
    ports = [one for one in net.links or () if one.controller == link.index]
    idle = tuple(one.name for one in ports if not (one.up and one.running) or one.backup)
    speeds = {one.name: one.speed_mbps for one in ports if one.name not in idle and one.speed_mbps}
    best = max(speeds.values(), default=0)
    slow = {name: (speed, best) for name, speed in speeds.items() if speed < best}
    return Bond(tuple(one.name for one in ports), idle, slow) if len(ports) > 1 else None
