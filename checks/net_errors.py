"""No link that the job uses had errors while the all-reduce ran.

Counters are read before it and after it, once each.  Bits go wrong on every link: what the standards allow of them at that
rate and time is no fault.  What was counted since boot is a note where one port has far more than its like: no source says from
where on it is a fault, for a link that was trained or unplugged counts as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from netdoctor.api import (
    FROM_JOB,
    WITH_RUN,
    Baseline,
    Environ,
    Errors,
    Finding,
    Fix,
    Gpus,
    Intent,
    Kind,
    Libraries,
    Link,
    Loss,
    NcclChoice,
    Net,
    NetErrors,
    PathRun,
    Pci,
    Rdma,
    RdmaDevice,
    RdmaPort,
    Unavailable,
    Vantage,
    Version,
    check,
    cost,
    count,
    expectation,
    fail,
    hcas,
    ifname,
    interfaces,
    missing,
    ok,
    parse_hcas,
    record,
    skip,
    transport,
    unknown,
)

SUBJECT = "links"
# One bit in 1e12: what InfiniBand's specification allows, by NVIDIA's guide to cables (DGX SuperPOD, Widths and Rates) and by
# ibdiagnet's default (--ber_thresh); as much in IEEE 802.3 from 10 Gb/s on.
BIT_ERRORS = 1e-12
FASTEST = 800.0  # Gb/s, where a rate is not known
FEW = 1  # an error that stands alone says nothing
# Far more than its like, since boot: a rule of thumb, and so a note alone.
FAR, LEAST = 10, 10
HARD: dict[str, tuple[str, Loss]] = {
    "link_downed": ("the link went down", cost.SOMETIMES),
    "carrier_down": ("the link went down", cost.SOMETIMES),
    "link_error_recovery": ("the link was trained anew", cost.MIGHT),
    "local_link_integrity_errors": ("the link had more errors than it may (local link integrity)", cost.MIGHT),
    "local_ack_timeout_err": ("packets were not acknowledged in time", cost.MIGHT),
    # EFA (Amazon EC2 User Guide, "Monitor an Elastic Fabric Adapter"): a connection that is impaired has its rate limited.
    "impaired_remote_conn_events": ("connections to other nodes were impaired, and slowed down", cost.MIGHT),
    "unresponsive_remote_events": ("the other end of a connection did not respond", cost.MIGHT),
    "rdma_read_wr_err": ("reads of other nodes' memory failed", cost.MIGHT),
    "rdma_write_wr_err": ("writes to other nodes' memory failed", cost.MIGHT),
}
# What alone is no evidence of a link: it rises where a request fails.
REQUESTS = ("local_ack_timeout_err", "rdma_read_wr_err", "rdma_write_wr_err")
BITS: dict[str, str] = {
    "symbol_error": "symbols arrived damaged",
    "port_rcv_errors": "packets arrived damaged",
    "port_rcv_remote_physical_errors": "packets arrived that another link had damaged",
    "rx_icrc_encapsulated": "packets arrived damaged (ICRC)",
    "rx_crc_errors": "frames arrived damaged (CRC)",
    "rx_frame_errors": "frames arrived damaged",
    "rx_errors": "frames arrived damaged",
    "tx_errors": "frames could not be sent",
    "tx_carrier_errors": "frames could not be sent: no carrier",
}
# What a sum holds that says nothing of bits: frames of a length that this end does not take, as those of a neighbour with a
# larger MTU, and frames that were discarded, as mlx5's are in congestion (linux/if_link.h, struct rtnl_link_stats64).
NO_BITS: dict[str, tuple[str, ...]] = {
    "rx_errors": ("rx_length_errors",),
    "tx_errors": ("tx_aborted_errors", "tx_fifo_errors"),
}
# What a healthy network does as well: congestion, a slow reader, routes that change, frames that nobody here asked for.
DROPS = (
    *(
        "rx_dropped",
        "tx_dropped",
        "tx_aborted_errors",
        "rx_over_errors",
        "rx_fifo_errors",
        "rx_missed_errors",
        "tx_fifo_errors",
        "port_xmit_discards",
    ),
    *("excessive_buffer_overrun_errors", "rnr_nak_retry_err", "packet_seq_err", "out_of_sequence", "rx_drops"),
)
ANOTHER_WAY = "retrans_timeout_events"  # SRD of EFA takes another path


@record
class Cable:
    """A port or an interface, what it counted, and how fast it is."""

    name: str
    errors: Errors | Unavailable
    gbps: float
    efa: bool = False

    def allowed(self, seconds: float) -> float:
        """Damaged ones that a link in good order may have had."""
        return max(FEW, BIT_ERRORS * self.gbps * 1e9 * seconds)


@check(id="net.errors", title="The job's links had no errors while the all-reduce ran", cause="link_degraded")
def net_errors(
    errors: NetErrors,
    net: Net,
    rdma: Rdma,
    pci: Pci,
    gpus: Gpus,
    environ: Environ,
    libraries: Libraries,
    nccl: NcclChoice,
    intent: Intent,
    baseline: Baseline,
    paths: PathRun,
    vantage: Vantage,
) -> Iterator[Finding]:
    if intent.others is False:
        yield skip(f"{intent.why}: nothing of it goes to other nodes", subject=SUBJECT)
        return
    if (lost := errors.why_not) is not None or isinstance(errors.seconds, Unavailable):
        yield unknown(f"whether links have errors under load was not seen: {lost}", subject=SUBJECT, how=WITH_RUN)
        return
    if not vantage.job_network:
        yield unknown(f"links are those of the job's network, {vantage.network_elsewhere}", subject=SUBJECT, how=FROM_JOB)
        return
    data = transport.data_by_sockets(rdma, environ, libraries, (baseline, paths), net, intent)
    ports = () if data.sockets else _ports(rdma, pci, gpus, environ)
    links = _below(ports or (), net) if data.sockets is False else _links(net, environ, ifname.versions(nccl, libraries)[-1])
    if (lost := missing(ports, links, environ.variables if not vantage.job_environment else None)) is not None:
        yield unknown(f"which links the job uses could not be told: {lost}", subject=SUBJECT)
        return
    bare = [link.name for link in links or () if not net.cables(link)]
    if bare and intent.others is None and data.sockets:  # else a port of InfiniBand may carry the data
        yield skip(f"{', '.join(bare)}: its cable is not seen here, and {intent.why}", subject=", ".join(bare))
        if len(bare) == len(links or ()):
            return
        bare = []
    cables = [
        Cable(f"{d.name}:{p.number}", _of(errors.ports, f"{d.name}:{p.number}"), p.rate or FASTEST, d.driver == "efa")
        for d, p in ports or ()
    ]
    cables += [
        Cable(link.name, _of(errors.interfaces, link.name), (link.speed_mbps or FASTEST * 1000) / 1000)
        for link in dict.fromkeys(cable for link in links or () for cable in net.cables(link))
    ]
    yield from _judged(cables, bare, errors.seconds, vantage)


def _of(every: Mapping[str, Errors | Unavailable] | Unavailable, name: str) -> Errors | Unavailable:
    if isinstance(every, Unavailable):
        return every
    return every.get(name, Unavailable(Kind.NOT_READ, "nobody counted"))


def _ports(rdma: Rdma, pci: Pci, gpus: Gpus, environ: Environ) -> tuple[tuple[RdmaDevice, RdmaPort], ...] | Unavailable:
    setting = None if rdma.efa else environ.get("NCCL_IB_HCA")
    if (lost := missing(rdma.devices, setting)) is not None:
        return lost
    chosen = [one.device for one in hcas.subjects(rdma.devices or (), hcas.places(gpus, pci), pci, parse_hcas(setting or ""))]
    if not rdma.efa:
        return tuple((device, port) for device in chosen for port in hcas.active_ports(device))
    every = [(device, port) for device in chosen for port in device.ports or ()]
    lost = missing(*(device.ports for device in chosen), *(port.state for _, port in every))
    return lost if lost is not None else tuple((device, port) for device, port in every if port.state == "ACTIVE")


def _below(ports: tuple[tuple[RdmaDevice, RdmaPort], ...], net: Net) -> tuple[Link, ...] | Unavailable:
    """The interfaces of RoCE ports, which count what a port of InfiniBand does."""
    if isinstance(net.links, Unavailable):
        return net.links
    names = {gid.netdev for _, port in ports if port.link_layer == "Ethernet" for gid in port.gids or ()}
    return tuple(link for link in net.links if link.name in names)


def _links(net: Net, environ: Environ, version: Version) -> tuple[Link, ...] | Unavailable:
    """The interfaces that NET/Socket takes to other nodes."""
    found = interfaces.of_sockets(net, environ, version)
    return found if isinstance(found, Unavailable) else found[1]


def _judged(cables: list[Cable], bare: list[str], seconds: float, vantage: Vantage) -> Iterator[Finding]:
    found = [one for cable in cables if (one := _wrong(cable, seconds, vantage)) is not None]
    yield from found
    named = {one.subject for one in found}
    silent = {cable.name: why for cable in cables if cable.name not in named and (why := _unread(cable)) is not None}
    for why in dict.fromkeys(silent.values()):
        names = ", ".join(name for name, one in silent.items() if one == why)
        yield unknown(f"errors of {names} could not be read: {why}", subject=names, how="rdma statistic show; ip -s -s link")
    if bare:
        text = f"{', '.join(bare)}: no hardware is seen below that would count its errors"
        yield unknown(text, subject=", ".join(bare), how="on the node: netdoctor preflight --vantage node; ip -s -s link")
    good = [cable for cable in cables if cable.name not in named and cable.name not in silent]
    if good:
        yield ok(f"{count(len(good), 'link')} had no errors while the all-reduce ran", subject=SUBJECT, notes=[*_notes(good)])
    elif not found and not silent and not bare:
        yield unknown("no link that leads to other nodes is seen", subject=SUBJECT)


def _wrong(cable: Cable, seconds: float, vantage: Vantage) -> Finding | None:
    counted = cable.errors.rose if cable.errors else {}
    rose = {name: n for name, n in _told(counted).items() if isinstance(n, int)}
    wrong = [HARD[name] for name in HARD if rose.get(name)]
    wrong += [(BITS[name], cost.MIGHT) for name in BITS if rose.get(name, 0) > cable.allowed(seconds)]
    if not wrong:
        return None
    worst = max((loss for _, loss in wrong), key=lambda loss: (loss.severity.rank, loss.share or 0))
    return fail(
        f"{cable.name}, while the all-reduce ran: {'; '.join(dict.fromkeys(words for words, _ in wrong))}",
        subject=cable.name,
        loss=worst,
        fix=_mend(cable, vantage),
        measured={"seconds": round(seconds, 1), **{name: counted[name] for name in (*HARD, *BITS) if rose.get(name)}},
    )


def _told(rose: Mapping[str, int | Unavailable]) -> dict[str, int | Unavailable]:
    """Of each sum what says something of bits; a sum that did not rise has no parts."""
    found = dict(rose)
    for name, parts in NO_BITS.items():
        if whole := rose.get(name):
            lost = missing(*(rose.get(part) for part in parts))
            found[name] = max(0, whole - sum(rose.get(part) or 0 for part in parts)) if lost is None else lost
    return found


def _mend(cable: Cable, vantage: Vantage) -> Fix:
    device, colon, port = cable.name.partition(":")
    link = f"rdma statistic show link {device}/{port}"
    if cable.efa:
        text = "where it goes on, give the instance back for another: the network is the cloud's"
        return Fix(text, (link, "the same on the other nodes of the job"))
    ethernet = (f"ethtool -S {device} | grep -i -e err -e crc", f"ethtool -m {device}", f"ip -s -s link show {device}")
    rdma = (f"mlxlink -d {device} -p {port} -c -e", f"ibdiagnet -P all=1   # or: perfquery -x, {link}")
    where = f"{expectation.place(vantage)}clean or change its cable and transceivers, then the port at either end"
    return Fix(where, rdma if colon else ethernet)


def _unread(cable: Cable) -> Unavailable | None:
    """Why nothing may be said of it: what its driver does not count is no evidence, but where it counts nothing at all."""
    if isinstance(cable.errors, Unavailable):
        return cable.errors
    told = {name: n for name, n in _told(cable.errors.rose).items() if name in HARD or name in BITS}
    lost = [n for n in told.values() if isinstance(n, Unavailable) and n.kind not in (Kind.UNSUPPORTED, Kind.ABSENT)]
    if lost or any(isinstance(n, int) for name, n in told.items() if name not in REQUESTS):
        return lost[0] if lost else None
    gone = missing(*told.values())
    return Unavailable(Kind.UNSUPPORTED, "it counts no errors") if gone is None else gone


def _notes(cables: list[Cable]) -> Iterator[str]:
    for name in (*HARD, *BITS):
        have = {cable.name: n for cable in cables if cable.errors and isinstance(n := cable.errors.total.get(name), int)}
        for one, n in have.items():
            others = [m for other, m in have.items() if other != one]
            if others and n >= LEAST and n >= FAR * max(others):
                yield f"since it is up {one} counted far more {name} than its like"
    for cable in cables:
        rose = cable.errors.rose if cable.errors else {}
        if dropped := [name for name in DROPS if rose.get(name)]:
            yield f"{cable.name} lost packets for want of room or readers: {', '.join(dropped)}"
        if rose.get("rx_length_errors"):
            yield f"{cable.name} got frames of a length that it does not take (rx_length_errors): another's MTU may be larger"
        if rose.get(ANOTHER_WAY):
            yield f"{cable.name} lost packets on the way, and sent them by another: {ANOTHER_WAY}"
