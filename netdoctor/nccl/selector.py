"""The grammar that NCCL_SOCKET_IFNAME and NCCL_IB_HCA share: ``[^][=]name[:port][,name…]``.

Source: NCCL src/misc/utils.cc (parseStringList, matchIfList): ``^`` excludes and counts only as the first character, ``=``
makes names exact and counts only directly after it; both hold for the whole list.  Otherwise a name is a prefix.  Spaces are
not trimmed.  NCCL_SOCKET_IFNAME of one character or less is ignored (src/os/linux.cc, src/misc/socket.cc), NCCL_IB_HCA is not.
"""

from __future__ import annotations

import re
from typing import Final

from netdoctor.facts.nccl_version import Version
from netdoctor.model import record


@record
class Selector:
    """A parsed interface or HCA list."""

    exclude: bool
    exact: bool
    names: tuple[tuple[str, int], ...]  # (name, port or -1)

    def takes(self, name: str, port: int = -1) -> bool:
        """Whether NCCL would take this interface (or HCA port)."""
        # matchIfList takes everything where the list names nothing ("^," or "=,").
        hit = not self.names or any(self._matches(want, wanted_port, name, port) for want, wanted_port in self.names)
        return hit != self.exclude

    def _matches(self, want: str, wanted_port: int, name: str, port: int) -> bool:
        same = name == want if self.exact else name.startswith(want)
        return same and (wanted_port == -1 or port in {-1, wanted_port})


def parse(value: str) -> Selector | None:
    """An NCCL_SOCKET_IFNAME as NCCL reads it; None where NCCL ignores it (at most one character)."""
    return _parse(value, None) if len(value) > 1 else None


def parse_hcas(value: str, version: Version | None = None) -> Selector | None:
    """An NCCL_IB_HCA as NCCL reads it (src/transport/net_ib); None where it is empty."""
    return _parse(value, version) if value else None


_EMPTY_PORT_IS_NONE: Final[Version] = (2, 30, 3)  # utils.cc: "port, rail, and plane will default to -1 if absent or empty"


def _parse(value: str, version: Version | None) -> Selector:
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    entries = []
    for item in rest.split(","):
        name, colon, port = item.partition(":")
        if not name:
            continue
        port = port.partition(":")[0]  # NCCL >= 2.30 knows name:port:rail:plane
        given = bool(port) or (bool(colon) and version is not None and version < _EMPTY_PORT_IS_NONE)
        entries.append((name, _atoi(port) if given else -1))
    return Selector(exclude, exact, tuple(entries))


def _atoi(text: str) -> int:
    """atoi(3): 0 where there is no number, and no HCA has a port 0."""
    found = re.match(r"\s*([+-]?\d{1,9})", text, re.ASCII)
    return int(found[1]) if found else 0
