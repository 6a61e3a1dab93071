"""NCCL and Gloo take interfaces that reach the other nodes.

Judged by address and route.  A name (docker0, br-…, virbr0) matters only where another interface has the route.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    DeviceNames,
    Environ,
    Finding,
    Fix,
    Intent,
    Kind,
    Libraries,
    Link,
    NcclChoice,
    Net,
    PathRun,
    Peer,
    Rdma,
    Reach,
    Spread,
    Unavailable,
    Vantage,
    Version,
    between_nodes,
    check,
    cost,
    fail,
    fix_environment,
    ifname,
    interfaces,
    missing,
    ok,
    reaching,
    record,
    transport,
    unknown,
)

NODES = "job: {nodes: N} in the configuration"
GROUPS = "state job.gloo_groups, 0 where it makes none: job: {gloo_groups: N}, or NETDOCTOR_JOB_GLOO_GROUPS=N"
PEERS = "expected: {peers: [HOST:PORT, …]} in the configuration, with the address that another node uses"


@record
class Seen:
    """What the judgements share."""

    net: Net
    links: tuple[Link, ...]
    vantage: Vantage
    intent: Intent
    names: DeviceNames
    reach: Reach

    @property
    def several(self) -> bool:
        """The job runs on more than this node, as far as anything says so."""
        return self.intent.others is True

    def wrong(self, message: str, subject: str, **said: Any) -> Finding:
        """What is a fault of a job with other nodes."""
        loss = None if self.several else cost.SOMETIMES
        return between_nodes(fail(message, subject=subject, loss=loss, **said), self.intent)

    def good(self, message: str, subject: str, notes: Iterable[str] = (), **evidence: Any) -> Finding:
        """A pass, where what is seen is the job's own."""
        if self.intent.open is not None:
            return unknown(f"{message}; how many nodes the job has: {self.intent.open}", subject=subject, how=NODES, **evidence)
        if self.vantage.job_network and self.vantage.job_environment:
            return ok(message, subject=subject, notes=notes, **evidence)
        return unknown(f"{message}; {self.vantage.elsewhere}", subject=subject, how=FROM_JOB, **evidence)


@check(id="net.socket_ifname", title="NCCL and Gloo take interfaces that reach the other nodes", cause="socket_ifname")
def socket_ifname(
    net: Net,
    vantage: Vantage,
    environ: Environ,
    nccl: NcclChoice,
    intent: Intent,
    rdma: Rdma,
    libraries: Libraries,
    baseline: Baseline,
    paths: PathRun,
    names: DeviceNames,
    reach: Reach,
) -> Iterator[Finding]:
    if isinstance(net.links, Unavailable):
        yield unknown(f"the interfaces could not be read: {net.links}", subject="NCCL")
        return
    seen = Seen(net, net.links, vantage, intent, names, reach)
    yield from (*interfaces.loopback_down(net.links, vantage), *_master(seen, environ, intent.nodes or None))
    for peer in net.peers or ():
        yield from _unreachable(seen, peer, peer.name)
    variables = {name: environ.get(name) for name in ifname.VARIABLES}
    if (lost := missing(*variables.values())) is not None:
        yield unknown(f"the job's NCCL variables could not be read: {lost}", subject="NCCL")
    else:
        settings = {name: value or "" for name, value in variables.items() if value is not None}
        versions = ifname.versions(nccl, libraries)
        yield from _nccl(seen, settings, nccl, baseline, versions)
        data = transport.data_by_sockets(rdma, environ, libraries, (baseline, paths), net, intent)
        for one in _sockets(seen, settings, versions[-1], data.why):
            if data.sockets:
                yield one
            elif data.sockets is None:
                yield unknown(f"{one.message}, if sockets carry it ({data.why})", subject=one.subject, how="run the all-reduce")
            elif one.loss and interfaces.meant(settings):
                yield seen.good("RDMA carries the data, sockets what NCCL starts with", one.subject, [one.message])
    if intent.gloo_groups:
        yield from _gloo(seen, environ.get("GLOO_SOCKET_IFNAME"), intent.by_gloo or intent.gpus == ())  # else by NCCL alone


