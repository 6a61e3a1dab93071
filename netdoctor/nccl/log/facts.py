"""What a NCCL log says, as data: `LogFacts` is the contract between the log parser, the rules, preflight and the renderers.

Two kinds of nothing are told apart.  A field that is None (or empty) and *not* named in `LogFacts.absent`: the log was written
at the level and subsystem that print it, and it did not appear.  A field named in `absent`: the log cannot show it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from netdoctor.facts.runs import RunLog
from netdoctor.model import Word, record
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.wordings import Wording

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
STEPS: Final = 3  # signs of work after which a rank is known to go on: the collectives of a step need all ranks
SOCKET: Final = "Socket"  # NCCL's name of its network over TCP
# Networks as printed -> family.  Sources: NCCL (IB, Socket), nccl-rdma-sharp-plugins (IBext*, UCX*), aws-ofi-nccl
# (AWS Libfabric before 1.9, Libfabric after), Google (FasTrak, GPUDirectTCPX*, gIB).
_FAMILY: Final = (("aws libfabric", "Libfabric"), ("libfabric", "Libfabric"), ("socket", SOCKET), ("ib", "IB"))


def family(network: str) -> str:
    """``AWS Libfabric`` and ``Libfabric`` are one family, ``IBext_v8`` is IB's; other names stand for themselves."""
    low = network.lower()
    return next((name for start, name in _FAMILY if low.startswith(start)), network)


class Level(Word):
    """What NCCL tags a line with (src/debug.cc)."""

    INFO = "INFO"
    WARN = "WARN"
    ATTN = "ATTN"
    DIAG = "DIAG"
    TRACE = "TRACE"
    ABORT = "ABORT"


class Direction(Word):
    """Of a connection over the network, as its line says it; lines of P2P and SHM say none."""

    SEND = "send"
    RECEIVE = "receive"
    NONE = ""


class GdrUse(Enum):
    """Which of the connections that cross the network use GPUDirect RDMA."""

    ALL = True
    SOME = "mixed"
    NONE = False


class GdrRefusal(Enum):
    """What refuses GPUDirect RDMA."""

    HCA = "hca"
    TOPOLOGY = "topology"


class NetSource(Word):
    """What the network was read from where no line names it; the values are words for people."""

    CONNECTIONS = "the transport of its connections"
    ERRORS = "the source file of its errors"
    DEVICES = "the device list of NET/IB"


@record
class NetDevice:
    """One device of ``NET/IB : Using [0]mlx5_0:1/IB``."""

    name: str
    port: int
    link: str  # "IB" | "RoCE" | "IB/SHARP" as NCCL prints it


@record
class Address:
    """An interface with its address, of the bootstrap, the out-of-band channel of NET/IB, or NET/Socket."""

    ifname: str
    address: str
    host: str = ""


@record
class Via:
    """Connections of one kind between two ranks: ``Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA``."""

    src: int
    dst: int
    direction: Direction
    transport: str  # "P2P" | "SHM" | "NET" | "COLLNET"
    detail: str  # "CUMEM/read", "direct/direct", of NET the network's name: "IB", "Libfabric"
    device: int | None = None  # NET: index of the device
    gdrdma: bool | None = None  # NET: whether the line ends in /GDRDMA; None for P2P and SHM
    host: str = ""  # who printed it
    count: int = 1  # lines, that is channels


@record
class Event:
    """Something that went wrong (or may have), with the line that shows it."""

    kind: EventKind
    file: str
    line: int  # of the first such line
    text: str  # cleaned and bounded
    host: str = ""
    pid: int | None = None
    rank: int | None = None
    at: str = ""  # time stamp of the line, where it has one
    count: int = 1
    level: Level | None = None  # None: not NCCL's line, or its prefix was cut off
    last: int = 0  # line of the last such line
    mild: bool = False  # torch printed it as a warning
    source: str = ""  # NCCL source file that printed it: "misc/socket.cc:58"
    data: Mapping[str, str] = field(default_factory=lambda: NOTHING)  # what the pattern caught: peer, errno, status …
    ranks: tuple[int, ...] = ()  # that launchers' marks name, of all such lines
    spoken: int = 0  # ordinary lines of the file before the last such line
    outlived: int = 0  # how often ordinary lines stood between one such line and the next
    nodes: tuple[str, ...] = ()  # hosts that pdsh's marks name, of all such lines
    amid: int = 0  # what the program counted up to before the last such line ("step 40/90": 90); 0: nothing

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def said(self) -> str:
        """What the line says for certain: a list of what may have been is none of it."""
        return Wording.MIGHT_HAVE_BEEN.before(self.text)

    @property
    def killed_from_outside(self) -> bool:
        """A death that NCCL did not cause: SIGKILL, the OOM killer, a scheduler's out-of-memory."""
        return (
            self.data.get("signal") in {"9", "SIGKILL"}
            or Wording.CODE_OF_SIGKILL.within(self.data.get("code") or self.data.get("how", ""))
            or self.data.get("how") in {"Killed", "killed", "Out Of Memory"}
            or Wording.OOM_KILLER.within(self.said)
        )


