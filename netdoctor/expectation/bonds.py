"""Source: the device's own capability.  A bond, against all the ports that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from netdoctor.expectation.model import Expectation, Quantity, Source
from netdoctor.facts.net import Link, Net
from netdoctor.model import Unavailable, record

# Modes that spread what they carry (linux/if_bonding.h; Documentation/networking/bonding.rst); broadcast (3) sends everything
# by each port, and in active-backup all but one wait.
_SPREADING: Final = frozenset({0, 2, 4, 5, 6})
_ACTIVE_BACKUP: Final = 1


@record
class Bond:
    """The ports of a bond, and how many of them carry its traffic."""

    ports: tuple[str, ...]
    idle: tuple[str, ...]
    slow: Mapping[str, tuple[int, int]]  # ports that carry, and are slower than the fastest: their Mb/s and its own
    should: int  # ports that carry where all is well

    @property
    def carry(self) -> float:
        """Ports, a slower one by its share of a fast one."""
        waiting = len(self.ports) - self.should
        most = len(self.ports) - max(len(self.idle), waiting)
        return round(most - sum(1 - now / best for now, best in self.slow.values()), 3)

    def expectation(self, subject: str) -> Expectation:
        idle = f"; idle: {', '.join(self.idle)}" if self.idle else ""
        slow = ", ".join(f"{name} ({now:g} of {best:g} Mb/s)" for name, (now, best) in self.slow.items())
        because = f"it has {', '.join(self.ports)}{idle}{f'; slower: {slow}' if slow else ''}"
        return Expectation(subject, Quantity.BOND, self.should, Source.DEVICE, because)


def of(link: Link | None | Unavailable, net: Net) -> Bond | None:
    """None: no bond, one whose mode is not told or sends everything by each port, or one of a single port, which is whole."""
    if not link or (link.bond_mode not in _SPREADING and link.bond_mode != _ACTIVE_BACKUP):
        return None
    ports = [one for one in net.links or () if one.controller == link.index]
    if len(ports) < 2:
        return None
    names = tuple(one.name for one in ports)
    up = [one for one in ports if one.up and one.running]
    carry = [one for one in up if not one.backup]
    speeds = {one.name: one.speed_mbps for one in carry if one.speed_mbps}
    if link.bond_mode in _SPREADING:
        best, idle = max(speeds.values(), default=0), tuple(one.name for one in ports if one not in carry)
        return Bond(names, idle, {name: (speed, best) for name, speed in speeds.items() if speed < best}, len(ports))
    if len(carry) != 1:  # the kernel does not say which is the active one
        return None
    # One that is up and waits could carry the traffic: after a failure the slower stays (primary_reselect=failure).
    best = max((one.speed_mbps for one in up if one.speed_mbps), default=0)
    return Bond(names, (), {name: (speed, best) for name, speed in speeds.items() if speed < best}, 1)


def short(net: Net) -> bool:
    """Whether any bond here carries less than it could."""
    every = (of(link, net) for link in net.links or () if link.kind == "bond")
    return any(one is not None and one.carry < one.should for one in every)
