"""Every listener that NCCL and torch must bind at once finds a port, and none of them takes a port that a service needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from netdoctor.api import (
    Environ,
    Finding,
    Fix,
    Gpus,
    JobShape,
    Kind,
    LocalPorts,
    NcclChoice,
    Net,
    Severity,
    Unavailable,
    Vantage,
    check,
    fail,
    fix_sysctl,
    nccl_param,
    nccl_ports,
    ok,
    unknown,
)

RANGE, RESERVED = "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"
# Wider ranges, the narrowest first; begin and end of unlike parity, for connect(2) and bind(0) each begin with one parity
# (net/ipv4/inet_connection_sock.c).  The second leaves 28028 and 29500 alone, with the third they are reserved.
WIDER = (nccl_ports.DEFAULT_RANGE, (30000, 65535), (10240, 65535))
MANY_RANKS = 256  # more than any node has GPUs or a Gloo job has ranks per node; for where the number is not known
RANKS = "job: {ranks_per_node: …} in the configuration"
HERE = "look from the job's own network namespace (netdoctor run -- …): a new one starts at 32768 60999, whatever the node has"
Services = Mapping[int, str]  # port -> what binds it
OWN_NETWORK = ("veth", "macvlan", "ipvlan", "netkit")  # what a container of its own network namespace has as its interface


@check(id="net.port_range", title="There are ports for every listener of the job", cause="bootstrap_ports")
def port_range(
    ports: LocalPorts,
    vantage: Vantage,
    job: JobShape,
    net: Net,
    environ: Environ,
    gpus: Gpus,
    nccl: NcclChoice,
) -> Iterator[Finding]:
    if isinstance(ports.low, Unavailable) or isinstance(ports.high, Unavailable):
        yield unknown(f"{RANGE} could not be read: {ports.low}", subject="listeners")
        return
    span = (ports.low, ports.high)
    version = nccl.version or None
    services = _services(net, environ, version)
    guard = {**services, **_stated_master_port(net)}  # what a wider range must leave alone
    yield from _listeners(span, ports, vantage, job, job.ranks_here(environ, gpus), version, guard)
    yield from _connections(span, ports, vantage, job, environ, job.ranks_here(environ, gpus), version, guard)
    yield from _service_ports(span, ports, vantage, net, services)
    yield from _master_port(span, ports, vantage, net)


def _taken(ports: LocalPorts) -> frozenset[int]:
    """What is known to be taken; missing lists count as empty, and then nothing passes."""
    reserved, listening = ports.reserved, ports.listening
    none: frozenset[int] = frozenset()
    return (none if isinstance(reserved, Unavailable) else reserved) | (
        none if isinstance(listening, Unavailable) else listening
    )


def _listeners(
    span: tuple[int, int],
    ports: LocalPorts,
    vantage: Vantage,
    job: JobShape,
    ranks: int | None,
    version: tuple[int, int, int] | None,
    guard: Services,
) -> Iterator[Finding]:
    free = nccl_ports.sure(*span, _taken(ports))
    have = _span_text(span, ports)  # in messages: what is configured; who listens just now changes from run to run
    need = nccl_ports.listeners(ranks or MANY_RANKS, job.communicators, job.gloo_groups, version)
    evidence: dict[str, Any] = {
        "range": f"{span[0]} {span[1]}",
        "reserved": "unread" if isinstance(ports.reserved, Unavailable) else _inside(span, ports.reserved),
        "ranks": ranks,
        "listeners": need.total,
    }
    measured = {
        "usable": free,
        "listening": None if isinstance(ports.listening, Unavailable) else _inside(span, ports.listening),
    }
    if free < need.total and ranks is not None:
        yield fail(
            f"{need.total} listeners must bind at once ({_words(need)}), and {have}",
            subject="listeners",
            expected=f"at least {need.total} ports in {RANGE} that are neither reserved nor taken",
            fix=_widen(vantage, ports, need.total, guard),
            measured=measured,
            **evidence,
        )
        return
    missing = next((one for one in (ports.reserved, ports.listening) if isinstance(one, Unavailable)), None)
    if missing is not None:
        yield unknown(f"which ports are taken could not be read: {missing}", subject="listeners", measured=measured, **evidence)
    elif isinstance(job.nodes, Unavailable):
        yield unknown(f"{have}; the job's shape: {job.nodes}", subject="listeners", measured=measured, **evidence)
    elif not vantage.job_network:
        yield unknown(f"{have} here, {_place(vantage)}", subject="listeners", how=HERE, measured=measured, **evidence)
    elif ranks is None and free < need.total:
        yield unknown(
            f"{have}; how many ranks run on this node is not known",
            subject="listeners",
            how=RANKS,
            measured=measured,
            **evidence,
        )
    else:
        who = (
            f"{need.total} listeners of {ranks} rank{'s' * (ranks > 1)}"
            if ranks
            else f"{need.total} listeners of up to {MANY_RANKS} ranks"
        )
        notes = []
        if span[1] - span[0] < nccl_ports.DEFAULT_RANGE[1] - nccl_ports.DEFAULT_RANGE[0]:
            notes.append(f"{RANGE} is narrower than the kernel's default (32768 60999); every other program shares it")
        yield ok(f"there are ports for the {who}", subject="listeners", notes=notes, measured=measured, **evidence)


def _connections(
    span: tuple[int, int],
    ports: LocalPorts,
    vantage: Vantage,
    job: JobShape,
    environ: Environ,
    ranks: int | None,
    version: tuple[int, int, int] | None,
    guard: Services,
) -> Iterator[Finding]:
    """Only a fail or a doubt says something of its own: an estimate that fits is part of the finding about listeners."""
    if isinstance(environ.variables, Unavailable) and (job.all_to_all or not job.nodes_stated):
        why = f"how many nodes, and whether PXN is off: the job's variables: {environ.variables}"
        yield unknown(why, subject="connections")
        return
    nodes = job.node_count(environ)
    if isinstance(nodes, Unavailable):
        yield unknown(f"how many nodes: {nodes}", subject="connections")
        return
    if nodes < 2:
        return
    no_pxn = environ.get("NCCL_PXN_DISABLE")
    pxn = nccl_param(no_pxn, 0) != 1  # src/graph/paths.cc, ncclTopoComputePaths: nothing but 1 is off
    here = ranks or MANY_RANKS
    kept = nccl_ports.kept_by_connections(here, here * nodes, job.communicators, all_to_all=job.all_to_all, pxn=pxn)
    need = nccl_ports.listeners(here, job.communicators, job.gloo_groups, version).total
    free = nccl_ports.sure(*span, _taken(ports))
    if not need <= free < need + kept:
        return
    if ranks is None:
        yield unknown(
            f"whether connections from other nodes find ports: {_span_text(span, ports)}; how many ranks run on this node "
            "is not known",
            subject="connections",
            how=RANKS,
            nodes=nodes,
        )
        return
    how = (
        "all-to-all without PXN: a connection from every remote rank to every local one" if job.all_to_all and not pxn else None
    )
    yield fail(
        f"about {kept} connections from other nodes keep a port each, beside {need} listeners; {_span_text(span, ports)}",
        subject="connections",
        severity=Severity.WARNING,
        fix=_widen(vantage, ports, need + kept, guard),
        how=how,
        why="`bind: Address already in use` while connections are set up",
        measured={"usable": free},
        nodes=nodes,
        ranks=ranks,
        estimate=kept,
        all_to_all=job.all_to_all,
    )


def _services(net: Net, environ: Environ, version: tuple[int, int, int] | None) -> Services:
    """Ports that a service of the job binds by number; what could not be read counts as there."""
    found = {}
    # src/bootstrap.cc: nothing but 1, the default, is on
    if nccl_param(environ.get("NCCL_RAS_ENABLE"), 1) == 1 and (version is None or version >= nccl_ports.RAS_FROM):
        found[nccl_ports.RAS_PORT] = "NCCL RAS"
    if not net.master_port:
        found[nccl_ports.STORE_PORT] = "torch's store (default MASTER_PORT)"
    return found


def _stated_master_port(net: Net) -> Services:
    return {net.master_port: "MASTER_PORT"} if net.master_port else {}


def _unguarded(span: tuple[int, int], reserved: frozenset[int], services: Services) -> list[int]:
    """The services' ports that any outbound connection may be given."""
    found = sorted(port for port in services if span[0] <= port <= span[1] and port not in reserved)
    # NCCL src/ras/client_support.cc: where RAS cannot bind it says so at INFO, and the job goes on, without `ncclras`.
    return [] if found == [nccl_ports.RAS_PORT] else found


