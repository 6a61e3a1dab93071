"""The other hosts of the job answer here, in packets of the full size, and the kernel has room for them as neighbours.

From one node: `netdoctor allreduce` tries every pair of nodes, both ways, on ports like the job's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Environ,
    Finding,
    Fix,
    Intent,
    Kernel,
    KernelLog,
    Libraries,
    NcclChoice,
    Net,
    Path,
    PathRun,
    Peer,
    Rdma,
    Reach,
    System,
    Unavailable,
    Vantage,
    check,
    cost,
    count,
    fail,
    fix_sysctl,
    ifname,
    missing,
    neighbours,
    ok,
    path_mtu,
    reaching,
    skip,
    transport,
    unknown,
)

HOSTS = "hosts"
REFUSED = {"EPERM": "a firewall of this node", "EACCES": "a firewall", "ECONNREFUSED": "the host"}
# EHOSTUNREACH comes after mcast_solicit seconds, ETIMEDOUT after tcp_syn_retries (6: 127 s).
LATE = "does not answer, and another address of it does: whoever connects waits for the first, up to two minutes each time"
DNS = "getent hosts NAME here and on another node; the search domain in /etc/resolv.conf, /etc/hosts, the DNS of the cluster"


@check(id="net.reach", title="The other hosts answer, in packets of the full size", cause="firewall_connect")
def reach(
    net: Net,
    reach: Reach,
    environ: Environ,
    kernel: Kernel,
    intent: Intent,
    vantage: Vantage,
    rdma: Rdma,
    libraries: Libraries,
    nccl: NcclChoice,
    baseline: Baseline,
    paths: PathRun,
    log: KernelLog,
    system: System,
) -> Iterator[Finding]:
    if isinstance(intent.count, Unavailable):
        yield unknown(f"whether there are other hosts could not be told: {intent.count}", subject=HOSTS)
        return
    if intent.others is False:
        yield skip(f"{intent.why}: there are no other hosts")
        return
    data = transport.data_by_sockets(rdma, environ, libraries, (baseline, paths), net, intent)
    version = ifname.versions(nccl, libraries)[-1]
    for ip, need in (neighbours.of_job(intent, net, environ, rdma, version, sockets=data.sockets) or {}).items():
        yield from neighbours.judge(ip, intent.count, need, kernel, partial(_more_room, vantage, ip))
        yield from neighbours.overflown(ip, log, system.uptime, kernel, partial(_more_room, vantage, ip))
    if not vantage.job_network:
        yield unknown(f"hosts are reached from the job's network, {vantage.network_elsewhere}", subject=HOSTS, how=FROM_JOB)
        return
    family = environ.get("NCCL_SOCKET_FAMILY")
    lost = missing(net.links, net.master, net.peers, reach.hosts, reach.paths, family)
    if lost is not None:
        yield unknown(f"which other hosts there are, and whether they answer, could not be read: {lost}", subject=HOSTS)
        return
    everybody = (*net.others, *(reach.hosts or ()))
    known = max(reach.named, len(everybody))
    strange = next((one for one in net.perhaps_others if one), None)
    if not everybody and strange:
        yield unknown(f"whether {strange.name} is another host could not be told: {strange.local}", subject=HOSTS, how=DNS)
        return
    if not everybody:
        text = "nothing here names another host (a launcher's list, MASTER_ADDR, expected.peers)"
        alone = not intent.others and intent.open is None
        yield skip(text, subject=HOSTS) if alone else unknown(text, subject=HOSTS, how=reaching.ALL)
        return
    found = [one for peer in reach.hosts or () if (one := _named(peer)) is not None]
    found += [one for peer in everybody if (one := _family(peer, family)) is not None]
    judged = {name: one for name, path in (reach.paths or {}).items() if (one := _path(name, path, data.sockets)) is not None}
    found += path_mtu.odd_ones(judged, reach.paths or {}, vantage)
    text = "was not tried: its addresses are link-local, or their routes lead to no interface that is known"
    found += [unknown(f"{name} {text}", subject=name, how=reaching.ALL) for name in reach.untried]
    yield from found
    good = [name for name, path in (reach.paths or {}).items() if path.full or (path.small and path.told)]
    if good and not found:
        told = [path.told for path in (reach.paths or {}).values() if path.told and not path.full]
        notes = [f"a router on the way passes {min(told)} bytes, and says so"] if told else []
        notes += [f"{name}: {' '.join(some)} {LATE}" for name, some in reach.late.items()]
        beyond = [f"of {known} hosts that are named {len(good)} were asked"] if known > len(good) + 1 else []
        text = f"{count(len(good), 'host')} of the job {'answers' if len(good) == 1 else 'answer'} in packets of the full size"
        yield ok(text, subject=HOSTS, notes=(*notes, *beyond))
    elif not found:
        yield unknown("no host's address was tried: no route to one is known", subject=HOSTS, how=reaching.ALL)


def _named(peer: Peer) -> Finding | None:
    """A host of the launcher's list; of MASTER_ADDR and the configured peers net.socket_ifname says so."""
    if isinstance(peer.addresses, Unavailable):
        # Slurm, torchrun and NCCL meet at MASTER_ADDR: the names of the others need not resolve.
        text = f"{peer.name}, a host of the job, does not resolve here: {peer.addresses.detail or peer.addresses}"
        return unknown(text, subject=peer.name, how=DNS)
    if peer.routed is False:
        return fail(
            f"there is no route to {peer.name} ({', '.join(peer.addresses)}), a host of the job{peer.dead_end}",
            subject=peer.name,
            loss=cost.STOPS,
            fix=Fix("give this node a route to it", (f"ip route get {peer.addresses[0]}", "ip route show")),
        )
    if isinstance(peer.routed, Unavailable):
        return unknown(f"the route to {peer.name} could not be read: {peer.routed}", subject=peer.name)
    return None


