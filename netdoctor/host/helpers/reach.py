"""Helper program: whether packets of the full size arrive at other hosts, by ICMP echo with DF set (RFC 792, RFC 4443).

Parameters: ``to``: "IP/MTU,…", the MTU of the interface that leads there; ``seconds``: how long answers may take.  Answer:
{"paths": {IP: {"small", "middle", "full": answered, "told": the MTU that a router named | null, "error": errno name | null}}};
EACCES also where a firewall said no.
"small" is what every path carries, "middle" what Ethernet does.  Each is sent three times.  The socket is
SOCK_DGRAM (ip(7), ping_group_range) or SOCK_RAW; {"unavailable": "denied"} where neither is given.
"""

from __future__ import annotations

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


class Path:
    """One host, and the three sizes."""

    def __init__(self, ip: str, mtu: int) -> None:
        self.ip, self.six = ip, ":" in ip
        small = SMALL6 if self.six else SMALL
        self.sizes = {"small": small, "middle": min(mtu, MIDDLE), "full": mtu}
        self.seen: dict[str, Any] = {"small": False, "middle": False, "full": False, "told": None, "error": None}
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
                data = self.socket.recv(1 << 16)
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
            if number < len(self.sizes) and (not self.raw or identifier == self.identifier):
                self.seen[list(self.sizes)[number]] = True
        self.errors()

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
    return {"paths": {one.ip: one.seen for one in paths}}
