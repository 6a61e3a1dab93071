"""The all-reduce as values: what is tried (`AllReduce`) and what happened (`Run`).  Equal experiments are one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.model import Kind, Unavailable, Word, record

DEFAULT_SIZES: Final = (1 << 12, 1 << 20, 1 << 26)  # bytes: latency, middle, bandwidth

# The phases that every rank reports as it enters them, in order.
PHASES: Final = ("spawn", "import", "rendezvous", "device", "init", "first", "timed", "verify", "done")


class State(Word):
    """How far a run came."""

    FINISHED = "finished"  # all ranks done (data may still be wrong: see `Run.verified`)
    FAILED = "failed"  # a rank raised or died; `blamed` names it
    HUNG = "hung"  # no progress for the phase's whole deadline; `blamed` are the ranks that never arrived
    UNFINISHED = "unfinished"  # still progressing at the deadline: partial numbers
    NOT_STARTED = "not started"  # no rank came past import: `obstacle` and `reason` say why


WITH_RUN: Final = "netdoctor preflight, with the all-reduce"  # how to find out what a run shows


class Caller(Word):
    """What calls NCCL in the ranks."""

    TORCH = "torch"  # torch.distributed, in the job's Python
    NCCL = "nccl"  # nothing but the rank itself: a libnccl and the driver alone


class Obstacle(Word):
    """What stood in the way of a run that did not start or was not done in time."""

    GPU_BUSY = "gpu busy"  # somebody else uses it
    GPU_UNREAD = "gpu unread"  # whether somebody does could not be read
    LOCK = "lock"  # another netdoctor holds it
    SAME_MACHINE = "same machine"  # two nodes of the run are one machine, which has one lock
    REFUSED = "refused"  # root does not run what others can change
    NO_TORCH = "no torch"  # the interpreter has none
    NO_NCCL = "no nccl"  # without torch: no libnccl is known
    NO_GPU = "no gpu"  # without torch: the driver is not there, fails, or shows no GPU
    NOT_READY = "not ready"  # without torch: the driver waits for the fabric of its GPUs, or for their confidential mode
    IMPORT = "import"  # the interpreter, its torch, or libnccl fails
    TIME = "time"  # the budget, or the limit of a phase
    MEMORY = "memory"  # no thread or no memory for the ranks
    FILES = "files"  # no descriptor
    NO_PROC = "no proc"  # /proc is not mounted: the ranks meet, write their logs and tell their libraries by it
    LOST = "lost"  # the process that forks the ranks ended
    OTHER_NODE = "other node"  # another node never began, or ended the run


@record
class Reason:
    """Why there is no run: `obstacle` for code, `text` for people."""

    obstacle: Obstacle
    text: str

    def __str__(self) -> str:
        return self.text


class Way(Word):
    """By which way the data of a run goes."""

    DEFAULT = "default"  # as the job would send it within this node
    INTER_NODE = "inter-node"  # the path that leaves the node, proven without leaving it
    BETWEEN_NODES = "between nodes"


@record
class Path:
    """The way of an experiment's data, and the HCA port that it is pinned to.  Recorded as its text."""

    way: Way = Way.DEFAULT
    device: str = ""  # "": not pinned
    port: int = 0

    def __str__(self) -> str:
        return f"{self.way.value} {self.device}:{self.port}" if self.device else self.way.value

    @property
    def pinned(self) -> str:
        """``mlx5_0:1``, "" where no port is asked for."""
        return f"{self.device}:{self.port}" if self.device else ""

    def plain(self) -> str:
        return str(self)

    @classmethod
    def parse(cls, text: str) -> Path:
        """The inverse of `str`.  Raises ValueError."""
        for way in Way:
            if text == way.value:
                return cls(way)
            if text.startswith(f"{way.value} "):
                device, colon, port = text[len(way.value) + 1 :].rpartition(":")
                if colon and device:
                    return cls(way, device, int(port))
        raise ValueError(f"no such path: {text[:80]!r}")


@record
class AllReduce:
    """One experiment.  `env` are changes to the job's environment, None removes a variable."""

    backend: str  # "nccl" | "gloo"
    ranks: int
    device: str = "cpu"  # "cuda" | "cpu"
    sizes: tuple[int, ...] = DEFAULT_SIZES  # bytes, float32 elements
    env: tuple[tuple[str, str | None], ...] = ()
    rank_env: tuple[tuple[tuple[str, str | None], ...], ...] = ()  # per rank, after `env` (NCCL_HOSTID)
    binding: tuple[tuple[int, ...], ...] = ()  # CPUs per rank; () leaves the mask as it is
    path: Path = Path()
    gpus: tuple[int, ...] = ()  # ordinal per rank
    fresh_import: bool = False  # what is changed is read at load time (LD_PRELOAD, OMP_*)
    repeats: int = 0  # timed repetitions per size; 0: by size


