"""What the parser keeps while bytes stream by.  It grows with ranks and pairs of ranks, never with bytes."""

from __future__ import annotations

import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import STEPS, Level, LogFacts

MAX_PROCESSES: Final = 65536
MAX_EVENTS: Final = 20000  # one a kind, key and process; beyond that they are counted only
_MAX_COUNTS: Final = 4096
MAX_COMM_IDS: Final = 64  # a process; a job that makes one a step has thousands


@dataclass(slots=True)
class Process:
    """What one process (host and pid) printed."""

    host: str
    pid: int
    rank_hint: int = -1
    devs: set[int] = field(default_factory=set)  # CUDA devices in its lines' prefixes
    ranks: dict[int, int] = field(default_factory=dict)  # CUDA device -> rank in its largest communicator
    nranks: dict[int, int] = field(default_factory=dict)  # CUDA device -> size of that communicator
    nodes: int = 0
    nccl_version: str = ""
    bootstrap: tuple[str, str] | None = None
    network: str = ""
    devices: tuple[tuple[str, int, str], ...] = ()
    virtual: dict[int, str] = field(default_factory=dict)  # number of a NET/IB device -> "mlx5_0", merged "mlx5_0+mlx5_1"
    comms_started: int = 0
    comms_complete: int = 0
    comm_ids: dict[str, int] = field(default_factory=dict)  # -> nranks
    init_seconds: float = 0.0
    env: dict[str, str] = field(default_factory=dict)
    plugin_env: set[str] = field(default_factory=set)  # variables that a network plugin set itself
    affinity: dict[int, str] = field(default_factory=dict)
    cpu_conflict: dict[int, tuple[str, str]] = field(default_factory=dict)  # GPU -> (GPU's CPUs, process's CPUs)
    vias: dict[bytes, int] = field(default_factory=dict)  # what follows "Channel 00/0" -> lines; read when the facts are made
    no_ib: bool = False
    verbs_missing: bool = False

    def rank(self, dev: int) -> int:
        """The rank of this process (of its device, where it drives several), or -1."""
        if len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        return self.ranks.get(dev, self.rank_hint)


@dataclass(slots=True)
class CollectedEvent:
    """An event while it is collected."""

    kind: EventKind
    file: int
    line: int
    text: bytes
    process: int
    dev: int
    rank: int
    at: str
    level: Level | None
    source: str
    data: dict[str, str]
    count: int = 1
    last: int = 0  # the line of the last one
    mild: bool = False  # torch printed it as a warning
    ranks: set[int] = field(default_factory=set)  # that launchers' marks name, of all such lines
    spoken: int = 0  # ordinary lines of the file before the last one
    outlived: int = 0  # how often ordinary lines stood between one and the next
    labelled: bool = False  # `rank` and `ranks` are srun's numbers of tasks
    amid: int = 0  # what the program counted up to before the last one
    nodes: set[str] = field(default_factory=set)  # that pdsh's marks name, of all such lines


