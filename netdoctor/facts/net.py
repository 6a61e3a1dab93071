"""Interfaces, addresses and routes, from netlink: /sys/class/net may show another namespace's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from ipaddress import ip_interface
from typing import Any, Final

from netdoctor.environment import Role, named
from netdoctor.facts import dcb
from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.job import section
from netdoctor.facts.peers import Peer, Route, configured, meet, resolve, resolving, root, route
from netdoctor.host.base import Host, link, mapping, names, read, read_int
from netdoctor.model import Kind, Unavailable, record, unavailable_in

__all__ = ["Address", "Link", "LocalPorts", "Net", "Peer", "Route", "probe", "probe_ports"]


@record
class Address:
    """One address of an interface."""

    ip: str
    prefix: int
    family: int  # 4 or 6
    scope: str  # "global" "link" "host"
    flags: frozenset[str] = frozenset()  # "tentative" "dadfailed" "deprecated" "temporary"
    label: str | None = None  # of an IPv4 address: getifaddrs(3), and so NCCL, names it by this ("eth0:1")

    @property
    def usable(self) -> bool:
        return not self.flags & {"tentative", "dadfailed"}


@record
class LinkModes:
    """What ethtool(8) says that an interface could do, in Mb/s; 0: it names no speed that is known here."""

    supported: int  # the most that its own hardware, with this cable, can
    agreed: int  # the most that both ends offer each other; 0 where the other end says nothing, as without autonegotiation


@record
class Link:
    """One interface of this network namespace."""

    name: str
    index: int
    up: bool  # IFF_UP
    running: bool  # IFF_RUNNING
    loopback: bool
    kind: str | None  # "veth" "bridge" "bond" "vlan" "macvlan" "tun" …; None for a physical one
    mtu: int
    controller: int | None  # index of its bridge or bond
    addresses: tuple[Address, ...]
    speed_mbps: int | Unavailable  # from sysfs, if sysfs shows this namespace, else by ioctl; -1 and EINVAL are Unavailable
    vendor: str | Unavailable  # PCI vendor of /sys/class/net/IF/device, "0x1d0f"
    driver: str | Unavailable
    numa_node: int | Unavailable
    modes: LinkModes | None | Unavailable = None  # None: no Ethernet of its own, or its driver does not say
    qos: dcb.Qos = field(default_factory=dcb.Qos)
    bond_mode: int | None = None  # of a bond, where the kernel says: BOND_MODE_… of linux/if_bonding.h
    backup: bool = False  # a port of a bond that carries nothing: it waits, or is in no active aggregator
    lower: int | None = None  # index of the interface on which a VLAN, a macvlan or their like lies, in this namespace


@record
class LocalPorts(Fact):
    """The ports that listeners and connections may take in this network namespace."""

    low: int | Unavailable
    high: int | Unavailable
    reserved: frozenset[int] | Unavailable  # ip_local_reserved_ports, all of them
    listening: frozenset[int] | Unavailable  # TCP ports with a listener in this namespace (v4 and v6)
    owners: Mapping[int, frozenset[int]] = field(default_factory=dict)  # user ids of the listeners, by port

    @property
    def taken(self) -> frozenset[int]:
        """The ports that are known to be reserved or to have a listener."""
        return frozenset({*(self.reserved or ()), *(self.listening or ())})


@record
class Net(Fact):
    """The network as this process sees it."""

    links: tuple[Link, ...] | Unavailable  # in kernel order (ifindex), as getifaddrs gives them
    hostname_addresses: tuple[str, ...] | Unavailable  # what this node's own name resolves to
    master: Peer | None | Unavailable  # node 0, by MASTER_ADDR or what a launcher has instead; None: no variable names it
    master_port: int | None | Unavailable  # MASTER_PORT
    peers: tuple[Peer, ...] | Unavailable  # of the configuration, and that of NCCL_COMM_ID
    default_route: Route | None | Unavailable  # None: there is none

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        return super()._unread(no_evidence(why))

    def link(self, name: str) -> Link | None | Unavailable:
        """The interface of that name, or with an address of that label; None where there is none."""
        if isinstance(self.links, Unavailable):
            return self.links
        by_name = next((one for one in self.links if one.name == name), None)
        return by_name or next((one for one in self.links if any(a.label == name for a in one.addresses)), None)

    def cables(self, link: Link) -> tuple[Link, ...]:
        """The interfaces with a cable that carry what this one does, bonds before their ports; () where none is in this
        namespace."""
        found, todo = dict[int, Link](), [link]
        while todo:
            one = todo.pop(0)
            if one.index in found:
                continue
            found[one.index] = one
            todo += [other for other in self.links or () if other.controller == one.index or other.index == one.lower]
        return tuple(one for one in found.values() if one.kind in _WITH_CABLE)

    def cards(self, link: Link) -> tuple[Link, ...]:
        """Of these the cards' own: the ports of a bond, what is below a VLAN."""
        return tuple(one for one in self.cables(link) if one.kind is None)

    @property
    def master_is_here(self) -> bool | Unavailable:
        """Whether node 0, where a variable names it, is this node."""
        if isinstance(self.master, Unavailable):
            return self.master
        return True if self.master is None else self.master.local

    @property
    def perhaps_others(self) -> tuple[Peer | Unavailable, ...]:
        """The peers that are not known to be this node, and why some could not be read."""
        peers = (self.peers,) if isinstance(self.peers, Unavailable) else self.peers
        return tuple(one for one in (self.master, *peers) if one is not None and not (one and one.local is True))

    @property
    def others(self) -> tuple[Peer, ...]:
        """The peers that are known to be other nodes, that of MASTER_ADDR first."""
        return tuple(one for one in (self.master, *(self.peers or ())) if one and one.local is False)