def _master(seen: Seen, environ: Environ, nodes: int | None) -> Iterator[Finding]:
    """Only what is wrong or open: a MASTER_ADDR that is reached is part of the finding about NCCL."""
    if (master := seen.net.master) is None:
        return
    if isinstance(master, Unavailable):
        yield unknown(f"MASTER_ADDR could not be read: {master}", subject="MASTER_ADDR")
        return
    launcher, every = environ.launcher, master.addresses or ()
    first = None if isinstance(launcher, Unavailable) else launcher.first_node(nodes)
    inside = seen.intent.others is not False and bool(every) and all(map(interfaces.is_loopback, every))
    if inside and (interfaces.is_loopback(master.name) or first is False):
        resolves = "" if interfaces.is_loopback(master.name) else f", which resolves to {' '.join(every)} here,"
        text = f"{master.variable}={master.name}{resolves} is every node's own loopback: no other node reaches rank 0"
        wanted = "a name or address of rank 0's node that the other nodes reach"
        yield seen.wrong(text, "MASTER_ADDR", expected=wanted, how=f"export {master.variable}=… of rank 0's node")
    elif inside and seen.several and first is None:  # as Debian has it for a host's own name
        text = f"{master.variable}={master.name} resolves to {' '.join(every)} here: right on rank 0's own node only"
        yield unknown(text, subject="MASTER_ADDR", how=f"getent hosts {master.name}, on each node")
    else:
        yield from (found := tuple(_unreachable(seen, master, "MASTER_ADDR")))
        if not found and first and seen.several and master.local is False:  # a wildcard's address; a Service's leads back here
            text = f"{master.variable}={master.name} is {' '.join(every)}, no address of this node, and rank 0 is here"
            yield unknown(text, subject="MASTER_ADDR", how=f"getent hosts {master.name}; is it a Service that leads back here?")


def _unreachable(seen: Seen, peer: Peer, subject: str) -> Iterator[Finding]:
    """Another node that no connection comes to: no job of several nodes starts."""
    why = reaching.unreached(peer, (seen.reach.paths or {}).get(peer.name))
    if why and why.certain and seen.intent.others is not False:
        yield seen.wrong(why.text, subject, how=why.how, cause=why.cause, addresses=list(peer.addresses or ()))
    elif why:
        perhaps = fail(why.text, subject=subject, how=why.how) if why.silent and seen.several else None
        yield replace(unknown(why.text, subject=subject, how=why.how), perhaps=perhaps)


def _nccl(
    seen: Seen, settings: dict[str, str], nccl: NcclChoice, baseline: Baseline, versions: tuple[Version, ...]
) -> Iterator[Finding]:
    """The interface of NCCL's bootstrap and of NET/IB's out-of-band traffic."""
    asked = ifname.resolved(settings, seen.net.peers or ())
    picks = [ifname.choose(seen.links, version, asked) for version in versions]
    bare = {name: value for name, value in settings.items() if name != "NCCL_COMM_ID"}
    rules = [ifname.choose(seen.links, version, bare) for version in versions]  # what a library was asked with
    evidence: dict[str, Any] = {"settings": settings, "emulated": list(dict.fromkeys(map(_text, rules)))}
    answer = _answer(nccl, baseline)
    if answer is not None:
        evidence["nccl"] = _text(answer)
        if all(_text(one) != _text(answer) for one in rules):
            yield unknown(
                f"NCCL takes {_text(answer)}, and by the rules of its source it would take {_text(rules[0])}",
                subject="emulation",
                how="tell the authors of netdoctor: `ip -json addr`, NCCL_SOCKET_IFNAME and the version",
                **evidence,
            )
        if "NCCL_COMM_ID" not in settings:
            picks = [answer]
    if nccl.code and "NCCL_COMM_ID" not in settings:
        yield _refused(seen, settings, nccl, evidence)
        return
    judged = [_judge(seen, settings, pick, evidence) for pick in dict.fromkeys(picks)]
    if len(judged) > 1 and judged[0].status is not judged[1].status:
        yield unknown(
            f"it depends on the NCCL version: before 2.28 {_text(picks[0])}, from 2.28 on {_text(picks[1])}",
            subject="NCCL",
            how="give the job's Python with --python",
            **evidence,
        )
    else:
        yield judged[0]


