"""Speeds of RDMA ports by name, and when the kernel's name of one says nothing.

InfiniBand: rate_show of drivers/infiniband/core/sysfs.c writes "10 Gb/sec (4X SDR)" of every speed that it has no name for
("default to SDR for invalid rates"; older ones leave the name away).  HDR, NDR and XDR are each younger than kernels that still
run.  ibv_query_port, which NCCL asks, hands on the number of the speed, as far as NDR (copy_port_attr_to_resp: "any speed more
than IB_SPEED_NDR"; a byte before, in which XDR is 0).

Ethernet: a driver makes a name of InfiniBand of the interface's speed, and takes one for all that it does not know
(mlx5_query_port_roce: 4X QDR; ib_get_eth_speed: 4X EDR above 40 Gb/s, 1X SDR where ethtool tells nothing).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

_ORDER: Final = ("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR")
SLOWEST: Final = ("SDR", "")  # what an unknown speed is called
# enum ib_port_width and enum ib_port_speed (include/rdma/ib_verbs.h): lanes, and Gb/s of one with its name.
_LANES: Final[Mapping[int, int]] = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_SPEEDS: Final[Mapping[int, tuple[float, str]]] = {
    1: (2.5, "SDR"),
    2: (5, "DDR"),
    4: (10, "QDR"),
    8: (10, "FDR10"),
    16: (14, "FDR"),
    32: (25, "EDR"),
    64: (50, "HDR"),
    128: (100, "NDR"),
}
# Of Ethernet what stands for all that is not known, by driver; "": any other.
_FALLBACKS: Final[Mapping[str, tuple[tuple[int, str], ...]]] = {
    "mlx5_core": ((4, "QDR"),),
    "mlx4_core": (),
    "": ((4, "EDR"), (1, "SDR"), (1, "")),
}
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


def by_number(width: object, speed: object) -> tuple[float, str] | None:
    """Gb/s of a port and the name of its speed, of the numbers that ibv_query_port gives; None: they say nothing."""
    lanes = _LANES.get(width) if isinstance(width, int) else None
    lane = _SPEEDS.get(speed) if isinstance(speed, int) else None
    return (lanes * lane[0], lane[1]) if lanes and lane else None


def at_least(model: str, name: str) -> bool:
    """Whether a speed of this number may be a faster one that the kernel could not hand on."""
    return name == "NDR" and MOST.get(model) not in ("HDR", "NDR")


def fallback(driver: str, lanes: int | None, speed: str) -> bool:
    """Whether a driver writes this of an Ethernet port whose speed it does not know."""
    return (lanes, speed) in _FALLBACKS.get(driver, _FALLBACKS[""])
