"""What udev's database calls devices.  It judges nothing and its child takes longer than most: asked for a message alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netdoctor.host.base import Host, mapping
from netdoctor.textsafe import line


def models(host: Host) -> dict[str, str]:
    """PCI address: "Instinct MI300X", from the hardware database; empty where udev does not tell."""
    found = {address: line(one.get("ID_MODEL_FROM_DATABASE"), 80) for address, one in _devices(host, "pci").items()}
    return {address: model for address, model in found.items() if model}


def interface_names(host: Host) -> dict[str, tuple[str, ...]]:
    """The names that udev has for each interface by its place (systemd.net-naming-scheme(7)); its own may be among them."""
    return {
        name: tuple(sorted({text for value in one.values() if (text := line(value, 15))}))
        for name, one in _devices(host, "net").items()
    }


def _devices(host: Host, subsystem: str) -> dict[str, Mapping[str, Any]]:
    found = (mapping(host, "ask:udev") or {}).get(subsystem)
    return {str(name): one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}
