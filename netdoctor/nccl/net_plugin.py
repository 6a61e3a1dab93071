"""Which network plugin NCCL loads, and which it can use.

Source: NCCL src/plugin/net.cc, before 2.27 src/net.cc; src/plugin/plugin_open.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from netdoctor.facts.libraries import Plugin
from netdoctor.facts.nccl_version import Version
from netdoctor.model import Unavailable

BUILT_IN: Final = frozenset({"IB", "Socket"})  # networks that NCCL knows itself; any other name is a plugin's
# Interfaces of network plugins: (first NCCL version, oldest and newest ncclNetPlugin_vN that it looks for).  The newest are
# rounded up where the source of a version was not read: only a plugin that certainly does not fit may be called so.
_INTERFACES: Final[tuple[tuple[Version, int, int], ...]] = (
    ((0, 0, 0), 1, 8),
    ((2, 19, 0), 5, 9),
    ((2, 24, 0), 5, 10),
    ((2, 26, 0), 6, 10),
    ((2, 28, 0), 6, 11),
    ((2, 30, 0), 6, 12),
    ((2, 31, 0), 6, 99),
)


def interfaces(version: Version) -> tuple[int, int]:
    """(oldest, newest) plugin interface that this NCCL version may load."""
    return next((low, high) for since, low, high in reversed(_INTERFACES) if version >= since)


def offered(symbols: Iterable[str]) -> list[int]:
    """The interfaces that a plugin exports."""
    return sorted({int(s.rpartition("_v")[2]) for s in symbols if s.rpartition("_v")[2].isdecimal()})


def wanted(named: str | None, version: Version | Unavailable) -> tuple[str, ...]:
    """The names that NCCL tries in turn, by NCCL_NET_PLUGIN; "" for the default.  A list since 2.28.3."""
    listed = isinstance(version, Unavailable) or version >= (2, 28, 3)
    if named is None or (named == "" and not listed):
        return ("",)
    if named.lower() == "none":
        return ()
    return tuple(one for one in named.split(",") if one) if listed else (named,)


def is_named(plugin: Plugin, named: str) -> bool:
    """Whether dlopen finds it under the name that NCCL asks for."""
    paths = (plugin.path, *plugin.aliases)
    names = {path.rpartition("/")[2] for path in paths}
    if not named:
        return "libnccl-net.so" in names and set(plugin.found_by) != {"site-packages"}
    return named in paths or named in names or f"libnccl-net-{named}.so" in names
