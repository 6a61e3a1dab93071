"""Every listener that NCCL and torch must bind at once finds a port, and none of them takes a port that a service needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    STATE_RANKS,
    Environ,
    Finding,
    Fix,
    Intent,
    Kind,
    LocalPorts,
    NcclChoice,
    Net,
    Told,
    Unavailable,
    Vantage,
    Version,
    check,
    cost,
    count,
    fail,
    fix_sysctl,
    if_it_starts_more,
    missing,
    nccl_param,
    nccl_ports,
    ok,
    record,
    unknown,
)

RANGE, RESERVED = "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"
# Wider ranges, the narrowest first; begin and end of unlike parity, for connect(2) and bind(0) each begin with one parity
# (net/ipv4/inet_connection_sock.c).  The second leaves 28028 and 29500 alone, with the third they are reserved.
WIDER = (nccl_ports.DEFAULT_RANGE, (30000, 65535), (10240, 65535))
MANY_RANKS = 256  # more than any node has GPUs or a Gloo job has ranks per node; for where the number is not known
OWN = "a new network namespace starts at 32768 60999, whatever the node has"
Services = Mapping[int, str]  # port -> what binds it
OWN_NETWORK = ("veth", "macvlan", "ipvlan", "netkit")  # what a container of its own network namespace has as its interface


@record
class Range:
    """The range of ports, and what the job needs of it."""

    low: int
    high: int
    ports: LocalPorts
    vantage: Vantage
    job: Intent
    ranks: int | None
    need: nccl_ports.Listeners
    certain: int  # listeners of the ranks that start in any case
    guard: Services  # what a wider range must leave alone

    @property
    def free(self) -> int:
        """What was not read counts as not taken, and then nothing passes."""
        return nccl_ports.sure(self.low, self.high, self.ports.taken)

    @property
    def text(self) -> str:
        """Configured, not counted: who listens just now changes from run to run."""
        reserved = self.inside(self.ports.reserved or ())
        of = f", {reserved:,} of them reserved" if reserved else ""
        return f"the range {self.low} {self.high} has {count(self.high - self.low + 1, 'port')}{of}"

    def inside(self, some: Iterable[int]) -> int:
        return sum(1 for port in some if self.low <= port <= self.high)

    def wider(self, need: int) -> Fix:
        """The narrowest of `WIDER` that is enough, with its service ports reserved; where reserved ports are what is missing,
        this says so by itself."""
        reserved = self.ports.reserved or frozenset[int]()
        unread = isinstance(self.ports.reserved, Unavailable)  # then nothing can be appended to it
        for low, high in WIDER:
            keep = [] if unread else _unguarded(low, high, reserved, self.guard)
            if nccl_ports.sure(low, high, self.ports.taken.union(keep)) < need:
                continue
            span = (RANGE, f"{low} {high}")
            # Writing the list clears the old one (Documentation/networking/ip-sysctl.rst): what is reserved stays in it.  It
            # is written first, so that no connection gets one of these ports in between.
            kept = _list(reserved.union(keep))
            return fix_sysctl(self.vantage, RESERVED, kept, span) if keep else fix_sysctl(self.vantage, *span)
        return Fix("no port range has that many: reserve fewer ports, run fewer communicators or Gloo groups, or let PXN on")


@check(id="net.port_range", title="There are ports for every listener of the job", cause="bootstrap_ports")
def port_range(
    ports: LocalPorts, vantage: Vantage, job: Intent, net: Net, environ: Environ, nccl: NcclChoice
) -> Iterator[Finding]:
    if isinstance(ports.low, Unavailable) or isinstance(ports.high, Unavailable):
        yield unknown(f"{RANGE} could not be read: {ports.low}", subject="listeners")
        return
    version, ranks = nccl.version or None, job.ranks_most
    need = nccl_ports.listeners(ranks or MANY_RANKS, job.communicators, job.gloo_groups, version)
    certain = nccl_ports.listeners(job.ranks_here or MANY_RANKS, job.communicators, job.gloo_groups, version).total
    services = _services(net, environ, version)
    guard = {**services, **({net.master_port: "MASTER_PORT"} if net.master_port else {})}
    span = Range(ports.low, ports.high, ports, vantage, job, ranks, need, certain, guard)
    yield _listeners(span)
    yield from _connections(span, environ)
    yield from _service_ports(span, net, services)
    yield from _master_port(span, net, environ)


def _listeners(span: Range) -> Finding:
    ports, ranks, need = span.ports, span.ranks, span.need
    said: dict[str, Any] = {
        "subject": "listeners",
        "measured": {"usable": span.free, "listening": _count(span, ports.listening, None)},
        "range": f"{span.low} {span.high}",
        "reserved": _count(span, ports.reserved, "unread"),
        "ranks": ranks,
        "listeners": need.total,
    }
    if span.free < need.total and ranks is not None:
        parts = (
            ("NCCL bootstrap and proxy", need.bootstrap + need.root + need.own),
            ("NCCL RAS", need.ras),
            ("Gloo", need.gloo),
        )
        words = ", ".join(f"{name} {count}" for name, count in parts if count)
        found = fail(
            f"{need.total} listeners must bind at once ({words}), and {span.text}",
            expected=f"at least {need.total} ports in {RANGE} that are neither reserved nor taken",
            fix=span.wider(need.total),
            **said,
        )
        return found if span.free < span.certain else if_it_starts_more(found, span.job)
    if (lost := missing(ports.reserved, ports.listening)) is not None:
        return unknown(f"which ports are taken could not be read: {lost}", **said)
    if (lost := missing(span.job.nodes)) is not None:
        return unknown(f"{span.text}; the job's shape: {lost}", **said)
    if not span.vantage.job_network:
        return unknown(f"{span.text} here, {span.vantage.network_elsewhere}: {OWN}", how=FROM_JOB, **said)
    if ranks is None and span.free < need.total:
        return unknown(f"{span.text}; how many ranks run on this node is not known", how=STATE_RANKS, **said)
    who = f"of {ranks} rank{'s' * (ranks > 1)}" if ranks else f"of up to {MANY_RANKS} ranks"
    narrow = span.high - span.low < nccl_ports.DEFAULT_RANGE[1] - nccl_ports.DEFAULT_RANGE[0]
    note = f"{RANGE} is narrower than the kernel's default (32768 60999); every other program shares it"
    return ok(f"there are ports for the {need.total} listeners {who}", notes=[note] if narrow else [], **said)


def _count(span: Range, some: frozenset[int] | Unavailable, lost: str | None) -> int | str | None:
    return lost if isinstance(some, Unavailable) else span.inside(some)


def _connections(span: Range, environ: Environ) -> Iterator[Finding]:
    """Only a fail or a doubt says something of its own: an estimate that fits is part of the finding about listeners."""
    job, ranks, nodes = span.job, span.ranks, span.job.count
    lost = missing(environ.variables)
    if lost is not None and (job.all_to_all or job.told is not Told.CONFIGURATION):
        yield unknown(f"how many nodes, and whether PXN is off: the job's variables: {lost}", subject="connections")
        return
    if isinstance(nodes, Unavailable):
        yield unknown(f"how many nodes: {nodes}", subject="connections")
        return
    if nodes < 2:
        return
    pxn = nccl_param(environ.get("NCCL_PXN_DISABLE"), 0) != 1  # src/graph/paths.cc, ncclTopoComputePaths: nothing but 1 is off
    here, need = ranks or MANY_RANKS, span.need.total
    kept = nccl_ports.kept_by_connections(here, here * nodes, job.communicators, all_to_all=job.all_to_all, pxn=pxn)
    if not need <= span.free < need + kept:
        return
    if ranks is None:
        text = f"whether connections from other nodes find ports: {span.text}; how many ranks run on this node is not known"
        yield unknown(text, subject="connections", how=STATE_RANKS, nodes=nodes)
        return
    every = "all-to-all without PXN: a connection from every remote rank to every local one"
    found = fail(
        f"about {kept} connections from other nodes keep a port each, beside {need} listeners; {span.text}",
        subject="connections",
        loss=cost.SOMETIMES,
        fix=span.wider(need + kept),
        how=every if job.all_to_all and not pxn else None,
        why="`bind: Address already in use` while connections are set up",
        measured={"usable": span.free},
        nodes=nodes,
        ranks=ranks,
        estimate=kept,
        all_to_all=job.all_to_all,
    )
    few = job.ranks_here or here
    least = nccl_ports.kept_by_connections(few, few * nodes, job.communicators, all_to_all=job.all_to_all, pxn=pxn)
    yield found if span.free < span.certain + least else if_it_starts_more(found, job)


def _services(net: Net, environ: Environ, version: Version | None) -> Services:
    """Ports that a service of the job binds by number; what could not be read counts as there."""
    found = {}
    # src/bootstrap.cc: nothing but 1, the default, is on
    if nccl_param(environ.get("NCCL_RAS_ENABLE"), 1, version) == 1 and (version is None or version >= nccl_ports.RAS_FROM):
        found[nccl_ports.RAS_PORT] = "NCCL RAS"
    if not net.master_port:
        found[nccl_ports.STORE_PORT] = "torch's store (default MASTER_PORT)"
    return found


def _unguarded(low: int, high: int, reserved: frozenset[int], services: Services) -> list[int]:
    """The services' ports that any outbound connection may be given."""
    found = sorted(port for port in services if low <= port <= high and port not in reserved)
    # NCCL src/ras/client_support.cc: where RAS cannot bind it says so at INFO, and the job goes on, without `ncclras`.
    return [] if found == [nccl_ports.RAS_PORT] else found


