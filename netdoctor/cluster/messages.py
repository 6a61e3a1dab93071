"""What nodes send each other about one subject, and how it is read.

What comes from other nodes is hostile until it is cleaned: texts lose control characters and are cut, shapes are checked, and
what is not of the right shape is left out.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final

from netdoctor.allreduce.events import number, word
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.cluster.observations import Cluster, Endpoints, Fault, Flow, Gone, Miss, OwnAddress, Ready, Refused
from netdoctor.compare.clocks import Clock
from netdoctor.compare.traits import Family, Trait, Traits, Value, value_of
from netdoctor.facts.runs import Caller, Obstacle
from netdoctor.textsafe import line

BACKENDS: Final = ("gloo", "nccl")
MAX_LINKS: Final = 64
MAX_RANKS: Final = 64  # of one node
MAX_REFUSED: Final = 32
MAX_FLOWS: Final = 4096
# Of all traits those that a common run depends on; the others are the fleet report's.
COMPARED: Final = frozenset(
    {
        *(Family.TORCH, Family.TORCH_CUDA, Family.NCCL, Family.PLUGINS),
        *(Family.DRIVER, Family.NETDOCTOR, Family.ENV, Family.MTU),
    }
)
MAX_TRAITS: Final = 400
MAX_SECONDS: Final = 1e11  # of a clock, since 1970
MAX_WORDS: Final = 800  # characters of a rank's error

_EVENTS: Final = frozenset({"forked", "phase", "error", "exit", "size", "verified", "result"})
_WORDS: Final = frozenset({"event", "phase", "error"})
_NUMBERS: Final = frozenset(
    {"rank", "t", "pid", "status", "bytes", "seconds", "wrong", "system_cpu", "user_cpu", "bytes_moved", "collective_seconds"}
)
COUNTS: Final = ("entered", "left")  # of an interruption: a number a rank
NAMED: Final = ("stopped", "blocked")  # some of the ranks


def take(cluster: Cluster, subject: str, message: Mapping[str, Any]) -> tuple[Cluster, dict[int, Any]]:
    """What is known once the coordinator has told one subject, and the part of each node as it came."""
    count = cluster.nodes.count
    gone = {node: Gone(subject, line(why)) for node, why in by_node(message.get("gone"), count).items()}
    never, refused = message.get("never"), message.get("refused")
    if isinstance(never, list):
        never_came = cluster.never_came | {n for n in never if type(n) is int and 0 <= n < count}
        cluster = replace(cluster, never_came=never_came)
    if isinstance(refused, list):
        cluster = replace(cluster, refused=tuple(_refused(one, count) for one in refused[:MAX_REFUSED]))
    data = by_node(message.get("data"), count)
    known = _READERS[subject](data, count) if subject in _READERS else {}
    merged: dict[str, Any] = {name: {**getattr(cluster, name), **values} for name, values in known.items()}
    return replace(cluster, gone={**gone, **cluster.gone}, **merged), data


def _refused(data: object, count: int) -> Refused:
    row = data if isinstance(data, Mapping) else {}
    node = row.get("node")
    known = node if type(node) is int and 0 <= node < count else None
    return Refused(line(row.get("address"), 64), line(row.get("why")), known, row.get("proven") is True)


def by_node(value: object, count: int) -> dict[int, Any]:
    """``{"2": …}`` as JSON has it, by node."""
    if not isinstance(value, Mapping):
        return {}
    return {int(k): v for k, v in value.items() if isinstance(k, str) and k.isdecimal() and len(k) < 5 and int(k) < count}


def _joined(data: Mapping[int, Any], _count: int) -> dict[str, Any]:
    parts = {node: part if isinstance(part, Mapping) else {} for node, part in data.items()}
    return {
        "hosts": {node: line(part.get("host"), 64) for node, part in parts.items()},
        "addresses": {node: line(part.get("address"), 64) for node, part in parts.items()},
    }


def _placed(data: Mapping[int, Any], _count: int) -> dict[str, Any]:
    return {"endpoints": {node: read_endpoints(part) for node, part in data.items()}}


def _reached(data: Mapping[int, Any], count: int) -> dict[str, Any]:
    listening: dict[str, dict[int, Any]] = {}
    for node, part in data.items():
        takes = part.get("takes") if isinstance(part, Mapping) else None
        if isinstance(takes, Mapping):
            for backend in BACKENDS:
                listening.setdefault(backend, {})[node] = _misses(takes.get(backend), count)
    return {"reach": {node: _misses(part, count) for node, part in data.items()}, "listen_reach": listening}


def _misses(data: object, count: int) -> dict[int, Miss | None]:
    return {to: read_miss(why) for to, why in by_node(data, count).items()}


def _readied(data: Mapping[int, Any], _count: int) -> dict[str, Any]:
    return {"ready": {node: read_ready(part) for node, part in data.items() if isinstance(part, Mapping)}}


_READERS: Final = {"join": _joined, "place": _placed, "reach": _reached, "ready": _readied}


# Whether a node was reached


def miss_data(miss: Miss | None) -> str | list[str | int]:
    """As nodes send it: "" where the node was reached."""
    return "" if miss is None else [miss.fault.value, miss.segment] if miss.segment else miss.fault.value


def read_miss(data: object) -> Miss | None:
    """The inverse of `miss_data`; what has no meaning here is a failure."""
    name, segment = data if isinstance(data, list) and len(data) == 2 else (data, 0)
    if name == "" and not segment:
        return None
    known = isinstance(name, str) and name in {one.value for one in Fault}
    return Miss(Fault(name) if known else Fault.FAILED, segment if type(segment) is int and 0 < segment < 1 << 20 else 0)


# Where a node listens


def read_endpoints(data: object) -> Endpoints:
    if not isinstance(data, Mapping):
        return Endpoints()
    listen = {kind: pair for kind in BACKENDS if (pair := _pair(data.get(kind)))}
    links, own = data.get("links"), data.get("own")
    own = {one for one in own[:MAX_LINKS] if isinstance(one, str)} if isinstance(own, list) else set()
    addresses = tuple(
        OwnAddress(*pair, one[2], one[3], pair[1] in own)
        for one in (links[:MAX_LINKS] if isinstance(links, list) else ())
        if isinstance(one, list) and len(one) == 4 and (pair := _pair(one[:2])) and all(type(n) is int for n in one[2:])
    )
    return Endpoints(line(data.get("space"), 40), listen, addresses)


def _pair(data: object) -> tuple[str, str] | None:
    """Interface and address."""
    if not isinstance(data, list | tuple) or len(data) != 2:
        return None
    try:
        return line(data[0], 40), str(ip_address(line(data[1], 64)))  # its zone may be any text (RFC 4007)
    except ValueError:  # no name of another node is ever looked up
        return None


# What a node can run


# Beside the traits, which are written as their texts: keys that are no trait's.
_VARIABLES, _LINKS = "env", "links"


def trait_data(traits: Traits) -> dict[str, str]:
    """What a node sends of itself to be compared by; `read_traits` is the inverse."""
    kept = {str(trait): str(value) for trait, value in traits.values.items() if trait.family in COMPARED}
    said = {
        **({_VARIABLES: "read"} if traits.variables_read else {}),
        **({_LINKS: " ".join(traits.links)} if traits.links else {}),
    }
    return {**dict(sorted(kept.items())[:MAX_TRAITS]), **said}


def read_traits(data: object) -> Traits:
    """A trait that this version does not have is left out."""
    every = list(data.items())[: MAX_TRAITS + 8] if isinstance(data, Mapping) else ()
    told = {line(name, 120): line(value) for name, value in every if isinstance(name, str) and isinstance(value, str)}
    read, links = told.pop(_VARIABLES, None) is not None, tuple(told.pop(_LINKS, "").split())
    known: dict[Trait, Value] = {}
    for name, value in told.items():
        with contextlib.suppress(ValueError):
            known[Trait.parse(name)] = value_of(value)
    return Traits({trait: value for trait, value in known.items() if trait.family in COMPARED}, read, links)


def read_ready(data: Mapping[str, Any]) -> Ready:
    ranks = data.get("ranks")
    return Ready(
        ranks if type(ranks) is int and 0 <= ranks <= MAX_RANKS else None,
        line(data.get("backend"), 20),
        line(data.get("cannot")),
        read_traits(data.get("traits")),
        Caller.NCCL if data.get("via") == Caller.NCCL.value else Caller.TORCH,
        _fabric(data.get("fabric")),
        _clock(data.get("clock")),
        next((one for one in Obstacle if one.value == data.get("obstacle")), None),
    )


def clock_data(clock: Clock | None) -> list[float] | None:
    return [clock.ahead, clock.within] if clock is not None else None


def _clock(data: object) -> Clock | None:
    pair = data if isinstance(data, list) and len(data) == 2 else ()
    ahead, within = (float(one) for one in pair) if pair and all(number(one) for one in pair) else (math.inf, math.inf)
    return Clock(ahead, within) if abs(ahead) < MAX_SECONDS and 0 <= within < MAX_SECONDS else None


def _fabric(data: object) -> str:
    """As `cluster.fabric.beyond` says it; "" where it is anything else."""
    return data if isinstance(data, str) and re.fullmatch(r"none|[0-9a-f]{32}/[0-9]{1,10}", data) else ""


def read_meeting(message: Mapping[str, Any]) -> dict[str, Any]:
    """How to meet the first rank of all: the port of its store, or NCCL's unique id in hex; {} where it is neither."""
    port, id = message.get("port"), message.get("id")
    if isinstance(id, str) and re.fullmatch(r"[0-9a-f]{256}", id):  # NCCL_UNIQUE_ID_BYTES
        return {"id": id}
    return {"port": port} if type(port) is int and 0 < port < 65536 else {}