def _family(peer: Peer, family: str | None | Unavailable) -> Finding | None:
    """NCCL src/misc/socket.cc, envSocketFamily: AF_INET and AF_INET6 leave the other out."""
    if not peer.addresses or family not in ("AF_INET", "AF_INET6"):
        return None
    wanted = 4 if family == "AF_INET" else 6
    if any(ip_address(ip.partition("%")[0]).version == wanted for ip in peer.addresses):
        return None
    return fail(
        f"NCCL_SOCKET_FAMILY={family}, and {peer.name} has no IPv{wanted} address ({', '.join(peer.addresses)})",
        subject=peer.name,
        loss=cost.STOPS,
        fix=Fix("let NCCL take the family that the hosts have", ("unset NCCL_SOCKET_FAMILY",)),
    )


def _path(name: str, path: Path, data: bool | None) -> Finding | None:
    """`data`: what the job sends goes by sockets."""
    where = f"{name} ({path.address}, by {path.interface})"
    if path.full or (path.small and path.told):  # a router that says what it passes: TCP follows (RFC 1191)
        return None
    how = f"nc -vz {path.address} PORT; {reaching.ALL}"
    if path.error and (path.small or not path.gone):
        why = f"{REFUSED[path.error]} refuses it ({path.error})" if path.error in REFUSED else f"the kernel says {path.error}"
        what = f"one of {path.size} bytes: {why}" if path.small else why
        return unknown(f"{where} does not answer an echo: {what}", subject=name, how=how)
    if path.small:
        return path_mtu.vanished(name, path, where, data)
    if path.gone:
        return fail(
            f"nobody answers at {where}: {path.error}",
            subject=name,
            loss=cost.STOPS,
            fix=Fix("see whether it is up, and in this network", (f"ping {path.address}", f"ip neigh show {path.address}")),
        )
    text = f"{where} does not answer an echo: ICMP may be filtered"
    return unknown(text, subject=name, how=how)


def _more_room(vantage: Vantage, family: int, need: int) -> Fix:
    first, kept, room = (neighbours.sysctl(family, n) for n in (1, 2, 3))
    return fix_sysctl(vantage, room, str(4 * need), (first, str(need)), (kept, str(2 * need)))
