"""How many hosts this node keeps in its table of neighbours for a job: one for each that a subnet of it holds and it talks to.

All nodes meet rank 0 by the interface of its bootstrap (src/bootstrap.cc, bootstrapRoot) and of torch's store; of the others
each meets rank 0 and its two of bootstrap's ring there, and all of them only by Gloo, whose pairs join all ranks (a job may do
without) and which goes by the host's own name.  Where nothing says which node this is, it may be that of rank 0.  Data goes by
the interfaces of NET/Socket and of RoCE's ports, which resolve their peers (drivers/infiniband/core/addr.c; InfiniBand asks its
subnet manager): to the few of rings and trees, to all where the job sends between all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_network
from typing import Final, NamedTuple

from netdoctor.causes.cost import SOMETIMES
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.kernel_log import KernelLog, Trouble
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.net import Link, Net
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable, count, missing
from netdoctor.nccl import ifname, interfaces

_TABLES: Final = {4: "arp_cache", 6: "ndisc_cache"}  # the kernel's names: net/ipv4/arp.c, net/ipv6/ndisc.c
_ROOM: Final = 1024  # gc_thresh3 of both, where nobody set it
RECENT: Final = 3600  # seconds; the kernel says it each time, at most some times in five seconds (net_ratelimit)
# NTP does not steer the log's clock: it may be ahead of /proc/uptime by this (MAXFREQ, include/linux/timex.h).  A container's
# uptime (lxcfs) may be behind by any time, which tells nothing.
_AHEAD: Final = 500e-6
_ASK: Final = ("NCCL_SOCKET_FAMILY", "NCCL_IB_ADDR_FAMILY")


def sysctl(family: int, number: int) -> str:
    """gc_thresh1, 2 or 3 of a family's table (net/core/neighbour.c, neigh_alloc and neigh_forced_gc)."""
    return f"net.ipv{family}.neigh.default.gc_thresh{number}"


class Neighbours(NamedTuple):
    """Entries of the table."""

    certain: int  # of interfaces by which the job talks to its other nodes
    most: int  # of all that lead to others
    every: int  # of these, were data sent between all ranks


def of_job(
    intent: Intent, net: Net, environ: Environ, rdma: Rdma, version: Version, *, sockets: bool | None
) -> Mapping[int, Neighbours] | Unavailable:
    """By family.  `sockets`: whether they carry the data; None: not known.

    IPv6 is what an interface talks that has no other address, and all of them where NCCL is asked to.
    """
    if isinstance(net.links, Unavailable):
        return net.links
    every = [link for link in net.links if not interfaces.stays(net, link)]
    nodes, talks = intent.nodes or 1, _talks(net, environ, rdma, version, sockets=sockets is True)
    ways = _Ways(frozenset(link.name for link in every), frozenset()) if isinstance(talks, Unavailable) else talks
    idle = sockets is False and not isinstance(talks, Unavailable)  # what is not used for certain is not used at all
    asked = any(environ.get(name) == "AF_INET6" for name in _ASK)
    few = nodes if intent.all_to_all else intent.communicators * _peers(nodes)
    meets = net.master_is_here is not False or intent.by_gloo
    found = {}
    for family in _TABLES:
        speak = [link for link in every if (asked and family == 6) or _main(link) == family]
        held = {link.name: min(nodes - 1, _on_link(family, link)) for link in speak}
        least, most = (
            {name: size if whole and name in ways.meet else min(few + (name in ways.meet), size) for name, size in held.items()}
            for whole in (meets, meets or intent.gloo_groups > 0)
        )
        used = (talks or _Ways(frozenset(), frozenset())).names
        certain, likely, whole = (sum(size for name, size in some.items() if name in used) for some in (least, most, held))
        found[family] = Neighbours(certain, *((likely, whole) if idle else (sum(most.values()), sum(held.values()))))
    return found


def judge(family: int, nodes: int, need: Neighbours, kernel: Kernel, mend: Callable[[int], Fix]) -> Iterator[Finding]:
    """Beyond the limit a connection fails with ENOBUFS or hangs (net/core/neighbour.c, neigh_alloc: "neighbor table
    overflow!").  The limit is the whole machine's.  `mend` makes room for so many."""
    subject, room = "neighbours" if family == 4 else "IPv6 neighbours", sysctl(family, 3)
    most = kernel.sysctl_ints(room)
    if not need.most:
        return
    if isinstance(most, Unavailable):
        text = f"how many {subject} the kernel keeps, of which the job has {need.most}, could not be read: {most}"
        inside = "on the node: a network namespace does not show it" if most.kind is Kind.ABSENT else "as root"
        yield Finding(Status.UNKNOWN, text, subject, how=f"sysctl {room} ({inside})")
    elif need.most > most[0]:
        found = Finding(
            Status.FAIL,
            f"the job's {nodes} nodes are {need.most} {subject} in this node's subnets, and the kernel keeps {most[0]}",
            subject,
            loss=SOMETIMES,
            expected=f"{room} of {need.most} or more",
            why=f"connections fail now and then: 'neighbour: {_TABLES[family]}: neighbor table overflow!' in the kernel's log",
            fix=mend(need.most),
            evidence={"need": need.most, "room": most[0]},
        )
        text = (
            f"{found.message}: a fault if it talks to all of these, by Gloo or by all of these interfaces, which is not known"
        )
        unsure = Finding(Status.UNKNOWN, text, subject, how="run the all-reduce", evidence=found.evidence, perhaps=found)
        yield found if need.certain > most[0] else unsure
    else:
        kept = kernel.sysctl_ints(sysctl(family, 2))
        few = kept[0] if not isinstance(kept, Unavailable) and kept[0] < need.most else None
        notes = (
            (f"beyond {sysctl(family, 2)} of {few} it drops those that were idle for 5 s, and asks for them again",)
            if few
            else ()
        )
        if need.every > most[0]:
            notes = (*notes, f"a job that sends between all ranks (job.all_to_all) has {need.every}, and it keeps {most[0]}")
        text = f"the kernel has room for the job's {count(need.most, subject[:-1])}"
        yield Finding(Status.PASS, text, subject, notes=notes, evidence={"room": most[0]})


