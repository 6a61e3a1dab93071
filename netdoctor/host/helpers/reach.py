"""Helper program: whether packets of the full size arrive at other hosts, by ICMP echo with DF set (RFC 792, RFC 4443).

Parameters: ``to``: "IP/MTU,…", the MTU of the interface that leads there; ``seconds``: how long answers may take.  Answer:
{"paths": {IP: {"small", "middle", "full": answered, "told": the MTU that a router named | null, "error": errno name | null,
"pieces": N | 0 | null}}}; EACCES also where a firewall said no.
"pieces" is asked where small packets arrive, full ones do not and no router says so: a packet of the full size in pieces
(IP fragments) that arrive.  The other end sends its answer as large as its own interface may: N, the largest packet that came
of it, is the MTU there, or the full size; 0: the answer vanished, and one of a size that arrives did not; null: not known
(IPv4 takes CAP_NET_RAW to send pieces; a firewall drops them; a router on the way may have made the answer's).
"small" is what every path carries, "middle" what Ethernet does.  Each is sent three times.  The socket is
SOCK_DGRAM (ip(7), ping_group_range) or SOCK_RAW; {"unavailable": "denied"} where neither is given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SMALL, MIDDLE = 576, 1500  # bytes of a packet: RFC 1122 3.3.3 (IPv6: more, RFC 8200), Ethernet
SMALL6 = 1280
TRIES = 3
ECHO, REPLY = (8, 128), (0, 129)  # ICMP, ICMPv6
TOO_BIG = ((3, 4), (2, 0))
# "Prohibited" (RFC 1812 5.2.7.1, RFC 4443 3.1), of which the kernel makes the same errno as of a host that is not there
# (icmp_err_convert): a firewall said no.
PROHIBITED = (frozenset({(3, 9), (3, 10), (3, 13)}), frozenset({(1, 1), (1, 5), (1, 6)}))
ICMP_SAID = (2, 3)  # SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6 (linux/errqueue.h)
OFFENDER = ((20, 24), (24, 40))  # where the address of who said it lies: SO_EE_OFFENDER, a sockaddr behind the error
# linux/in.h, linux/in6.h; PROBE sets DF and asks no cache of path MTUs (ip(7)).
MTU_DISCOVER, PROBE, RECVERR = (10, 23), 3, (11, 25)
IP_HEADER = (20, 40)
# linux/in.h, linux/in6.h: pieces are sent as they are (IP_NODEFRAG), of that size (IPV6_MTU); how large those were that came.
NODEFRAG, SIX_MTU, DONT, FRAGSIZE = 22, 24, 0, (25, 77)
ASK_TTL, TTL, BEGIN = (12, 51), (2, 52), (64, 128, 255)  # what systems begin with, from which each router takes one
MORE = 0x2000  # pieces: another follows
CONTROL, WHOLE = 3, 4  # numbers of echoes, beside the three sizes


class Path:
    """One host, and the three sizes."""

    def __init__(self, ip: str, mtu: int) -> None:
        self.ip, self.six = ip, ":" in ip
        small = SMALL6 if self.six else SMALL
        self.sizes = {"small": small, "middle": min(mtu, MIDDLE), "full": mtu}
        self.seen: dict[str, Any] = {"small": False, "middle": False, "full": False, "told": None, "error": None}
        self.seen["pieces"] = None
        self.doubtful = False
        self.came: dict[int, int] = {}  # of the echoes in pieces that were answered, the largest packet of the answer
        family = socket.AF_INET6 if self.six else socket.AF_INET
        protocol = socket.IPPROTO_ICMPV6 if self.six else socket.IPPROTO_ICMP
        self.raw = False
        try:
            self.socket = socket.socket(family, socket.SOCK_DGRAM, protocol)
        except PermissionError:
            self.socket = socket.socket(family, socket.SOCK_RAW, protocol)
            self.raw = True
        level = socket.IPPROTO_IPV6 if self.six else socket.IPPROTO_IP
        self.socket.setsockopt(level, MTU_DISCOVER[self.six], PROBE)
        self.socket.setsockopt(level, RECVERR[self.six], 1)
        self.socket.setsockopt(level, FRAGSIZE[self.six], 1)
        self.socket.setsockopt(level, ASK_TTL[self.six], 1)
        self.socket.setblocking(False)
        self.identifier = int.from_bytes(os.urandom(2), "big")

    def connect(self) -> bool:
        try:
            self.socket.connect((self.ip, 0))
        except OSError as error:
            self.fail(error)
        return self.seen["error"] is None

    def fail(self, error: OSError) -> None:
        self.seen["error"] = errno.errorcode.get(error.errno or 0, str(error.errno))

    def send(self) -> None:
        for number, (name, size) in enumerate(self.sizes.items()):
            if self.seen[name]:
                continue
            body = bytes(max(0, size - IP_HEADER[self.six] - 8))
            head = struct.pack("!BBHHH", ECHO[self.six], 0, 0, self.identifier, number)
            if not self.six:  # the kernel does it for ICMPv6, and for SOCK_DGRAM
                head = struct.pack("!BBHHH", ECHO[0], 0, checksum(head + body), self.identifier, number)
            try:
                self.socket.send(head + body)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self.seen["told"] = self.seen["told"] or 0
                elif error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    self.errors()
                    self.fail(error)

    def receive(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(1 << 16, 512)
            except BlockingIOError:
                break
            except OSError as error:
                if not self.errors() and error.errno != errno.EMSGSIZE:
                    self.fail(error)
                break
            if self.raw and not self.six:
                data = data[(data[0] & 15) * 4 :]
            if len(data) < 8 or data[0] != REPLY[self.six]:
                continue
            identifier, number = struct.unpack_from("!HH", data, 4)
            if self.raw and identifier != self.identifier:
                continue
            if number < len(self.sizes):
                self.seen[list(self.sizes)[number]] = True
            elif number in (CONTROL, WHOLE):
                told = {kind: struct.unpack("=i", value)[0] for _, kind, value in ancillary if len(value) == 4}
                largest = told.get(FRAGSIZE[self.six]) or len(data) + IP_HEADER[self.six]
                self.came[number] = largest
                # Routers of IPv4 make pieces, too; those of IPv6 never.
                self.doubtful |= not self.six and largest < self.sizes["full"] and told.get(TTL[0]) not in BEGIN
        self.errors()

    @property
    def vanish(self) -> bool:
        """Small packets arrive, full ones do not, and nobody says why."""
        return self.seen["small"] and not self.seen["full"] and self.seen["told"] is None and self.seen["error"] is None

    def send_pieces(self) -> None:
        """One of a size that arrives whole, and one of the full size."""
        fit = self.sizes["middle" if self.seen["middle"] else "small"]
        for number, size in ((CONTROL, fit), (WHOLE, self.sizes["full"])):
            if number not in self.came:
                self.send_in_pieces(number, size, fit if number == WHOLE else IP_HEADER[self.six] + size // 2)

    def send_in_pieces(self, number: int, size: int, most: int) -> None:
        if self.six:  # none is smaller than what every path carries
            if size > SMALL6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, MTU_DISCOVER[1], DONT)
                self.socket.setsockopt(socket.IPPROTO_IPV6, SIX_MTU, SMALL6)
                self.socket.send(struct.pack("!BBHHH", ECHO[1], 0, 0, self.identifier, number) + bytes(size - IP_HEADER[1] - 8))
            return
        own = self.identifier if self.raw else self.socket.getsockname()[1]  # the kernel numbers echoes of SOCK_DGRAM
        body = bytes(size - IP_HEADER[0] - 8)
        head = struct.pack("!BBHHH", ECHO[0], 0, 0, own, number)
        packet = struct.pack("!BBHHH", ECHO[0], 0, checksum(head + body), own, number) + body
        step, name = (most - IP_HEADER[0]) & ~7, int.from_bytes(os.urandom(2), "big") or 1
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            raw.setsockopt(socket.IPPROTO_IP, NODEFRAG, 1)
            for at in range(0, len(packet), step):
                piece = packet[at : at + step]
                place = at // 8 | (MORE if at + step < len(packet) else 0)
                # The kernel fills in what is 0: lengths, the checksum, the address of this node (raw(7)).
                ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, name, place, 64, 1, 0, bytes(4), socket.inet_aton(self.ip))
                raw.sendto(ip + piece, (self.ip, 0))

    def weigh_pieces(self) -> None:
        if WHOLE in self.came and self.doubtful:
            return
        if WHOLE in self.came:
            self.seen["pieces"] = self.came[WHOLE]
        elif CONTROL in self.came:
            self.seen["pieces"] = 0

    def errors(self) -> bool:
        """What routers said (ip(7), IP_RECVERR): struct sock_extended_err {u32 errno; u8 origin, type, code, pad; u32 info}."""
        said = False
        while True:
            try:
                _, ancillary, _, _ = self.socket.recvmsg(1 << 16, 512, socket.MSG_ERRQUEUE)
            except OSError:
                return said
            for _, _, data in ancillary:
                if len(data) >= 16:
                    number, origin, kind, code, _, info, _ = struct.unpack_from("=IBBBBII", data)
                    said = True
                    if (kind, code) == TOO_BIG[self.six] or number == errno.EMSGSIZE:
                        self.seen["told"] = min(info, self.seen["told"] or info)
                    elif origin in ICMP_SAID and self.refused(number, (kind, code), data):
                        self.seen["error"] = "EACCES"
                    else:
                        self.seen["error"] = errno.errorcode.get(number, str(number))

    def refused(self, number: int, said: tuple[int, int], data: bytes) -> bool:
        """A firewall said no: in so many words, or in the name of the host itself, which then is there."""
        first, end = OFFENDER[self.six]
        own = socket.inet_pton(socket.AF_INET6 if self.six else socket.AF_INET, self.ip.partition("%")[0])
        return said in PROHIBITED[self.six] or (number != errno.ECONNREFUSED and data[first:end] == own)

    @property
    def done(self) -> bool:
        return all(self.seen[name] for name in self.sizes) or self.seen["error"] is not None


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def answer(parameters: dict[str, str]) -> object:
    paths, asked = [], [one.rpartition("/") for one in parameters["to"].split(",")]
    try:
        paths = [Path(ip, int(mtu)) for ip, _, mtu in asked]
    except PermissionError as error:
        return {"unavailable": "denied", "detail": f"a socket for ICMP echo: {error.strerror}"}
    except OSError as error:
        return {"unavailable": "unsupported", "detail": f"a socket for ICMP echo: {error.strerror}"}
    begin, seconds = time.monotonic(), float(parameters["seconds"])
    alive = [one for one in paths if one.connect()]
    for turn in range(TRIES):
        for one in alive:
            one.send()
        end = begin + seconds * (turn + 1) / TRIES
        while (left := end - time.monotonic()) > 0 and (alive := [one for one in alive if not one.done]):
            ready, _, _ = select.select([one.socket for one in alive], [], [], left)
            for one in alive:
                if one.socket in ready:
                    one.receive()
    in_pieces([one for one in paths if one.vanish], seconds / 5)
    return {"paths": {one.ip: one.seen for one in paths}}


def in_pieces(lossy: list[Path], seconds: float) -> None:
    for _ in range(TRIES if lossy else 0):
        for one in lossy:
            with contextlib.suppress(OSError):  # not permitted, or no room for one
                one.send_pieces()
        end = time.monotonic() + seconds / TRIES
        while (left := end - time.monotonic()) > 0 and any(WHOLE not in one.came for one in lossy):
            ready, _, _ = select.select([one.socket for one in lossy], [], [], left)
            for one in lossy:
                if one.socket in ready:
                    one.receive()
    for one in lossy:
        one.weigh_pieces()
