"""How much one of NCCL's TCP sockets can have in flight, and how many of them share a link.

NCCL leaves the buffers to the kernel's autotuning (src/misc/socket.cc; NCCL_SOCKET_SNDBUF and NCCL_SOCKET_RCVBUF from 2.27.3 on
set them), so the maxima of tcp_rmem and tcp_wmem bound what is in flight: about half of each, for buffers count the memory that
packets occupy (Documentation/networking/ip-sysctl.rst tcp_adv_win_scale; net/ipv4/tcp_input.c tcp_sndbuf_expand).
"""

from __future__ import annotations

import math
from typing import Any, Final

from netdoctor.facts.environ import Environ
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.net import Link, Net
from netdoctor.model import Kind, Unavailable, missing, record
from netdoctor.nccl.integers import integer
from netdoctor.nccl.ports import sockets_per_connection

CHANNELS: Final = 2  # at least: rings across nodes are doubled (NCCL src/graph/connect.cc ncclTopoPostset)
EXPLICIT_FROM: Final = (2, 27, 3)
UNSCALED: Final = 65535  # the largest window without tcp_window_scaling (RFC 7323)
FASTEST_MBPS: Final = 400_000  # of an Ethernet port that one might meet where the driver does not tell the speed
BYTES_PER_MS: Final = 125  # of 1 Mb/s


@record
class Window:
    """What one socket can have in flight, and which setting bounds it."""

    bytes: int
    setting: str
    why: str = ""


def window(kernel: Kernel, environ: Environ, version: Version) -> Window | Unavailable:
    """The narrower of the two ends of a socket; the peer is taken to be set up alike."""
    ends = []
    for direction, variable in (("rmem", "NCCL_SOCKET_RCVBUF"), ("wmem", "NCCL_SOCKET_SNDBUF")):
        explicit = _explicit(kernel, environ.get(variable), direction, variable) if version >= EXPLICIT_FROM else None
        ends.append(_tuned(kernel, direction) if explicit is None else explicit)
    lost = missing(*ends)
    return min((one for one in ends if one), key=lambda one: one.bytes) if lost is None else lost


def _explicit(kernel: Kernel, value: str | None | Unavailable, direction: str, variable: str) -> Window | None | Unavailable:
    """What the job sets, up to the ceiling that socket(7) names; None: it counts as not set (src/misc/socket.cc)."""
    if isinstance(value, Unavailable):
        return value
    size = number(value)
    if size is None or size <= 0:
        return None
    ceiling = kernel.sysctl_ints(f"net.core.{direction}_max")
    if isinstance(ceiling, Unavailable):
        return ceiling
    return Window(min(size, ceiling[0]), f"{variable}={value}", "set by the job")


def _tuned(kernel: Kernel, direction: str) -> Window | Unavailable:
    values = kernel.sysctl_ints(f"net.ipv4.tcp_{direction}")
    if isinstance(values, Unavailable):
        return values
    if len(values) != 3 or min(values) <= 0:
        return Unavailable(Kind.MALFORMED, f"tcp_{direction}: {values}")
    if direction == "wmem":
        return Window(values[2] // 2, "net.ipv4.tcp_wmem")
    moderate = kernel.sysctl_ints("net.ipv4.tcp_moderate_rcvbuf")
    scaling = kernel.sysctls.get("net.ipv4.tcp_window_scaling", "1")
    if isinstance(moderate, Unavailable):
        return moderate
    if isinstance(scaling, Unavailable):
        return scaling
    still = Window(values[1] // 2, "net.ipv4.tcp_moderate_rcvbuf", "is 0: receive buffers stay at their default")
    end = Window(values[2] // 2, "net.ipv4.tcp_rmem") if moderate[0] else still
    unscaled = Window(UNSCALED, "net.ipv4.tcp_window_scaling", "is 0")
    return min(end, unscaled, key=lambda one: one.bytes) if scaling.strip() == "0" else end


def streams(link: Link, environ: Environ) -> int:
    """Sockets that share the link, at least."""
    nsocks, threads = (number(environ.get(name)) for name in ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"))
    return CHANNELS * sockets_per_connection(link.vendor or None, nsocks, threads)


def sockets(net: Net, environ: Environ) -> int:
    """Of one connection to another node, at most: by the interface that has most, whichever is taken.  RDMA keeps one
    (src/transport/net_ib), NET/Socket one and those that carry the data."""
    said = [environ.get(name) for name in ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")]
    if isinstance(net.links, Unavailable) or any(isinstance(one, Unavailable) for one in said):
        return 1 + 64  # MAX_SOCKETS, src/transport/net_socket.cc
    return 1 + max((sockets_per_connection(link.vendor or None, *map(number, said)) for link in net.links), default=1)


def number(text: str | None | Unavailable) -> int | None:
    """As NCCL reads it: 0x100000 is a number, too."""
    return integer(text) if text and text.strip() else None


def maximum(speed_mbps: int, rtt_ms: float, streams: int) -> int:
    """The maximum to set: twice the window that each socket needs, rounded up to a power of two."""
    need = 2 * speed_mbps * BYTES_PER_MS * rtt_ms / streams
    return 1 << math.ceil(math.log2(max(need, 1 << 16)))


class Sockets:
    """NCCL's sockets on one link."""

    def __init__(self, link: Link, window: Window, environ: Environ, carrier: str) -> None:
        self.link, self.window = link, window
        self.count = streams(link, environ)
        self.speed = link.speed_mbps or FASTEST_MBPS
        self.bound = f"{window.setting} {window.why}".strip()
        self.in_flight = window.bytes * self.count
        self.enough = self.in_flight / (self.speed * BYTES_PER_MS)  # ms
        self.evidence: dict[str, Any] = {
            "window": window.bytes,
            "bounded_by": window.setting,
            "sockets": self.count,
            "speed_mbps": link.speed_mbps or None,
            "carrier": carrier,
            "enough_up_to_ms": float(f"{self.enough:.2g}"),
        }

    def at_most(self, ms: float) -> float:
        """Mb/s that the windows let through with that round trip."""
        return self.in_flight / (ms * BYTES_PER_MS)