def _service_ports(
    span: tuple[int, int], ports: LocalPorts, vantage: Vantage, net: Net, services: Services
) -> Iterator[Finding]:
    """A range whose floor was lowered: any outbound connection may sit on a port that a service binds later."""
    if isinstance(ports.reserved, Unavailable):
        return
    unguarded = _unguarded(span, ports.reserved, services)
    if not unguarded:
        return
    if isinstance(net.master_port, Unavailable):
        yield unknown(f"whether MASTER_PORT is set, which moves torch's store: {net.master_port}", subject="service ports")
    else:
        listed = ", ".join(f"{port} ({services[port]})" for port in unguarded)
        yield fail(
            f"the port range begins at {span[0]} and holds {listed}: any connection may be given these ports",
            subject="service ports",
            severity=Severity.WARNING,
            expected=f"{RESERVED} holds {_list(unguarded)}",
            fix=fix_sysctl(vantage, RESERVED, _list(ports.reserved.union(unguarded))),
            why="now and then a job does not start: its service port is taken by somebody's outbound connection",
            range=f"{span[0]} {span[1]}",
            ports=unguarded,
        )


def _master_port(span: tuple[int, int], ports: LocalPorts, vantage: Vantage, net: Net) -> Iterator[Finding]:
    port, master = net.master_port, net.master
    if port is None:
        return
    if isinstance(port, Unavailable):
        if port.kind == Kind.MALFORMED:
            yield fail(f"MASTER_PORT is not a port: {port.detail}", subject="MASTER_PORT")
        else:
            yield unknown(f"MASTER_PORT: {port}", subject="MASTER_PORT")
        return
    if isinstance(master, Unavailable) or (master is not None and isinstance(master.local, Unavailable)):
        why = master if isinstance(master, Unavailable) else master.local
        yield unknown(f"whether MASTER_ADDR is this node could not be told: {why}", subject="MASTER_PORT", port=port)
        return
    if master is not None and not master.local:
        return  # judged on the node that owns it
    listening, reserved = ports.listening, ports.reserved
    if isinstance(listening, Unavailable) or isinstance(reserved, Unavailable):
        gone = listening if isinstance(listening, Unavailable) else reserved
        yield unknown(f"whether MASTER_PORT {port} is free could not be read: {gone}", subject="MASTER_PORT", port=port)
    elif port in listening:
        yield _taken_master(port, ports.owners.get(port, frozenset()), vantage)
    elif not vantage.job_network:
        yield unknown(f"MASTER_PORT {port} is free here, {_place(vantage)}", subject="MASTER_PORT", how=HERE, port=port)
    elif span[0] <= port <= span[1] and port not in reserved and not _own_network(vantage, net):
        yield fail(
            f"MASTER_PORT {port} lies inside {RANGE} ({span[0]} {span[1]}): any connection of this node may be given it",
            subject="MASTER_PORT",
            severity=Severity.WARNING,
            expected=f"a port outside {span[0]}–{span[1]}, or one in {RESERVED}",
            fix=Fix("take a port below the range", (f"export MASTER_PORT={nccl_ports.STORE_PORT}",)),
            why="now and then the job does not start: `Address already in use`",
            port=port,
        )
    else:
        yield ok(f"MASTER_PORT {port} is free", subject="MASTER_PORT", port=port)


