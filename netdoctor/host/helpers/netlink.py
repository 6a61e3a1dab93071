"""Helper program: this network namespace as the kernel's netlink sockets tell it (rtnetlink(7), sock_diag(7)).

Parameters (all strings): ``routes`` = comma-separated IP addresses; with it only routes are answered; ``heard`` =
comma-separated OWN/SENDER/INTERFACE, with it only whether a request would be answered.  Answers::

    {"links": [{"name", "index", "flags", "type", "mtu", "kind", "controller", "address", "modes", "pfc", …}]
     "addresses": [{"index", "label", "family", "ip", "prefix", "scope", "flags"}],              dump order: IPv4, then IPv6
     "default": {"4": ROUTE, "6": ROUTE},                      to an address that no network has (RFC 5737, RFC 3849)
     "listening": [[port, uid]] or {"unavailable": kind, "detail": text}}
    {"routes": {IP: {"main": ROUTE, "via": [INTERFACE, …]}}}
    {"heard": {"10.1.0.7/10.1.0.6/eth1": BOOL or {"error": errno name}}}

What lies on another interface of this namespace (a VLAN, a macvlan) also has its index, "lower"; a bond has "bond_mode"
(0 balance-rr … 6 balance-alb), a port of one "bond_state" (0 active, 1 backup; linux/if_bonding.h).
``modes`` is what ethtool(8) says of a physical interface, where its driver does: {"supported", "advertised", "partner"}, each
numbers of enum ethtool_link_mode_bit_indices.  ``pfc`` is the priorities, a bit each, whose frames it pauses (IEEE 802.1Qbb),
``dscp`` the priority of each DSCP that is given one, ``ets`` the traffic class of each priority, and of each class how it sends
and its share (tc_tsa, tc_tx_bw), ``buffers`` the buffer of each priority, where the driver tells DCB netlink (net/dcb/dcbnl.c,
dcbnl_ieee_get, which anybody may ask).  Of these alone ``pause``: whether it heeds and sends frames that pause all priorities
(ethtool -a); mlx5's virtual functions tell no DCB, and fill the kernel's log where asked (mlx5e_ethtool_get_pauseparam).

where ROUTE is {"oif", "source", "gateway", "kind"} or {"error": errno name}.  ``via`` asks with each interface given (RTA_OIF)
for the matching entry of the routing table (RTM_F_FIB_MATCH) and holds the interfaces that have one longer than the default
route: without that flag the kernel takes every destination for on-link (net/ipv4/route.c ip_route_output_key_hash_rcu).
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from ipaddress import ip_address

TYPE_CHECKING = False  # typing itself costs 8 ms of a child
if TYPE_CHECKING:
    from typing import Any

NETLINK_ROUTE, NETLINK_SOCK_DIAG = 0, 4
RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, SOCK_DIAG_BY_FAMILY = 18, 22, 26, 20
NLMSG_ERROR, NLMSG_DONE = 2, 3
# linux/dcbnl.h
RTM_GETDCB, DCB_CMD_IEEE_GET, DCB_ATTR_IFNAME, DCB_ATTR_IEEE, DCB_ATTR_IEEE_PFC = 78, 21, 1, 13, 2
DCB_ATTR_IEEE_ETS, DCB_ATTR_IEEE_APP_TABLE, IEEE_8021QAZ_APP_SEL_DSCP, DCB_ATTR_DCB_BUFFER = 1, 3, 5, 10
REQUEST, ACK, DUMP, DUMP_INTR = 0x1, 0x4, 0x300, 0x10
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_LINK_NETNSID = 1, 3, 4, 5, 10, 18, 37
# Of a bond its mode, of its ports their state: linux/if_link.h, a byte each
IFLA_INFO_KIND, IFLA_INFO_DATA, IFLA_INFO_SLAVE_KIND, IFLA_INFO_SLAVE_DATA = 1, 2, 4, 5
IFLA_BOND_MODE, IFLA_BOND_SLAVE_STATE = 1, 1
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS = 1, 2, 3, 8
RTM_F_FIB_MATCH = 0x2000
RTA_DST, RTA_SRC, RTA_IIF, RTA_OIF, RTA_GATEWAY, RTA_PREFSRC, RTA_VIA = 1, 2, 3, 4, 5, 7, 18
IFF_UP = 0x1
SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
ADDRESS_FLAGS = ((0x08, "dadfailed"), (0x20, "deprecated"), (0x40, "tentative"))
TEMPORARY = 0x01  # of an IPv6 address; the same bit says "secondary" of an IPv4 one
UNICAST, LOCAL = 1, 2
ROUTE_KINDS = {1: "unicast", 2: "local", 3: "broadcast", 5: "multicast", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
TCP_LISTEN = 10
ELSEWHERE = {"4": "198.51.100.1", "6": "2001:db8::1"}  # documentation networks: only a default route leads there
MAX_VIA = 64  # interfaces asked for a route of their own
# linux/sockios.h, linux/ethtool.h: anybody may ask (net/ethtool/ioctl.c, dev_ethtool)
SIOCETHTOOL, ETHTOOL_GPAUSEPARAM, ETHTOOL_GLINKSETTINGS, MODES_AT = 0x8946, 0x12, 0x4C, 48
ETHERNET = 1  # ARPHRD_ETHER
UNTOLD = (errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL)  # the driver has no such thing


class Netlink:
    """One netlink socket; `ask` yields the payloads of the answers."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.settimeout(5)
        self._socket.bind((0, 0))
        self._sequence = 0
        self._interrupted = False

    def close(self) -> None:
        self._socket.close()

    def ask(self, kind: int, payload: bytes, dump: bool) -> list[bytes]:
        """The payloads; OSError for the kernel's error.  An interrupted dump is asked again (NLM_F_DUMP_INTR)."""
        for _ in range(5):
            answers = list(self._once(kind, payload, dump))
            if not self._interrupted:
                return answers
        raise OSError(errno.EINTR, "the dump kept changing")

    def _once(self, kind: int, payload: bytes, dump: bool) -> Iterator[bytes]:
        self._sequence += 1
        flags = REQUEST | (DUMP if dump else ACK)
        self._socket.send(struct.pack("=IHHII", 16 + len(payload), kind, flags, self._sequence, 0) + payload)
        self._interrupted = False
        while True:
            data = self._socket.recv(1 << 18)
            offset = 0
            while offset + 16 <= len(data):
                length, got, flags, sequence, _ = struct.unpack_from("=IHHII", data, offset)
                body = data[offset + 16 : offset + length]
                offset += max(16, (length + 3) & ~3)
                if sequence != self._sequence:
                    continue
                self._interrupted |= bool(flags & DUMP_INTR)
                if got == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return
                if got == NLMSG_DONE:
                    return
                yield body


