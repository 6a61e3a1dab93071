"""Whether nodes reach each other: each serves probes on a port that the kernel gave out, as NCCL's bootstrap and Gloo listen on
such ports, and probes all others.

A client reads which node answers, and then sends enough bytes for many full packets: on a path that drops large packets without
an ICMP message (RFC 2923, section 2.1), connections are made, small messages pass, and everything larger hangs.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import threading
from typing import Final

from netdoctor.cluster.control import control, serve
from netdoctor.cluster.coordinator import PROTOCOL
from netdoctor.cluster.observations import Fault, Miss
from netdoctor.facts.runs import Control

TRY: Final = 3.0  # seconds for one connection: a lost SYN is sent again after 1 s (RFC 6298)
PAYLOAD: Final = 64 << 10  # bytes: 45 packets on Ethernet, 7 of jumbo frames
SMALL: Final = 536  # bytes of a segment that every path carries (RFC 9293, 3.7.1)
MAX_CLIENTS: Final = 256  # at once: 64 nodes (member.REACHED) make three connections each; more wait until there is room
RECEIVED: Final = b"+"


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
    """Serves probes from a port of its own until `close`."""

    def __init__(self, node: int) -> None:
        self.name = f"{PROTOCOL} {node}\n".encode()
        self.listener = listen(0)
        self.port: int = self.listener.getsockname()[1]
        self.room = threading.BoundedSemaphore(MAX_CLIENTS)
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
                client, _ = self.listener.accept()
            except OSError:  # closed; or no descriptor is free just now: clients that wait are served later
                self.closed.wait(0.1)
                continue
            if not self.room.acquire(timeout=TRY):
                client.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(client,), name="netdoctor-probe", daemon=True).start()
            except RuntimeError:  # a limit of processes: one after the other, then
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(2 * TRY)  # longer than the client's own: the client must be the one that gives up
                client.sendall(self.name)
                left = PAYLOAD
                while left > 0 and (data := client.recv(1 << 16)):
                    left -= len(data)
                if left <= 0:
                    client.sendall(RECEIVED)
                    serve(client)
        except OSError:
            pass
        finally:
            self.room.release()


def probe(host: str, port: int, node: int) -> Miss | None:
    """Try to reach `node`: None, or what is wrong."""
    try:
        fault, segment = _probe_once(host, port, node, None)
        if fault is Fault.STALLS and _probe_once(host, port, node, SMALL)[0] is None:
            fault, segment = _probe_once(host, port, node, None)  # a single loss may be chance
            if fault is Fault.STALLS:
                return Miss(Fault.LOSES, segment)
    except OSError as error:
        return Miss(fault_of(error)[0])
    return None if fault is None else Miss(fault)


def _probe_once(host: str, port: int, node: int, most: int | None) -> tuple[Fault | None, int]:
    """(None or why not, the size of segments on the way, which `most` bounds).  Raises OSError before the greeting."""
    with connect(host, port, TRY, most) as line:
        greeting = line.recv(64)
        if greeting != f"{PROTOCOL} {node}\n".encode():
            return Fault.ANOTHER_NODE, 0
        segment = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        try:
            line.sendall(bytes(PAYLOAD))
            return (None if line.recv(1) == RECEIVED else Fault.STALLS), segment
        except OSError:  # timed out, or reset by something on the way
            return Fault.STALLS, segment


def control_of(there: tuple[str, int], own: int, bulk: bool) -> Control:
    """A control of the way to another node's probe server, beside this node's own at port `own`."""

    def connected(host: str, port: int) -> socket.socket:
        line = connect(host, port, TRY)
        try:
            line.recv(64)
            line.sendall(bytes(PAYLOAD))
            if line.recv(1) != RECEIVED:
                raise ConnectionResetError(errno.ECONNRESET, "it does not serve controls")
        except OSError:
            line.close()
            raise
        return line

    return control(lambda: connected(*there), lambda: connected("127.0.0.1", own), bulk)


def loopback() -> Control | None:
    """A control of this host's own loopback; None where it cannot listen."""
    try:
        server = ProbeServer(0)
    except (OSError, RuntimeError):
        return None
    try:
        return control_of(("127.0.0.1", server.port), server.port, bulk=True)
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
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return listener or socket.create_server(("", port), backlog=512)


def with_shutdown(one: socket.socket) -> None:
    """Close, and wake threads that wait in accept or recv."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
