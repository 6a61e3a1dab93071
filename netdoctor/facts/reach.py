"""The other hosts of the job: whether they resolve, have a route, and whether packets of the full size arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import islice
from typing import Any, Final

from netdoctor.facts import nodelist
from netdoctor.facts.base import Fact
from netdoctor.facts.environ import Environ
from netdoctor.facts.net import Net
from netdoctor.facts.peers import MOST_ADDRESSES, NOBODY, Peer, Route, meet, resolving
from netdoctor.host.base import Host, mapping, question, value
from netdoctor.model import Kind, Unavailable, record

MOST: Final = 16  # hosts that are asked: a sample of a large job's; `netdoctor allreduce` asks all, both ways
SECONDS: Final = "3.5"  # the kernel gives up on a neighbour after three seconds (mcast_solicit), and says EHOSTUNREACH


@record
class Path:
    """What packets of three sizes say of the way to one address."""

    address: str
    interface: str
    size: int  # of the largest: the MTU of that interface
    small: bool
    middle: bool  # 1500 bytes, or the largest
    full: bool
    told: int | None  # the MTU that a router on the way named
    error: str | None  # the errno that came back
    # Of a packet of full size in pieces, where whole ones vanish: the largest that came back, which is the MTU of the other end
    # or the full size; 0: none came, and none of a size that arrives was lost; None: not known.
    pieces: int | None = None

    @property
    def gone(self) -> bool:
        """The kernel says that nobody is there."""
        return self.error in NOBODY

    @property
    def there(self) -> bool:
        """It answered, or a firewall or the host itself refused for it; EPERM is this node's own firewall."""
        return self.small or self.error in ("EACCES", "ECONNREFUSED")

    @property
    def vanish(self) -> bool:
        """Small packets arrive, full ones do not, and nobody says why."""
        return self.small and not self.full and not self.told and self.error is None


@record
class Reach(Fact):
    """The other hosts, as far as their names are known here."""

    hosts: tuple[Peer, ...] | Unavailable  # of the job's list, without this node
    named: int  # how many the list holds; `MOST` of them are `hosts`
    paths: Mapping[str, Path] | Unavailable  # by name, of `hosts`, node 0 and the configured peers
    untried: tuple[str, ...] = ()  # of them those with a route, that were not asked
    late: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by name: silent addresses before its path's

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        return {"hosts": why, "named": 0, "paths": why}


def probe(host: Host, environ: Environ, net: Net) -> Reach | Unavailable:
    """Names of the launcher's list of nodes, and node 0 and the peers of the configuration that `net` found."""
    links = net.links
    if isinstance(links, Unavailable):
        return links
    own = frozenset(address.ip for one in links for address in one.addresses)
    known = {one.name for one in net.others}
    names = job_hosts(environ)
    hosts: tuple[Peer, ...] | Unavailable
    if isinstance(names, Unavailable):
        hosts, listed = names, 0
    else:
        listed = len(names)
        chosen = [name for name in names if name not in known][:: max(1, -(-len(names) // MOST))]
        host.prefetch(resolving(chosen))
        hosts = tuple(one for one in meet(host, [(name, None) for name in chosen], own) if one.local is not True)
    people = (*net.others, *(hosts or ()))[:MOST]
    wanted = _wanted(people, {one.name: one.mtu for one in links})
    untried = tuple(one.name for one in people if one.addresses and one.routed is True and one.name not in wanted)
    tried = _paths(host, wanted)
    if isinstance(tried, Unavailable):
        return Reach(hosts, listed, tried, untried)
    best = {name: min(some, key=_doubt) for name, some in tried.items()}
    late = {name: tuple(one.address for one in tried[name][: tried[name].index(best[name])]) for name in best}
    return Reach(hosts, listed, best, untried, {name: some for name, some in late.items() if some and best[name].there})


def _doubt(path: Path) -> int:
    """A name is as good as the best of its addresses: whoever connects tries one after the other."""
    return 0 if path.there else 2 if path.gone else 1


def job_hosts(environ: Environ) -> list[str] | Unavailable:
    """The nodes that the launcher or the batch system lists; none where neither lists any."""
    variables = environ.variables
    if isinstance(variables, Unavailable):
        return variables
    for name in (*nodelist.SLURM, *nodelist.WORKERS):
        if listed := variables.get(name):
            if not nodelist.understood(listed):
                return Unavailable(Kind.MALFORMED, f"{name}={listed[:60]!r}")
            return list(islice(nodelist.hosts(listed), nodelist.MOST))
    if environ.hosts:
        return list(environ.hosts)
    of_lsf = nodelist.of_lsf(variables)
    if of_lsf is None:
        return Unavailable(Kind.MALFORMED, "the list of hosts in LSB_MCPU_HOSTS or LSB_HOSTS")
    return environ.hosts if isinstance(environ.hosts, Unavailable) and not of_lsf else list(of_lsf)


def _wanted(people: Iterable[Peer], mtus: Mapping[str, int]) -> dict[str, list[tuple[str, str, int]]]:
    """The addresses of each that a packet can be sent to: with its interface, and the MTU of that."""
    wanted: dict[str, list[tuple[str, str, int]]] = {}
    for one in people:
        for ip in one.addresses or ():
            to = one.routes.get(ip)
            if isinstance(to, Route) and to.kind == "unicast" and to.interface in mtus and not ip.startswith("fe80"):
                wanted.setdefault(one.name, []).append((ip, to.interface, mtus[to.interface]))
    return {name: some[:MOST_ADDRESSES] for name, some in wanted.items()}


def _paths(host: Host, wanted: Mapping[str, list[tuple[str, str, int]]]) -> Mapping[str, list[Path]] | Unavailable:
    if not wanted:
        return {}
    to_ask = ",".join(dict.fromkeys(f"{ip}/{mtu}" for some in wanted.values() for ip, _, mtu in some))
    got = mapping(host, question("reach", to=to_ask, seconds=SECONDS))
    rows = got if isinstance(got, Unavailable) else value(got.get("paths"), dict, "paths")
    if isinstance(rows, Unavailable):
        return rows
    found: dict[str, list[Path]] = {name: [] for name in wanted}
    for name, (ip, interface, mtu) in ((name, one) for name, some in wanted.items() for one in some):
        row = rows.get(ip)
        if not isinstance(row, dict) or not all(type(row.get(size)) is bool for size in ("small", "middle", "full")):
            return Unavailable(Kind.MALFORMED, f"ask:reach: {ip}")
        told, error, pieces = row.get("told"), row.get("error"), row.get("pieces")
        found[name].append(
            Path(
                ip,
                interface,
                mtu,
                row["small"],
                row["middle"],
                row["full"],
                told if type(told) is int else None,
                str(error) if error else None,
                pieces if type(pieces) is int and pieces >= 0 else None,
            )
        )
    return found
