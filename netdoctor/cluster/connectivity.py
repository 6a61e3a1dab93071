"""Whether nodes reach each other: each serves probes on a port that the kernel gave out, as NCCL's bootstrap and Gloo listen on
such ports, and probes all others.

A client reads which node answers, shows that it is of this run, and sends enough bytes for many full packets: on a path that
drops large packets without an ICMP message (RFC 2923, section 2.1), connections are made, small messages pass, and everything
larger hangs.  The server shows in its answer that it is of this run, too; who is not gets a greeting and `TRY` seconds.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import os
import re
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from typing import Any, Final

from netdoctor.cluster.channel import PROTOCOL
from netdoctor.cluster.control import control, serve
from netdoctor.cluster.observations import Fault, Miss
from netdoctor.facts.runs import Control
from netdoctor.model import record

TRY: Final = 3.0  # seconds for one connection: a lost SYN is sent again after 1 s (RFC 6298)
PAYLOAD: Final = 64 << 10  # bytes: 45 packets on Ethernet, 7 of jumbo frames
SMALL: Final = 536  # bytes of a segment that every path carries (RFC 9293, 3.7.1)
MAX_CLIENTS: Final = 256  # at once: 64 connections (sample.CONNECTIONS) from as many nodes, and some; more wait for room
MAX_OF_ONE: Final = 128  # of one address: a neighbour that floods a node leaves room for the others
NONCE: Final = 16  # bytes
MAC: Final = 32
BACKLOG: Final = 1024  # the kernel cuts it to net.core.somaxconn


_KINDS: Final = {
    errno.ECONNREFUSED: Fault.REFUSED,
    errno.ETIMEDOUT: Fault.TIMED_OUT,
    errno.EHOSTUNREACH: Fault.NO_ROUTE,
    errno.ENETUNREACH: Fault.NO_ROUTE,
    errno.EACCES: Fault.PROHIBITED,  # a prohibit route, SELinux; of IPv6 also a firewall (net/ipv6/icmp.c, tab_unreach)
    errno.EPERM: Fault.FORBIDDEN,  # dropped by an output rule
    errno.EINVAL: Fault.INVALID,  # a blackhole route (net/ipv4/fib_semantics.c, fib_props), a link-local address alone
    errno.EADDRNOTAVAIL: Fault.NO_LOCAL_PORT,
}


class ProbeServer:
    """Serves probes from a port of its own until `close`; `key` is what those who may probe have."""

    def __init__(self, node: int, key: bytes = b"") -> None:
        self.node, self.key = node, key
        self.listener = listen(0)
        self.port: int = self.listener.getsockname()[1]
        self.room = threading.BoundedSemaphore(MAX_CLIENTS)
        self.clients: Counter[str] = Counter()  # by address
        self.counting = threading.Lock()
        self.closed = threading.Event()
        try:
            threading.Thread(target=self._accept, name="netdoctor-probe-server", daemon=True).start()
        except RuntimeError:
            self.listener.close()
            raise

    def close(self) -> None:
        self.closed.set()
        with_shutdown(self.listener)

    def _accept(self) -> None:
        while not self.closed.is_set():
            try:
                client, address = self.listener.accept()
            except OSError:  # closed; or no descriptor is free just now: clients that wait are served later
                self.closed.wait(0.1)
                continue
            host = str(address[0])
            with self.counting:
                full = self.clients[host] >= MAX_OF_ONE
                self.clients[host] += not full
            if full or not self.room.acquire(timeout=TRY):
                client.close()
                if not full:
                    self._left(host)
                continue
            try:
                threading.Thread(target=self._serve, args=(client, host), name="netdoctor-probe", daemon=True).start()
            except RuntimeError:  # a limit of processes: one after the other, then
                self._serve(client, host)

    def _left(self, host: str) -> None:
        with self.counting:
            self.clients[host] -= 1
            if self.clients[host] <= 0:
                del self.clients[host]

    def _serve(self, client: socket.socket, host: str) -> None:
        try:
            with client:
                self._answer(client)
        except OSError:
            pass
        finally:
            self._left(host)
            self.room.release()

    def _answer(self, client: socket.socket) -> None:
        ours = secrets.token_bytes(NONCE)
        client.settimeout(TRY)
        client.sendall(_greeting(self.node, ours))
        theirs = _exactly(client, NONCE)
        if not hmac.compare_digest(_exactly(client, MAC), _code(self.key, b"probes", self.node, ours, theirs)):
            return
        client.settimeout(2 * TRY)  # longer than the client's own: the client must be the one that gives up
        left = PAYLOAD
        while left > 0 and (data := client.recv(1 << 16)):
            left -= len(data)
        if left <= 0:
            client.sendall(_code(self.key, b"received", self.node, ours, theirs))
            serve(client)


def _greeting(node: int, nonce: bytes) -> bytes:
    return f"{PROTOCOL} {node} ".encode() + nonce.hex().encode() + b"\n"


def _code(key: bytes, what: bytes, node: int, ours: bytes, theirs: bytes) -> bytes:
    """Shows the other end of a probe who has the key: of the server's nonce and the client's."""
    return hmac.digest(key, what + struct.pack(">I", node) + ours + theirs, "sha256")


def _exactly(line: socket.socket, count: int) -> bytes:
    """Raises OSError where the other end says less within `TRY` seconds, however slowly."""
    end, data = time.monotonic() + TRY, b""
    while len(data) < count:
        line.settimeout(max(0.01, end - time.monotonic()))
        if not (more := line.recv(count - len(data))) or time.monotonic() > end:
            raise ConnectionResetError(errno.ECONNRESET, "it said too little")
        data += more
    return data


@record
class Introduced:
    """A connection to a node's probe server that has greeted as that node."""

    line: socket.socket
    node: int
    key: bytes
    ours: bytes
    theirs: bytes

    def carried(self) -> bool:
        """Send 64 KiB: whether that node says that it got them.  Raises OSError."""
        code = _code(self.key, b"probes", self.node, self.theirs, self.ours)
        self.line.sendall(self.ours + code + bytes(PAYLOAD))
        wanted = _code(self.key, b"received", self.node, self.theirs, self.ours)
        return hmac.compare_digest(_exactly(self.line, MAC), wanted)