@record
class Cure:
    """A change that should help: the engine tries it against `baseline` in interleaved pairs, within the budget."""

    change: AllReduce
    baseline: AllReduce
    label: str  # "NCCL_SOCKET_IFNAME=ib0", "without NCCL_P2P_DISABLE"

    @property
    def words(self) -> str:
        """Before what was measured with it."""
        new = self.change.env[len(self.baseline.env) :]
        return self.label if new and all(value is None for _, value in new) else f"with {self.label}"


@record
class RankResult:
    """What one rank reported."""

    rank: int
    phase: str  # the last phase it entered
    error: str = ""  # last line of its exception
    exit: int | None = None  # exit status, negative for a signal; None: it had to be killed, or was abandoned
    wrong: int = 0  # elements that differ from the exact sum
    seconds: Mapping[int, float] = field(default_factory=dict)  # median per size
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    system_cpu: float = 0.0  # seconds in the timed loops
    user_cpu: float = 0.0
    mapped: tuple[str, ...] = ()  # libnccl files in /proc/self/maps
    affinity: tuple[int, ...] = ()  # CPUs after import
    thread_affinity: tuple[int, ...] = ()  # CPUs of a thread that was started after import
    collective_seconds: float = 0.0  # in all collectives, warm-up and verification included
    gpu: str = ""  # the PCI address of its GPU; "": not told
    link_speed: float = 0.0  # of that GPU's PCIe link just after it worked, in GT/s; 0: not told


class RunLog:
    """What NCCL printed in a run, as facts.  The only one is nccl.log.facts.LogFacts, which stands above this folder."""


@record
class Run:
    """What happened: `state` says how far it came, `reason` why, for people, and `obstacle` why, for code."""

    experiment: AllReduce
    state: State
    reason: str = ""
    verified: bool | None = None  # None: nothing was compared
    ranks: tuple[RankResult, ...] = ()
    blamed: tuple[int, ...] = ()  # ranks that died first or never arrived
    busbw: Mapping[int, float] = field(default_factory=dict)  # bytes -> GB/s, nccl-tests' formula, slowest rank's median
    latency: Mapping[int, float] = field(default_factory=dict)  # bytes -> seconds
    import_seconds: float | None = None
    seconds: float = 0.0  # wall time of the whole run
    log: RunLog | None = None  # None: NCCL did not run
    log_text: str = ""  # bounded
    backends: Mapping[str, str] = field(default_factory=dict)  # device type -> backend that carries it, if the job passes none
    backends_nccl: Mapping[str, str] = field(default_factory=dict)  # the same if the job passes "nccl"
    torch_version: str = ""
    nccl_version: str = ""  # torch.cuda.nccl.version()
    cuda_available: bool | None = None
    mapped: tuple[str, ...] = ()  # libnccl files mapped by any rank
    system_cpu_per_gb: float | None = None  # system CPU seconds per GB moved
    changes: tuple[tuple[str, str | None], ...] = ()  # environment as run against the job's
    abandoned: tuple[int, ...] = ()  # pids stuck in the kernel
    torch: TorchFacts | None = None  # all that torch answered; None: it answered nothing
    output: str = ""  # the end of what the ranks printed, bounded
    notes: tuple[str, ...] = ()  # what was done differently ("no lock: …", "as user alice")
    obstacle: Obstacle | None = None  # of a run that did not start or was not done in time; None: a recording older than this
    interpreter: str = ""  # the Python taken for the job's, and why this one, where nobody named it
    via: Caller = Caller.TORCH

    @property
    def finished(self) -> bool:
        return self.state == State.FINISHED

    @property
    def remarks(self) -> tuple[str, ...]:
        """What its report must say however it ended: as which user, by which Python, and what was left behind."""
        python = (f"taken for the job's Python: {self.interpreter}",) if self.interpreter else ()
        left = ("processes that hang in the kernel were left behind",) if self.abandoned else ()
        return (*self.notes, *python, *left)


def wrong_figures(busbw: object, latency: object, ranks: object) -> str:
    """What cannot be in the figures of a run that was done with right data; "": nothing."""
    for name, figures in (("bus bandwidth", busbw), ("latency", latency)):
        if not isinstance(figures, Mapping) or not figures:
            return f"it has no {name}"
        if ranks == 1 and figures is busbw:  # 2(n-1)/n is 0
            continue
        for size, value in figures.items():
            if not isinstance(value, int | float) or not 0 < value < 1e300:  # NaN is not
                return f"its {name} at {size} bytes is {value!r}"
    return ""


