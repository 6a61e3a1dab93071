"""Which ways between nodes each of them tries: all where there are few nodes, else a sample that is the same for every node.

Pure.  A node that tried every other would open as many connections as there are nodes, all nodes together their square.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Final

from netdoctor.cluster.messages import BACKENDS
from netdoctor.cluster.observations import Endpoints, Fault, Miss

CONNECTIONS: Final = 64  # that one node opens to try the others, second tries of a way that drops large packets included
FIRST_TRIES: Final = 56  # of those

Tries = list[tuple[int, str]]  # node, address
Listeners = dict[str, dict[int, str | Miss]]  # backend -> node -> where its ranks listen, or why nothing is dialled there


def others(rank: int, count: int, most: int = FIRST_TRIES) -> list[int]:
    """The nodes that node `rank` tries, the likeliest peers first.

    Those at distances of powers of two come first: the neighbours of a ring (1), of halving and doubling, and of trees.  The
    others lie evenly between.  Every node has the same distances, so as many try it as it tries.
    """
    powers = [1 << n for n in range(count.bit_length()) if 1 << n < count]
    if count - 1 > most:
        spread = [1 + n * (count - 1) // most for n in range(most)]
    else:
        spread = list(range(1, count))
    distances = list(dict.fromkeys([*powers, *spread]))[:most]
    return [(rank + distance) % count for distance in distances]


def listeners(rank: int, usual: Mapping[int, str], endpoints: Mapping[int, Endpoints], proven: bool) -> Listeners:
    """Where the ranks of these nodes will listen, as far as it may be dialled.

    A node says so itself.  Only one that proved to be of this run makes others dial what it says, as its ranks do a moment
    later, and never another machine's loopback; else it must be the address that its own connection shows.
    """
    netns = endpoints[rank].netns if rank in endpoints else ""
    found: Listeners = {}
    for node, address in usual.items():
        for kind, (_, ip) in endpoints.get(node, Endpoints()).listen.items():
            one = ip_address(ip.partition("%")[0])
            if ip != address and one.is_loopback and not (netns and endpoints[node].netns == netns):
                found.setdefault(kind, {})[node] = Miss(Fault.LOOPBACK)
            elif ip == address or (proven and not (one.is_multicast or one.is_unspecified)):
                found.setdefault(kind, {})[node] = ip
    return found


def tries(usual: Mapping[int, str], listening: Listeners) -> Tries:
    """As many as may be, each node with all its addresses; what is left out is not known."""
    made: Tries = []
    for node, address in usual.items():
        more = [ip for kind in BACKENDS if isinstance(ip := listening.get(kind, {}).get(node), str)]
        every = [(node, ip) for ip in dict.fromkeys([address, *more])]
        if len(made) + len(every) > FIRST_TRIES:
            break
        made += every
    return made


def pairs(count: int) -> Iterator[tuple[int, int]]:
    """Every way that is in the sample."""
    return ((node, other) for node in range(count) for other in others(node, count))