def _introduced(line: socket.socket, node: int, key: bytes) -> Introduced | None:
    """None where another node greets, or something else.  Raises OSError."""
    greeting = line.recv(len(_greeting(node, bytes(NONCE))))
    head, _, nonce = greeting.rstrip(b"\n").rpartition(b" ")
    if head != f"{PROTOCOL} {node}".encode() or not re.fullmatch(rb"[0-9a-f]{%d}" % (2 * NONCE), nonce):
        return None
    return Introduced(line, node, key, secrets.token_bytes(NONCE), bytes.fromhex(nonce.decode()))


class Budget:
    """The connections that this node may still open to others, whoever asks for them."""

    def __init__(self, connections: int) -> None:
        self.left = connections
        self._taking = threading.Lock()

    def take(self) -> bool:
        with self._taking:
            self.left -= 1
            return self.left >= 0


def probe(host: str, port: int, node: int, key: bytes = b"", budget: Budget | None = None) -> Miss | None:
    """Try to reach `node`: None, or what is wrong.  Of `budget` the first connection is taken already."""
    again = budget or Budget(2)
    try:
        fault, segment = _probe_once(host, port, node, key, None)
        if fault is Fault.STALLS and again.take() and _probe_once(host, port, node, key, SMALL)[0] is None and again.take():
            fault, segment = _probe_once(host, port, node, key, None)  # a single loss may be chance
            if fault is Fault.STALLS:
                return Miss(Fault.LOSES, segment)
    except OSError as error:
        return Miss(fault_of(error)[0])
    return None if fault is None else Miss(fault)


