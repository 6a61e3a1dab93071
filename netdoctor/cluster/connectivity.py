"""Every node's door: a listener on a port that the kernel gave out, as those of NCCL's bootstrap and of Gloo are, and how the
others try it.

Whoever comes hears who is there, and then sends as much as takes many full packets: on a path that drops large packets and does
not tell (RFC 2923, section 2.1), connections are made, small messages pass, and everything larger hangs.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Final

from netdoctor.cluster.coordinator import PROTOCOL

TRY: Final = 3.0  # seconds for one connection: a lost SYN is sent again after 1 s (RFC 6298)
BURST: Final = 64 << 10  # bytes: 45 packets on Ethernet, 7 of jumbo frames
SMALL: Final = 536  # bytes of a segment that every path carries (RFC 9293, 3.7.1)
GUESTS: Final = 256  # at once: 64 nodes (meeting.REACHED) make three visits each; more wait until there is room
GOT: Final = b"+"


class Fault(str, Enum):
    """Why there is no connection, or no meeting; the values are what reports show."""

    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    FORBIDDEN = "forbidden here"
    NO_LOCAL_PORT = "no local port"
    NO_SUCH_HOST = "no such host"
    FAILED = "failed"
    PORT_TAKEN = "port"  # the master cannot listen on the meeting's port
    NO_THREAD = "no thread"  # a limit of processes counts threads, too
    TURNED_AWAY = "turned away"
    LOST = "lost"
    SILENT = "silent"
    ANOTHER_NODE = "another node answers"
    LOSES = "loses segments of"  # small ones pass: `Miss.segment`
    STALLS = "carries no 64 KiB"

    def __str__(self) -> str:
        return self.value


_KINDS: Final = {
    errno.ECONNREFUSED: Fault.REFUSED,
    errno.ETIMEDOUT: Fault.TIMED_OUT,
    errno.EHOSTUNREACH: Fault.NO_ROUTE,
    errno.ENETUNREACH: Fault.NO_ROUTE,
    errno.EACCES: Fault.FORBIDDEN,
    errno.EPERM: Fault.FORBIDDEN,
    errno.EADDRNOTAVAIL: Fault.NO_LOCAL_PORT,
}


@dataclass(frozen=True)
class Miss:
    """Why a node's door was not reached, or no data passed it."""

    fault: Fault
    segment: int = 0  # bytes, of `Fault.LOSES`

    def __str__(self) -> str:
        return f"{self.fault} {self.segment} bytes" if self.fault is Fault.LOSES else self.fault.value

    @property
    def of_data(self) -> bool:
        """A connection is made, and no more."""
        return self.fault in (Fault.LOSES, Fault.STALLS)


def told(miss: Miss | None) -> str | list[str | int]:
    """As nodes tell it to each other: "" where the door was reached."""
    return "" if miss is None else [miss.fault.value, miss.segment] if miss.segment else miss.fault.value


def read(said: object) -> Miss | None:
    """The inverse of `told`; what has no meaning here is a failure."""
    name, segment = said if isinstance(said, list) and len(said) == 2 else (said, 0)
    if name == "" and not segment:
        return None
    known = isinstance(name, str) and name in {one.value for one in Fault}
    return Miss(Fault(name) if known else Fault.FAILED, segment if type(segment) is int and 0 < segment < 1 << 20 else 0)


