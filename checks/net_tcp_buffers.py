"""TCP windows are wide enough to fill the links, where sockets carry the data.

NCCL leaves the buffers to the kernel's autotuning (src/misc/socket.cc; NCCL_SOCKET_SNDBUF and NCCL_SOCKET_RCVBUF from 2.27.3 on
set them), so the maxima of tcp_rmem and tcp_wmem bound what is in flight: about half of each, for buffers count the memory that
packets occupy (Documentation/networking/ip-sysctl.rst tcp_adv_win_scale; net/ipv4/tcp_input.c tcp_sndbuf_expand).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Environ,
    Expected,
    Finding,
    JobShape,
    Kernel,
    Kind,
    Libraries,
    Link,
    NcclChoice,
    Net,
    PathRun,
    Quantity,
    Rdma,
    Severity,
    Unavailable,
    Vantage,
    check,
    fail,
    fix_sysctl,
    ifname,
    interfaces,
    missing,
    nccl_integer,
    nccl_ports,
    ok,
    skip,
    transport,
    unknown,
)

CHANNELS = 2  # at least: rings across nodes are doubled (NCCL src/graph/connect.cc ncclTopoPostset)
WIDE_MS = 1.0  # enough up to this round trip: any network inside one site
NEAR_MS = 0.02  # no kernel TCP round trip between two hosts is shorter (a switch hop, two stacks, interrupts)
FASTEST_MBPS = 400_000  # of an Ethernet port that one might meet where the driver does not tell the speed
BYTES_PER_MS = 125  # of 1 Mb/s
EXPLICIT_FROM = (2, 27, 3)
UNSCALED = 65535  # the largest window without tcp_window_scaling (RFC 7323)
MEASURE = "set MASTER_ADDR and MASTER_PORT, or expected: {peers: [HOST:PORT]} or {rtt_ms: …} in the configuration"


@dataclass(frozen=True)
class Window:
    """What one socket can have in flight, and which setting bounds it."""

    bytes: int
    setting: str
    why: str = ""


@check(id="net.tcp_buffers", title="TCP windows fill the links, where sockets carry the data", cause="tcp_tuning")
def tcp_buffers(
    kernel: Kernel,
    net: Net,
    vantage: Vantage,
    environ: Environ,
    nccl: NcclChoice | Unavailable,
    job: JobShape,
    expected: Expected,
    rdma: Rdma | Unavailable,
    libraries: Libraries | Unavailable,
    baseline: Baseline | Unavailable,
    paths: PathRun | Unavailable,
) -> Iterator[Finding]:
    if job.alone:
        yield skip("the configuration says that the job has one node: no data crosses the network", nodes=1)
        return
    data = transport.data_by_sockets(rdma, environ, libraries, baseline, paths, net)
    if data.sockets is False:
        yield skip(f"sockets do not carry the data: {data.why}")
        return
    if data.sockets is None:
        yield unknown(
            f"whether sockets carry the data could not be told: {data.why}", how="run the all-reduce, or set NCCL_NET"
        )
        return
    if isinstance(environ.variables, Unavailable):  # with a log, what carries the data is known without it
        yield unknown(f"the job's variables could not be read: {environ.variables}")
        return
    yield from _congestion(kernel)
    version = ifname.versions(nccl, libraries)[-1]
    window = _window(kernel, environ, version)
    if isinstance(window, Unavailable):
        yield unknown(f"the TCP buffers could not be read: {window}", carrier=data.why)
        return
    trip = _round_trip(net, expected)
    missing = None if trip else _unmeasured(net, expected)
    for link in _links(net, environ, version):
        if isinstance(link, Finding):
            yield link
        else:
            yield _judge(link, window, _streams(link, environ), trip, missing, vantage, data.why)


def _congestion(kernel: Kernel) -> Iterator[Finding]:
    """A name that the kernel does not offer; a good one is not worth a word."""
    chosen = kernel.sysctls.get("net.ipv4.tcp_congestion_control", Unavailable(Kind.NOT_READ))
    offered = kernel.sysctls.get("net.ipv4.tcp_available_congestion_control", Unavailable(Kind.NOT_READ))
    if isinstance(chosen, Unavailable) or isinstance(offered, Unavailable):
        why = chosen if isinstance(chosen, Unavailable) else offered
        yield unknown(f"whether the congestion control is offered could not be read: {why}", subject="congestion control")
        return
    if chosen.strip() and offered.strip() and chosen.strip() not in offered.split():
        yield fail(
            f"tcp_congestion_control is {chosen.strip()}, which this kernel does not offer ({offered.strip()})",
            subject="congestion control",
            expected=f"one of {offered.strip()}",
            fix=None,
            chosen=chosen.strip(),
            offered=sorted(offered.split()),
        )


def _window(kernel: Kernel, environ: Environ, version: ifname.Version) -> Window | Unavailable:
    """The narrower of the two ends of a socket; the peer is taken to be set up alike."""
    ends = []
    for direction, letter, variable in (("rmem", "r", "NCCL_SOCKET_RCVBUF"), ("wmem", "w", "NCCL_SOCKET_SNDBUF")):
        explicit = environ.get(variable) if version >= EXPLICIT_FROM else None
        if isinstance(explicit, Unavailable):
            return explicit
        if (size := _number(explicit)) is not None and size > 0:  # else it counts as not set (src/misc/socket.cc)
            ceiling = kernel.sysctl_ints(f"net.core.{letter}mem_max")
            if isinstance(ceiling, Unavailable):
                return ceiling
            ends.append(Window(min(size, ceiling[0]), f"{variable}={explicit}", "set by the job"))
            continue
        values = kernel.sysctl_ints(f"net.ipv4.tcp_{direction}")
        if isinstance(values, Unavailable):
            return values
        if len(values) != 3 or min(values) <= 0:
            return Unavailable(Kind.MALFORMED, f"tcp_{direction}: {values}")
        ends.append(Window(values[2] // 2, f"net.ipv4.tcp_{direction}"))
        if direction == "rmem":
            moderate = kernel.sysctl_ints("net.ipv4.tcp_moderate_rcvbuf")
            scaling = kernel.sysctls.get("net.ipv4.tcp_window_scaling", "1")
            if isinstance(moderate, Unavailable):
                return moderate
            if isinstance(scaling, Unavailable):
                return scaling
            if moderate[0] == 0:
                ends[-1] = Window(values[1] // 2, "net.ipv4.tcp_moderate_rcvbuf", "is 0: receive buffers stay at their default")
            if scaling.strip() == "0":
                ends.append(Window(UNSCALED, "net.ipv4.tcp_window_scaling", "is 0"))
    return min(ends, key=lambda one: one.bytes)


def _links(net: Net, environ: Environ, version: ifname.Version) -> Iterator[Link | Finding]:
    """The interfaces that NET/Socket takes."""
    settings = {name: environ.get(name) for name in ifname.VARIABLES}
    known = {name: value for name, value in settings.items() if isinstance(value, str)}
    lost = missing(net.links, *settings.values())
    picks = lost if lost is not None else ifname.choose(net.links or (), version, known, "socket")
    if isinstance(picks, Unavailable):
        yield unknown(f"which interfaces carry the data could not be told: {picks}")
        return
    links = [link for pick in picks if (link := net.link(pick.interface))]
    if all(interfaces.inside_node(net, link) for link in links):
        yield unknown("NCCL finds no interface that leaves this node for its sockets", how="see net.socket_ifname")
    for link in links:
        if link.loopback:
            yield skip("NCCL's sockets take the loopback: no data crosses the network", subject=link.name)
        elif not interfaces.inside_node(net, link):
            yield link


def _streams(link: Link, environ: Environ) -> int:
    """Sockets that share the link, at least."""
    vendor = None if isinstance(link.vendor, Unavailable) else link.vendor
    nsocks, threads = (_number(environ.get(name)) for name in ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"))
    return CHANNELS * nccl_ports.sockets_per_connection(vendor, nsocks, threads)


def _number(text: str | None | Unavailable) -> int | None:
    """As NCCL reads it: 0x100000 is a number, too."""
    return nccl_integer(text) if isinstance(text, str) and text.strip() else None


def _round_trip(net: Net, expected: Expected) -> tuple[float, str] | None:
    """Milliseconds and where they come from: the longest that was measured, else what the site says."""
    measured = [(one.rtt_ms, one.name) for one in net.others if isinstance(one.rtt_ms, int | float)]
    if measured:
        rtt, name = max(measured)
        return rtt, f"measured to {name}"
    if expected.rtt_ms:
        return expected.rtt_ms, "as configured"
    return None


def _unmeasured(net: Net, expected: Expected) -> tuple[str, bool] | None:
    """Why a round trip that there is could not be had, and whether it may be any; None where nobody named another node."""
    people = (net.master, *(net.peers if isinstance(net.peers, tuple) else (net.peers,)))
    if far := [one for one in people if one is not None and (isinstance(one, Unavailable) or one.local is not True)]:
        first = far[0]
        text = str(first) if isinstance(first, Unavailable) else f"the round trip to {first.name}: {first.rtt_ms}"
        tried = any(isinstance(one, Unavailable) or one.port is not None for one in far)
        return text, tried or isinstance(expected.rtt_ms, Unavailable)
    return (str(expected.rtt_ms), True) if isinstance(expected.rtt_ms, Unavailable) else None


def _judge(
    link: Link,
    window: Window,
    streams: int,
    trip: tuple[float, str] | None,
    missing: tuple[str, bool] | None,
    vantage: Vantage,
    why: str,
) -> Finding:
    evidence: dict[str, Any] = {
        "window": window.bytes,
        "bounded_by": window.setting,
        "sockets": streams,
        "speed_mbps": None if isinstance(link.speed_mbps, Unavailable) else link.speed_mbps,
        "carrier": why,
    }
    have = window.bytes * streams
    speed = FASTEST_MBPS if isinstance(link.speed_mbps, Unavailable) else link.speed_mbps
    enough = have / (speed * BYTES_PER_MS)  # ms
    evidence["enough_up_to_ms"] = float(f"{enough:.2g}")
    # The message holds what the settings give; what was measured stands beside it.
    bound = f"{window.setting} {window.why}".strip()
    at = f"{bound}: {streams} sockets fill the link up to a round trip of {enough:.2g} ms"
    needed = WIDE_MS
    measured: dict[str, Any] = {}
    if trip is not None:
        needed = trip[0]
        measured = {"round_trip": Quantity(needed, "ms"), "at_most": Quantity(have / (needed * BYTES_PER_MS) / 1000, "Gb/s")}
        at += f", and it is {'longer' if enough < needed else 'not longer'} ({trip[1]})"
    if isinstance(link.speed_mbps, Unavailable) and enough < needed:
        return unknown(
            f"the speed of {link.name} is not known ({link.speed_mbps}); at 400 Gb/s, {at}",
            subject=link.name,
            how=f"ethtool {link.name}, or ask the cloud provider",
            measured=measured,
            **evidence,
        )
    if enough < (needed if trip else NEAR_MS):
        return fail(
            f"{at}; {link.name} has {speed / 1000:g} Gb/s",
            subject=link.name,
            severity=Severity.WARNING,
            expected=f"{window.setting}: at least {_wanted(speed, needed if trip else WIDE_MS, streams)} bytes",
            fix=_fix(vantage, window, _wanted(speed, needed if trip else WIDE_MS, streams)),
            how=None if trip else MEASURE,
            measured=measured,
            **evidence,
        )
    if trip is None and missing is not None and (missing[1] or enough < WIDE_MS):
        return unknown(f"{at}; {missing[0]}", subject=link.name, how=MEASURE, measured=measured, **evidence)
    if not vantage.job_network:
        where = vantage.why_not or "seen outside the job's network namespace"
        return unknown(f"{at}; {where}", subject=link.name, how=FROM_JOB, measured=measured, **evidence)
    notes = (
        [f"farther nodes need more; to have the round trip measured: {MEASURE}"] if trip is None and enough < WIDE_MS else []
    )
    return ok(at, subject=link.name, notes=notes, measured=measured, **evidence)


def _wanted(speed_mbps: int, rtt_ms: float, streams: int) -> int:
    """A maximum, twice the window that each socket needs, rounded up to a power of two."""
    need = 2 * speed_mbps * BYTES_PER_MS * rtt_ms / streams
    return 1 << math.ceil(math.log2(max(need, 1 << 16)))


def _fix(vantage: Vantage, window: Window, wanted: int) -> Any:
    if window.setting.startswith("NCCL_"):
        return None
    if window.why:
        return fix_sysctl(vantage, window.setting, "1")
    default = {"net.ipv4.tcp_rmem": "4096 131072", "net.ipv4.tcp_wmem": "4096 16384"}[window.setting]
    return fix_sysctl(vantage, window.setting, f"{default} {wanted}")
