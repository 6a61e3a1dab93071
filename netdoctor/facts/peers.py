"""Names that ranks must reach: their addresses, the kernel's routes to them, and the round-trip time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from ipaddress import ip_address
from typing import Any, Final

from netdoctor.host.base import Host, mapping, question
from netdoctor.model import Kind, Unavailable, record


@record
class Route:
    """What the kernel answers to RTM_GETROUTE for one destination."""

    interface: str
    kind: str = "unicast"  # "local" for an own address, "unreachable", …


@record
class Peer:
    """A name that ranks must reach (node 0, a configured peer) with its addresses and routes."""

    name: str
    addresses: tuple[str, ...] | Unavailable
    routes: Mapping[str, Route | Unavailable] = field(default_factory=dict)  # by address
    rtt_ms: float | Unavailable = Unavailable(Kind.NOT_READ)  # TCP_INFO of a connection, only where measured
    local: bool | Unavailable = Unavailable(Kind.NOT_READ)  # one of its addresses is this node's
    port: int | None = None
    variable: str = "expected.peers"  # what names it: of node 0 a variable
    via: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by address: interfaces with one longer than the default

    @property
    def routed(self) -> bool | Unavailable:
        """Whether the kernel has a route to one of its addresses: a name may have an IPv6 one on a node without IPv6."""
        if any(not isinstance(one, Unavailable) for one in self.routes.values()):
            return True
        lost = [one for one in self.routes.values() if isinstance(one, Unavailable)]
        if lost and len(lost) == len(self.routes) and all(one.kind == Kind.ABSENT for one in lost):
            return False
        return lost[0] if lost else True

    @property
    def host(self) -> str:
        """Its name without a port."""
        return host_port(self.name)[0]

    @property
    def dead_end(self) -> str:
        """What kind of route leads nowhere, in words behind a sentence; "" where there is none at all."""
        kinds = {one.detail: None for one in self.routes.values() if isinstance(one, Unavailable) and one.detail in NOWHERE}
        return f": {' and '.join(NOWHERE[kind] for kind in kinds)}" if kinds else ""

    def reached_by(self) -> frozenset[str]:
        """Interfaces that lead to one of its addresses: the kernel's choice, and those with a route of their own."""
        chosen = (one.interface for one in self.routes.values() if not isinstance(one, Unavailable))
        return frozenset(chosen) | {name for some in self.via.values() for name in some}


def meet(host: Host, people: Iterable[tuple[str, int | None]], own: frozenset[str]) -> list[Peer]:
    """A `Peer` for each (name, port), in order; `own` are this node's addresses."""
    people = list(people)
    addresses = {name: resolve(host, name) for name, _ in people}
    reach = routes_to(host, sorted({ip for got in addresses.values() if not isinstance(got, Unavailable) for ip in got}))
    peers = [_peer(name, port, addresses[name], reach, own) for name, port in people]
    host.prefetch(ask for one in peers for ask in _rtt_questions(one))
    return [_connected(host, one) for one in peers]


def root(host: Host, variables: Mapping[str, Any] | Unavailable, own: frozenset[str]) -> tuple[Peer, ...]:
    """Who opens NCCL's communicators, where NCCL_COMM_ID=HOST:PORT says so: of a name NCCL takes the first address, and no
    other (ncclSocketGetAddrFromString, src/misc/socket.cc).  Without the port: who connects there disturbs a job that runs."""
    told = None if isinstance(variables, Unavailable) else variables.get("NCCL_COMM_ID")
    name = host_port(told)[0] if isinstance(told, str) and ":" in told[1:] else ""
    if not name:
        return ()
    every = resolve(host, name)
    first = every if isinstance(every, Unavailable) else every[:1]
    peer = _peer(name, None, first, routes_to(host, first or ()), own)
    return (_connected(host, replace(peer, name=str(told), variable="NCCL_COMM_ID")),)  # MASTER_ADDR may have the bare name


def resolving(people: Iterable[str]) -> list[str]:
    """The questions that `resolve` will ask."""
    return [question("resolve", name=name) for name in people if not is_ip(name)]


def configured(host: Host) -> list[tuple[str, int | None]]:
    """The peers of the configuration: HOST, HOST:PORT, IPv6 or [IPv6]:PORT."""
    expected = (mapping(host, "config:") or {}).get("expected")
    given = expected.get("peers") if isinstance(expected, dict) else None
    return [host_port(str(one)) for one in given] if isinstance(given, list | tuple) else []


def host_port(text: str) -> tuple[str, int | None]:
    if is_ip(text):
        return text, None
    name, _, port = text.rpartition(":")
    if name and port.isdecimal() and 0 < int(port) < 65536:
        return name.strip("[]"), int(port)
    return text.strip("[]"), None


