"""What netdoctor says: statuses, findings and reports.  Data only; nothing here touches a machine.

The stable part of a finding (check, status, severity, cause, subject, message, expected, evidence, fingerprint) is what two
reports of one state share.  What was measured (busbw, times, ports, PIDs) lives in `measured` and in `cost`; the JSON report
puts both under ``volatile`` so that two reports of one state diff clean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

from netdoctor.model.records import record as record
from netdoctor.model.section import Section

REPORT_SCHEMA: Final = "netdoctor.report/1"

Json = None | bool | int | float | str | list[Any] | dict[str, Any]
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class Word(str, Enum):
    """An Enum whose members are their text wherever they are shown: enum.StrEnum, which is there from Python 3.11 on."""

    __str__, __hash__ = str.__str__, str.__hash__  # Enum's hash is written in Python, and these are keys of tables


class Status(Word):
    """What a check can say about one subject.  ``skip`` needs positive evidence that the check does not apply; ``unknown``
    applies but could not tell; ``error`` is a defect of netdoctor or of a plugin."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"
    ERROR = "error"


# The worst first: the status of a check is the first of these that one of its findings has.
STATUS_ORDER: Final = (Status.FAIL, Status.ERROR, Status.UNKNOWN, Status.PASS, Status.SKIP)


class Severity(Word):
    """How bad a fail is.  What blocks a job is policy, not severity."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return ("info", "warning", "critical").index(self.value)


NODE: Final = "node"  # the subject of a finding that is about all of it


class Kind(Word):
    """Why something could not be read."""

    ABSENT = "absent"  # looked for and not there (ENOENT, no such library)
    DENIED = "denied"  # EACCES, EPERM
    EMPTY = "empty"  # there, but without the content that must be there (a masked path)
    TIMED_OUT = "timed out"
    MALFORMED = "malformed"  # read, but not what it should be
    CRASHED = "crashed"  # the helper died
    UNSUPPORTED = "unsupported"  # the kernel, driver or library has no such thing
    FAILED = "failed"  # any other error, named in detail
    NOT_RECORDED = "not recorded"  # a replay has no such answer
    NO_BUDGET = "no budget"
    ANOTHER_ROOT = "another root"  # belongs to this process, while a mounted root is looked at
    REFUSED = "refused"  # netdoctor itself did not do it (safety rule)
    MISSING_NODE = "missing node"  # a node of a common run never came
    OTHER_NODES = "other nodes"  # the nodes of a common run found out together why; detail names who
    THIS_NODE = "this node"  # the node that asks is itself the one that keeps a common run from being; detail says why
    NOT_READ = "not read"  # evidence this one depends on was itself unavailable


KINDS: Final = {kind.value: kind for kind in Kind}
_told = lru_cache(maxsize=256)(lambda kind, detail: Unavailable(kind_named(kind), detail))  # hundreds of counters are alike
# Their detail alone may be a path or a value, which says not what is wrong; the others' are whole reasons without the kind.
_NAMED: Final = frozenset((Kind.EMPTY, Kind.TIMED_OUT, Kind.MALFORMED, Kind.CRASHED, Kind.NOT_RECORDED, Kind.ANOTHER_ROOT))


def kind_named(name: object) -> Kind:
    """The kind of that name as a recording, a helper or another node has it; `Kind.FAILED` for a name that is none."""
    return KINDS.get(name, Kind.FAILED) if isinstance(name, str) else Kind.FAILED


def unavailable_in(data: object) -> Unavailable | None:
    """What a helper, a recording or another node wrote as ``{"unavailable": kind, "detail": …}``; None: another thing."""
    kind = data.get("unavailable") if isinstance(data, dict) else None
    return _told(kind, str(data.get("detail", ""))) if isinstance(kind, str) and isinstance(data, dict) else None


@record
class Unavailable:
    """Why something could not be read.  Absent is not denied is not empty is not timed out is not unrecorded.

    ``detail`` is free text for people (an errno text, a deadline): no code looks into it.
    """

    kind: Kind
    detail: str = ""

    def __post_init__(self) -> None:
        if type(self.kind) is not Kind:
            object.__setattr__(self, "kind", Kind(self.kind))  # a name that is no kind is an error where it is made

    def __str__(self) -> str:
        """The reason in words, the only place that makes them: without the kind where the detail says it itself."""
        named = not self.detail or self.kind in _NAMED
        return ": ".join(filter(None, (self.kind.value if named else "", self.detail)))

    def __bool__(self) -> Literal[False]:
        """Never true: ``if fact.field`` takes no missing evidence for content, and ``fact.field or ()`` is what is known."""
        return False


def missing(*values: object) -> Unavailable | None:
    """The first of these that is Unavailable; None: all of them are there."""
    return next((value for value in values if isinstance(value, Unavailable)), None)


@record
class Quantity:
    """A measured number with its unit, e.g. ``Quantity(11.2, "GB/s")``."""

    value: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.value:{'.3g' if abs(self.value) < 1000 else ',.0f'}} {self.unit}".rstrip()


def size_text(size: int) -> str:
    """``64 MiB``."""
    power, unit = next((row for row in ((30, "GiB"), (20, "MiB"), (10, "KiB")) if size >= 1 << row[0]), (0, "B"))
    return f"{size / (1 << power):g} {unit}"


def count(number: int, what: str, many: str = "") -> str:
    """``1 node``, ``2,000 nodes``, ``2 processes``."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