# What became of a node's ranks


def result_data(events: Iterable[Mapping[str, Any]], interruption: Interruption | None, offset: float) -> dict[str, Any]:
    """A node's own part of the run, in the coordinator's time.  `offset` is the coordinator's clock minus ours."""
    kept = _WORDS | _NUMBERS
    sent = [
        {**{k: line(v, MAX_WORDS) if k in _WORDS else v for k, v in e.items() if k in kept}, "t": e["t"] + offset}
        for e in events
        if e.get("event") in _EVENTS
    ]
    if interruption is None:
        return {"events": sent, "cut": None}
    data = {
        "kind": interruption.kind,
        "obstacle": interruption.obstacle,
        "time": interruption.time + offset,
        "seconds": interruption.seconds,
        "text": interruption.text,
        **{name: getattr(interruption, name) for name in (*COUNTS, *NAMED)},
    }
    return {"events": sent, "cut": data}


def read_events(data: object, first: int, ranks: int) -> list[dict[str, Any]]:
    """Of the ranks from `first` on, by their number in the common run."""
    out: list[dict[str, Any]] = []
    for event in data[: 400 * ranks] if isinstance(data, list) else ():
        rank = event.get("rank") if isinstance(event, Mapping) else None
        if type(rank) is int and 0 <= rank < ranks and str(event.get("event")) in _EVENTS:
            tidy = {k: line(v, MAX_WORDS) if k in _WORDS else v for k, v in event.items() if _fits(k, v)}
            out.append({**tidy, "rank": first + rank})
    return out