class _Ways(NamedTuple):
    """Interfaces by which the job talks to its other nodes."""

    meet: frozenset[str]  # to all of them
    data: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        return self.meet | self.data


def _peers(nodes: int) -> int:
    """Other nodes to which a communicator sends by one interface, at most: two of a ring, three of each of two trees
    (src/graph/trees.cc, ncclGetDtree), two of each step of PAT, which are as many as powers of two below the nodes
    (src/transport/generic.cc, ncclTransportPatConnect)."""
    return 2 + 2 * 3 + 2 * (nodes - 1).bit_length()


def lately(second: float, uptime: float) -> bool:
    """Whether the kernel said something within `RECENT`, in seconds since boot."""
    return -_AHEAD * uptime <= uptime - second < RECENT


def overflown(
    family: int, log: KernelLog, uptime: float | Unavailable, kernel: Kernel, mend: Callable[[int], Fix]
) -> Iterator[Finding]:
    """That the kernel met its limit, whatever this job needs: the table is one for all of the machine, and its other networks
    and jobs fill it, too.  Only what it said within `RECENT` holds still: the limit may have been raised since."""
    last = [one for one in log.system or () if one.what is Trouble.NEIGHBOURS and one.name == _TABLES[family]]
    most = kernel.sysctl_ints(sysctl(family, 3))
    if not last or isinstance(uptime, Unavailable) or not lately(last[-1].second, uptime):
        return
    room = most[0] if not isinstance(most, Unavailable) else _ROOM
    yield Finding(
        Status.FAIL,
        f"the kernel said within the last hour that its table of neighbours ({_TABLES[family]}) is full",
        f"table of {'neighbours' if family == 4 else 'IPv6 neighbours'}",
        loss=SOMETIMES,
        expected=f"{sysctl(family, 3)} above what all networks of the node hold",
        why="who asks for one more gets ENOBUFS: connections and RoCE's queue pairs fail, with other hosts each time",
        fix=mend(room),
        measured={"times": last[-1].times},
        evidence={} if isinstance(most, Unavailable) else {"room": most[0]},
    )


def _talks(net: Net, environ: Environ, rdma: Rdma, version: Version, *, sockets: bool) -> _Ways | Unavailable:
    settings = {name: environ.get(name) for name in ifname.VARIABLES}
    if (lost := missing(rdma.devices, *settings.values())) is not None:
        return lost
    known = {name: value for name, value in settings.items() if value}
    picks = ifname.choose(net.links or (), version, known)
    carry = interfaces.of_sockets(net, environ, version) if sockets else ((), ())
    gloo = interfaces.gloo_address(net)
    if isinstance(picks, Unavailable) or isinstance(carry, Unavailable) or isinstance(gloo, Unavailable):
        return next(one for one in (picks, carry, gloo) if isinstance(one, Unavailable))
    every = [port for device in rdma.devices or () for port in device.ports or ()]
    ports = [port for port in every if port.link_layer == "Ethernet"]
    if (lost := missing(*(port.link_layer for port in every), *(port.gids for port in ports))) is not None:
        return lost
    roce = {gid.netdev for port in ports for gid in port.gids or () if isinstance(gid.netdev, str)}
    taken = {link.name for pick in picks if (link := net.link(pick.interface))}
    named = {link.name for link in net.links or () if any(one.ip == gloo for one in link.addresses)}
    return _Ways(interfaces.leading_out(net) | taken | named, frozenset(roce | {link.name for link in carry[1]}))


def _main(link: Link) -> int:
    return 4 if any(one.family == 4 for one in link.addresses) else 6


def _on_link(family: int, link: Link) -> int:
    """Hosts that the largest subnet of an interface may hold; 0: none leads to another node."""
    if not link.up or not link.running:
        return 0
    own = [one for one in link.addresses if one.family == family and (family == 4 or one.scope == "global")]
    sizes = [ip_network(f"{one.ip}/{one.prefix}", strict=False).num_addresses for one in own]
    return max((0, *(size - (3 if family == 4 else 1) for size in sizes)))
