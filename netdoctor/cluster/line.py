"""One connection to the coordinator, as it keeps it."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from netdoctor.cluster.channel import Receiver, Sender


class Line:
    """One connection, with what is half read and half written."""

    def __init__(self, peer: socket.socket, address: str) -> None:
        self.socket, self.address = peer, address
        self.node: int | None = None
        self.hello: dict[str, Any] = {}  # its first line
        self.read = bytearray()  # of it
        self.frames: Receiver | None = None  # once it was challenged
        self.sender: Sender | None = None
        self.over = False  # it was turned away, and is listened to no more
        self.write: deque[memoryview] = deque()  # of what is told to all, the nodes share the bytes
        self.received = self.since = time.monotonic()

    def left(self) -> int:
        """Bytes that are to be sent, or were sent and not acknowledged (tcp(7), SIOCOUTQ)."""
        with suppress(OSError):
            (kernel,) = struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))
            return sum(map(len, self.write)) + int(kernel)
        return 0


def least_likely(strangers: list[Line]) -> Line:
    """Whom to hang up on: the oldest of the address that most of them came from."""
    many = Counter(line.address for line in strangers)
    return max(strangers, key=lambda line: (many[line.address], -line.since))