class Door:
    """Open until `close`."""

    def __init__(self, node: int) -> None:
        self.name = f"{PROTOCOL} {node}\n".encode()
        self.listener = listen(0)
        self.port: int = self.listener.getsockname()[1]
        self.room = threading.BoundedSemaphore(GUESTS)
        self.closed = threading.Event()
        try:
            threading.Thread(target=self._live, name="netdoctor-door", daemon=True).start()
        except RuntimeError:
            self.listener.close()
            raise

    def close(self) -> None:
        self.closed.set()
        with_shutdown(self.listener)

    def _live(self) -> None:
        while not self.closed.is_set():
            try:
                guest, _ = self.listener.accept()
            except OSError:  # closed; or no descriptor is to be had just now: whoever waits is greeted later
                self.closed.wait(0.1)
                continue
            if not self.room.acquire(timeout=TRY):
                guest.close()
                continue
            try:
                threading.Thread(target=self._greet, args=(guest,), name="netdoctor-guest", daemon=True).start()
            except RuntimeError:  # a limit of processes: one after the other, then
                self._greet(guest)

    def _greet(self, guest: socket.socket) -> None:
        try:
            with guest:
                guest.settimeout(2 * TRY)  # longer than the guest's own: it must be the one that gives up
                guest.sendall(self.name)
                left = BURST
                while left > 0 and (data := guest.recv(1 << 16)):
                    left -= len(data)
                if left <= 0:
                    guest.sendall(GOT)
        except OSError:
            pass
        finally:
            self.room.release()


def knock(host: str, port: int, node: int) -> Miss | None:
    """Try the door of `node`: None, or what is wrong."""
    try:
        fault, segment = _visit(host, port, node, None)
        if fault is Fault.STALLS and _visit(host, port, node, SMALL)[0] is None:
            fault, segment = _visit(host, port, node, None)  # once is chance
            if fault is Fault.STALLS:
                return Miss(Fault.LOSES, segment)
    except OSError as error:
        return Miss(fault_of(error)[0])
    return None if fault is None else Miss(fault)


def _visit(host: str, port: int, node: int, most: int | None) -> tuple[Fault | None, int]:
    """(None or why not, the size of segments on the way, which `most` bounds).  Raises OSError before the greeting."""
    with connect(host, port, TRY, most) as line:
        said = line.recv(64)
        if said != f"{PROTOCOL} {node}\n".encode():
            return Fault.ANOTHER_NODE, 0
        segment = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        try:
            line.sendall(bytes(BURST))
            return (None if line.recv(1) == GOT else Fault.STALLS), segment
        except OSError:  # in time, or broken off by whoever is between
            return Fault.STALLS, segment


def fault_of(error: OSError) -> tuple[Fault, str]:
    """Refused, timed out and no route are three faults: nobody listens or a firewall rejects; a firewall drops or the host is
    down; routing, or a firewall that answers with ICMP."""
    if isinstance(error, socket.gaierror):
        return Fault.NO_SUCH_HOST, f"its name is not known: {error.strerror}"
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Fault.TIMED_OUT, "connections to it time out: it is down, or a firewall drops them"
    kind = _KINDS.get(error.errno or 0, Fault.FAILED)
    if kind is Fault.REFUSED:
        return kind, "it refuses connections: nothing listens there (not started, or ended already), or a firewall rejects them"
    if kind is Fault.NO_ROUTE:
        return kind, f"there is no way to it: {os.strerror(error.errno or 0)} (routing, it is down, or a firewall rejects)"
    if kind is Fault.NO_LOCAL_PORT:
        return kind, "no local port is free to connect from (net.ipv4.ip_local_port_range)"
    return kind, f"connecting to it fails: {error.strerror or error}"


def connect(host: str, port: int, seconds: float, most: int | None = None) -> socket.socket:
    """Raises OSError: the last address's.  `most` bytes in a segment, in both directions."""
    last: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
    try:
        every = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # no name that DNS can hold
        raise socket.gaierror(socket.EAI_NONAME, "no such name can be") from None
    for family, kind, protocol, _, address in every:
        line = socket.socket(family, kind, protocol)
        try:
            if most is not None:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, most)
            line.settimeout(seconds)
            line.connect(address)
            if line.getsockname() == line.getpeername():  # a port of ours that is the one dialled: TCP's simultaneous open
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return line
        except OSError as error:
            line.close()
            last = error
    raise last


def listen(port: int) -> socket.socket:
    """On every address, of IPv6 too where there is IPv6.  Raises OSError."""
    door = None
    if socket.has_dualstack_ipv6():
        try:
            door = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return door or socket.create_server(("", port), backlog=512)


def with_shutdown(one: socket.socket) -> None:
    """Close, and wake whoever sits in accept or recv."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
