"""Which GID of a RoCE port NCCL takes.

Source: NCCL src/transport/net_ib (ncclIbGetGidIndex, ncclUpdateGidIndex; the same from 2.21.5 to 2.30.7).  Before 2.21.5 it is
the one of NCCL_IB_GID_INDEX, 0 by default (net_ib.cc, ncclIbRtrQp).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from netdoctor.facts.environ import Environ
from netdoctor.facts.nccl_version import AUTOMATIC_GID, Version
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.rdma_ports import Gid, RdmaPort
from netdoctor.model import Kind, Unavailable, missing, record
from netdoctor.nccl.integers import integer, param

IPV4, IPV6 = 4, 6
PINNED: Final = "NCCL_IB_GID_INDEX"
FEW: Final = 2  # rails, of which each may have a purpose of its own
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
_KINDS: Final = {"IB/RoCE v1": 1, "RoCE v1": 1, "RoCE v2": 2}


def address(gid: Gid) -> _Ip | Unavailable:
    """What a GID is the address of: IPv4 where it is mapped."""
    try:
        one = ipaddress.IPv6Address(gid.value)
    except ValueError:
        return Unavailable(Kind.MALFORMED, f"GID {gid.value[:48]!r}")
    return one.ipv4_mapped or one


@record
class Wish:
    """What NCCL looks for in a table of GIDs."""

    index: int | None  # taken whatever is there; None: it chooses
    family: int = IPV4
    roce: int = 2
    within: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
    given: bool = False  # NCCL_IB_GID_INDEX names the index
    automatic: bool = True  # it would choose, were none given

    def takes(self, table: Iterable[Gid]) -> int | Unavailable:
        """The index of it; it need not be in the table."""
        if self.index is not None:
            return self.index
        entries: dict[int, tuple[int, _Ip]] = {}
        for gid in table:
            where = address(gid)
            if isinstance(where, Unavailable):
                return where
            if isinstance(gid.kind, Unavailable) and gid.kind.kind is not Kind.FAILED:  # EINVAL: NCCL goes on to the next
                return gid.kind
            entries[gid.index] = (0 if isinstance(gid.kind, Unavailable) else _KINDS.get(gid.kind, 0), where)
        taken = 0
        for index in sorted(entries.keys() - {0}):
            if self._better(entries.get(taken), *entries[index]):
                taken = index
        return taken

    def _better(self, now: tuple[int, _Ip] | None, roce: int, where: _Ip) -> bool:
        if where.version != self.family or (self.within is not None and where not in self.within):
            return False
        if (now[1].version if now else IPV6) != self.family:
            return True
        valid = now is not None and not _link_local(now[1])
        return not _link_local(where) and roce == self.roce and (now is None or now[0] != roce or not valid)


def _link_local(where: _Ip) -> bool:
    """As NCCL sees it, which knows fe80::/64 alone (linkLocalGid)."""
    return where.version == IPV6 and where.is_link_local


def wishes(environ: Environ, version: Version | Unavailable) -> tuple[Wish, ...] | Unavailable:
    """What this NCCL looks for; of a version that is not known every one that it may."""
    names = ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM")
    given: Mapping[str, str | None | Unavailable] = {name: environ.get(name) for name in names}
    lost = next((value for value in given.values() if isinstance(value, Unavailable)), None)
    if lost is not None:
        return lost
    known = None if isinstance(version, Unavailable) else version
    found = []
    for automatic in (True, False) if known is None else (known >= AUTOMATIC_GID,):
        index = param(given[names[0]], -1 if automatic else 0, known)
        pinned = Wish(max(index, 0), given=bool(given[names[0]]), automatic=automatic)
        found.append(pinned if index >= 0 or not automatic else _chosen(given, known))
    return tuple(dict.fromkeys(found))


def _chosen(given: Mapping[str, str | None | Unavailable], version: Version | None) -> Wish:
    family = IPV6 if given["NCCL_IB_ADDR_FAMILY"] == "AF_INET6" else IPV4
    return Wish(
        None, family, param(given["NCCL_IB_ROCE_VERSION_NUM"], 2, version), _range(given["NCCL_IB_ADDR_RANGE"] or "", family)
    )


def _range(text: object, family: int) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """None: it is not set, or NCCL leaves it out (envIbAddrRange)."""
    base, slash, bits = str(text).partition("/")
    try:
        kind = ipaddress.IPv4Network if family == IPV4 else ipaddress.IPv6Network
        return kind((base, integer(bits)), strict=False) if slash else None
    except ValueError:
        return None


@record
class Rail:
    """An ACTIVE RoCE port that NCCL takes, and its GID; `gid` None: the entry is empty."""

    device: RdmaDevice
    port: RdmaPort
    index: int
    gid: Gid | None
    pinned: bool

    @property
    def words(self) -> str:
        return f"index {self.index}" + (f" ({PINNED})" if self.pinned else "")

    @property
    def netdev(self) -> str:
        return self.gid.netdev if self.gid and isinstance(self.gid.netdev, str) else ""

    @property
    def grade(self) -> tuple[int, int]:
        """Its kind and reach: link-local of IPv6, of IPv4 (169.254, RFC 3927), or routed."""
        where = address(self.gid) if self.gid else None
        if self.gid is None or not where:
            return 0, 0
        return 2 if self.gid.kind == "RoCE v2" else 1, 2 if not where.is_link_local else 1 if where.version == IPV4 else 0

    @property
    def near(self) -> bool:
        """Frames without an IP header, or of an address that no router forwards."""
        return self.gid is not None and self.grade < (2, 2)


KINDS, REACH = ("no kind", "RoCE v1", "RoCE v2"), ("a link-local IPv6 address", "an address of 169.254/16", "an address")


def words(grade: tuple[int, int]) -> str:
    return f"{KINDS[grade[0]]} with {REACH[grade[1]]}"


def rail(device: RdmaDevice, port: RdmaPort, wishes: Sequence[Wish]) -> Rail | Unavailable:
    """What NCCL takes of a port."""
    if isinstance(port.gids, Unavailable):
        return port.gids
    taken = {wish.takes(port.gids) for wish in wishes}
    first = next((one for one in taken if isinstance(one, Unavailable)), None)
    if first is not None:
        return first
    if len(taken) > 1:
        return Unavailable(Kind.NOT_READ, "the version of NCCL is not known, and it takes another before 2.21.5")
    index = next(one for one in taken if not isinstance(one, Unavailable))
    entry = port.gid(index)
    if isinstance(entry, Unavailable):
        return entry
    lost = missing(address(entry), entry.kind) if entry else None
    return lost if lost is not None else Rail(device, port, index, entry, pinned=all(wish.given for wish in wishes))


def unread(device: RdmaDevice) -> Unavailable | None:
    """Why it is not known whether the device is a RoCE rail, and of which siblings."""
    live = [p for p in device.ports or () if not p.state or (p.state == "ACTIVE" and p.link_layer != "InfiniBand")]
    lost = missing(device.ports, *(x for p in live for x in (p.state, p.link_layer, p.rate_gbps)))
    return missing(lost, device.driver if live else None)


def usual(grades: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """What most have; of two each may have a purpose of its own (the halves of a Spark's port)."""
    (grade, number), *_ = Counter(grades).most_common(1) or [((0, 0), 0)]
    return grade if number * 2 > len(grades) > FEW else None


def same_address(one: Rail, other: Rail) -> bool:
    """Of two interfaces: the functions below a bond all have its address."""
    return bool(one.gid and other.gid and one.gid.value == other.gid.value and one.netdev and one.netdev != other.netdev)


# Interfaces that no RDMA port is below, though one may have the name of the port's own in another namespace.
WITHOUT_HARDWARE: Final = frozenset({"veth", "netkit", "dummy", "tun", "wireguard"})


def not_its_address(rail: Rail, net: Net) -> bool:
    """The interface of that name is here, and is not the GID's: it has other addresses, or no hardware below it (a pod's
    eth0 beside the host's)."""
    where, link = address(rail.gid) if rail.gid else None, net.link(rail.netdev) if rail.netdev else None
    if not where or not link:
        return False
    own = {ipaddress.ip_address(one.ip.partition("%")[0]) for one in link.addresses or ()}
    if link.kind in WITHOUT_HARDWARE:  # but for a port in software (rxe), which has its addresses
        return where not in own
    own = {one for one in own if one.version == where.version and not one.is_link_local}
    return bool(own) and not where.is_link_local and where not in own
