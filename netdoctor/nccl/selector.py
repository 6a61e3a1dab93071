"""The grammar that NCCL_SOCKET_IFNAME and NCCL_IB_HCA share: ``[^][=]name[:port][,name…]``.

Source: NCCL src/misc/utils.cc (parseStringList, matchIfList): ``^`` excludes and counts only as the first character, ``=``
makes names exact and counts only directly after it; both hold for the whole list.  Otherwise a name is a prefix.  Spaces are
not trimmed.  A value of one character or less is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
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
    """`value` as NCCL reads it; None where NCCL ignores it (at most one character)."""
    if len(value) <= 1:
        return None
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    entries = []
    for item in rest.split(","):
        name, _, port = item.partition(":")
        if not name:
            continue
        digits = port.partition(":")[0]  # NCCL >= 2.30 knows name:port:rail:plane
        entries.append((name, int(digits) if digits.isdecimal() else -1))
    return Selector(exclude, exact, tuple(entries))