# How the facts are made

IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40  # include/uapi/linux/if.h
MAX_SPEED: Final = 16_000_000  # Mb/s, above any bond; some drivers say -1 as an unsigned number of 16 or 32 bits
ELSEWHERE: Final = Unavailable(Kind.NOT_READ, "sysfs of another network namespace")
_WITH_CABLE: Final = (
    None,
    "bond",
)  # kinds of interfaces whose counters are those of a cable; of others they are the kernel's own
# Interfaces whose speed is that of the hardware below; a veth says 10000 and a tun 10 whatever they carry.
_REAL_SPEED: Final = (None, "bond", "team", "vlan", "macvlan", "ipvlan", "bridge", "ipoib")


def probe(host: Host) -> Net | Unavailable:
    """Interfaces, addresses, routes; who MASTER_ADDR and the configured peers are and how they are reached."""
    told = mapping(host, "ask:netlink")
    if isinstance(told, Unavailable):
        return told
    bare = _links(told)
    if isinstance(bare, Unavailable):
        return bare
    agrees = _sysfs_agrees(host, told)
    speeds = {} if agrees is True else _speeds(host)
    links = tuple(_with_sysfs(host, one, agrees, speeds) for one in bare)
    own = frozenset(address.ip for one in links for address in one.addresses)

    hostname = _text(read(host, "/proc/sys/kernel/hostname"))
    variable, master_name, master_port = by_command(section(host, "launch")) or _master(mapping(host, "env:"))
    people = configured(host)
    if isinstance(master_name, str):
        people.append((master_name, master_port if isinstance(master_port, int) else None))
    host.prefetch(resolving(name for name in (hostname, *(name for name, _ in people)) if isinstance(name, str)))
    peers = meet(host, people, own)
    master = replace(peers.pop(), variable=variable) if isinstance(master_name, str) else master_name
    return Net(
        links=links,
        hostname_addresses=resolve(host, hostname) if isinstance(hostname, str) else Unavailable(Kind.NOT_READ, str(hostname)),
        master=master,
        master_port=master_port,
        peers=(*peers, *root(host, mapping(host, "env:"), own)),
        default_route=_default(told),
    )


def probe_ports(host: Host) -> LocalPorts:
    """The ports of this network namespace."""
    span = read(host, "/proc/sys/net/ipv4/ip_local_port_range")
    low, high = _span(span)
    reserved = read(host, "/proc/sys/net/ipv4/ip_local_reserved_ports")
    told = mapping(host, "ask:netlink")
    listening: frozenset[int] | Unavailable
    owners: dict[int, frozenset[int]] = {}
    rows = told if isinstance(told, Unavailable) else told.get("listening")
    if isinstance(rows, list):
        try:
            for port, uid in rows:
                owners[int(port)] = owners.get(int(port), frozenset()) | {int(uid)}
            listening = frozenset(owners)
        except (TypeError, ValueError, OverflowError):
            listening, owners = Unavailable(Kind.MALFORMED, "ask:netlink: listening"), {}
    else:
        lost = rows if isinstance(rows, Unavailable) else unavailable_in(rows)
        listening = Unavailable(Kind.MALFORMED, "ask:netlink: listening") if lost is None else lost
    kept = reserved if isinstance(reserved, Unavailable) else _port_list(reserved)
    return LocalPorts(low, high, kept, listening, owners)