@record
class RankFacts:
    """One process.  `ranks` has several entries where one process drives several GPUs."""

    host: str
    pid: int | None
    ranks: tuple[int, ...] = ()
    nranks: int | None = None
    nodes: int | None = None
    nccl_version: str | None = None
    bootstrap: Address | None = None
    network: str | None = None
    devices: tuple[NetDevice, ...] = ()
    comms_started: int = 0
    comms_complete: int = 0
    comm_ids: tuple[str, ...] = ()
    init_seconds: float | None = None
    env: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    affinity: Mapping[int, str] = field(default_factory=dict)  # CUDA device -> mask or ranges as printed
    cpu_conflict: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # GPU -> (its CPUs, the process's): disjoint
    plugin_env: frozenset[str] = frozenset()  # variables that a network plugin says it set itself
    devs: frozenset[int] = frozenset()  # CUDA devices that its lines' prefixes name


@record
class LogFacts(RunLog):
    """All that was read from one or several logs of one job."""

    library: str | None = None  # "NCCL" | "RCCL" | "Neuron"
    nccl_version: str | None = None  # "2.21.5", the one that most processes printed
    cuda_version: str | None = None  # that NCCL was built for
    torch_version: str | None = None
    bootstrap_ifname: str | None = None
    bootstrap_address: str | None = None
    bootstraps: tuple[Address, ...] = ()  # one a process, distinct
    network: str | None = None  # "IB", "Socket", "AWS Libfabric", "IBext_v8", as printed
    net: str | None = None  # the family: IB, Socket, Libfabric …
    net_inferred: NetSource | None = None  # what `network` was read from where no "Using network" line is there
    plugin: str | None = None  # name of the net plugin that was loaded
    plugin_error: str | None = None
    libibverbs_missing: bool = False
    devices: tuple[NetDevice, ...] = ()
    virtual_devices: Mapping[int, str] = field(default_factory=dict)  # number in NET/IB/3 -> "mlx5_0+mlx5_1", where all say so
    no_ib_device: bool = False  # "NET/IB : No device found." and no list of devices
    oob: Address | None = None
    socket_interfaces: tuple[Address, ...] = ()
    vias: tuple[Via, ...] = ()
    transports: Mapping[str, int] = field(default_factory=dict)  # "P2P/CUMEM/read" -> lines
    gdrdma: GdrUse | None = None  # None: no connection crossed the network, or not shown
    gdr_hca: Mapping[str, bool] = field(default_factory=dict)  # HCA -> "GPU Direct RDMA Enabled"
    gdr_distance: Mapping[str, int] = field(default_factory=dict)  # "enabled"/"disabled" by distance -> GPU-HCA pairs
    gdr_reason: GdrRefusal | None = None
    dmabuf: bool | None = None
    nvls: bool | None = None
    mnnvl: bool | None = None
    sharp: bool | None = None
    collnet: bool | None = None
    channels: Mapping[str, int] = field(default_factory=dict)  # coll, collnet, nvls, p2p, p2p_per_peer
    algorithms: Mapping[str, int] = field(default_factory=dict)  # "AllReduce RING/SIMPLE" -> lines
    affinity: tuple[str, ...] = ()  # distinct "GPU 0: ffff" lines
    nodes: int | None = None
    nranks: int | None = None
    hosts: tuple[str, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    comms_started: int = 0
    comms_complete: int = 0
    rings: int = 0  # "Connected all rings" lines: the first collective has made its connections
    init_seconds: float | None = None  # the longest
    env: Mapping[str, str] = field(default_factory=dict)
    env_differs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> the values of different processes
    busbw: float | None = None  # GB/s, nccl-tests' average
    busbw_peak: float | None = None  # GB/s, the most that nccl-tests shows at a size from which it is bandwidth
    gpus: tuple[str, ...] = ()  # GPU names, where a header of nccl-tests shows them
    diagnostics: tuple[str, ...] = ()  # NCCL DIAG lines (NCCL >= 2.31)
    levels: frozenset[Level] = frozenset()
    subsystems: frozenset[str] = frozenset()  # those that left lines: INIT, ENV, BOOTSTRAP, NET, GRAPH, TUNING, NVLS, P2P
    absent: frozenset[str] = frozenset()  # names of fields that this log cannot show
    unseen: tuple[tuple[str, str], ...] = ()  # (what is not in this log, the variable that would show it)
    events: tuple[Event, ...] = ()
    # (file, rank that a launcher's mark names or -1) -> the last lines that show work going on, at most `STEPS`
    work: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    up_at: Mapping[str, int] = field(default_factory=lambda: NOTHING)  # file -> last line of a communicator that is set up
    up_of: Mapping[tuple[str, int], int] = field(default_factory=dict)  # (file, rank) -> the last such line of that rank
    # file -> its last lines with a loss that is a number
    figures: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: NOTHING)
    trained: Mapping[str, int] = field(default_factory=lambda: NOTHING)  # file -> its last line of work that is no evaluation's
    # file -> (line of work, the next one), where steps begin again from a much smaller number
    anew: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=lambda: NOTHING)
    # (file, what a program counts up to) -> the last line that counts so
    counts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    left: frozenset[int] = frozenset()  # ranks that a line says came to their end
    ordinary: Mapping[str, int] = field(default_factory=lambda: NOTHING)  # file -> lines of programs that tell of nothing bad
    runs: int = 1  # jobs whose output is in one file, the most; the last of them is what these facts are of
    earlier: tuple[LogFacts, ...] = ()  # the jobs before the last of a file, the last of them
    silence: int = 0  # minutes that a file goes on after its last sign of work, the longest
    counted: str = ""  # the steps of a program that went on to say something after the last of them, by its own count
    documents: tuple[str, ...] = ()  # files that are no log of a job
    unended: bool = False  # the last line of a file has no end
    written: bool | None = None  # whether a process still writes a file of it; None: of ranks whose end is known otherwise
    alone: int = 0  # processes of nccl-tests that are rank 0 of a run of their own
    files: tuple[str, ...] = ()
    lines: int = 0
    nccl_lines: int = 0
    bytes_read: int = 0

    @cached_property
    def _by_kind(self) -> dict[EventKind, list[Event]]:
        out: dict[EventKind, list[Event]] = {}
        for e in self.events:
            out.setdefault(e.kind, []).append(e)
        return out

    def of(self, *kinds: EventKind) -> tuple[Event, ...]:
        """The events of these kinds."""
        return tuple(e for k in kinds for e in self._by_kind.get(k, ()))

    def above_info(self, *kinds: EventKind) -> tuple[Event, ...]:
        """Events of these kinds but those that NCCL printed as INFO, after which it goes on."""
        return tuple(e for e in self.of(*kinds) if e.level is not Level.INFO and not e.mild)

    @cached_property
    def many_nodes(self) -> bool | None:
        """Whether the job spans nodes; None where the log does not tell."""
        if self.nodes is not None:
            return self.nodes > 1 and not self.one_host
        if len(self.hosts) > 1:
            return True
        crosses = any(v.transport == "NET" for v in self.vias)
        if crosses and "1" not in {self.env.get("NCCL_P2P_DISABLE"), self.env.get("NCCL_SHM_DISABLE")}:
            return True
        ranks = {r for p in self.ranks for r in p.ranks}
        devices = {d for p in self.ranks for d in p.devs}  # of one host, here
        return False if self.nranks and max(len(ranks), len(devices)) >= self.nranks else None

    @cached_property
    def one_host(self) -> bool:
        """Whether every rank of the job is in this log and of one host, by its name and its address.

        NCCL counts as a node those ranks that reach each other without the network (src/init.cc, nNodes): where P2P and shared
        memory are forbidden, a host is several of them.
        """
        seen = {rank for one in self.ranks for rank in one.ranks}
        hosts = {one.host for one in self.ranks}
        addresses = {a.address for a in self.bootstraps}
        named = len(hosts) == 1 and not hosts & {"", "localhost"}
        return named and len(addresses) == 1 and bool(self.nranks) and len(seen) == self.nranks

    def hcas(self, via: Via) -> frozenset[str]:
        """The RDMA devices of a connection; none where the log does not name them.

        Since 2.24.3 NCCL counts virtual devices, to which 2.25 gives numbers of their own, and merges the ports of a card
        (src/transport/net_ib, ncclIbMakeVDeviceInternal); before, the number is that of the list.
        """
        if via.device is None:
            return frozenset()
        if via.device in self.virtual_devices:
            return frozenset(filter(None, self.virtual_devices[via.device].split("+")))
        listed = self.devices[via.device : via.device + 1] if not self.virtual_devices else ()
        return frozenset(one.name for one in listed)

    @cached_property
    def good(self) -> Mapping[str, int]:
        """File -> the last line that shows work going on."""
        last: dict[str, int] = {}
        for (file, _), lines in self.work.items():
            last[file] = max(last.get(file, 0), lines[-1])
        return last

    @cached_property
    def reached(self) -> Mapping[str, int]:
        """File -> the last line that shows work, or a communicator that is set up."""
        return {file: max(self.good.get(file, 0), self.up_at.get(file, 0)) for file in {*self.good, *self.up_at}}

    @property
    def came_up(self) -> bool:
        """Whether at least one communicator was set up."""
        return self.comms_complete > 0 or self.rings > 0 or bool(self.vias)

    @property
    def workstation(self) -> bool:
        """Whether the GPUs are cards of workstations: nobody expects RDMA or peer-to-peer beside them."""
        return any(re.search(r"GeForce|TITAN|\bRTX\b(?! (?:PRO )?A?[4-8]000)", gpu, re.IGNORECASE) for gpu in self.gpus)

    @property
    def link_layers(self) -> set[str]:
        return {d.link.split("/")[0] for d in self.devices}

    @property
    def roce(self) -> bool:
        """RoCE is in use: by the device list, or by device names that only RoCE ports have."""
        return "RoCE" in self.link_layers or any(
            e.data.get("dev", "").startswith(("roce", "rxe", "bnxt", "ionic")) or e.data.get("hca", "").startswith("roce")
            for e in self.events
        )
