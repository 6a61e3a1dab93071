"""How fast `netdoctor log` reads, against one prefix regex over every line of the file; what it keeps, and very long lines.

Three files of one builder: (a) the INFO lines of 1,024 ranks that come up, (b) a training log of which one line in a hundred is
NCCL's, (c) one message that floods.  The best of several interleaved runs counts, of ours and of the reference: other load on
the machine only ever slows one down.
"""

from __future__ import annotations

import random
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator

from bench import Row, row
from netdoctor.nccl.log.parser import Parser

_MB = 1e6
_BLOCK = 1 << 20
_TIMES = 5
# What any reader of a NCCL log needs at least: who printed it, at what level, and what.
_PREFIX = re.compile(rb"(?:\[[^\]]*\] )?([^\s:]+):(\d+):(\d+) \[(-?\d+)\] (?:(\S+):(\d+) )?NCCL (INFO|WARN) (.*)")


def init_lines(ranks: int = 1024) -> bytes:
    """(a) What every rank prints while a communicator comes up, interleaved as on one stdout."""
    dice = random.Random(1)
    rows: list[list[str]] = []
    for rank in range(ranks):
        host, pid, dev = f"gpu-node-{rank // 8:04d}", 10000 + rank, rank % 8
        head = f"{host}:{pid}:{pid + 90000} [{dev}] NCCL INFO "
        comm = (
            f"ncclCommInitRankConfig comm 0x{dice.getrandbits(44):012x} rank {rank} nranks {ranks} cudaDev {dev} nvmlDev {dev} "
            f"busId {dev + 1}b000 commId 0x5fab90f5a4a5be8d"
        )
        hcas = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(8))
        address = f"eth0:10.{rank // 2048}.{rank // 8 % 256}.7<0>"
        following, before = (rank + 1) % ranks, (rank - 1) % ranks
        rows.append(
            [
                f"{head}cudaDriverVersion 12080",
                f"{head}NCCL_SOCKET_IFNAME set by environment to eth0",
                f"{head}Bootstrap: Using {address}",
                f"{head}NCCL version 2.27.5+cuda12.9",
                f"{head}NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
                f"{head}NET/IB : Using {hcas} [RO]; OOB {address}",
                f"{head}Using network IB",
                f"{head}{comm} - Init START",
                f"{head}Setting affinity for GPU {dev} to 0-47,96-143",
                f"{head}NVLS multicast support is available on dev {dev} (NVLS_NCHANNELS 16)",
                f"{head}comm 0x55 rank {rank} nRanks {ranks} nNodes {ranks // 8} localRanks 8 localRank {dev} MNNVL 0",
                f"{head}Trees [0] {rank + 1}/-1/-1->{rank}->{rank - 1} [1] {rank + 1}/-1/-1->{rank}->{rank - 1}",
                f"{head}P2P Chunksize set to 131072",
                f"{head}16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
                f"{head}{comm} - Init COMPLETE",
                *(_connection(head, c, before, rank, "receive") for c in range(16)),  # the rings
                *(_connection(head, c, rank, following, "send") for c in range(16)),
                f"{head}Connected all rings, use ring PXN 0 GDR 1",
                *(_connection(head, c, rank, before, "send") for c in range(16)),  # the trees
                f"{head}Connected all trees",
            ]
        )
    out: list[str] = []
    for step in range(len(rows[0])):
        order = list(range(ranks))
        dice.shuffle(order)
        out += [rows[rank][step] for rank in order]
    return "\n".join(out).encode() + b"\n"


def _connection(head: str, channel: int, src: int, dst: int, way: str) -> str:
    """NCCL prints a line at both ends of a network connection, and one for a peer-to-peer one."""
    ends = f"{head}Channel {channel:02d}/0 : {src}[{src % 8}] -> {dst}[{dst % 8}]"
    return f"{ends} via P2P/CUMEM/read" if src // 8 == dst // 8 else f"{ends} [{way}] via NET/IB/{src % 8}/GDRDMA"