@record
class CommonRun(Run):
    """A run of several nodes, as all of them judge it.  Its fields have no default: a recording without them is a `Run`."""

    _: KW_ONLY
    told: str  # what they found out together about a run that went wrong, in one sentence; "": no more than its ranks said
    told_cause: str  # its cause
    proven: bool = True  # who told it proved to be of this run: else nothing of it is a fault of anybody's
    here: int | None = None  # how many of its ranks were this node's; None: a recording that does not say


BURSTS: Final = 3  # of each kind in a control


@record
class Control:
    """What a way by TCP, to another node or over the loopback, did with nothing else on it (`netdoctor.cluster.control`)."""

    pings: int = 0  # packets, of which never more than one was under way
    again: int = 0  # sent again
    round_trip: float = 0.0  # seconds, the median
    segment: int = 0  # bytes
    plain: tuple[float, ...] = ()  # bytes a second of connections with the kernel's own buffers
    wide: tuple[float, ...] = ()  # and with buffers of their own
    own: float = 0.0  # bytes a second of the node's own loopback, with buffers of its own; 0: not tried
    others: float | None = None  # share of all CPUs' time that others took while the all-reduce ran; None: not known

    @property
    def loses(self) -> bool:
        return self.again >= 1 and self.again * 200 >= self.pings  # as much as `cluster.network.LOST`

    @property
    def narrowed(self) -> float | None:
        """How many times faster connections are with buffers of their own; None: not for sure, or less than twice."""
        if len(self.plain) < BURSTS or len(self.wide) < BURSTS or min(self.wide) < 2 * max(self.plain):
            return None
        return sorted(self.wide)[BURSTS // 2] / max(sorted(self.plain)[BURSTS // 2], 1.0)


@record
class Baseline(Fact):
    """The all-reduce as the job would run it on this node."""

    run: CommonRun | Run | Unavailable  # Unavailable: none was made
    nccl_ran: bool = False  # False: two Gloo ranks, "NCCL did not run"
    control: Control | None = None  # of the loopback, beside a run of Gloo's on this node alone

    @property
    def finished(self) -> bool:
        return bool(self.run and self.run.finished)

    @property
    def none_began(self) -> Unavailable | None:
        """Why no rank began; None: some did."""
        if isinstance(self.run, Unavailable):
            return self.run
        return (
            Unavailable(Kind.FAILED, self.run.reason or self.run.state.value) if self.run.state is State.NOT_STARTED else None
        )

    @property
    def gpus_here(self) -> int:
        """On how many of this node's GPUs it ran: a rank has one of its own (NCCL refuses two on one, src/init.cc)."""
        run = self.run
        if isinstance(run, Unavailable) or run.experiment.device != "cuda":
            return 0
        return (run.here or 0) if isinstance(run, CommonRun) else run.experiment.ranks

    @property
    def nccl_run(self) -> Run | None:
        """The run, if NCCL ran in it."""
        return (self.run or None) if self.nccl_ran else None


@record
class PathRun(Fact):
    """The path between nodes, tried on this node alone (P2P and SHM off, or NCCL_HOSTID), one HCA port at a time."""

    runs: tuple[Run, ...] | Unavailable


@record
class NcclFacts:
    """What a libnccl and the driver answered in a child of their own; a field that was not reached keeps its default."""

    nccl: str = ""  # ncclGetVersion
    device_count: int | None = None  # cuDeviceGetCount; None: not answered
    not_ready: bool = False  # cuInit answered CUDA_ERROR_SYSTEM_NOT_READY
    error: str = ""  # what ended the questions early


@record
class TorchFacts:
    """What the job's torch answered in a child of its own; a field that was not reached keeps its default."""

    version: str = ""
    hip: str | None = None  # a ROCm build
    nccl_built: bool | None = None  # torch.distributed.is_nccl_available()
    cuda_available: bool | None = None  # None: not answered
    cuda_warning: str = ""  # why CUDA cannot be used, in torch's words
    device_count: int | None = None
    nccl: str = ""  # torch.cuda.nccl.version()
    backends: Mapping[str, str] = field(default_factory=dict)  # if the job passes none
    backends_error: str = ""
    backends_nccl: Mapping[str, str] = field(default_factory=dict)  # if the job passes "nccl"
    backends_nccl_error: str = ""
    error: str = ""  # what ended the questions early
