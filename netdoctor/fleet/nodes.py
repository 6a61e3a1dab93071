"""What is kept of a node report, and how other machines' strings are made harmless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from netdoctor.causes.cost import NOTHING, WORST
from netdoctor.compare.traits import Traits
from netdoctor.model import Finding, Health, Loss, Severity, Status, Word
from netdoctor.textsafe import HOST_NAME


class NodeState(Word):
    """What a fleet report says of a node: exactly one of these."""

    GOOD = "good"
    BAD = "bad"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    MISSING = "missing"


class ProblemKind(Word):
    """Why a file is no usable node report."""

    UNREADABLE = "unreadable"
    TOO_LARGE = "too large"
    NOT_JSON = "not JSON"
    NOT_OURS = "not ours"
    OTHER_SCHEMA = "other schema"
    MALFORMED = "malformed"
    ANOTHER_DOCUMENT = "another document"
    SKIPPED = "skipped"


def safe_name(name: str) -> bool:
    """Whether `name` may stand in a list of nodes that other programs read."""
    return HOST_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Item:
    """One finding of a node that is not a pass or skip."""

    check: str
    subject: str
    status: Status
    severity: Severity | None  # of a fail
    cause: str
    message: str
    waived: bool = False
    blocking: bool = False  # counts for the node's verdict
    how: str = ""  # how it is found out, or what to look at next


class Fabric(NamedTuple):
    """What carries the data between nodes: the RDMA devices that there are most of."""

    device: str  # PCI id, "15b3:1021"; the driver where PCI was not read
    layer: str  # "InfiniBand" "Ethernet" "Unspecified" (EFA)


@dataclass(frozen=True, slots=True)
class Shape:
    """Hardware, as far as groups are made by it."""

    gpu_ids: tuple[str, ...] | None  # distinct PCI ids of the GPUs; None: PCI was not read
    gpu_names: tuple[str, ...] | None  # distinct names; None: NVML did not answer
    gpus: int | None
    nics: tuple[str, ...] | None  # distinct drivers of RDMA devices
    nic_count: int | None
    fabric: Fabric | None  # None: there is no RDMA device of its own, or it was not read
    vantage: str  # "host", "pod", …: what is seen from a pod is not compared with what is seen from a host


class Lack(NamedTuple):
    """What a report shows to be less than the site expects."""

    subject: str
    text: str
    cause: str = ""  # "": it could not be told
    loss: Loss = NOTHING


class Figure(NamedTuple):
    """What was measured, and of which experiment."""

    metric: str  # key into outliers.METRICS
    what: str  # for people: "nccl cuda ×8, 64 MiB"
    cpu: bool = False  # its ranks ran on CPUs

    def __str__(self) -> str:
        return f"{self.metric}|{self.what}"


@dataclass(slots=True)
class NodeRun:
    """One readable report.  Equal values are shared between nodes, so that 10,000 fit into memory."""

    host: str
    file: str
    time: float | None  # seconds since the epoch, as the node's clock had it
    modified: float  # of the file
    verdict: Health
    verdict_text: str
    partial: str  # why the report is not whole; "" it is
    checks: tuple[str, ...]
    statuses: str  # one letter per check: p f s u e
    items: tuple[Item, ...]
    omitted: int  # findings beyond those in `items`
    shape: Shape
    traits: Traits
    metrics: Mapping[Figure, float]
    ids: frozenset[str]  # of this very machine: GPU UUIDs, hardware GIDs
    addresses: tuple[tuple[str, str], ...]  # (address, interface) that should be this node's alone
    nccl_if: tuple[str, str, int | None, int | None] | None  # name, address, prefix, MTU
    gids: tuple[tuple[str, tuple[tuple[int, str], ...]], ...]  # ("mlx5_0:1", ((index, "RoCE v2 IPv4"), …)) of Ethernet ports
    pod: str = ""  # seen from this pod; `host` is then the name that the cluster gives the node
    machine: str = ""  # of this installation; "": not known
    place: tuple[str, int, int] | None = None  # in an all-reduce across nodes: its master, how many nodes, which of them
    attempts: int = 1  # whoever asked had to ask so often
    doubt: str = ""  # what in it contradicts its verdict
    lacks: tuple[Lack, ...] = ()  # of what the site expects

    @property
    def installation(self) -> tuple[str, frozenset[tuple[str, str]]] | None:
        """Machine id and addresses: those of one machine alone.  An image is cloned with its id, not with its addresses."""
        return (self.machine, frozenset(self.addresses)) if self.machine and self.addresses else None

    @property
    def skewed(self) -> float:
        """Seconds by which the report claims to be newer than the file that holds it; 0 where it does not."""
        return max(0.0, self.time - self.modified) if self.time is not None else 0.0


@dataclass(slots=True)
class Problem:
    """A file that is no usable node report, or that is one with a peculiarity."""

    file: str
    kind: ProblemKind
    detail: str
    name: str = ""  # the node that it seems to be about
    counts: bool = True  # it stands for a node that nothing else is known of
    modified: float | None = None  # when it was written at the latest; None: not known


@dataclass(slots=True)
class Reading:
    """Everything that was given."""

    runs: list[NodeRun] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0  # looked at
    bytes: int = 0
    asked: bool = False  # what the site expects was held against them


@dataclass(frozen=True, slots=True)
class Reason:
    """What speaks against a node: the state that it would have by this alone, and why."""

    state: NodeState
    why: str
    severity: Severity = WORST  # of what is BAD: as its own report has it
    how: str = ""  # as its own report says: how it is found out, or what to look at next


@dataclass(slots=True)
class Node:
    """One machine, or a name that nothing is known of."""

    name: str
    state: NodeState = NodeState.UNKNOWN
    run: NodeRun | None = None  # the newest, which counts
    older: tuple[NodeRun, ...] = ()
    group: int | None = None  # index into the groups
    expected: bool | None = None  # None: no list was given
    against: list[Reason] = field(default_factory=list)  # before the policy
    reasons: list[str] = field(default_factory=list)  # why it is not good, after it
    notes: list[str] = field(default_factory=list)
    blamed: list[tuple[Finding, bool]] = field(default_factory=list)  # fails of the comparison; whether each counts
    lost: list[Problem] = field(default_factory=list)  # files about it that could not be used