@dataclass(slots=True)
class Accumulator:
    """Everything from which `merge` makes the facts."""

    files: list[str] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    index: dict[tuple[str, int], int] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    events: dict[tuple[object, ...], CollectedEvent] = field(default_factory=dict)
    versions: Counter[str] = field(default_factory=Counter)
    cuda_versions: Counter[str] = field(default_factory=Counter)
    torch_version: str = ""
    library: str = ""
    networks_inferred: Counter[str] = field(default_factory=Counter)
    plugin: str = ""
    plugin_error: str = ""
    ib_used: bool = False  # a "NET/IB : Using" line with at least one device
    oob: tuple[str, str, str] | None = None
    socket_interfaces: dict[tuple[str, str, str], None] = field(default_factory=dict)
    gdr_hca: dict[str, bool] = field(default_factory=dict)
    gdr_distance: Counter[str] = field(default_factory=Counter)
    rings: int = 0
    dmabuf: bool | None = None
    nvls: bool | None = None
    mnnvl: bool | None = None
    sharp: bool | None = None
    collnet: bool | None = None
    channels: dict[str, int] = field(default_factory=dict)
    algorithms: Counter[str] = field(default_factory=Counter)
    nodes: int = 0
    nranks: int = 0
    ring_ranks: int = 0  # from "Channel 00/08 : 0 1 2 3", where no communicator line is there
    header_hosts: dict[str, None] = field(default_factory=dict)  # nccl-tests' "Rank 0 Pid 1 on HOST"
    gpus: dict[str, None] = field(default_factory=dict)
    busbw: float | None = None
    busbw_peak: float | None = None
    diagnostics: dict[str, None] = field(default_factory=dict)
    levels: set[Level] = field(default_factory=set)
    subsystems: set[str] = field(default_factory=set)
    # (file, rank that a launcher's mark names or -1) -> the last lines that show work going on
    good: dict[tuple[int, int], deque[int]] = field(default_factory=dict)
    amid: dict[int, int] = field(default_factory=dict)  # file -> what its last line that counts work counts up to
    counts: dict[tuple[int, int], int] = field(default_factory=dict)  # (file, such a number) -> its last line
    trained: dict[int, int] = field(default_factory=dict)  # file -> its last line of work that is no evaluation's
    # file -> lines from which steps begin again from a much smaller number, each behind the line of work before it
    anew: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    figures: dict[int, deque[int]] = field(default_factory=dict)  # file -> the last lines with a loss that is a number
    up_at: dict[int, int] = field(default_factory=dict)  # file -> last line of a communicator that is set up
    up_of: dict[tuple[int, int], int] = field(default_factory=dict)  # (file, rank) -> the last such line of that rank
    ordinary: dict[int, int] = field(default_factory=dict)  # file -> lines of a program that tell of nothing bad
    runs: dict[int, int] = field(default_factory=dict)  # file -> jobs whose output is in it, where there are several
    earlier: deque[LogFacts] = field(
        default_factory=lambda: deque(maxlen=8)
    )  # what the runs before the last one of a file tell
    silence: int = 0  # minutes of a file after its last sign of work, the most
    counted: str = ""  # the last file's: "1335 of 1335", where the last sign of work is the end of the program's own count
    rank_zeros: set[str] = field(
        default_factory=set
    )  # processes that are rank 0 in headers of nccl-tests, since the last result
    alone: int = 0  # the most of them at once: each runs by itself
    left: set[int] = field(default_factory=set)  # ranks that a line says came to their end
    documents: set[int] = field(default_factory=set)  # files that are no log
    unended: set[int] = field(default_factory=set)  # files whose last line has no end
    lines: int = 0
    nccl_lines: int = 0
    bytes_read: int = 0
    at: int = 0  # number of the line that is read

    def worked(
        self, rank: int, number: int, counted: int = 0, whose: tuple[bool, bool] = (False, False), *, figure: bool = False
    ) -> None:
        """A line of this rank shows work, and counts up to `counted`; `whose`: an evaluation's, steps' that begin again;
        `figure`: by a loss that is a number."""
        at = len(self.files) - 1
        evaluates, anew = whose
        if anew:
            self.anew.setdefault(at, deque(maxlen=_MAX_COUNTS)).append((self.trained.get(at, 0), number))
        if not evaluates:
            self.trained[at] = number
        if counted:
            self.amid[at] = counted
            if (at, counted) in self.counts or len(self.counts) < _MAX_COUNTS:
                self.counts[at, counted] = number
        if figure:
            self.figures.setdefault(at, deque(maxlen=STEPS)).append(number)
        key = (at, rank)
        lines = self.good.get(key)
        if lines is None:
            lines = self.good[key] = deque(maxlen=STEPS)
        lines.append(number)

    def spoke(self) -> None:
        """A line of a program that tells of nothing bad."""
        at = len(self.files) - 1
        self.ordinary[at] = self.ordinary.get(at, 0) + 1

    def up(self, rank: int) -> None:
        """A communicator is set up, as this rank says, or one that is not known (-1)."""
        at = len(self.files) - 1
        self.up_at[at] = self.at
        if rank >= 0:
            self.up_of[at, rank] = self.at

    def next_run(self, begin: int) -> None:
        """Another job's lines begin in the file that is read: keep those, and what lines before them say of the machine."""
        at = len(self.files) - 1
        self.runs[at] = self.runs.get(at, 1) + 1
        self._forget(at, begin)

    def document(self) -> None:
        """The file that was read is no log: whatever it says happened to nobody."""
        at = len(self.files) - 1
        self.documents.add(at)
        self._forget(at, sys.maxsize)

    def _forget(self, at: int, begin: int) -> None:
        """What a file's lines before `begin` told of a job; what they say of the machine is kept."""
        kept = {key: e for key, e in self.events.items() if e.file != at or e.last >= begin}
        for e in kept.values():
            if e.file == at and e.line < begin:
                e.line, e.count, e.spoken, e.outlived = e.last, 1, 0, 0
        self.events = kept
        self.good = {key: lines for key, lines in self.good.items() if key[0] != at}
        self.up_at.pop(at, None)
        self.up_of = {key: line for key, line in self.up_of.items() if key[0] != at}
        self.figures.pop(at, None)
        self.amid.pop(at, None)
        self.trained.pop(at, None)
        self.anew.pop(at, None)
        self.counts = {key: line for key, line in self.counts.items() if key[0] != at}
        self.ordinary.pop(at, None)
        self.rank_zeros.clear()
        self.left.clear()
        self.busbw, self.busbw_peak, self.rings, self.alone = None, None, 0, 0
        for process in self.processes:
            process.comms_started = process.comms_complete = 0
            process.vias.clear()

    def header(self, rank: str, pid: str, host: str) -> None:
        """A line of nccl-tests' header."""
        self.header_hosts[host] = None
        if rank == "0":
            self.rank_zeros.add(f"{host} {pid}")
            self.alone = max(self.alone, len(self.rank_zeros))

    def process(self, host: str, pid: int) -> int:
        """The index of a process; a new one is added."""
        key = (host, pid)
        at = self.index.get(key)
        if at is None:
            if len(self.processes) >= MAX_PROCESSES:
                return 0
            at = self.index[key] = len(self.processes)
            self.processes.append(Process(host, pid))
            self.hosts.add(host)
        return at