def _service_ports(span: Range, net: Net, services: Services) -> Iterator[Finding]:
    """A range whose floor was lowered: any outbound connection may sit on a port that a service binds later."""
    reserved = span.ports.reserved
    if isinstance(reserved, Unavailable) or not (unguarded := _unguarded(span.low, span.high, reserved, services)):
        return
    if isinstance(net.master_port, Unavailable):
        yield unknown(f"whether MASTER_PORT is set, which moves torch's store: {net.master_port}", subject="service ports")
        return
    listed = ", ".join(f"{port} ({services[port]})" for port in unguarded)
    yield fail(
        f"the port range begins at {span.low} and holds {listed}: any connection may be given these ports",
        subject="service ports",
        loss=cost.SOMETIMES,
        expected=f"{RESERVED} holds {_list(unguarded)}",
        fix=fix_sysctl(span.vantage, RESERVED, _list(reserved.union(unguarded))),
        why="now and then a job does not start: its service port is taken by somebody's outbound connection",
        range=f"{span.low} {span.high}",
        ports=unguarded,
    )


def _master_port(span: Range, net: Net, environ: Environ) -> Iterator[Finding]:
    port, here = net.master_port, net.master_is_here
    if isinstance(port, Unavailable) and port.kind == Kind.MALFORMED:
        yield fail(f"MASTER_PORT is not a port: {port.detail}", subject="MASTER_PORT")
    elif isinstance(port, Unavailable):
        yield unknown(f"MASTER_PORT: {port}", subject="MASTER_PORT")
    elif port and isinstance(here, Unavailable):
        yield unknown(f"whether MASTER_ADDR is this node could not be told: {here}", subject="MASTER_PORT", port=port)
    elif port and here:  # else judged on the node that owns it
        early = (
            not isinstance(environ.launcher, Unavailable) and environ.launcher.by_options
        )  # it has not started: nothing of the job listens
        yield _own_master_port(span, net, port, early=early)