def _answer(nccl: NcclChoice, baseline: Baseline) -> tuple[ifname.Pick, ...] | None:
    """What NCCL itself took: in the all-reduce, or when asked."""
    log = transport.log_of(baseline.run)
    if log and log.bootstrap_ifname and log.bootstrap_address:
        return (ifname.Pick(log.bootstrap_ifname, log.bootstrap_address.partition("%")[0]),)
    if missing(nccl.interface, nccl.address) is not None or (nccl.interface is None and not nccl.code):
        return None
    return (ifname.Pick(nccl.interface, nccl.address or ""),) if nccl.interface else ()


def _refused(seen: Seen, settings: dict[str, str], nccl: NcclChoice, evidence: dict[str, Any]) -> Finding:
    said = nccl.error or f"ncclResult_t {nccl.code}"
    named = settings.get("NCCL_SOCKET_IFNAME", "")
    if len(named) > 1 and nccl.interface is None:
        return _none(seen, named, evidence)
    return fail(f"NCCL cannot start its bootstrap on {nccl.interface or 'any interface'}: {said}", subject="NCCL", **evidence)


def _none(seen: Seen, named: str, evidence: dict[str, Any]) -> Finding:
    change = interfaces.to_set("NCCL_SOCKET_IFNAME", seen.names.meant(interfaces.candidates(seen.net)))
    hint = seen.names.why_no_interface(named)
    return fail(
        f"NCCL_SOCKET_IFNAME={named} matches no interface that NCCL can use{hint}: NCCL stops with `no socket interface found`",
        subject="NCCL",
        expected=f"one of: {interfaces.to_choose(seen.net, several=seen.intent.others is not False)}",
        fix=fix_environment(seen.vantage, change, unset="=" not in change),
        **evidence,
    )


def _judge(
    seen: Seen, settings: dict[str, str], pick: tuple[ifname.Pick, ...] | Unavailable, evidence: dict[str, Any]
) -> Finding:
    if isinstance(pick, Unavailable):
        if pick.kind == Kind.MALFORMED:
            return fail(f"NCCL refuses {pick.detail}", subject="NCCL", cause="env_misuse", **evidence)
        return unknown(f"the interface depends on {pick.detail}", subject="NCCL", **evidence)
    if not pick and (comm_id := settings.get("NCCL_COMM_ID")):  # src/bootstrap.cc: before and instead of NCCL_SOCKET_IFNAME
        return fail(
            f"NCCL_COMM_ID={comm_id}: no interface is in its subnet: NCCL stops with `No usable listening interface found`",
            subject="NCCL",
            cause="env_misuse",
            fix=fix_environment(seen.vantage, "NCCL_COMM_ID", unset=True),
            **evidence,
        )
    if not pick:
        if named := settings.get("NCCL_SOCKET_IFNAME"):
            return _none(seen, named, evidence)
        return fail("there is no interface with an address that NCCL can use", subject="NCCL", **evidence)
    name, ip = pick[0]
    link = seen.net.link(name)
    if not link:
        return unknown(f"NCCL takes {name}, which is not among this namespace's interfaces", subject="NCCL", **evidence)
    evidence = {**evidence, "interface": name, "address": ip}
    better = interfaces.candidates(seen.net, besides=link.name)
    meant, several = interfaces.meant(settings), seen.intent.others is not False
    wrong = interfaces.fault(link, ip, better, seen.net, several=several, named=meant)
    here = not link.up or any(one.ip == ip and "dadfailed" in one.flags for one in link.addresses)  # no job can bind it
    if wrong and (here or several):
        found = fail(
            f"NCCL takes {name} ({ip}), {wrong}",
            subject="NCCL",
            loss=cost.STOPS if here or seen.several else cost.SOMETIMES,
            expected=f"an interface that reaches the other nodes{': ' + ', '.join(better) if better else ''}",
            fix=fix_environment(seen.vantage, f"NCCL_SOCKET_IFNAME=={better[0]}") if better else None,
            **evidence,
        )
        return found if here else between_nodes(found, seen.intent)
    if interfaces.stays(seen.net, link, named=meant) and isinstance(seen.net.default_route, Unavailable):
        text = f"NCCL takes {name} ({ip}), a container or tunnel network; the default route: {seen.net.default_route}"
        return unknown(text, subject="NCCL", **evidence)
    if any(one.ip == ip and "tentative" in one.flags for one in link.addresses):
        text = f"NCCL takes {name} ({ip}), whose address is tentative: bind fails until the kernel has looked for its duplicate"
        return unknown(text, subject="NCCL", how="look again in some seconds", **evidence)
    return _reach(seen, link, name, ip, evidence)


