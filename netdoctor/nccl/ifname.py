"""Which interfaces NCCL takes, emulated: for the bootstrap (one) and for NET/Socket (up to 16, all of them carry data).

Sources: NCCL src/misc/socket.cc (ncclFindInterfaces; from 2.29 with src/os/linux.cc) and src/bootstrap.cc (bootstrapNetInit).
`links` must be in the kernel's order, as getifaddrs(3) lists them: all IPv4 addresses by interface, then all IPv6 ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from netdoctor.facts.libraries import Libraries
from netdoctor.facts.library_search import Linkage
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.net import Link, Peer
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.selector import Selector, parse

MAX_IFS: Final = 16  # src/include/socket.h
RUNNING_FROM: Final = (2, 28, 0)  # only IFF_RUNNING interfaces, and virbr passed over
# matchSubnet compares the wrong way round for IPv4: the first interface outside the subnet is taken (src/os/linux.cc).
SUBNET_INVERTED: Final = ((2, 29, 2), (2, 29, 7))
# Both ways to choose, for where the version is not known.
EITHER: Final = ((2, 27, 7), (2, 28, 9))
VARIABLES: Final = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID")


class Pick(NamedTuple):
    """One interface that NCCL takes; `interface` is the name as getifaddrs gives it (an alias has its label)."""

    interface: str
    address: str


class _Entry(NamedTuple):
    name: str
    ip: str
    prefix: int
    family: int
    running: bool
    link: str


def choose(
    links: Sequence[Link], version: Version, environment: Mapping[str, str], purpose: str = "bootstrap"
) -> tuple[Pick, ...] | Unavailable:
    """What NCCL `version` takes: for ``bootstrap`` (and NET/IB's out-of-band traffic) one interface, for ``socket`` all that
    NET/Socket stripes over; () where it finds none and fails.

    `environment` holds the effective `VARIABLES` (nccl.conf included).  Unavailable where NCCL_COMM_ID names a host (it would
    have to be resolved) or is malformed (NCCL refuses to start).
    """
    limit = 1 if purpose == "bootstrap" else MAX_IFS
    entries = list(_getifaddrs(links))
    wanted = environment.get("NCCL_SOCKET_IFNAME", "")
    comm_id = environment.get("NCCL_COMM_ID")
    if purpose == "bootstrap" and comm_id is not None:  # before and instead of NCCL_SOCKET_IFNAME
        return _same_subnet(entries, version, comm_id)
    family = {"AF_INET": 4, "AF_INET6": 6}.get(environment.get("NCCL_SOCKET_FAMILY", ""))
    chosen = parse(wanted)
    if chosen is not None:  # named by the user: found or failed, no fallback
        return tuple(_find(entries, chosen, version, family, limit))
    if found := tuple(_find(entries, _rule("ib"), version, family, limit)):
        return found
    if comm_id is not None and len(comm_id) > 1:
        near = _same_subnet(entries, version, comm_id)
        if near or isinstance(near, Unavailable):
            return near
    new = version >= RUNNING_FROM
    for rule in ("^docker,lo,virbr" if new else "^docker,lo", "docker", "lo", *(("virbr",) if new else ())):
        if found := tuple(_find(entries, _rule(rule), version, family, limit)):
            return found
    return ()


def _rule(text: str) -> Selector:
    rule = parse(text)
    assert rule is not None  # all rules are longer than a character
    return rule


def _getifaddrs(links: Iterable[Link]) -> Iterator[_Entry]:
    links = list(links)
    for family in (4, 6):
        for link in links:
            for one in link.addresses:
                if one.family == family:
                    yield _Entry(one.label or link.name, one.ip, one.prefix, family, link.running, link.name)


def _find(entries: Iterable[_Entry], rule: Selector, version: Version, family: int | None, limit: int) -> Iterator[Pick]:
    taken: set[str] = set()
    for entry in entries:
        if len(taken) == limit:
            return
        if version >= RUNNING_FROM and not entry.running:
            continue
        if (family is not None and entry.family != family) or (entry.family == 6 and ip_address(entry.ip).is_loopback):
            continue
        if entry.name not in taken and rule.takes(entry.name):
            taken.add(entry.name)
            yield Pick(entry.name, entry.ip)


def _same_subnet(entries: Iterable[_Entry], version: Version, comm_id: str) -> tuple[Pick, ...] | Unavailable:
    """ncclFindInterfaceMatchSubnet: the first address in the subnet of NCCL_COMM_ID, up or down, loopback or not."""
    target = comm_id_address(comm_id)
    if isinstance(target, Unavailable):
        return target
    text, _, scope = target.partition("%")
    remote = ip_address(text)
    inverted = remote.version == 4 and SUBNET_INVERTED[0] <= version <= SUBNET_INVERTED[1]
    for entry in entries:
        if entry.family != remote.version:
            continue
        # The scope must agree: an interface for a link-local address, none for another.
        own_scope = entry.link if entry.family == 6 and ip_address(entry.ip).is_link_local else ""
        inside = remote in ip_network(f"{entry.ip}/{entry.prefix}", strict=False) and own_scope == scope
        if inside != inverted:
            return (Pick(entry.name, entry.ip),)
    return ()


def comm_id_address(comm_id: str) -> str | Unavailable:
    """The address of ``IPv4:port`` or ``[IPv6]:port`` (ncclSocketGetAddrFromString)."""
    text = comm_id[1:].partition("]")[0] if comm_id.startswith("[") else comm_id.partition(":")[0]
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        if text and text.isascii() and not comm_id.startswith("[") and ":" in comm_id:
            return Unavailable(Kind.NOT_READ, f"NCCL_COMM_ID names the host {text}")
        return Unavailable(Kind.MALFORMED, f"NCCL_COMM_ID={comm_id!r}")
    return text


def resolved(settings: Mapping[str, str], peers: Iterable[Peer]) -> Mapping[str, str]:
    """The same, with the address of NCCL_COMM_ID's host instead of its name, where that is known."""
    comm_id = settings.get("NCCL_COMM_ID", "")
    at = next((ip for one in peers if one.variable == "NCCL_COMM_ID" for ip in one.addresses or ()), None)
    if at is None or comm_id.startswith("["):
        return settings
    return {**settings, "NCCL_COMM_ID": f"{f'[{at}]' if ':' in at else at}:{comm_id.rpartition(':')[2]}"}


def versions(nccl: NcclChoice, libraries: Libraries) -> tuple[Version, ...]:
    """The version of the job's NCCL, or one of each kind."""
    if nccl.version:
        return (nccl.version,)
    torch = libraries.torch
    if isinstance(torch, Unavailable):
        return EITHER
    mapped = [one.version for one in libraries.nccl or () if one.path == torch.nccl_path and one.version]
    if not mapped and torch.nccl_linkage == Linkage.STATIC and isinstance(torch.nccl_compiled, tuple):
        mapped = [torch.nccl_compiled]
    return tuple(mapped[:1]) or EITHER