def _own_master_port(span: Range, net: Net, port: int, *, early: bool) -> Finding:
    ports, vantage = span.ports, span.vantage
    said: dict[str, Any] = {"subject": "MASTER_PORT", "port": port}
    if (lost := missing(ports.listening, ports.reserved)) is not None:
        return unknown(f"whether MASTER_PORT {port} is free could not be read: {lost}", **said)
    if port in (ports.listening or ()):
        owners = ports.owners.get(port, frozenset())
        measured = {"owners": sorted(owners)}
        if vantage.job_user and owners and vantage.euid not in owners:
            users = ", ".join(str(uid) for uid in sorted(owners))
            fix = Fix("take another port", ("export MASTER_PORT=…",))
            return fail(f"MASTER_PORT {port} is taken by a process of user id {users}", fix=fix, measured=measured, **said)
        if early and vantage.job_network:
            fix = Fix("take another port", ("torchrun --standalone …", "torchrun --master-port …"))
            text = f"something listens on port {port}, where the launcher's store must: it stops with `Address already in use`"
            return fail(text, fix=fix, measured=measured, **said)
        text = f"something listens on MASTER_PORT {port}: the job's own store, or another job's"
        return unknown(text, how=f"ss -ltnp 'sport = :{port}'", measured=measured, **said)
    if not vantage.job_network:
        return unknown(f"MASTER_PORT {port} is free here, {span.vantage.network_elsewhere}", how=FROM_JOB, **said)
    if span.inside({port}.difference(ports.reserved or ())) and not _own_network(vantage, net):
        return fail(
            f"MASTER_PORT {port} lies inside {RANGE} ({span.low} {span.high}): any connection of this node may be given it",
            loss=cost.SOMETIMES,
            expected=f"a port outside {span.low}–{span.high}, or one in {RESERVED}",
            fix=Fix("take a port below the range", (f"export MASTER_PORT={nccl_ports.STORE_PORT}",)),
            why="now and then the job does not start: `Address already in use`",
            **said,
        )
    return ok(f"MASTER_PORT {port} is free", **said)


def _own_network(vantage: Vantage, net: Net) -> bool:
    """Whether this is a container's own network namespace, where only the job itself can take its port."""
    link = net.link(net.default_route.interface) if vantage.in_container and net.default_route else None
    return link.kind in OWN_NETWORK if link else False


def _list(ports: Iterable[int]) -> str:
    """As the kernel takes and gives lists of ports: ``1,2-4,10`` (Documentation/networking/ip-sysctl.rst)."""
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port == runs[-1][-1] + 1:
            runs[-1][1:] = [port]
        else:
            runs.append([port])
    return ",".join("-".join(map(str, run)) for run in runs)
