"""Port arithmetic: what must bind at once on one node, what keeps a port afterwards, and what the kernel has to give.

A port is taken by a listener, and kept by the connections that it accepted after the listener is gone (both are in the bind
hash under that number: net/ipv4/inet_connection_sock.c).  Outbound connections cost far less: connect(2) takes ports of the
range's lower parity and gives one number to many destinations (net/ipv4/inet_hashtables.c __inet_hash_connect), while
bind(0) starts at the other parity.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from netdoctor.facts.nccl_version import Version
from netdoctor.model import record

RAS_FROM: Final = (2, 24, 3)  # src/ras: one listener a process
RING_FROM: Final = (2, 23, 4)  # src/bootstrap.cc: listeners of ring and peer-to-peer are two since, one before
RAS_PORT: Final = 28028  # src/ras/client_support.cc: clients are served on localhost:28028
_FOUR_FROM: Final = (2, 20, 5)  # as measured: before, four ports less do for four ranks, and as many for two or eight
STORE_PORT: Final = 29500  # torch.distributed: the default of MASTER_PORT
DEFAULT_RANGE: Final = (32768, 60999)  # net/ipv4/tcp_ipv4.c; a new network namespace starts with it

# Assumptions of the estimate of connections; NCCL settles them at run time.
CHANNELS: Final = 16  # channels that reach the network; src/include/device.h allows 32, from 2.28 on 64
PEERS: Final = 3  # a ring's predecessor and a tree's children, which a rank receives from
CHANNELS_PER_NET_PEER: Final = 2  # src/init.cc, NCCL_NCHANNELS_PER_NET_PEER


@record
class Listeners:
    """Listeners that hold a port of their own at once on one node, by what opens them."""

    bootstrap: int  # per rank and communicator: ring, peer to peer, proxy (src/bootstrap.cc, src/proxy.cc)
    root: int  # while one communicator is set up: a reply listener per rank and the root itself
    ras: int  # per process
    gloo: int  # per rank and process group
    own: int = 0  # of the connections that the node's ranks make among themselves meanwhile

    @property
    def total(self) -> int:
        return self.bootstrap + self.root + self.ras + self.gloo + self.own


def listeners(ranks: int, communicators: int, gloo_groups: int, version: Version | None) -> Listeners:
    """For `ranks` ranks on this node; without a version, the most that any has."""
    each = 3 if version is None or version >= RING_FROM else 2
    return Listeners(
        bootstrap=ranks * communicators * each,
        root=ranks + 1 if communicators else 0,
        ras=ranks if version is None or version >= RAS_FROM else 0,
        gloo=ranks * gloo_groups,
        own=_own(ranks, version) if communicators else 0,
    )


def _own(ranks: int, version: Version | None) -> int:
    """As measured: in a namespace with a range of so many ports the unmodified NCCL set up one communicator of two ranks twice
    with 8 (2.18.3, 2.20.5, 2.21.5), 10 (2.23.4, 2.29.7), 11 (2.25.1, 2.30.7), 12 (2.27.5, 2.28.9, 2.32.3), of 4 ranks with 16
    (2.18.3), 20 (2.20.5, 2.21.5, 2.23.4), 22 (2.32.3), 23 (2.27.5), 24 (2.30.7), of 8 with 28 (2.18.3, 2.21.5), 47 (2.27.5).
    With one or two less it depends on who comes first.

    python -m tests.fakegpu.differential --area ports
    """
    if ranks < 2:
        return 0
    if version is None or version >= RING_FROM:
        return ranks // 2
    return 7 if version >= _FOUR_FROM and ranks in (3, 4) else min(ranks // 2, 3)


def kept_by_connections(ranks: int, world: int, communicators: int, *, all_to_all: bool, pxn: bool) -> int:
    """An estimate of the ports that receiving network connections keep on a node: each has a listener of its own
    (src/transport/net_ib, net_socket.cc), whose port its accepted sockets keep for the life of the communicator.

    All-to-all receives from every remote rank: with PXN once per node, without it once per local rank
    (src/transport/net.cc, shared connections).
    """
    remote = max(0, world - ranks)
    if not remote:
        return 0
    usual = ranks * min(PEERS, remote) * CHANNELS * communicators
    every = (1 if pxn else ranks) * remote * CHANNELS_PER_NET_PEER if all_to_all else 0
    return usual + every


def bindable(low: int, high: int, taken: Collection[int]) -> int:
    """Ports that bind(0) can give: the range without the reserved and the taken ones."""
    if high < low:
        return 0
    return high - low + 1 - sum(1 for port in taken if low <= port <= high)


def sure(low: int, high: int, taken: Collection[int]) -> int:
    """As `bindable`, less the port that a search over an odd count can miss (inet_csk_find_open_port looks at an even
    number of ports from a random start)."""
    free, count = bindable(low, high, taken), high - low + 1
    return free - 1 if count > 1 and count % 2 and free else free


def descriptors(ranks: int, sockets: int, to_all: int) -> int:
    """Files that one communicator keeps open in a rank, at most: `sockets` of a connection to another node (0: there is none),
    `to_all` peers of an all-to-all.

    Two sockets and two Unix ones to each local rank (src/proxy.cc), and room for what is passed on: shared memory and P2P close
    theirs once mapped (src/transport/shm.cc, p2p.cc).  Between nodes ring and trees have six peers on 32 channels
    (src/include/device.h).  All-to-all has two channels a peer, both ways.
    """
    return 16 * ranks + 6 * 32 * sockets + 64 * to_all


def sockets_per_connection(vendor: str | None, nsocks: int | None, threads: int | None) -> int:
    """TCP sockets that carry the data of one NET/Socket connection (src/transport/net_socket.cc, ncclNetSocketGetNsockNthread):
    by the interface's PCI vendor, or as NCCL_NSOCKS_PERTHREAD and NCCL_SOCKET_NTHREADS say."""
    auto_threads, auto_nsocks = {"0x1d0f": (2, 8), "0x1ae0": (4, 1)}.get(vendor or "", (0, 1))
    threads = auto_threads if threads is None or threads == -2 else min(threads, 16)
    nsocks = auto_nsocks if nsocks is None or nsocks == -2 else nsocks
    return min(max(1, threads * nsocks), 64)  # none: the control socket carries the data