def training(megabytes: int = 32) -> bytes:
    """(b) A training log; one line in a hundred is NCCL's."""
    dice = random.Random(2)
    nccl = [line for line in init_lines(64).split(b"\n") if line]
    out, size, number = [], 0, 0
    while size < megabytes * _MB:
        number += 1
        if number % 100 == 0:
            line = nccl[number // 100 % len(nccl)]
        else:
            at = f"{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
            line = (
                f"[2026-01-02 {at}] iteration {number:8d}/ 500000 | consumed samples: {number * 1024:12d} | "
                f"time per iteration (ms): {dice.random() * 900 + 400:.1f} | learning rate: 2.99E-04 | batch size: 99 | "
                f"lm loss: {dice.random() * 3 + 1:.6E} | grad norm: {dice.random():.3f} | tokens/s: {dice.randrange(9999)}"
            ).encode()
        out.append(line)
        size += len(line) + 1
    return b"\n".join(out) + b"\n"


def flood(megabytes: int = 8) -> Iterator[bytes]:
    """(c) One message again and again, from eight ranks, with numbers that differ; in blocks."""
    number, sent = 0, 0
    while sent < megabytes * _MB:
        block = []
        for _ in range(8192):
            number += 1
            rank = number % 8
            block.append(
                f"gpu-node-0007:{20000 + rank}:{20100 + rank} [{rank}] NCCL INFO "
                f"socketPollConnect: connect to 10.0.0.9<{30000 + number % 20000}> returned Connection refused, "
                f"retrying ({number % 35}/34) after sleep for {number % 35 * 100} msec"
            )
        data = "\n".join(block).encode() + b"\n"
        sent += len(data)
        yield data


def _parse(data: bytes) -> float:
    begin = time.perf_counter()
    parser = Parser()
    for at in range(0, len(data), _BLOCK):
        parser.feed(data[at : at + _BLOCK])
    parser.facts()
    return time.perf_counter() - begin


def _regex(data: bytes) -> float:
    begin = time.perf_counter()
    match = _PREFIX.match
    for line in data.split(b"\n"):
        match(line)
    return time.perf_counter() - begin


def _speed(name: str, data: bytes, absolute: float, share: float) -> list[Row]:
    ours, theirs = [], []
    for _ in range(_TIMES):
        ours.append(_parse(data))
        theirs.append(_regex(data))
    mine = len(data) / _MB / min(ours)
    base = len(data) / _MB / min(theirs)
    return [
        row(f"log.{name}.speed", mine, "MB/s", None, f">= {absolute:g} MB/s", mine >= absolute),
        row(f"log.{name}.share", mine, "MB/s", base, f">= {share:g} of one prefix regex a line", mine >= share * base),
    ]


def _kept(megabytes: int) -> float:
    """Bytes of Python objects at the highest moment while the flood is read, its blocks included."""
    tracemalloc.start()
    parser = Parser()
    for block in flood(megabytes):
        parser.feed(block)
    parser.facts()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return float(peak)


def _long(megabytes: int) -> float:
    line = b"node01:1:1 [0] NCCL INFO NET/IB : Using " + b"[0]mlx5_0:1/IB " * (megabytes * 1_000_000 // 15) + b"\n"
    return _best(lambda: _parse(line))


def _best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(9))


def rows() -> Iterator[Row]:
    yield from _speed("a_init", init_lines(), 15, 0.15)
    yield from _speed("b_training", training(), 150, 0.3)
    yield from _speed("c_flood", b"".join(flood()), 30, 0.2)
    small, large = _kept(4), _kept(40)
    yield row(
        "log.c_memory", large / _MB, "MB", small / _MB, "ten times the bytes: <= 1.05 x the memory", large <= 1.05 * small
    )
    one, two = _long(1), _long(2)
    yield row("log.long_line", two * 1e3, "ms", one * 1e3, "a 2 MB line: <= 2.5 x a 1 MB line", two <= 2.5 * one)