@record
class Fix:
    """What mends it: one sentence, the commands now, and what makes it last (sysctl.d, limits.d, pod spec)."""

    summary: str
    commands: tuple[str, ...] = ()
    persistent: tuple[str, ...] = ()
    tries: tuple[tuple[str, str | None], ...] = ()  # variables of the job's environment that it sets (None: removes)


@record
class Cost:
    """What a fail costs, measured by running the same all-reduce with and without its cure."""

    summary: str
    before: Quantity | None = None
    after: Quantity | None = None
    ratio: float | None = None
    significant: bool = False


MUCH: Final = 0.10  # of the bandwidth: issue trackers of training clusters call a tenth a regression; less drowns in spread


@record
class Loss:
    """What a fail takes from the job, and so how bad it is; `netdoctor.causes.cost` has the formulas."""

    share: float | None  # of the bandwidth that this node should give the job; 1: the job does not run; None: not known
    formula: str  # how that is known, in words
    needed: bool | None = True  # whether the job needs what is lost; None: nothing says
    measured: bool = False
    bound: bool = False  # at least so much: what is left is no more

    @property
    def severity(self) -> Severity:
        """critical: the job does not start, hangs, gets wrong data, or loses `MUCH` or more of the bandwidth that this node
        should give its collectives; warning: it loses less, or might; info: it needs nothing of it."""
        if self.needed is False or self.share == 0:
            return Severity.INFO
        return Severity.CRITICAL if self.needed and self.share is not None and self.share >= MUCH else Severity.WARNING

    @property
    def partial(self) -> bool:
        """Something is lost, something is left, and it is known how much."""
        return self.share is not None and 0 < self.share < 1


class Trial(Protocol):
    """A change that should help, to be tried against the same all-reduce without it: a facts.runs.Cure."""

    @property
    def label(self) -> str: ...