def is_ip(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def resolve(host: Host, name: str) -> tuple[str, ...] | Unavailable:
    if is_ip(name):
        return (name,)
    got = mapping(host, question("resolve", name=name))
    if isinstance(got, Unavailable):
        return _unasked(got)
    found = got.get("addresses")
    if isinstance(found, list) and found:
        every = tuple(str(ip) for ip in found)
        return every if all(is_ip(ip) for ip in every) else Unavailable(Kind.MALFORMED, f"addresses of {name}")
    kind = Kind.ABSENT if got.get("error") in ("EAI_NONAME", "EAI_NODATA") else Kind.FAILED
    return Unavailable(kind, f"{name}: {got.get('error', 'no address')} {got.get('detail', '')}".rstrip())


def _unasked(why: Unavailable) -> Unavailable:
    """No answer at all says nothing about the name or the route: never that it is absent, or that its search failed."""
    return Unavailable(Kind.NOT_READ, str(why)) if why.kind in (Kind.ABSENT, Kind.FAILED) else why


def routes_to(host: Host, addresses: Iterable[str]) -> Mapping[str, Any]:
    wanted = ",".join(addresses)
    got = mapping(host, question("netlink", routes=wanted)) if wanted else {}
    if isinstance(got, Unavailable):
        return dict.fromkeys(wanted.split(","), _unasked(got))
    found = got.get("routes")
    return found if isinstance(found, dict) else {}


def route(destination: str, row: Any) -> Route | Unavailable:
    if not isinstance(row, dict):
        return Unavailable(Kind.MALFORMED, f"route to {destination}")
    if (nowhere := str(row.get("kind"))) in NOWHERE:
        return Unavailable(Kind.ABSENT, nowhere)
    if "error" in row:
        error = str(row["error"])
        if error in _NOWHERE:
            return Unavailable(Kind.ABSENT, _NOWHERE[error])
        return Unavailable(Kind.ABSENT if error in ("ENETUNREACH", "ENOENT") else Kind.FAILED, error)
    if not row.get("oif"):
        return Unavailable(Kind.MALFORMED, f"route to {destination}")
    return Route(str(row["oif"]), str(row.get("kind", "unicast")))


def _peer(
    name: str,
    port: int | None,
    addresses: tuple[str, ...] | Unavailable,
    reach: Mapping[str, Any],
    own: frozenset[str],
) -> Peer:
    if isinstance(addresses, Unavailable):
        return Peer(name, addresses, port=port, local=Unavailable(Kind.NOT_READ, f"{name} does not resolve"))
    routes: dict[str, Route | Unavailable] = {}
    via: dict[str, tuple[str, ...]] = {}
    for ip in addresses:
        row = reach.get(ip)
        if isinstance(row, dict):
            routes[ip], via[ip] = route(ip, row.get("main")), _names(row.get("via"))
        else:
            routes[ip] = row if isinstance(row, Unavailable) else Unavailable(Kind.NOT_READ, "no answer")
    here = any(ip.partition("%")[0] in own for ip in addresses) or any(
        isinstance(one, Route) and one.kind == "local" for one in routes.values()
    )
    return Peer(name, addresses, routes, local=here, port=port, via=via)


def _names(some: Any) -> tuple[str, ...]:
    return tuple(one for one in some if isinstance(one, str)) if isinstance(some, list) else ()


def _rtt_questions(peer: Peer) -> list[str]:
    """The connections that may be made: to another node's port that was named, nowhere else."""
    if peer.port is None or peer.local is not False or isinstance(peer.addresses, Unavailable):
        return []
    asked = [ip for ip in peer.addresses if not _without_route(peer, ip)][:MOST_ADDRESSES]
    return [question("rtt", host=ip, port=peer.port, seconds=1) for ip in asked]


def _without_route(peer: Peer, ip: str) -> bool:
    to = peer.routes.get(ip)
    return isinstance(to, Unavailable) and to.kind is Kind.ABSENT


def _connected(host: Host, peer: Peer) -> Peer:
    tried = [_rtt(host, ask) for ask in _rtt_questions(peer)]
    if not tried:
        why = "it is this node" if peer.local is True else "no port to connect to" if peer.port is None else "no way to it"
        return replace(peer, rtt_ms=Unavailable(Kind.NOT_READ, why))
    return replace(peer, rtt_ms=min(tried, key=_doubt))


def _doubt(got: float | Unavailable) -> int:
    """A name is as good as the best of its addresses."""
    worse = {Kind.TIMED_OUT: 2, Kind.ABSENT: 3}
    return worse.get(got.kind, 1) if isinstance(got, Unavailable) else 0


def _rtt(host: Host, ask: str) -> float | Unavailable:
    got = mapping(host, ask)
    if isinstance(got, Unavailable):
        return _unasked(got)
    micro = got.get("rtt_us")
    if isinstance(micro, int | float) and micro > 0:
        return micro / 1000
    error = str(got.get("error", "no round trip"))
    return Unavailable(Kind.TIMED_OUT if error == "ETIMEDOUT" else Kind.ABSENT if error in NOBODY else Kind.FAILED, error)


NOBODY: Final = ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN")  # connect(2), ip(7); one that refuses a connection is there
MOST_ADDRESSES: Final = 4  # of a name: more are a service's, and a first that answers is enough
# Routes that lead nowhere (ip-route(8)), and what RTM_GETROUTE says instead of them (fib_props, net/ipv4/fib_semantics.c;
# ip6_rt_type_to_error, net/ipv6/route.c).
NOWHERE: Final = {
    "blackhole": "a blackhole route drops what goes there",
    "prohibit": "a prohibit route refuses what goes there",
    "unreachable": "an unreachable route refuses what goes there",
}
_NOWHERE: Final = {"EINVAL": "blackhole", "EACCES": "prohibit", "EHOSTUNREACH": "unreachable"}
