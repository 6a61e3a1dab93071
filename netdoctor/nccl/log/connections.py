"""The part of a "via" line behind its channel number: which ranks, which way, and what carries it.

``0[0] -> 8[0] [send] via NET/IB/0(8)/GDRDMA/Shared``, ``via P2P/CUMEM/read``, ``via SHM/direct/direct``, ``via direct
shared memory`` (to 2.12.12); src/transport/{net,p2p,shm,coll_net}.cc.  Brackets hold a bus id to 2.18.1, then a device number.
"""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.log.facts import Direction
from netdoctor.nccl.log.prefix import text

_VIA: Final = re.compile(
    rb" : (\d+)(?:\[[0-9a-fx.:]+\])? (?:-> (\d+)(?:\[[0-9a-fx.:]+\])? ?)?(?:\[(send|receive|recv)\] )?via (.{1,200})"
)
_WAYS: Final = {b"send": Direction.SEND, b"receive": Direction.RECEIVE, b"recv": Direction.RECEIVE, None: Direction.NONE}
Tail = tuple[str, str, int | None, bool | None]
_TAIL_NET: Final = re.compile(rb"(NET|COLLNET)/(.+?)/(\d+)(?:\(\d+\))?((?:/|\().*)?$")


def _tail(raw: bytes) -> Tail:
    """(transport, detail, device, gdrdma) of what stands after ``via``."""
    raw = raw.split(b" comm ")[0].strip()
    net = _TAIL_NET.match(raw)
    if net:
        return net[1].decode(), text(net[2]), int(net[3]), b"GDRDMA" in (net[4] or b"")
    if raw.startswith((b"NET/", b"COLLNET/")):
        kind, _, rest = raw.partition(b"/")
        return kind.decode(), text(rest.split(b"/")[0]), None, b"GDRDMA" in rest
    if raw.startswith(b"direct shared memory"):
        return "SHM", "direct", None, None
    kind, _, rest = raw.partition(b"/")
    rest = re.sub(rb"indirect/\d+\[[0-9a-fx]+\]", b"indirect", rest)
    return ("P2P" if kind == b"P2P" else "SHM" if kind == b"SHM" else text(kind)[:20]), text(rest)[:40], None, None


def connection(rest: bytes) -> tuple[int, int, Direction, Tail] | None:
    """(from, to, direction, what carries it) of a line's end that `messages.via` kept; rank -1 where the line names none."""
    match = _VIA.match(rest)
    if match is None:
        return None
    src, dst, direction, raw = match.groups()
    return int(src), int(dst) if dst is not None else -1, _WAYS[direction], _tail(raw)
