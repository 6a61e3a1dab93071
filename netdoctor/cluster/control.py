"""A control beside the common run: what the way to the next node does when nothing else is on it.

Packets that are sent again while ranks fill the way are no loss: a queue overflows at start-up, and TCP slows down.  Packets of
which never more than one is under way are lost by the way itself.  And connections with buffers of their own against such with
the kernel's measure what the kernel's cost, however fast the link is.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts.runs import BURSTS, Control

PINGS: Final = 400  # of 1 % loss at least one is sent again in 98 of 100 such controls
PING_SECONDS: Final = 2.0  # in all; a lost packet is sent again after 0.2 s (TCP_RTO_MIN, include/net/tcp.h)
BURST_SECONDS: Final = 0.12
BURST_MOST: Final = 10 * BURST_SECONDS  # until the other end has it all
SERVE_SECONDS: Final = 10.0  # one control: pings for 2 s, or a burst that takes as long as it may
BUFFER: Final = 4 << 20  # bytes asked for; the kernel gives net.core.rmem_max and wmem_max at most
CHUNK: Final = 1 << 18
ANSWER: Final = b"+"
_PING, _PLAIN, _WIDE = b"P", b"B", b"W"
# Offsets in struct tcp_info (include/uapi/linux/tcp.h): tcpi_snd_mss, tcpi_total_retrans, tcpi_dsack_dups (since Linux 4.19).
_SEGMENT, _TOTAL_RETRANS, _DSACK_DUPS, _LENGTH = 16, 100, 216, 220
_COUNT: Final = struct.Struct("!I")


def told(one: Control) -> list[Any]:
    return [one.pings, one.again, one.round_trip, one.segment, list(one.plain), list(one.wide), one.own]


def read(data: object) -> Control | None:
    """What another node told; None: nothing, or no such thing."""
    if not isinstance(data, list) or len(data) != 7 or not all(_number(one) for one in (*data[:4], data[6])):
        return None
    plain, wide = (tuple(one[:BURSTS]) if isinstance(one, list) and all(map(_number, one)) else () for one in data[4:6])
    return Control(int(data[0]), int(data[1]), float(data[2]), int(data[3]), plain, wide, float(data[6]))


def _number(one: object) -> bool:
    return isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < 1e18


def serve(line: socket.socket) -> None:
    """The other end, behind a probe's own data, for as long as a control takes.  Raises OSError."""
    kind, end = line.recv(1), time.monotonic() + SERVE_SECONDS
    if kind == _PING:
        while time.monotonic() < end and line.recv(64):
            line.sendall(ANSWER)
        line.sendall(_COUNT.pack(_again(line)[0]))
    elif kind in (_PLAIN, _WIDE):
        if kind == _WIDE:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        line.sendall(ANSWER)
        room = bytearray(CHUNK)
        while time.monotonic() < end and line.recv_into(room):
            pass
        line.sendall(ANSWER)


def control(connected: Callable[[], socket.socket], own: Callable[[], socket.socket], bulk: bool) -> Control:
    """Try the way to a node; `connected` gives a connection that `serve` waits on, and may raise OSError.  Never raises.

    `own` gives one to this node itself: what its loopback carries is what its CPU and memory can do for a socket.
    """
    found = Control()
    with suppress(OSError, struct.error), connected() as line:
        found = _pings(line)
    if not bulk:
        return found
    with suppress(OSError), own() as line:
        found = replace(found, own=_burst(line, _WIDE))
    rates: dict[bytes, list[float]] = {_PLAIN: [], _WIDE: []}
    for _ in range(BURSTS):
        for kind, got in rates.items():
            with suppress(OSError), connected() as line:  # of a way that loses packets some take too long
                got.append(_burst(line, kind))
    return replace(found, plain=tuple(rates[_PLAIN]), wide=tuple(rates[_WIDE]))


def _pings(line: socket.socket) -> Control:
    line.sendall(_PING)
    end, trips = time.monotonic() + PING_SECONDS, list[float]()
    while len(trips) < PINGS and (begin := time.monotonic()) < end:
        line.sendall(b".")
        if not line.recv(1):
            break
        trips.append(time.monotonic() - begin)
    lost, twice = _again(line)
    answers = _answers_lost(line)  # an answer that is lost makes the ping come twice
    segment = struct.unpack_from("=I", _info(line), _SEGMENT)[0]
    again = lost + twice if answers is None else lost + answers
    return Control(len(trips), again, statistics.median(trips) if trips else 0.0, segment)


def _info(line: socket.socket) -> bytes:
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)


def _again(line: socket.socket) -> tuple[int, int]:
    """Packets that were sent again and came but once; and those that came twice, none where the kernel does not count them."""
    info = _info(line)
    again = struct.unpack_from("=I", info, _TOTAL_RETRANS)[0]
    twice = min(again, struct.unpack_from("=I", info, _DSACK_DUPS)[0]) if len(info) >= _LENGTH else 0
    return again - twice, twice


def _answers_lost(line: socket.socket) -> int | None:
    """What the other end says at last of its own packets; None: nothing."""
    said = b""
    with suppress(OSError):
        line.shutdown(socket.SHUT_WR)
        while len(said) < _COUNT.size and (more := line.recv(_COUNT.size - len(said))):
            said += more
    return _COUNT.unpack(said)[0] if len(said) == _COUNT.size else None


def _burst(line: socket.socket, kind: bytes) -> float:
    """Bytes a second until the other end has all."""
    if kind == _WIDE:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    line.sendall(kind)
    line.recv(1)
    sent, data, begin = 0, bytes(CHUNK), time.monotonic()
    while (now := time.monotonic()) < begin + BURST_SECONDS:
        line.settimeout(max(0.05, begin + BURST_MOST - now))
        sent += line.send(data)
    line.shutdown(socket.SHUT_WR)
    line.settimeout(BURST_MOST)
    line.recv(1)
    return sent / (time.monotonic() - begin)