def attributes(data: bytes) -> dict[int, bytes]:
    """A run of rtattr; nested and byte-order bits of the type are dropped."""
    return dict(each(data))


def each(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            break
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def text(value: bytes | None) -> str | None:
    return None if value is None else value.rstrip(b"\0").decode("utf-8", "backslashreplace")


def number(value: bytes | None) -> int | None:
    return None if value is None or len(value) != 4 else int(struct.unpack("=I", value)[0])


def ip(value: bytes | None) -> str | None:
    return str(ip_address(value)) if value is not None and len(value) in (4, 16) else None


def links(route: Netlink) -> list[dict[str, Any]]:
    out = []
    for body in route.ask(RTM_GETLINK, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0), dump=True):
        _, _, kind, index, flags, _ = struct.unpack_from("=BBHiII", body)
        have = attributes(body[16:])
        info = attributes(have.get(IFLA_LINKINFO, b""))
        out.append(
            {
                "name": text(have.get(IFLA_IFNAME)),
                "index": index,
                "flags": flags,
                "type": kind,
                "mtu": number(have.get(IFLA_MTU)) or 0,
                "kind": text(info.get(IFLA_INFO_KIND)),
                "controller": number(have.get(IFLA_MASTER)),
                "address": have.get(IFLA_ADDRESS, b"").hex(":"),
            }
        )
        lower = number(have.get(IFLA_LINK))
        if lower and lower != index and IFLA_LINK_NETNSID not in have:  # else it is a number of another namespace
            out[-1]["lower"] = lower
        out[-1].update(bonded(info))
        if kind == ETHERNET and out[-1]["kind"] is None and (modes := link_modes(out[-1]["name"])):
            out[-1]["modes"] = modes
            out[-1].update(dcb(route, out[-1]["name"]))
    return out


def dcb(route: Netlink, name: str) -> dict[str, Any]:
    """pfc_en of struct ieee_pfc, struct ieee_ets, and each struct dcb_app {u8 selector, priority; u16 protocol} of DSCP."""
    request = struct.pack("=BBH", 0, DCB_CMD_IEEE_GET, 0) + attribute(DCB_ATTR_IFNAME, name.encode() + b"\0")
    try:
        told = route.ask(RTM_GETDCB, request, dump=False)
    except OSError as error:
        return {} if error.errno in UNTOLD else {"pfc": refusal(error)}
    out: dict[str, Any] = {}
    for body in told:
        settings = attributes(attributes(body[4:]).get(DCB_ATTR_IEEE, b""))
        if len(one := settings.get(DCB_ATTR_IEEE_PFC, b"")) > 1:
            out["pfc"] = one[1]
            if (both := pauses(name)) is not None:
                out["pause"] = both
        if len(one := settings.get(DCB_ATTR_DCB_BUFFER, b"")) >= 8:  # struct dcbnl_buffer begins with prio2buffer
            out["buffers"] = list(one[:8])
        if len(one := settings.get(DCB_ATTR_IEEE_ETS, b"")) >= 35:  # willing, ets_cap, cbs, then eight bytes each
            out["ets"] = {"shares": list(one[3:11]), "kinds": list(one[19:27]), "classes": list(one[27:35])}
        apps = [app for _, app in each(settings.get(DCB_ATTR_IEEE_APP_TABLE, b"")) if len(app) == 4]
        of_dscp = [struct.unpack("=BBH", app) for app in apps if app[0] == IEEE_8021QAZ_APP_SEL_DSCP]
        if of_dscp:
            out["dscp"] = {str(dscp): priority for _, priority, dscp in of_dscp}
    return out