def _fits(name: str, value: object) -> bool:
    return word(value) if name in _WORDS else name in _NUMBERS and number(value)


def read_interruption(data: object, ranks: int) -> Interruption | None:
    if not isinstance(data, Mapping):
        return None
    try:
        known: dict[str, Any] = {name: tuple(int(n) for n in data[name][:ranks]) for name in COUNTS}
        known |= {name: tuple(int(n) for n in data[name][:ranks] if 0 <= int(n) < ranks) for name in NAMED}
        kind, text = InterruptionKind(line(data["kind"], 20)), line(data["text"])
        known["obstacle"] = Obstacle(data["obstacle"]) if data.get("obstacle") else None
        when, seconds = float(data["time"]), float(data["seconds"])
        return Interruption(kind, when, seconds, text=text, **known) if abs(when) + abs(seconds) < 1e300 else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_flows(data: object) -> dict[str, Flow]:
    """By the address of the other end."""
    out: dict[str, Flow] = {}
    for ip, one in list(data.items())[:MAX_FLOWS] if isinstance(data, Mapping) else ():
        if isinstance(ip, str) and isinstance(one, list) and len(one) == 4:
            numbers = [n for n in one if isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e18]
            if len(numbers) == 4 and numbers[3] <= numbers[2]:  # what was sent again was sent
                out[ip[:64]] = Flow(int(numbers[0]), float(numbers[1]), int(numbers[2]), int(numbers[3]))
    return out
