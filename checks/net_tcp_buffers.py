"""TCP windows are wide enough to fill the links, where sockets carry the data; netdoctor/nccl/tcp_window.py has the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Environ,
    Expected,
    Finding,
    Fix,
    Intent,
    Kernel,
    Kind,
    Libraries,
    Link,
    NcclChoice,
    Net,
    PathRun,
    Quantity,
    Rdma,
    SysctlFiles,
    Unavailable,
    Vantage,
    Version,
    between_nodes,
    check,
    cost,
    count,
    fail,
    fix_sysctl,
    ifname,
    interfaces,
    missing,
    ok,
    record,
    skip,
    tcp_window,
    transport,
    unknown,
)

CONGESTION = "net.ipv4.tcp_congestion_control"
RUN = "run the all-reduce, or set NCCL_NET"
WIDE_MS = 1.0  # enough up to this round trip: any network inside one site
NEAR_MS = 0.02  # no kernel TCP round trip between two hosts is shorter (a switch hop, two stacks, interrupts)
SLOWEST_MBPS = 1_000  # of a network that anybody would train over
HEADERS = 40  # bytes of IPv4 and TCP without options
DEFAULT = 4 << 20  # the kernel's own tcp_wmem maximum, of a machine with enough memory (net/ipv4/tcp.c, tcp_init)
PASS = "Mb/s pass the windows in a round trip"
MEASURE = "set MASTER_ADDR and MASTER_PORT, or expected: {peers: [HOST:PORT]} or {rtt_ms: …} in the configuration"


@record
class RoundTrip:
    """The longest round trip to another node: milliseconds and where they come from, or why they are not known."""

    ms: float | None
    source: str = ""
    unread: str = ""  # why a round trip that there is could not be had; "": nobody named another node
    measured: bool = False
    hidden: bool = False  # a measurement that was to be, or the configuration: it may be any


@check(id="net.tcp_buffers", title="TCP windows fill the links, where sockets carry the data", cause="tcp_tuning")
def tcp_buffers(
    kernel: Kernel,
    files: SysctlFiles,
    net: Net,
    vantage: Vantage,
    environ: Environ,
    nccl: NcclChoice,
    intent: Intent,
    expected: Expected,
    rdma: Rdma,
    libraries: Libraries,
    baseline: Baseline,
    paths: PathRun,
) -> Iterator[Finding]:
    data = transport.data_by_sockets(rdma, environ, libraries, (baseline, paths), net, intent)
    version = ifname.versions(nccl, libraries)[-1]
    window = tcp_window.window(kernel, environ, version)
    if data.sockets is False:
        yield skip(f"sockets do not carry the data: {data.why}")
    elif data.sockets is None:
        yield unknown(f"whether sockets carry the data could not be told: {data.why}", how=RUN)
    elif isinstance(environ.variables, Unavailable):  # with a log, what carries the data is known without it
        yield unknown(f"the job's variables could not be read: {environ.variables}")
    else:
        yield from (between_nodes(one, intent) for one in _congestion(kernel, files))
        if isinstance(window, Unavailable):
            yield unknown(f"the TCP buffers could not be read: {window}", carrier=data.why)
            return
        on, trip = partial(tcp_window.Sockets, window=window, environ=environ, carrier=data.why), _round_trip(net, expected)
        unmeasured = intent.others is True and not transport.sockets_measured(baseline, paths)
        for one in _links(net, environ, version):
            found = one if isinstance(one, Finding) else _judge(on(one), trip, vantage, unmeasured=unmeasured)
            yield between_nodes(found, intent)


def _congestion(kernel: Kernel, files: SysctlFiles) -> Iterator[Finding]:
    """A name that the kernel does not offer, or another than the node's files say; a good one is not worth a word."""
    chosen = kernel.sysctl(CONGESTION)
    offered = kernel.sysctl("net.ipv4.tcp_available_congestion_control")
    if (why := missing(chosen, offered)) is not None:
        yield unknown(f"whether the congestion control is offered could not be read: {why}", subject="congestion control")
        return
    name, names = (chosen or "").strip(), (offered or "").split()
    if name and names and name not in names:
        yield fail(
            f"tcp_congestion_control is {name}, which this kernel does not offer ({' '.join(names)})",
            subject="congestion control",
            expected=f"one of {' '.join(names)}",
            chosen=name,
            offered=sorted(names),
        )
        return
    meant = (files.said or {}).get(CONGESTION)
    if isinstance(files.said, Unavailable) and files.said.kind is not Kind.UNSUPPORTED:
        yield unknown(
            f"what the node's files say of {CONGESTION} could not be read: {files.said}", subject="congestion control"
        )
    elif meant is not None and name and meant.value != name:
        loaded = meant.value in names
        yield fail(
            f"tcp_congestion_control is {name}, and {meant.file} says {meant.value}",
            subject="congestion control",
            loss=cost.MIGHT,
            expected=meant.value,
            why="a file that is read before its module is there changes nothing (systemd-sysctl.service(8))",
            fix=Fix(
                f"load tcp_{meant.value} before the file is read, or let the file say {name}",
                (*(() if loaded else (f"modprobe tcp_{meant.value}",)), f"sysctl -w {CONGESTION}={meant.value}"),
                () if loaded else (f"echo tcp_{meant.value} > /etc/modules-load.d/netdoctor.conf",),
            ),
            chosen=name,
        )