def pauses(name: str) -> list[bool] | dict[str, str] | None:
    """rx_pause and tx_pause of struct ethtool_pauseparam; None: it has none."""
    told = array.array("I", (ETHTOOL_GPAUSEPARAM, 0, 0, 0))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            fcntl.ioctl(asking, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), told.buffer_info()[0]))
    except OSError as error:
        return None if error.errno in UNTOLD else refusal(error)
    return [bool(told[2]), bool(told[3])]


def bonded(info: dict[int, bytes]) -> dict[str, int]:
    """What only bonds and their ports have."""
    out, mode = {}, ("bond_mode", IFLA_INFO_KIND, IFLA_INFO_DATA, IFLA_BOND_MODE)
    state = ("bond_state", IFLA_INFO_SLAVE_KIND, IFLA_INFO_SLAVE_DATA, IFLA_BOND_SLAVE_STATE)
    for name, kind, data, one in (mode, state):
        value = attributes(info.get(data, b"")).get(one, b"")
        if text(info.get(kind)) == "bond" and value:
            out[name] = value[0]
    return out


def link_modes(name: str) -> dict[str, list[int]] | None:
    """None where the driver says none.  The kernel first answers how many words its masks have, as a negative number."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            words = -link_settings(asking, name, 0)[0]
            _, masks = link_settings(asking, name, words)
    except (OSError, ValueError, OverflowError):
        return None
    out = {}
    for at, one in enumerate(("supported", "advertised", "partner")):
        mask = int.from_bytes(masks[4 * words * at :][: 4 * words], sys.byteorder)
        out[one] = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    return out if out["supported"] else None


def link_settings(asking: socket.socket, name: str, words: int) -> tuple[int, bytes]:
    """struct ethtool_link_settings: its number of words, and its masks."""
    told = array.array("B", bytes(MODES_AT + 12 * 127))
    struct.pack_into("=I11xb", told, 0, ETHTOOL_GLINKSETTINGS, words)
    fcntl.ioctl(asking, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), told.buffer_info()[0]))
    return struct.unpack_from("=15xb", told)[0], told[MODES_AT:].tobytes()


def addresses(route: Netlink) -> list[dict[str, Any]]:
    out = []
    for body in route.ask(RTM_GETADDR, struct.pack("=BBBBi", 0, 0, 0, 0, 0), dump=True):
        family, prefix, short, scope, index = struct.unpack_from("=BBBBi", body)
        have = attributes(body[8:])
        address = ip(have.get(IFA_LOCAL) or have.get(IFA_ADDRESS))  # IFA_ADDRESS is the peer's on a point-to-point link
        if family not in (socket.AF_INET, socket.AF_INET6) or address is None:
            continue
        flags = number(have.get(IFA_FLAGS))
        flags = short if flags is None else flags
        out.append(
            {
                "index": index,
                "label": text(have.get(IFA_LABEL)),
                "family": 4 if family == socket.AF_INET else 6,
                "ip": address,
                "prefix": prefix,
                "scope": SCOPES.get(scope, str(scope)),
                "flags": [name for bit, name in ADDRESS_FLAGS if flags & bit]
                + ["temporary"] * (family == socket.AF_INET6 and bool(flags & TEMPORARY)),
            }
        )
    return out


def look_up(route: Netlink, destination: str, more: bytes = b"", flags: int = 0) -> tuple[bytes, dict[int, bytes]]:
    """The rtmsg and the attributes of the answer to RTM_GETROUTE; OSError where there is no route."""
    where = ip_address(destination.partition("%")[0])
    family, bits = (socket.AF_INET, 32) if where.version == 4 else (socket.AF_INET6, 128)
    payload = struct.pack("=BBBBBBBBI", family, bits, 0, 0, 0, 0, 0, 0, flags) + attribute(RTA_DST, where.packed)
    for body in route.ask(RTM_GETROUTE, payload + more, dump=False):
        return body, attributes(body[12:])
    raise OSError(errno.ENOENT, "no answer")


def one_route(route: Netlink, destination: str, names: dict[int, str]) -> dict[str, Any]:
    try:
        body, have = look_up(route, destination)
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, str(error.errno))}
    through = have.get(RTA_VIA, b"")[2:]  # rtvia: family, address (RFC 5549 routes)
    return {
        "oif": names.get(number(have.get(RTA_OIF)) or 0),
        "source": ip(have.get(RTA_PREFSRC)),
        "gateway": ip(have.get(RTA_GATEWAY) or through),
        "kind": ROUTE_KINDS.get(body[7], str(body[7])),
    }


def own_route(route: Netlink, destination: str, oif: int) -> bool:
    """Whether the routing table has an entry through `oif` that is longer than the default route."""
    try:
        body, have = look_up(route, destination, attribute(RTA_OIF, struct.pack("=I", oif)), RTM_F_FIB_MATCH)
    except OSError:
        return False
    return body[1] > 0 and body[7] == UNICAST and number(have.get(RTA_OIF)) in (oif, None)  # None: one of several next hops


def routes(route: Netlink, wanted: list[str]) -> dict[str, Any]:
    every = links(route)
    names = {one["index"]: one["name"] for one in every}
    held = {one["index"] for one in addresses(route)}
    up = [one["index"] for one in every if one["flags"] & IFF_UP and one["index"] in held][:MAX_VIA]
    out: dict[str, Any] = {}
    for destination in wanted:
        try:
            ip_address(destination.partition("%")[0])
        except ValueError:
            out[destination] = {"main": {"error": "EINVAL"}, "via": []}
            continue
        via = [names[index] for index in up if own_route(route, destination, index)]
        out[destination] = {"main": one_route(route, destination, names), "via": via}
    return out


def heard(route: Netlink, asked: str, names: dict[str, int]) -> bool | dict[str, str]:
    """The way of ARP that comes in (net/ipv4/route.c, ip_route_input_rcu): by rp_filter, rules, all next hops of a route."""
    own, sender, name = asked.split("/")
    more = attribute(RTA_SRC, ip_address(sender).packed) + attribute(RTA_IIF, struct.pack("=I", names.get(name, 0)))
    try:
        return True if look_up(route, own, more=more)[0][7] == LOCAL else {"error": f"{own} is not local on it"}
    except OSError as error:
        refused = error.errno in (errno.EINVAL, errno.EXDEV) and name in names  # by the kernel's version
        return False if refused else {"error": errno.errorcode.get(error.errno or 0, str(error.errno))}


def listening() -> list[list[int]]:
    """[port, uid] of every TCP listener of this namespace."""
    diag = Netlink(NETLINK_SOCK_DIAG)
    found = set()
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 1 << TCP_LISTEN) + b"\0" * 48
            for body in diag.ask(SOCK_DIAG_BY_FAMILY, request, dump=True):
                (port,) = struct.unpack_from("!H", body, 4)
                (uid,) = struct.unpack_from("=I", body, 64)
                found.add((port, uid))
    finally:
        diag.close()
    return [list(one) for one in sorted(found)]


def listening_proc() -> list[list[int]]:
    """The same from /proc/self/net/tcp and tcp6, where sock_diag is not built in or is filtered."""
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as file:
                rows = file.read().splitlines()[1:]
        except FileNotFoundError:
            if name == "tcp":
                raise
            continue  # no IPv6
        for row in rows:
            fields = row.split()
            if int(fields[3], 16) == TCP_LISTEN:
                found.add((int(fields[1].rpartition(":")[2], 16), int(fields[7])))
    return [list(one) for one in sorted(found)]


def answer(parameters: dict[str, str]) -> object:
    try:
        return look(parameters)
    except OSError as error:  # no such socket family, or a filter (seccomp) refuses it
        return refusal(error)


def look(parameters: dict[str, str]) -> object:
    route = Netlink(NETLINK_ROUTE)
    try:
        if "heard" in parameters:
            known = {one["name"]: one["index"] for one in links(route)}
            return {"heard": {one: heard(route, one, known) for one in parameters["heard"].split(",")}}
        if "routes" in parameters:
            return {"routes": routes(route, [one for one in parameters["routes"].split(",") if one])}
        out: dict[str, Any] = {"links": links(route), "addresses": addresses(route)}
        names = {one["index"]: one["name"] for one in out["links"]}
        out["default"] = {family: one_route(route, where, names) for family, where in ELSEWHERE.items()}
    finally:
        route.close()
    try:
        out["listening"] = listening()
    except OSError:
        try:
            out["listening"] = listening_proc()
        except OSError as error:
            out["listening"] = refusal(error)
    return out


def refusal(error: OSError) -> dict[str, str]:
    denied, unsupported = (errno.EACCES, errno.EPERM), (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
    kind = "denied" if error.errno in denied else "unsupported" if error.errno in unsupported else "failed"
    return {"unavailable": kind, "detail": f"netlink: {error}"}
