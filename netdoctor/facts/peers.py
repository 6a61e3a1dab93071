"""Names that ranks must reach: their addresses, the kernel's routes to them, and the round-trip time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final

from netdoctor.host.base import Host, mapping, question
from netdoctor.model import Kind, Unavailable


@dataclass(frozen=True)
class Route:
    """What the kernel answers to RTM_GETROUTE for one destination."""

    interface: str
    kind: str = "unicast"  # "local" for an own address, "unreachable", …


@dataclass(frozen=True)
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
    def unreachable(self) -> str | Unavailable | None:
        """Why nothing connects to it, whatever listens there; Unavailable: it was tried, and could not be told."""
        if isinstance(self.addresses, Unavailable):
            text = f"{self.variable}={self.name} does not resolve here (yet): {self.addresses.detail or self.addresses}"
            answered = self.addresses.kind in (Kind.ABSENT, Kind.FAILED)
            return text if answered else Unavailable(self.addresses.kind, text)
        if self.routed is False:
            return f"there is no route to {self.variable}={self.name}"
        if isinstance(self.routed, Unavailable):
            return Unavailable(Kind.NOT_READ, f"the route to {self.variable}={self.name} could not be read")
        if isinstance(self.rtt_ms, Unavailable) and self.rtt_ms.kind is Kind.ABSENT:
            return f"nobody answers at {self.variable}={self.name}: {self.rtt_ms.detail}"
        if isinstance(self.rtt_ms, Unavailable) and self.rtt_ms.kind is Kind.TIMED_OUT:
            return Unavailable(Kind.TIMED_OUT, f"{self.variable}={self.name} did not answer within a second")
        return None

    @property
    def how(self) -> str:
        """What shows why nothing connects to it."""
        if isinstance(self.addresses, Unavailable):
            return f"getent hosts {self.name}: here, and where it is known; or name its address instead ({self.variable})"
        if self.routed is False and self.addresses:
            return f"ip route get {self.addresses[0]}"
        return f"is it up? nc -vz {self.name} {self.port or 'PORT'}"

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
    host.prefetch(ask for one in peers for ask in _rtt_question(one))
    return [replace(one, rtt_ms=_rtt(host, one)) for one in peers]


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
    """No answer at all says nothing about the name or the route: never that it is absent."""
    return Unavailable(Kind.NOT_READ, str(why)) if why.kind == Kind.ABSENT else why


def routes_to(host: Host, addresses: Iterable[str]) -> Mapping[str, Any]:
    wanted = ",".join(addresses)
    got = mapping(host, question("netlink", routes=wanted)) if wanted else {}
    if isinstance(got, Unavailable):
        return dict.fromkeys(wanted.split(","), _unasked(got))
    found = got.get("routes")
    return found if isinstance(found, dict) else {}


def route(destination: str, row: Any) -> Route | Unavailable:
    if isinstance(row, dict) and "error" in row:
        return Unavailable(
            Kind.ABSENT if row["error"] in ("ENETUNREACH", "EHOSTUNREACH", "ENOENT") else Kind.FAILED, str(row["error"])
        )
    if not isinstance(row, dict) or not row.get("oif"):
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


def _rtt_question(peer: Peer) -> tuple[str, ...]:
    """The connection that may be made: to another node's port that was named, nowhere else."""
    if peer.port is None or peer.local is not False or isinstance(peer.addresses, Unavailable):
        return ()
    return (question("rtt", host=peer.addresses[0], port=peer.port, seconds=1),)


def _rtt(host: Host, peer: Peer) -> float | Unavailable:
    asks = _rtt_question(peer)
    if not asks:
        return Unavailable(Kind.NOT_READ, "it is this node" if peer.local is True else "no port to connect to")
    got = mapping(host, asks[0])
    if isinstance(got, Unavailable):
        return got
    micro = got.get("rtt_us")
    if isinstance(micro, int | float) and micro > 0:
        return micro / 1000
    error = str(got.get("error", "no round trip"))
    return Unavailable(Kind.TIMED_OUT if error == "ETIMEDOUT" else Kind.ABSENT if error in NOBODY else Kind.FAILED, error)


NOBODY: Final = ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN")  # connect(2), ip(7); one that refuses a connection is there
