"""Ask a running job how it is: a client of NCCL's RAS text protocol, and a reader of what it answers.

NCCL 2.24 and later listens on localhost:28028 (NCCL_RAS_ADDR) in one process a node.  A client sends lines, ``CLIENT
PROTOCOL 2``, ``TIMEOUT seconds``, ``STATUS`` or ``VERBOSE STATUS``, and from 2.31 ``DIAGNOSTICS``; NCCL answers in text and
closes the connection (src/ras/client.cc, src/ras/client_support.cc).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Final

from netdoctor.model import Kind, Unavailable, Word, record
from netdoctor.textsafe import clean

ADDRESS: Final = ("localhost", 28028)
_PROTOCOL: Final = 2  # NCCL ignores the number and answers with its own
_LISTEN: Final = 10  # TCP_LISTEN, include/net/tcp_states.h
_MAX_ANSWER: Final = 16 << 20
_PATIENCE: Final = 5.0  # seconds that NCCL itself waits for its other processes (RAS_COLLECTIVE_LEG_TIMEOUT_SEC)


class Trouble(Word):
    """What is wrong with a communicator, in the words of the table's last column (src/ras/client_support.cc)."""

    INCOMPLETE = "INCOMPLETE"  # ranks that gave no data
    ERROR = "ERROR"
    MISMATCH = "MISMATCH"  # ranks that are not where the others are


@record
class Behind:
    """Ranks of one communicator that are not where the others are."""

    comm: str  # "#0-0"
    kind: Trouble
    what: str  # for people: "operation 6649 of 6650", "status INIT", "missing", "error"
    collective: str  # "AllReduce", "" where NCCL counts them together (2.24)
    ranks: tuple[int, ...]  # those that NCCL names; it names few
    count: int  # how many they are
    where: tuple[str, ...] = ()  # "GPU 0 managed by process 4711 on node 10.0.0.1"


@record
class Status:
    """A job's state as RAS tells it."""

    nccl_version: str | None
    nodes: int | None
    processes: int | None
    gpus: int | None
    comms: int
    errors: tuple[str, ...]  # words of the table's last column that are not OK: INCOMPLETE, MISMATCH, ERROR
    dead: tuple[str, ...]  # processes that RAS cannot reach
    missing: tuple[str, ...]  # processes that did not answer
    behind: tuple[Behind, ...]
    diagnostics: tuple[str, ...] = ()


def ask(
    host: str = ADDRESS[0], port: int = ADDRESS[1], *, diagnostics: bool = False, timeout: float = _PATIENCE
) -> str | Unavailable:
    """NCCL's answer to VERBOSE STATUS (and DIAGNOSTICS), as text.  Waits at most about three times `timeout` seconds."""
    parts: list[str] = []
    commands = ["VERBOSE STATUS"] + (["DIAGNOSTICS"] if diagnostics else [])
    for command in commands:
        answer = _once(host, port, command, timeout)
        if isinstance(answer, Unavailable):
            return answer if not parts else "\n".join(parts)
        parts.append(answer)
    return "\n".join(parts)