def _links(net: Net, environ: Environ, version: Version) -> Iterator[Link | Finding]:
    """The interfaces that NET/Socket takes."""
    found = interfaces.of_sockets(net, environ, version)
    if isinstance(found, Unavailable):
        yield unknown(f"which interfaces carry the data could not be told: {found}")
        return
    links, out = found
    if not out and not any(link.loopback for link in links):
        yield unknown("NCCL finds no interface that leaves this node for its sockets", how="see net.socket_ifname")
    for link in links:
        if link.loopback:
            yield skip("NCCL's sockets take the loopback: no data crosses the network", subject=link.name)
        elif link in out:
            yield link


def _round_trip(net: Net, expected: Expected) -> RoundTrip:
    """The longest that was measured, else what the site says."""
    if measured := [(one.rtt_ms, f"measured to {one.name}") for one in net.others if one.rtt_ms]:
        return RoundTrip(*max(measured), measured=True)
    if expected.rtt_ms:
        return RoundTrip(expected.rtt_ms, "as configured")
    unread = missing(expected.rtt_ms)
    if not (far := net.perhaps_others):
        return RoundTrip(None, unread="" if unread is None else str(unread), hidden=unread is not None)
    text = f"the round trip to {far[0].name}: {far[0].rtt_ms}" if far[0] else str(far[0])
    return RoundTrip(None, unread=text, hidden=unread is not None or any(not one or one.port is not None for one in far))


def _too_small(on: tcp_window.Sockets, segment: int) -> Finding | None:
    """Windows that are too small for any link: of less than two segments, or below the slowest one of a cluster."""
    if on.window.bytes < 2 * segment:
        return fail(
            f"{on.bound}: a window of {on.window.bytes} bytes holds no two segments of {segment}",
            why="a receiver acknowledges every second full segment, and else waits (RFC 5681, 4.2): so does the sender",
            loss=cost.less(1, 2, "segments that must be on the way for one to be acknowledged at once"),
        )
    if on.link.speed_mbps or on.at_most(NEAR_MS) >= SLOWEST_MBPS:
        return None
    loss = cost.less(round(on.at_most(NEAR_MS)), SLOWEST_MBPS, PASS)
    return fail(f"{on.bound}: {count(on.count, 'socket')} cannot fill the slowest link, of 1 Gb/s", loss=loss)


def _judge(on: tcp_window.Sockets, trip: RoundTrip, vantage: Vantage, *, unmeasured: bool) -> Finding:
    name, enough, needed = on.link.name, on.enough, trip.ms or WIDE_MS
    if (small := _too_small(on, on.link.mtu - HEADERS)) is not None:
        return replace(small, subject=name, fix=_fix(vantage, on.window, DEFAULT), evidence=on.evidence)
    at = f"{on.bound}: {count(on.count, 'socket')} can fill the link up to a round trip of {enough:.2g} ms"
    said: dict[str, Any] = {"subject": name, "measured": {}, **on.evidence}  # the message holds what the settings give
    if trip.ms is not None:
        said["measured"] = {"round_trip": Quantity(trip.ms, "ms"), "at_most": Quantity(on.at_most(trip.ms) / 1000, "Gb/s")}
        at += f", and it is {'longer' if enough < trip.ms else 'not longer'} ({trip.source})"
    if isinstance(on.link.speed_mbps, Unavailable) and enough < needed:
        at = f"its speed is not known ({on.link.speed_mbps}); at 400 Gb/s, {at}"
        return unknown(at, how=f"ethtool {name}, or ask the cloud provider", **said)
    if enough < (NEAR_MS if trip.ms is None else trip.ms):
        wanted = tcp_window.maximum(on.speed, needed, on.count)
        return fail(
            f"{at}; {name} has {on.speed / 1000:g} Gb/s",
            loss=replace(cost.less(round(on.at_most(trip.ms or NEAR_MS)), on.speed, PASS), measured=trip.measured),
            expected=f"{on.window.setting}: at least {wanted} bytes",
            fix=_fix(vantage, on.window, wanted),
            how=MEASURE if trip.ms is None else None,
            **said,
        )
    if trip.unread and (trip.hidden or enough < WIDE_MS):
        return unknown(f"{at}; {trip.unread}", how=MEASURE, **said)
    if not vantage.job_network:
        return unknown(f"{at}; {vantage.network_elsewhere}", how=FROM_JOB, **said)
    if unmeasured and trip.ms is None and enough < WIDE_MS:
        return unknown(f"{at}; the round trip to the other nodes was not measured", how=MEASURE, **said)
    farther = f"farther nodes need more; to have the round trip measured: {MEASURE}"
    return ok(at, notes=[farther] if trip.ms is None and enough < WIDE_MS else [], **said)


def _fix(vantage: Vantage, window: tcp_window.Window, wanted: int) -> Fix | None:
    least = {"net.ipv4.tcp_rmem": "4096 131072", "net.ipv4.tcp_wmem": "4096 16384"}.get(window.setting)
    value = f"{least} {wanted}" if least else "1"
    return None if window.setting.startswith("NCCL_") else fix_sysctl(vantage, window.setting, value)