@record
class Finding:
    """One judgement about one subject (a GPU-HCA pair, an interface, the node)."""

    status: Status
    message: str
    subject: str = NODE
    severity: Severity | None = None  # of a fail with a loss always that of the loss; else as a site's own check says
    cause: str | None = None  # None: the cause of its check
    expected: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # stable: equal on every run of one state
    measured: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # volatile: numbers, Quantity, PIDs, ports
    how: str | None = None  # how to find out (of an unknown), or what to look at next
    why: str | None = None  # why it matters here; None: the cause's text
    notes: tuple[str, ...] = ()  # advice that does not change the verdict
    fix: Fix | None = None
    cure: Trial | None = None  # the engine tries it and attaches the cost
    cost: Cost | None = None
    loss: Loss | None = None  # of a fail; None: that of its cause
    check: str = ""  # filled by the engine
    waived: str | None = None  # reason, while a waiver holds
    blocking: bool = True  # False: does not count for the exit code; policy decides it for fails (see policy.py)
    waived_by_name: bool = False  # only a waiver that names its subject applies: neither one without a subject nor a pattern
    nodes: tuple[str, ...] = ()  # of a comparison of nodes: whom it is about; none: it cannot be told who is wrong
    perhaps: Finding | None = None  # of an unknown: the fail that it is, if what nothing says (other nodes, a rate) is so

    def __post_init__(self) -> None:
        if self.loss is not None and self.status is Status.FAIL:
            object.__setattr__(self, "severity", self.loss.severity)

    @property
    def fingerprint(self) -> str:
        """Names this judgement across runs: check, subject, status and cause, not its words or numbers."""
        parts = "\0".join((self.check, self.subject, self.status.value, self.cause or ""))
        return hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@record
class CheckResult:
    """All findings of one check."""

    id: str
    title: str
    cause: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        have = {f.status for f in self.findings}
        return next((s for s in STATUS_ORDER if s in have), Status.ERROR)

    @property
    def severity(self) -> Severity | None:
        worst = [f.severity for f in self.findings if f.status is Status.FAIL and f.severity]
        return max(worst, key=lambda s: s.rank) if worst else None


class Health(Word):
    """What a verdict says."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    INCONCLUSIVE = "inconclusive"


@record
class Verdict:
    """The last line: healthy, unhealthy or inconclusive, and the exit code that policy gives it."""

    status: Health
    exit_code: int
    text: str
    causes: tuple[str, ...] = ()
    words: str = ""  # `text` without its status


class Command(Word):
    """Who judged.  Each has a schema of its own, and something that it must be able to tell (see policy.py)."""

    PREFLIGHT = "preflight"  # also run, allreduce, diagnose: a report about one node
    LOG = "log"
    ENV = "env"
    RAS = "ras"
    FLEET = "fleet"


SCHEMAS: Final[Mapping[Command, str]] = {
    Command.PREFLIGHT: REPORT_SCHEMA,
    Command.LOG: "netdoctor.log/1",
    Command.ENV: "netdoctor.env/1",
    Command.RAS: "netdoctor.ras/1",
    Command.FLEET: "netdoctor.fleet/1",
}


@record
class Report:
    """Everything a renderer may use."""

    tool_version: str
    identity: Mapping[str, Any]  # host name, kernel, machine id: who this is about
    vantage: Mapping[str, Any]  # who looked, from where
    profile: str
    checks: tuple[CheckResult, ...]
    verdict: Verdict
    runs: tuple[Mapping[str, Any], ...] = ()  # the all-reduces that were run, without their numbers
    volatile: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # time, durations, figures of the runs
    partial: str | None = None  # why the report is not whole (interrupted)
    inventory: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # what the node has, see facts.inventory
    nodes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)  # the other nodes of a common run, empty without one
    command: Command = Command.PREFLIGHT
    section: Section | None = None

    def findings(self, *statuses: Status) -> tuple[Finding, ...]:
        return tuple(f for c in self.checks for f in c.findings if not statuses or f.status in statuses)


def plain(value: Any) -> Json:
    """`value` as JSON data: enums by value, quantities and unavailables as small objects, sets sorted, tuples as lists."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Quantity):
        return {"value": value.value, "unit": value.unit}
    if isinstance(value, Unavailable):
        return {"unavailable": value.kind.value, "detail": value.detail}
    if callable(own := getattr(value, "plain", None)):  # a value that is recorded as its text
        return plain(own())
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(v) for v in value), key=lambda v: json.dumps(v, sort_keys=True))
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return str(value)