def _once(host: str, port: int, command: str, timeout: float) -> str | Unavailable:
    """One connection, one command: NCCL closes after it."""
    import socket

    try:
        with socket.create_connection((host, port), timeout=timeout) as link:
            owner = _owner(link.getpeername()[0], link.getsockname()[0], port)
            if os.geteuid() and owner not in (None, os.geteuid()):
                return Unavailable(Kind.REFUSED, f"what listens there is a process of uid {owner}: another user's job")
            until = time.monotonic() + timeout * 2 + 1  # for all of it: who sends a byte now and then holds nobody up
            link.sendall(f"CLIENT PROTOCOL {_PROTOCOL}\nTIMEOUT {timeout:g}\n{command}\n".encode())
            data = bytearray()
            while True:
                if len(data) > _MAX_ANSWER:
                    return Unavailable(Kind.MALFORMED, f"the answer is longer than {_MAX_ANSWER >> 20} MiB")
                link.settimeout(max(0.001, until - time.monotonic()))
                block = link.recv(65536)
                if not block:
                    break
                data += block
                if not data.startswith(b"SERVER PROTOCOL"[: len(data)]):
                    return Unavailable(Kind.MALFORMED, "what listens there is not NCCL's RAS")
    except TimeoutError:
        return Unavailable(Kind.TIMED_OUT, f"no whole answer within {timeout * 2 + 1:g} s")
    except ConnectionRefusedError:
        return Unavailable(
            Kind.ABSENT, "nothing listens there: no job with NCCL 2.24 or later runs on this node, or NCCL_RAS_ENABLE=0"
        )
    except OSError as error:
        return Unavailable(Kind.FAILED, error.strerror or str(error))
    if not data:
        return Unavailable(Kind.EMPTY, "the connection was closed without an answer")
    return data.decode("utf-8", "replace")


def _owner(peer: str, own: str, port: int) -> int | None:
    """Whose socket listens there, where that is this machine: on a shared node the port may be another user's job's.

    A listener of the address itself goes before one of all addresses (__inet_lookup_listener, net/ipv4/inet_hashtables.c).
    """
    address = _plain(ipaddress.ip_address(peer.partition("%")[0]))
    if not address.is_loopback and peer != own:
        return None
    every: int | None = None
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/net/{name}", encoding="ascii") as rows:
            for row in list(rows)[1:]:
                _, local, _, state, _, _, _, uid, *_ = row.split()
                where, _, number = local.partition(":")
                if int(state, 16) != _LISTEN or int(number, 16) != port:
                    continue
                words = (int(where[n : n + 8], 16).to_bytes(4, sys.byteorder) for n in range(0, len(where), 8))
                listens = _plain(ipaddress.ip_address(b"".join(words)))
                if listens == address:
                    return int(uid)
                if every is None and listens.is_unspecified and (listens.version == 6 or address.version == 4):
                    every = int(uid)  # of IPv4's own first (compute_score)
    return every


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address


_VERSION: Final = re.compile(r"NCCL version (\S+)")
_GROUP: Final = re.compile(r"^ *(\d+) +(\d+) +(\d+) +([\d-]+) +(\d+) +(\d+) +([A-Z]+) +([A-Z,]+) *$")
_TOTALS: Final = re.compile(r"^ *(\d+) +(\d+) +(\d+)(?: +(\d+) +(\d+))? *$")
_PROCESS: Final = re.compile(r"^ {2,}(Process \d+ on node \S+.*)$")
_COMM: Final = re.compile(r"^(#\d+-\d+) \(([0-9a-fx]+)\) (INCOMPLETE|ERROR|MISMATCH)")
_DIFFER: Final = re.compile(r"different (?:collective operation|([A-Z]\w+) operation|status)")
_LAUNCHED: Final = re.compile(
    r"^ +(?:(\d+) ranks? have|Rank (\d+) has) "
    r"(?:launched up to operation (\d+)|status ([A-Z]+)|(not) launched any operations)(.*)$"
)
_RANK: Final = re.compile(r"^ +Rank (\d+)(?: --)? (.*)$")
_COUNT: Final = re.compile(r"(?:from|on) (\d+) ranks?")


def parse(answer: str) -> Status:
    """Read an answer of any NCCL since 2.24; what is not understood is left out."""
    lines = [clean(line) for line in answer.splitlines()]
    version = next((m[1] for m in map(_VERSION.search, lines) if m), None)
    groups = [m for m in map(_GROUP.match, lines) if m]
    errors = sorted({word for m in groups for word in m[8].split(",")} - {"OK"})
    totals = _totals(lines)
    return Status(
        version,
        *totals,
        sum(int(m[2]) for m in groups),
        tuple(errors),
        tuple(_processes(lines, "DEAD")),
        tuple(_processes(lines, "INCOMPLETE")),
        tuple(_behind(lines)),
        tuple(line for line in lines if re.search(r"\[(?:OK|INFO)\]", line)),
    )


