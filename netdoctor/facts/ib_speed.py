"""Speeds of InfiniBand by name, and when the kernel's name of one says nothing.

rate_show of drivers/infiniband/core/sysfs.c writes "10 Gb/sec (4X SDR)" of every speed that it has no name for ("default to SDR
for invalid rates"; older ones leave the name away).  HDR, NDR and XDR are each younger than kernels that still run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_ORDER: Final = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
SLOWEST: Final = ("SDR", "")  # what an unknown speed is called
# The most that a card does, by PCI id (the PCI ID repository).  Every kernel in use has a name for EDR: cards and
# their virtual functions up to ConnectX-5.  What is not here may be newer than the kernel, and so may a virtual function.
_EDR: Final = ("1003", "1004", "1007", "1011", "1012", "1013", "1014", "1015", "1016", "1017", "1018", "1019", "101a")
MOST: Final = {
    **{f"15b3:{device}": "EDR" for device in _EDR},
    "15b3:101b": "HDR",
    "15b3:a2d6": "HDR",
    "15b3:1021": "NDR",
    "15b3:a2dc": "NDR",
    "15b3:1023": "XDR",
}


def unnamed(model: str, speed: str, known: Iterable[str]) -> bool:
    """Whether `speed` of a card of this model may be one that the kernel does not know: unless the card can do none of these,
    or a port of this machine shows that the kernel knows the most that the card can do.  `known`: the speed of every port."""
    most = MOST.get(model)
    if speed not in SLOWEST or most == "EDR":
        return False
    shown = max((_ORDER.index(one) for one in known if one in _ORDER), default=0)
    return most is None or shown < _ORDER.index(most)