def _taken_master(port: int, owners: frozenset[int], vantage: Vantage) -> Finding:
    if vantage.job_user and owners and vantage.euid not in owners:
        users = ", ".join(str(uid) for uid in sorted(owners))
        return fail(
            f"MASTER_PORT {port} is taken by a process of user id {users}",
            subject="MASTER_PORT",
            fix=Fix("take another port", ("export MASTER_PORT=…",)),
            measured={"owners": sorted(owners)},
            port=port,
        )
    return unknown(
        f"something listens on MASTER_PORT {port}: the job's own store, or another job's",
        subject="MASTER_PORT",
        how=f"ss -ltnp 'sport = :{port}'",
        measured={"owners": sorted(owners)},
        port=port,
    )


def _own_network(vantage: Vantage, net: Net) -> bool:
    """Whether this is a container's own network namespace, where only the job itself can take its port."""
    route = net.default_route
    if not vantage.in_container or isinstance(route, Unavailable) or route is None:
        return False
    link = net.link(route.interface)
    return link is not None and link.kind in OWN_NETWORK


def _widen(vantage: Vantage, ports: LocalPorts, need: int, guard: Services) -> Fix:
    """The narrowest of `WIDER` that is enough, with its service ports reserved; where reserved ports are what is missing,
    this says so by itself."""
    unread = isinstance(ports.reserved, Unavailable)  # then nothing can be appended to it
    reserved = frozenset[int]() if isinstance(ports.reserved, Unavailable) else ports.reserved
    for low, high in WIDER:
        keep = [] if unread else _unguarded((low, high), reserved, guard)
        if nccl_ports.sure(low, high, _taken(ports).union(keep)) < need:
            continue
        span = (RANGE, f"{low} {high}")
        # Writing the list clears the old one (Documentation/networking/ip-sysctl.rst): what is reserved stays in it.  It is
        # written first, so that no connection gets one of these ports in between.
        return fix_sysctl(vantage, RESERVED, _list(reserved.union(keep)), span) if keep else fix_sysctl(vantage, *span)
    return Fix("no port range has that many: reserve fewer ports, run fewer communicators or Gloo groups, or let PXN on")


def _list(ports: Iterable[int]) -> str:
    """As the kernel takes and gives lists of ports: ``1,2-4,10`` (Documentation/networking/ip-sysctl.rst)."""
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port == runs[-1][-1] + 1:
            runs[-1][1:] = [port]
        else:
            runs.append([port])
    return ",".join("-".join(map(str, run)) for run in runs)


def _span_text(span: tuple[int, int], ports: LocalPorts) -> str:
    """Configured, not counted: equal on every run of one state."""
    reserved = 0 if isinstance(ports.reserved, Unavailable) else _inside(span, ports.reserved)
    of = f", {reserved} of them reserved" if reserved else ""
    return f"the range {span[0]} {span[1]} has {span[1] - span[0] + 1} ports{of}"


def _inside(span: tuple[int, int], some: frozenset[int]) -> int:
    return sum(1 for port in some if span[0] <= port <= span[1])


def _words(need: nccl_ports.Listeners) -> str:
    parts = (("NCCL bootstrap and proxy", need.bootstrap + need.root), ("NCCL RAS", need.ras), ("Gloo", need.gloo))
    return ", ".join(f"{name} {count}" for name, count in parts if count)


def _place(vantage: Vantage) -> str:
    return vantage.why_not or "seen outside the job's network namespace"
