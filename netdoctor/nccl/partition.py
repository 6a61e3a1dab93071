"""Which partition of an InfiniBand fabric NCCL's queue pairs are in.

NCCL takes the entry of the port's P_Key table that NCCL_IB_PKEY names by its index (src/transport/net_ib, pkey_index of
ibv_qp_attr; 0 by default).  The highest bit of a key is full membership: two limited members of a partition send each other
nothing (NVIDIA WinOF-2, PKey Membership Types; drivers/infiniband/hw/hfi1/hfi.h, ingress_pkey_matches_entry).  What the other
nodes are, one node does not show: a limited member among full ones works, and all nodes of one kind seldom differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from netdoctor.causes.cost import STOPS
from netdoctor.facts.environ import Environ
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.rdma_ports import RdmaPort
from netdoctor.facts.runs import PathRun
from netdoctor.model import Finding, Fix, Status, Unavailable, missing
from netdoctor.nccl.hcas import active_ports
from netdoctor.nccl.integers import param
from netdoctor.nccl.transport import shown_network

INDEX: Final = "NCCL_IB_PKEY"
BY_VALUE: Final = "NCCL_IB_PKEY_VALUE"  # from 2.31.2 on NCCL looks for a key itself
SUBJECT: Final = "partition key"
_FULL: Final = 0x8000
_LIMITED: Final = "a limited member, and two of those send each other nothing"
HOW: Final = "grep . /sys/class/infiniband/*/ports/*/pkeys/* | grep -v 0x0000"


def judge(devices: Iterable[RdmaDevice], environ: Environ, path: PathRun, mend: Callable[[str], Fix]) -> Iterator[Finding]:
    """Only what is wrong or open of the job's devices; `mend` sets another index.  What of the variables is not known whoever
    judges the devices says."""
    given, by_value = environ.get(INDEX), environ.get(BY_VALUE)
    ports = [(one.name, port) for one in devices for port in active_ports(one)]
    own = [(name, port) for name, port in ports if port.link_layer == "InfiniBand" and port.pkeys is not None]
    if missing(given, by_value) is not None or by_value or not own:
        return
    if any(run.finished and shown_network(run) == "IB" for run in path.runs or ()):  # which came through by its key
        return
    index = param(given, 0)
    wrong, unread = dict[str, list[str]](), dict[str, list[str]]()
    for name, port in own:
        text, sure = _wrong(port, index)
        if text:
            (wrong if sure else unread).setdefault(text, []).append(name)
    called = f"{INDEX}={given}" if given else "index 0 of the table"
    for text, names in wrong.items():
        found = Finding(
            Status.FAIL,
            f"{', '.join(names)}: NCCL takes {called}, {text}",
            SUBJECT,
            loss=STOPS,
            expected="a full member of one partition, on every node",
            why="its queue pairs are refused, or nothing comes through (error 12), while IPoIB, which has its own key, works",
            fix=_mend([port for name, port in own if name in names], mend),
            evidence={"index": index},
        )
        if not text.endswith(_LIMITED):
            yield found
            continue
        how = f"on another node: {HOW}; netdoctor allreduce of two nodes"
        text = f"{found.message}; whether the other nodes' are full members is not known"
        yield Finding(Status.UNKNOWN, text, SUBJECT, how=how, fix=found.fix, perhaps=found)
    for text, names in unread.items():
        yield Finding(Status.UNKNOWN, f"{', '.join(names)}: NCCL takes {called}, {text}", SUBJECT, how=HOW)


def _wrong(port: RdmaPort, index: int) -> tuple[str, bool]:
    """What is wrong with an entry, and whether that is certain."""
    table = port.pkeys
    if table is None or isinstance(table, Unavailable):
        return f"and the partition keys could not be read: {table}", False
    if not 0 <= index < port.pkey_slots:
        return f"and the table has {port.pkey_slots} entries: the variable is an index in it, no key", True
    if index >= len(table):
        return f"which was not read: the entries before it are empty from {len(table) - 1} on", False
    if not table[index] & ~_FULL:
        return "and that entry is empty", True
    if not table[index] & _FULL:
        return f"which is 0x{table[index]:04x}: {_LIMITED}", True
    return "", True


def _mend(ports: Sequence[RdmaPort], mend: Callable[[str], Fix]) -> Fix:
    """The first index that is a full member's on all of them; else the subnet manager has to give one."""
    tables = [port.pkeys or () for port in ports]
    full = (
        n for n in range(min(map(len, tables), default=0)) if all(table[n] & _FULL and table[n] & ~_FULL for table in tables)
    )
    index = next(full, None)
    if index is not None:
        return mend(f"{INDEX}={index}")
    text = "make its ports full members of a partition, in the subnet manager (partitions.conf: =full; UFM: membership full)"
    return Fix(text, (HOW, "smpquery -C DEVICE -D pkeys 0"))