def _reach(seen: Seen, link: Link, name: str, ip: str, evidence: dict[str, Any]) -> Finding:
    what = f"NCCL takes {name} ({ip}{interfaces.given_by_itself(ip)})"
    if not seen.several:
        narrow = link.loopback or interfaces.is_link_local6(ip)
        notes = [f"{name} ({ip}) serves jobs on this node alone; with other nodes NCCL would hang"] if narrow else []
        return seen.good(f"{what}; no other node is named", "NCCL", notes, **evidence)
    far = seen.net.others
    if reached := next((one.name for one in far if link.name in one.reached_by()), None):
        return seen.good(f"{what}, which leads to {reached}", "NCCL", **evidence)
    master = seen.net.master
    if master and master.local is True and ip in (master.addresses or ()):
        return seen.good(f"{what}, the address of {master.variable}, which the other nodes use", "NCCL", **evidence)
    via = sorted(frozenset[str]().union(*(one.reached_by() for one in far)))
    more = f" ({far[0].name} is reached by {', '.join(via)})" if via else ""
    return unknown(f"{what}; nothing here shows that it reaches the other nodes{more}", subject="NCCL", how=PEERS, **evidence)


def _sockets(seen: Seen, settings: dict[str, str], version: Version, why: str) -> Iterator[Finding]:
    """NET/Socket spreads its channels evenly over all interfaces that it takes."""
    picks = ifname.choose(seen.links, version, settings, "socket")
    spread = Spread(seen.net, picks or (), interfaces.meant(settings))
    best = spread.better if seen.several else {}
    if len(spread.picks) < 2 and not best:
        return
    names, stray, outer = spread.names, ", ".join(spread.stray), ",".join(link.name for link in spread.outer)
    evidence: dict[str, Any] = {"interfaces": [link.name for link in spread.links], "carrier": why}
    if not seen.several and not (stray and outer):
        notes = [f"with several nodes, NET/Socket would also take {stray}"] if stray else []
        yield seen.good(f"NET/Socket takes {names}", "NET/Socket", notes, **evidence)
    elif not outer or (stray and isinstance(seen.net.default_route, Unavailable)):
        yield unknown(
            f"NET/Socket takes {stray}: container or tunnel networks; nothing shows that other nodes are reached",
            subject="NET/Socket",
            how=PEERS,
            **evidence,
        )
    elif stray:
        yield seen.wrong(
            f"NET/Socket also takes {stray}: {spread.inside} lead to no other node",
            "NET/Socket",
            expected=f"only {outer.replace(',', ', ')}",
            fix=fix_environment(seen.vantage, f"NCCL_SOCKET_IFNAME=={outer}"),
            **evidence,
        )
    elif scoped := ", ".join(spread.scoped):
        narrow = "by link-local addresses: which reach only an interface of like number"
        yield unknown(f"NET/Socket also takes {scoped} {narrow}", subject="NET/Socket", how=spread.without_scoped, **evidence)
    elif blind := ", ".join(spread.blind):
        yield unknown(f"NET/Socket spreads over {names}; the speed of {blind} is not known", subject="NET/Socket", **evidence)
    elif best:
        beside = "" if best.keys() <= spread.speeds.keys() else ", left out here, by which the other nodes are reached too"
        yield fail(
            f"NET/Socket spreads over {spread.text}: slower than {', '.join(best)} alone{beside}",
            subject="NET/Socket",
            loss=cost.less(spread.carries, sum(best.values()), "Mb/s"),
            cause="low_bandwidth",
            expected=f"only {', '.join(best)}",
            fix=fix_environment(seen.vantage, f"NCCL_SOCKET_IFNAME=={','.join(best)}"),
            **{"speeds": spread.speeds, **evidence},
        )
    elif shared := interfaces.one_network(spread.outer):
        yield unknown(f"NET/Socket spreads over {names}; {shared}", subject="NET/Socket", **evidence)
    elif odd := spread.smaller_frames:
        yield fail(
            f"NET/Socket spreads over {names}; {', '.join(odd.names)}: MTU {odd.mtu}, others like it have {odd.others}",
            subject="NET/Socket",
            loss=cost.tcp_frames(odd.mtu, odd.others),
            cause="mtu",
            fix=Fix("give it the MTU of the others", tuple(f"ip link set {name} mtu {odd.others}" for name in odd.names)),
            **evidence,
        )
    else:
        yield seen.good(f"NET/Socket takes {names}", "NET/Socket", **evidence)


