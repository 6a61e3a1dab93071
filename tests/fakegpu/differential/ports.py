"""How many ports the ranks of a node need: a communicator in a network namespace whose range has just so many."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Final

from netdoctor.api import nccl_ports
from tests.fakegpu import namespace
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import Draw, Row
from tests.fakegpu.differential.world import World

FIRST: Final = 40000
REFUSALS: Final = ("Address already in use", "Cannot assign requested address")  # of bind(2), of connect(2)
NETWORK: Final = """\
link set lo up
link add eth0 type veth peer name peer0
addr add 10.0.0.7/24 dev eth0
link set eth0 up
link set peer0 up
"""


def compare(draw: Draw, world: World) -> Iterator[Row]:
    """At the very number, and below, it depends on who comes first (NCCL 2.28.9, two ranks, 10 tries each: a range of 8 ports
    did once, 10 and 11 at every other try, 12 and 14 always): a little more is enough, and two thirds fail one of two tries."""
    count = min(draw.random.choice((2, 2, 4)), len(world.machine.gpus))
    if count < 2:
        return  # a rank alone has nobody to listen for
    need = nccl_ports.listeners(count, 1, 0, draw.version).total
    few, enough = need * 2 // 3, need + 2 + need % 2  # an odd number has a port that the kernel does not always find
    for ports, expected in ((few, "refused"), (enough, "works")):
        seen = works(draw, world, count, ports)
        if seen != expected and seen in ("refused", "works"):
            seen = works(draw, world, count, ports)
        yield Row(f"{count} ranks, a range of {ports} ports", expected, seen)


def works(draw: Draw, world: World, count: int, ports: int) -> str:
    return str(ranks.in_child(lambda: _attempt(draw, world, count, ports)))


def _attempt(draw: Draw, world: World, count: int, ports: int) -> str:
    folder = world.folder / "net"
    folder.mkdir(exist_ok=True)
    (folder / "network").write_text(NETWORK, encoding="ascii")
    namespace.connect(folder)
    span = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
    span.write_text(f"{FIRST} {FIRST + ports - 1}", encoding="ascii")
    env = {**ranks.SMALL, "NCCL_MAX_NCHANNELS": "1", "NCCL_RUNTIME_CONNECT": "1"}
    try:
        done = world.ranks(draw, [ranks.Process(env, device) for device in range(count)], deadline=20.0)
    except ranks.LateError as error:  # the others wait for the one that got no port
        if any(words in str(error) for words in REFUSALS):
            return "refused"
        raise
    if done.ok:
        return "works"
    return "refused" if any(words in done.failure for words in REFUSALS) else done.failure
