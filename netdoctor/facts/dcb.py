"""What DCB netlink tells of an interface: the priorities that it pauses, and the priority of each DSCP."""

from __future__ import annotations

from typing import Any

from netdoctor.host.base import value
from netdoctor.model import Kind, Unavailable


def paused(told: Any) -> int | None | Unavailable:
    """A bit each; None: the driver does not say."""
    found = None if told is None else value(told, int, "ask:netlink: pfc")
    if isinstance(found, int) and not 0 <= found < 1 << 8:
        return Unavailable(Kind.MALFORMED, f"ask:netlink: pfc: {found}")
    return found


def priorities(told: Any) -> tuple[tuple[int, int], ...] | None | Unavailable:
    """DSCP and priority; None: no DSCP is given one, or the driver does not say."""
    rows: dict[str, Any] | None | Unavailable = None if told is None else value(told, dict, "ask:netlink: dscp")
    if not isinstance(rows, dict):
        return rows
    if not all(dscp.isdecimal() and int(dscp) < 64 and type(one) is int and 0 <= one < 8 for dscp, one in rows.items()):
        return Unavailable(Kind.MALFORMED, "ask:netlink: dscp")
    return tuple(sorted((int(dscp), one) for dscp, one in rows.items())) or None