def _totals(lines: list[str]) -> tuple[int | None, int | None, int | None]:
    """(nodes, processes, GPUs) of the job summary: five columns where all nodes are alike, else a table of totals."""
    start = next((i for i, line in enumerate(lines) if line.startswith("Job summary")), None)
    if start is None:
        return None, None, None
    found: tuple[int | None, int | None, int | None] = (None, None, None)
    for i, line in enumerate(lines[start : start + 60], start):
        if line.startswith("Communicators"):
            break
        match = _TOTALS.match(line)
        if match and match[5]:
            return int(match[1]), int(match[4]), int(match[5])
        if match and "(total)" in lines[i - 1]:
            found = int(match[1]), int(match[2]), int(match[3])
    return found


def _processes(lines: list[str], title: str) -> Iterator[str]:
    """The processes listed under a title that stands alone on its line."""
    inside = False
    for line in lines:
        if line.strip() == title and not line.startswith(" "):
            inside = True
        elif inside and not line.strip():
            inside = False
        elif inside:
            match = _PROCESS.match(line)
            if match:
                yield match[1]
            elif re.match(r" +(?:\d+ job process|Missing communicator data from)", line):
                yield line.strip() if title == "DEAD" or "job process" in line else ""


def _behind(lines: list[str]) -> Iterator[Behind]:
    """Ranks whose operation count or status differs from that of most others, and ranks that are missing or in error."""
    comm = collective = ""
    kind = Trouble.MISMATCH
    rows: list[tuple[str, int, list[int], list[str]]] = []
    for line in [*lines, "#end"]:
        match = _COMM.match(line)
        differ = _DIFFER.search(line)
        if match or differ or line.startswith(("#", "Warnings", "Errors")):
            yield from _less(comm, kind, collective, rows)
            rows = []
            if match:
                comm, kind, collective = match[1], Trouble(match[3]), ""
            elif differ:
                collective = differ[1] or ""
            else:
                comm = ""
            continue
        if not comm:
            continue
        launched = _LAUNCHED.match(line)
        rank = _RANK.match(line)
        if launched:
            value = launched[3] or launched[4] or "0"
            named = [int(launched[2])] if launched[2] else []
            rows.append((value, int(launched[1] or 1), named, [launched[6].strip(" -")] if named else []))
        elif rank and kind is not Trouble.MISMATCH:
            rows.append(("", 1, [int(rank[1])], [rank[2]]))
        elif rank and rows:
            rows[-1][2].append(int(rank[1]))
            rows[-1][3].append(rank[2])
        else:
            number = _COUNT.search(line) if kind is not Trouble.MISMATCH else None
            if number:
                rows.append(("", int(number[1]), [], []))


def _less(comm: str, kind: Trouble, collective: str, rows: list[tuple[str, int, list[int], list[str]]]) -> Iterator[Behind]:
    if not rows:
        return
    if kind is not Trouble.MISMATCH:
        ranks = [r for row in rows for r in row[2]]
        count = max([len(ranks)] + [row[1] for row in rows])
        what = "missing" if kind is Trouble.INCOMPLETE else "error"
        yield Behind(comm, kind, what, "", tuple(ranks), count, tuple(w for row in rows for w in row[3]))
        return
    numbers = [int(value) for value, *_ in rows if value.isdecimal()]
    if len(numbers) == len(rows) and numbers:
        ahead = max(numbers)
        for value, count, ranks, where in rows:
            if int(value) < ahead:
                yield Behind(comm, kind, f"operation {value} of {ahead}", collective, tuple(ranks), count, tuple(where))
        return
    most = max(rows, key=lambda row: row[1])
    for row in rows:
        if row is not most:
            yield Behind(comm, kind, f"status {row[0]}", "", tuple(row[2]), row[1], tuple(row[3]))