# Debian and Ubuntu write 127.0.1.1 for the host into /etc/hosts: jobs by NCCL alone never notice, others do not start.
def _gloo(seen: Seen, named: str | None | Unavailable, used: bool) -> Iterator[Finding]:
    """Gloo: exact names; without them the address that the host name has (torch: ProcessGroupGloo::createDefaultDevice)."""
    if isinstance(named, Unavailable):
        yield unknown(f"GLOO_SOCKET_IFNAME could not be read: {named}", subject="Gloo")
        return
    if named is not None and len(named) > 1:  # shorter values are ignored
        return (yield _gloo_named(seen, named))
    if isinstance(own := interfaces.gloo_address(seen.net), Unavailable):
        return (yield unknown(f"what the host name resolves to could not be told: {own}", subject="Gloo"))
    taken = own or "127.0.0.1"
    evidence: dict[str, Any] = {"hostname_addresses": list(seen.net.hostname_addresses or ()), "address": taken}
    where = f"Gloo takes {taken}, " + ("the address of this host's name" if own else "for this host's name has no address here")
    fine = interfaces.candidates(seen.net)
    if not interfaces.is_loopback(taken):
        yield seen.good(where, "Gloo", **evidence)
    elif seen.intent.others and not used:
        text = f"{where}: Gloo groups of several nodes do not connect, and nothing says whether the job makes any"
        yield unknown(text, subject="Gloo", how=GROUPS, **evidence)
    elif seen.intent.others is not False:
        yield seen.wrong(
            f"{where}: Gloo groups of several nodes do not connect",
            "Gloo",
            expected="the host name resolves to an address that the other nodes reach, or GLOO_SOCKET_IFNAME is set",
            fix=fix_environment(seen.vantage, f"GLOO_SOCKET_IFNAME={fine[0]}") if fine else None,
            **evidence,
        )
    else:
        yield seen.good(where, "Gloo", ["this serves jobs on this node alone"], **evidence)


def _gloo_named(seen: Seen, named: str) -> Finding:
    labels = {one.label for link in seen.links for one in link.addresses} | {x.name for x in seen.links if x.addresses}
    missing = [name for name in named.split(",") if name not in labels]
    if missing:
        fine = interfaces.candidates(seen.net)
        syntax = named.startswith(("^", "=")) or any(label and label.startswith(missing[0]) for label in labels)
        more = "; Gloo takes whole names, not NCCL's prefixes, ^ and =" if syntax else ""
        return fail(
            f"GLOO_SOCKET_IFNAME={named}: there is no interface {missing[0]!r} with an address{more}",
            subject="Gloo",
            expected=f"names among {', '.join(sorted(label for label in labels if label))}",
            fix=fix_environment(seen.vantage, f"GLOO_SOCKET_IFNAME={fine[0]}") if fine else None,
            why="torch stops with `Unable to find address for`",
            value=named,
        )
    ends = (interfaces.dead_end(seen.net, name) for name in named.split(","))
    if seen.intent.others is not False and (wrong := next(filter(None, ends), None)):
        return seen.wrong(f"GLOO_SOCKET_IFNAME={named}: {wrong}", "Gloo", value=named)
    return seen.good(f"Gloo takes {named}", "Gloo", value=named)


def _text(pick: tuple[ifname.Pick, ...] | Unavailable) -> str:
    assert not isinstance(pick, Unavailable)  # without NCCL_COMM_ID a choice can always be told, and with it no version differs
    return ", ".join(f"{one.interface} {one.address}" for one in pick) or "none"
