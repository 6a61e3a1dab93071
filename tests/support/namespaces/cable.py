"""A network cable of two TAP devices in two network namespaces that delays, loses or reorders what it carries.

``python -m tests.support.namespaces.cable PID NAME PID NAME [delay=MS] [jitter=MS] [loss=SHARE] [mbit=RATE]`` says "ready"
when both ends are there, and ends with its parent.  Offloads are negotiated (frames of up to 64 KiB), so that Python keeps up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import sys
import time

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 2, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
CLONE_NEWNET = 0x40000000
BUFFER = 0.2  # seconds that a rate-limited cable holds back before it drops


def tap(pid: str, name: str) -> int:
    """A TAP device `name` in the network namespace of process `pid`."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
        libc.setns(own, CLONE_NEWNET)
    finally:
        os.close(own)
        os.close(there)
    return device


def carry(ends: tuple[int, int], delay: float, jitter: float, loss: float, rate: float) -> None:
    """Both directions, for ever.  Seconds, a share of frames, bytes a second (0: no limit)."""
    peer = dict(zip(ends, reversed(ends), strict=True))
    free = dict.fromkeys(ends, 0.0)
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    chance = random.Random(1)
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, frame = heapq.heappop(waiting)
            write(to, frame)
        ready, _, _ = select.select(ends, [], [], max(0.0, waiting[0][0] - now) if waiting else None)
        for end in ready:
            for frame in frames(end):
                if loss and chance.random() < loss:
                    continue
                at = time.monotonic()
                if rate:
                    at = free[end] = max(free[end], at) + len(frame) / rate
                    if at - time.monotonic() > BUFFER:
                        free[end] -= len(frame) / rate
                        continue
                if delay or jitter or rate:
                    count += 1
                    heapq.heappush(waiting, (at + delay + chance.random() * jitter, count, peer[end], frame))
                else:
                    write(peer[end], frame)


def frames(end: int) -> list[bytes]:
    got: list[bytes] = []
    with contextlib.suppress(OSError):  # none left, or the interface is down
        while len(got) < 64:
            got.append(os.read(end, 70000))
    return got


def write(end: int, frame: bytes) -> None:
    try:
        os.write(end, frame)
    except OSError:  # its queue is full, or the interface is down: lost, as on a real cable
        pass


def main(words: list[str]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    given = dict(word.split("=") for word in words[4:])
    delay, jitter, loss, rate = (float(given.get(name, 0)) for name in ("delay", "jitter", "loss", "mbit"))
    ends = tap(*words[:2]), tap(*words[2:4])
    print("ready", flush=True)
    carry(ends, delay / 1e3, jitter / 1e3, loss, rate * 1e6 / 8)


if __name__ == "__main__":
    main(sys.argv[1:])