def _probe_once(host: str, port: int, node: int, key: bytes, most: int | None) -> tuple[Fault | None, int]:
    """(None or why not, the size of segments on the way, which `most` bounds).  Raises OSError before the greeting."""
    with connect(host, port, TRY, most) as line:
        there = _introduced(line, node, key)
        if there is None:
            return Fault.ANOTHER_NODE, 0
        segment = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        try:
            return (None if there.carried() else Fault.ANOTHER_NODE), segment
        except OSError:  # timed out, or reset by something on the way
            return Fault.STALLS, segment


def control_of(there: tuple[str, int, int], own: tuple[int, int], bulk: bool, key: bytes = b"") -> Control:
    """A control of the way to another node's probe server (address, port, node), beside this node's own (port, node)."""

    def connected(host: str, port: int, node: int) -> socket.socket:
        line = connect(host, port, TRY)
        try:
            met = _introduced(line, node, key)
            if met is None or not met.carried():
                raise ConnectionResetError(errno.ECONNRESET, "it does not serve controls")
        except OSError:
            line.close()
            raise
        return line

    return control(lambda: connected(*there), lambda: connected("127.0.0.1", *own), bulk)


def loopback() -> Control | None:
    """A control of this host's own loopback; None where it cannot listen."""
    try:
        server = ProbeServer(0)
    except (OSError, RuntimeError):
        return None
    try:
        return control_of(("127.0.0.1", server.port, 0), (server.port, 0), bulk=True)
    finally:
        server.close()


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


def own_address(host: str) -> str:
    """The address of `host` that this node has itself, not a loopback's; "": it has none.  Nothing is sent."""
    try:
        every = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, _, _, to in every:
        with contextlib.suppress(OSError), socket.socket(family, kind) as line:
            line.connect(to)  # the kernel takes the address itself as the source where it is this node's
            if line.getsockname()[0] == to[0] and not ipaddress.ip_address(str(to[0]).partition("%")[0]).is_loopback:
                return str(to[0])
    return ""


def elsewhere(host: str) -> bool:
    """Whether no address of `host` is this node's; a name that is not known, or a loopback's, may be."""
    try:
        every = {_ip(str(to[0])) for _, _, _, _, to in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)}
    except (OSError, UnicodeError):
        return False
    return not any(ip is None or ip.is_loopback or ip.is_unspecified for ip in every) and not own_address(host)


def connect(host: str, port: int, seconds: float, most: int | None = None) -> socket.socket:
    """A connection to the first address of `host` that accepts one.  Raises the OSError of the last address that was tried.

    `most` is the largest segment, in bytes, in both directions.
    """
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
    listener = None
    if socket.has_dualstack_ipv6():
        try:
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return listener or socket.create_server(("", port), backlog=BACKLOG)


def listen_as(master: str, port: int) -> list[socket.socket]:
    """Where the others find node 0: at every address of its name, and on the loopback, to which proxies in a pod deliver.

    On every address where that is not known here: one of its addresses is another machine's (a Service, NAT), or its own hosts
    file gives its name a loopback's (Debian: 127.0.1.1).  Raises OSError.
    """
    made: list[socket.socket] = []
    try:
        every = {(family, to) for family, _, _, _, to in socket.getaddrinfo(master, port, type=socket.SOCK_STREAM)}
        literal = _ip(master) is not None
        if not literal and any((ip := _ip(str(to[0]))) is None or ip.is_loopback for _, to in every):
            return [listen(port)]
        loopback = (socket.AF_INET, ("127.0.0.1", port))
        for family, to in [*sorted(every, key=str), *([loopback] if loopback not in every else [])]:
            made.append(_bound(family, to))
    except (socket.gaierror, UnicodeError):
        return [listen(port)]
    except OSError as error:
        for one in made:
            one.close()
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        return [listen(port)]
    return made


def _bound(family: int, to: tuple[Any, ...]) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(to)
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def with_shutdown(one: socket.socket) -> None:
    """Close, and wake threads that wait in accept or recv."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