def _links(told: Mapping[str, Any]) -> tuple[Link, ...] | Unavailable:
    try:
        held: dict[int, list[Address]] = {}
        if not isinstance(told["links"], list) or not isinstance(told["addresses"], list):
            return Unavailable(Kind.MALFORMED, "ask:netlink: no lists")
        for row in told["addresses"]:
            held.setdefault(int(row["index"]), []).append(_address(row))
        return tuple(_link(row, tuple(held.get(int(row["index"]), ()))) for row in told["links"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        return Unavailable(Kind.MALFORMED, f"ask:netlink: {error!r}")


def _address(row: Mapping[str, Any]) -> Address:
    net = ip_interface(f"{row['ip']}/{int(row['prefix'])}")
    label = row.get("label")
    flags = frozenset(str(one) for one in row["flags"])
    return Address(
        str(net.ip), net.network.prefixlen, net.version, str(row["scope"]), flags, None if label is None else str(label)
    )


def _link(row: Mapping[str, Any], addresses: tuple[Address, ...]) -> Link:
    flags = int(row["flags"])
    return Link(
        name=str(row["name"]),
        index=int(row["index"]),
        up=bool(flags & IFF_UP),
        running=bool(flags & IFF_RUNNING),
        loopback=bool(flags & IFF_LOOPBACK),
        kind=None if row["kind"] is None else str(row["kind"]),
        mtu=int(row["mtu"]),
        controller=None if row["controller"] is None else int(row["controller"]),
        addresses=addresses,
        speed_mbps=ELSEWHERE,
        vendor=ELSEWHERE,
        driver=ELSEWHERE,
        numa_node=ELSEWHERE,
        modes=_modes(row.get("modes")),
        qos=dcb.told(dict(row)),
        bond_mode=mode if type(mode := row.get("bond_mode")) is int else None,
        backup=row.get("bond_state") == 1,
        lower=lower if type(lower := row.get("lower")) is int else None,
    )


# Mb/s of numbers of enum ethtool_link_mode_bit_indices (include/uapi/linux/ethtool.h), the first and the last; full duplex.
_SPEEDS: Final = (
    *((1000, 5, 5), (1000, 17, 17), (1000, 41, 41), (2500, 15, 15), (2500, 47, 47), (5000, 48, 48)),
    *((10000, 12, 12), (10000, 18, 19), (10000, 42, 46), (20000, 21, 22), (25000, 31, 33), (40000, 23, 26)),
    *((50000, 34, 35), (50000, 40, 40), (50000, 52, 56), (56000, 27, 30), (100000, 36, 39), (100000, 57, 61)),
    *((100000, 75, 79), (200000, 62, 66), (200000, 80, 84), (400000, 69, 73), (400000, 85, 89), (800000, 93, 98)),
)


def _modes(told: Any) -> LinkModes | None | Unavailable:
    if told is None:
        return None
    if (lost := unavailable_in(told)) is not None:
        return lost
    masks = [told.get(name) if isinstance(told, dict) else None for name in ("supported", "advertised", "partner")]
    if not all(isinstance(mask, list) for mask in masks):
        return Unavailable(Kind.MALFORMED, "ask:netlink: modes")
    supported, advertised, partner = (
        {speed for speed, first, last in _SPEEDS for bit in mask or () if isinstance(bit, int) and first <= bit <= last}
        for mask in masks
    )
    return LinkModes(max(supported, default=0), max(advertised & partner, default=0))


def _sysfs_agrees(host: Host, told: Mapping[str, Any]) -> bool | Unavailable:
    """Whether /sys/class/net shows this namespace: same names, indexes and hardware addresses (lo and eth0 are everywhere)."""
    listed = names(host, "/sys/class/net")
    if isinstance(listed, Unavailable):
        return listed
    rows = {str(row["name"]): row for row in told["links"]}
    if {name for name in listed if name != "bonding_masters"} != set(rows):
        return False
    for name, row in rows.items():
        if name == "lo":
            continue
        index, address = read_int(host, f"/sys/class/net/{name}/ifindex"), read(host, f"/sys/class/net/{name}/address")
        if isinstance(index, Unavailable) or isinstance(address, Unavailable):
            return index if isinstance(index, Unavailable) else Unavailable(Kind.NOT_READ, f"{name}: {address}")
        if index != row["index"] or address.strip() != row.get("address"):
            return False
    return True


def _speeds(host: Host) -> dict[str, int]:
    """Mb/s by ethtool's ioctl, which asks this namespace whatever /sys shows; empty where psutil does not tell."""
    told = (mapping(host, "ask:psutil") or {}).get("interfaces")
    rows = told.items() if isinstance(told, dict) else ()
    speeds = {str(name): one.get("speed_mbps") for name, one in rows if isinstance(one, dict)}
    return {name: speed for name, speed in speeds.items() if type(speed) is int and _plausible(speed)}


def _plausible(speed: int) -> bool:
    return 0 < speed <= MAX_SPEED and speed != 0xFFFF


def _with_sysfs(host: Host, one: Link, agrees: bool | Unavailable, speeds: Mapping[str, int]) -> Link:
    if agrees is not True:
        why = ELSEWHERE if agrees is False else agrees
        real = speeds.get(one.name, why) if one.kind in _REAL_SPEED else why
        return replace(one, speed_mbps=real, vendor=why, driver=why, numa_node=why)
    none = Unavailable(Kind.ABSENT, "no hardware of its own")
    if one.loopback:
        return replace(one, speed_mbps=none, vendor=none, driver=none, numa_node=none)
    base = f"/sys/class/net/{one.name}"
    speed = (
        read_int(host, f"{base}/speed") if one.kind in _REAL_SPEED else Unavailable(Kind.ABSENT, f"a {one.kind} has no speed")
    )
    if isinstance(speed, int) and not _plausible(speed):
        speed = Unavailable(Kind.UNSUPPORTED, f"speed {speed}: the driver does not say")
    if one.kind is not None:
        return replace(one, speed_mbps=speed, vendor=none, driver=none, numa_node=none)
    driver = link(host, f"{base}/device/driver")
    driver = driver and driver.rpartition("/")[2]
    return replace(
        one,
        speed_mbps=speed,
        vendor=_text(read(host, f"{base}/device/vendor")),
        driver=driver,
        qos=dcb.with_sysfs(host, one.qos, base) if driver == "mlx5_core" else one.qos,
        numa_node=read_int(host, f"{base}/device/numa_node"),
    )


def _text(got: str | Unavailable) -> str | Unavailable:
    return got if isinstance(got, Unavailable) or got.strip() else Unavailable(Kind.EMPTY)


def by_command(told: Mapping[str, Any] | Unavailable) -> tuple[str, str | None, int | None] | None:
    """Node 0 as the launcher in the job's command is told; None: it leaves it to the environment."""
    if not told or told.get("master") is None:
        return None
    return str(told.get("option")), str(told["master"]) or None, told.get("port") or None


def _master(
    environment: Mapping[str, Any] | Unavailable,
) -> tuple[str, str | None | Unavailable, int | None | Unavailable]:
    """The variable that names node 0 and its value, torch's own first; MASTER_PORT."""
    if isinstance(environment, Unavailable):  # "not read": it says nothing about the variables themselves
        lost = Unavailable(Kind.NOT_READ, f"the environment: {environment}")
        return "", lost, lost
    variable = next((one for one in named(Role.MASTER) if environment.get(one)), "")
    name, port = environment.get(variable), environment.get("MASTER_PORT")
    number: int | None | Unavailable = None
    if port:
        valid = str(port).isascii() and str(port).isdigit() and 0 < int(port) < 65536
        number = int(port) if valid else Unavailable(Kind.MALFORMED, f"MASTER_PORT={str(port)[:20]!r}")
    return variable, (str(name) if name else None), number


def _default(told: Mapping[str, Any]) -> Route | None | Unavailable:
    rows = told.get("default")
    if not isinstance(rows, dict):
        return Unavailable(Kind.MALFORMED, "ask:netlink: default")
    for family in ("4", "6"):
        found = route("default", rows.get(family))
        if isinstance(found, Route) and found.kind == "unicast":
            return found
    return None


def _span(text: str | Unavailable) -> tuple[int | Unavailable, int | Unavailable]:
    if isinstance(text, Unavailable):
        return text, text
    fields = text.split()
    if len(fields) == 2 and all(f.isdecimal() for f in fields) and 0 < int(fields[0]) <= int(fields[1]) < 65536:
        return int(fields[0]), int(fields[1])
    bad = Unavailable(Kind.MALFORMED if text.strip() else Kind.EMPTY, f"ip_local_port_range: {text[:40]!r}")
    return bad, bad


def _port_list(text: str) -> frozenset[int] | Unavailable:
    """``8080,9000-9010`` of ip_local_reserved_ports (Documentation/networking/ip-sysctl.rst)."""
    found: set[int] = set()
    for item in text.replace("\n", ",").split(","):
        first, _, last = item.strip().partition("-")
        if not first:
            continue
        if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) > 65535:
            return Unavailable(Kind.MALFORMED, f"ip_local_reserved_ports: {text[:40]!r}")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
