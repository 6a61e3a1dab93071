"""What an address, or an interface's name, says of who can reach it."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.interface_names import INSIDE_NAMES

_LOOPBACK: Final = re.compile(r"127\.|::1$|localhost")
_LINK_LOCAL: Final = re.compile(r"fe80:|169\.254\.")
# The addresses that Docker's and libvirt's default bridges have on every host.
_BRIDGE: Final = re.compile(r"172\.1[7-9]\.0\.1$|172\.2\d\.0\.1$|192\.168\.122\.1$")
# The networks of Docker's and Podman's default bridges: container addresses behind a host's own bridge.
_DEFAULT_BRIDGE: Final = re.compile(r"172\.17\.|10\.88\.0\.")
# The pools from which every host's Docker and Podman take networks: addresses that two hosts may give out each.
_CONTAINER_POOLS: Final = re.compile(r"172\.(?:1[7-9]|2\d|3[01])\.|10\.88\.")


def local_interface(name: str) -> bool:
    """Whether an interface carries traffic within its host only, by the names of Docker, libvirt, CNI plugins and VPNs."""
    return name == "lo" or name.startswith(INSIDE_NAMES)


def loopback(address: str) -> bool:
    return bool(_LOOPBACK.match(address))


def of_a_bridge(address: str) -> bool:
    """Behind Docker's or Podman's default bridge (docker0's 172.17.0.0/16, 10.88.0.0/16): only its own host reaches it."""
    return bool(_DEFAULT_BRIDGE.match(address))


def given_out_by_hosts(address: str) -> bool:
    """Whether each host may have it, for its containers or for itself: by such a one two hosts find no way to each other."""
    return unreachable_by_design(address) or bool(_CONTAINER_POOLS.match(address))


def link_local(address: str) -> bool:
    return bool(_LINK_LOCAL.match(address))


def unreachable_by_design(address: str) -> bool:
    """Loopback, link-local, or the address of a bridge that every host has."""
    return loopback(address) or link_local(address) or bool(_BRIDGE.match(address))


def is_ipv6(address: str) -> bool:
    return address.count(":") >= 2
