"""How the ranks' TCP connections fare while they run: what the kernel counts of each (sock_diag(7), struct tcp_info of tcp(7)).

Nothing is sent.  Only the sockets of this process's descendants are counted; where /proc hides them nothing is known.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from netdoctor.cluster.messages import MAX_FLOWS
from netdoctor.cluster.observations import Flow
from netdoctor.host.helpers.netlink import NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, Netlink, attributes
from netdoctor.process import proc

EVERY: Final = 0.1  # seconds between looks, at least: what a socket counted after the last one is lost
SHARE: Final = 10  # that many times longer than a look takes
INET_DIAG_INFO = 2  # linux/inet_diag.h
ESTABLISHED = 1 << 1
# Offsets in struct tcp_info (include/uapi/linux/tcp.h); rwnd_limited follows busy_time; bytes_sent and bytes_retrans are
# there since Linux 4.19.
_ACKED, _BUSY, _SENT = 120, 168, 200
_LENGTH = 216


class Sampler:
    """Looks every `EVERY` seconds from `start` to `stop`."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[str, Flow]] = {}  # inode of a socket -> the other end, what it carried
        self.pids: set[int] = set()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._live, name="netdoctor-flows", daemon=True)

    def start(self) -> None:
        with suppress(RuntimeError):  # a limit of processes counts threads too: nothing is known, then
            self.thread.start()

    def stop(self) -> dict[str, list[float]]:
        """Address of the other end -> the fields of its Flow."""
        self.ended.set()
        if self.thread.ident is not None:
            self.thread.join(5.0)
        total: dict[str, Flow] = {}
        for ip, flow in list(self.found.values()):
            total[ip] = total.get(ip, Flow()).plus(flow)
        return {ip: [one.acked, one.busy, one.sent, one.again] for ip, one in sorted(total.items())[:MAX_FLOWS]}

    def _live(self) -> None:
        with suppress(OSError, struct.error):  # not allowed here, or no such kernel: nothing is known
            pause = EVERY
            while not self.ended.wait(pause):
                begin = time.monotonic()
                mine = self._sockets()
                for inode, ip, flow in connections(mine) if mine else ():
                    self.found[inode] = ip, flow
                pause = max(EVERY, SHARE * (time.monotonic() - begin))

    def _sockets(self) -> set[int]:
        if not self.found or not all(os.path.exists(f"/proc/{pid}") for pid in self.pids):
            self.pids = descendants(os.getpid())
        found = set()
        for pid in self.pids:
            with suppress(OSError):
                for entry in os.scandir(f"/proc/{pid}/fd"):
                    if match := re.fullmatch(r"socket:\[([0-9]+)\]", os.readlink(entry.path)):
                        found.add(int(match[1]))
        return found


def descendants(pid: int) -> set[int]:
    """Processes below this one that have no children of their own: the ranks, once they are there."""
    parents = proc.parents()
    found, edge = set[int](), {pid}
    while edge:
        edge = {child for child, parent in parents.items() if parent in edge}
        found |= edge
    return found - set(parents.values())


def connections(inodes: Collection[int]) -> Iterator[tuple[int, str, Flow]]:
    """(inode, address of the other end, what was sent to it) of these TCP connections of this network namespace."""
    diag = Netlink(NETLINK_SOCK_DIAG)
    try:
        for family, size in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
            for one in _dump(diag, family):
                info = attributes(one[72:]).get(INET_DIAG_INFO, b"")  # behind struct inet_diag_msg
                if len(info) < _LENGTH or (inode := struct.unpack_from("=I", one, 68)[0]) not in inodes:
                    continue
                ip = socket.inet_ntop(family, one[24 : 24 + size]).removeprefix("::ffff:")
                acked = struct.unpack_from("=Q", info, _ACKED)[0]
                busy, limited = struct.unpack_from("=QQ", info, _BUSY)
                sent, again = struct.unpack_from("=QQ", info, _SENT)
                yield inode, ip, Flow(acked, max(0, busy - limited) / 1e6, sent, again)
    finally:
        diag.close()


def _dump(diag: Netlink, family: int) -> list[bytes]:
    """The established connections; none where the kernel has no such family, or where the dump kept changing."""
    asked = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), ESTABLISHED)
    try:
        return diag.ask(SOCK_DIAG_BY_FAMILY, asked, dump=True)
    except TimeoutError:  # a kernel that does not answer: nothing more is asked
        raise
    except OSError:
        return []
