"""What every process of NCCL's takes for certain, so that less is a fault: threads, and descriptors that stay open.

Sources, and what the real library showed on tests/fakegpu (hgx-h100, eight RoCE ports, an all-reduce of two ranks, /proc):
2.18.3 had ten threads of its own (a main one, ncclProxyService, and ncclIbAsyncThread a port) and six sockets, 2.29.7 eleven
and thirteen.  What may go without (RAS's thread: "Continuing in spite of a RAS initialization error"; ncclProxyProgress,
which begins with the first connection that needs it) is not counted, nor what the fakes hold themselves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from netdoctor.facts.environ import Environ
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Unavailable, count
from netdoctor.nccl.hcas import selected
from netdoctor.nccl.integers import param
from netdoctor.nccl.net_device import active_ports
from netdoctor.nccl.ports import RAS_FROM, RING_FROM
from netdoctor.nccl.rdma_access import usable
from netdoctor.nccl.selector import parse_hcas
from netdoctor.nccl.transport import own_network

STREAMS: Final = 3  # standard input, output and error
# The main thread, and NCCL's ncclProxyService (src/proxy.cc) or Gloo's loop (gloo/transport/tcp/loop.cc).
TASKS: Final = 2
_UDS_FROM: Final = (2, 20, 3)  # src/proxy.cc, ncclProxyServiceUDS: a thread and a Unix socket
# src/bootstrap.cc: a listener for peers, the ring's two connections, the proxy's listener; to the rank's own proxy both ends
# of a connection (ncclProxyConnect of p2p.cc, shm.cc and net.cc alike).
_SOCKETS: Final = 4 + 2
# poll(2) refuses an array of more places than RLIMIT_NOFILE (fs/select.c, do_sys_poll), whatever is open.  The proxy's has
# one for each rank that a node may have and its own listener (src/proxy.cc, ncclProxyService: pollfds), and its thread ends
# there: "Poll failed: Invalid argument", and whoever connects waits for ever.  2.29.7 hung with 73, and ran with 74.
_POLLED: Final = (((2, 25, 1), 74), ((2, 12, 7), 65))
_RAS: Final = 3  # src/ras/ras.cc: a listener and a pipe, before the ring is there
# NVIDIA/open-gpu-kernel-modules: what a client has is freed with its descriptor of nvidiactl (nv.c, nvidia_close), a space of
# addresses with that of nvidia-uvm (uvm.c, uvm_release), and a GPU is shut down with the last of its node (nv_close_device).
# Read there, not counted on a GPU.
_OF_CUDA: Final = 3
# rdma-core libibverbs/device.c, verbs_init_context: commands and asynchronous events
_OF_A_DEVICE: Final = 2
_MOST_DEVICES: Final = 32  # src/transport/net_ib, MAX_IB_DEVS


class Least(NamedTuple):
    """Of one rank."""

    threads: int
    files: int
    what: str  # of threads, in words
    polled: int = 0  # places that NCCL's proxy polls at once; 0: not known


def hcas_opened(rdma: Rdma, net: Net, environ: Environ, libraries: Libraries) -> int:
    """Devices that NCCL's own network opens and keeps, at least: whoever it connects to, and on one node, too (src/transport/
    net_ib, ncclIbInit).  0: none, or not known."""
    choice, devices = environ.get("NCCL_IB_HCA"), rdma.devices
    if isinstance(choice, Unavailable) or isinstance(devices, Unavailable) or not own_network(environ, libraries):
        return 0
    wanted = parse_hcas(choice or "")
    taken = selected(devices, wanted) if wanted else devices
    return min(sum(1 for one in taken if usable(one, rdma, net).yes and active_ports(one)), _MOST_DEVICES)


def least(environ: Environ, version: Version | Unavailable, hcas: int, *, ranks: int, cuda: bool) -> Least:
    """Of one of `ranks` processes of the job (0: they do not call NCCL); without a version what every one takes.  A job of one
    rank may make no communicator at all: nothing of NCCL's is certain there.
    """
    if ranks == 1:
        return Least(1, STREAMS + _OF_CUDA * cuda, "a rank has its main thread")
    known = None if isinstance(version, Unavailable) else version
    uds, said = known is not None and known >= _UDS_FROM, environ.get("NCCL_RAS_ENABLE")
    ras = known is not None and known >= RAS_FROM and not isinstance(said, Unavailable) and param(said, 1) == 1
    files = STREAMS + _OF_CUDA * cuda + _OF_A_DEVICE * hcas
    if ranks > 1:
        files += _SOCKETS + uds + (known is not None and known >= RING_FROM) + _RAS * ras
    polled = next((places for since, places in _POLLED if ranks > 1 and known is not None and known >= since), 0)
    what = f"a rank has its main thread, NCCL's proxy{' and that of Unix sockets' if uds else ''}"
    what += f", and NCCL one for the events of each of {count(hcas, 'RDMA device')}" if hcas else ""
    return Least(TASKS + uds + hcas, files, what, polled)
