"""`LogContext`, the facts of a log with what rules ask of them, and `Hypothesis`, what a rule yields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from functools import cached_property
from typing import Final, NamedTuple

from netdoctor.model import Fix, Severity
from netdoctor.nccl.interface_names import INSIDE_NAMES
from netdoctor.nccl.log.facts import Event, LogFacts


class Confidence(IntEnum):
    """How likely a hypothesis is the cause rather than one of its effects.  Only the order counts.

    The six levels have grades, as in a school: a rule that says two things of one line says with them which it believes more.
    """

    EFFECT_MINUS = auto()
    EFFECT = auto()  # what a rank prints when another one has gone
    EFFECT_PLUS = auto()
    QUIET_MINUS = auto()
    QUIET = auto()  # nothing failed: a setting or a transport that costs speed
    QUIET_PLUS = auto()
    OPEN_MINUS = auto()
    OPEN = auto()  # one of several causes that the log cannot tell apart
    OPEN_PLUS = auto()
    LIKELY_MINUS = auto()
    LIKELY = auto()
    LIKELY_PLUS = auto()
    STRONG_MINUS = auto()
    STRONG = auto()  # an error message that has one usual cause
    STRONG_PLUS = auto()
    CERTAIN = auto()  # NCCL names the cause itself

    @property
    def word(self) -> str:
        """The level as reports name it."""
        if self >= Confidence.STRONG:
            return "high"
        return "medium" if self >= Confidence.OPEN or self is Confidence.QUIET else "low"


class HintKind(Enum):
    """How strongly something says that RDMA is expected: who sets a variable of NET/IB wants it."""

    VARIABLE = auto()
    PLUGIN = auto()  # an image may bring one along
    IPOIB = auto()  # an InfiniBand fabric that the job may not use


class RdmaHint(NamedTuple):
    """What says that RDMA is expected, and in words."""

    kind: HintKind
    text: str


_TUNES_RDMA: Final = ("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_NET_GDR_LEVEL")


@dataclass(frozen=True)
class Hypothesis:
    """What may be wrong: a cause, how likely it is, and what shows it."""

    cause: str
    confidence: Confidence
    message: str
    events: tuple[Event, ...] = ()
    fix: Fix | None = None
    how: str | None = None  # what to look at next; None: the checks of the cause
    notes: tuple[str, ...] = ()
    severity: Severity | None = None
    shown: tuple[str, ...] = ()  # facts that show it, where no event does
    subject: str | None = None


Rule = Callable[["LogContext"], Iterator[Hypothesis]]

_LOOPBACK: Final = re.compile(r"127\.|::1$|localhost")
_LINK_LOCAL: Final = re.compile(r"fe80:|169\.254\.")
# The addresses that Docker's and libvirt's default bridges have on every host.
_BRIDGE: Final = re.compile(r"172\.1[7-9]\.0\.1$|172\.2\d\.0\.1$|192\.168\.122\.1$")
# Docker's and Podman's default pools: container addresses behind a host's own bridge.
BRIDGED: Final = re.compile(r"172\.(?:1[7-9]|2\d|3[01])\.|10\.88\.")


def local_interface(name: str) -> bool:
    """Whether an interface carries traffic within its host only, by the names of Docker, libvirt, CNI plugins and VPNs."""
    return name == "lo" or name.startswith(INSIDE_NAMES)


def loopback(address: str) -> bool:
    return bool(_LOOPBACK.match(address))


def link_local(address: str) -> bool:
    return bool(_LINK_LOCAL.match(address))


def unreachable_by_design(address: str) -> bool:
    """Loopback, link-local, or the address of a bridge that every host has."""
    return loopback(address) or link_local(address) or bool(_BRIDGE.match(address))


def is_ipv6(address: str) -> bool:
    return address.count(":") >= 2


class LogContext:
    """The facts of a log with what several rules ask about them.

    One log goes through four shapes.  `log.accumulator.Accumulator` is what the parser counts and keeps while lines stream by;
    `log.merge` makes `LogFacts` of it, the log as data, whose `ranks` hold a `RankFacts` for each process; this class answers
    questions about them and is thrown away after the diagnosis.
    """

    def __init__(self, facts: LogFacts) -> None:
        self.facts = facts
        self._by_kind: dict[str, list[Event]] = {}
        for event in facts.events:
            if "ras/" in event.source or "ras/" in event.text[:200]:
                continue  # RAS listens on one port a node: a second job's bind fails, harmlessly (src/ras/client_support.cc)
            self._by_kind.setdefault(event.kind, []).append(event)

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Events of these kinds, without those of NCCL's RAS thread."""
        return tuple(e for k in kinds for e in self._by_kind.get(k, ()))

    def above_info(self, *kinds: str) -> tuple[Event, ...]:
        """Events of these kinds but those that NCCL printed as INFO, after which it goes on."""
        return tuple(e for e in self.of(*kinds) if e.data.get("level") != "INFO")

    @cached_property
    def many_nodes(self) -> bool | None:
        """Whether the job spans nodes; None where the log does not tell."""
        f = self.facts
        if f.nodes is not None:
            return f.nodes > 1
        if len(f.hosts) > 1:
            return True
        if (
            any(v.transport == "NET" for v in f.vias)
            and f.env.get("NCCL_P2P_DISABLE") != "1"
            and f.env.get("NCCL_SHM_DISABLE") != "1"
        ):
            return True
        ranks = {r for p in f.ranks for r in p.ranks}
        devices = {d for p in f.ranks for d in p.devs}  # of one host, here
        return False if f.nranks and max(len(ranks), len(devices)) >= f.nranks else None

    @cached_property
    def came_up(self) -> bool:
        """Whether at least one communicator was set up."""
        f = self.facts
        return f.comms_complete > 0 or f.rings > 0 or bool(f.vias)

    @cached_property
    def link_layers(self) -> set[str]:
        return {d.link.split("/")[0] for d in self.facts.devices}

    @cached_property
    def roce(self) -> bool:
        """RoCE is in use: by the device list, or by device names that only RoCE ports have."""
        if "RoCE" in self.link_layers:
            return True
        return any(
            e.data.get("dev", "").startswith(("roce", "rxe", "bnxt", "ionic")) or e.data.get("hca", "").startswith("roce")
            for e in self.facts.events
        )

    @cached_property
    def broken_locally(self) -> bool:
        """Whether a rank failed by itself: network errors of other ranks may then be its consequence."""
        return bool(
            self.above_info("cuda", "shm_full", "oom", "duplicate_gpu", "nvls_bind", "driver")
            or any(killed_from_outside(e) for e in self.of("died"))
        )

    @cached_property
    def wants_rdma(self) -> tuple[RdmaHint, ...]:
        """What in the log says that RDMA hardware is expected here."""
        f = self.facts
        asked = {
            "NCCL_IB_HCA": bool(f.env.get("NCCL_IB_HCA")),
            "NCCL_IB_DISABLE": f.env.get("NCCL_IB_DISABLE") == "0",
            "NCCL_NET": f.env.get("NCCL_NET", "").upper().startswith("IB"),
        }
        asked |= {name: name in f.env for name in _TUNES_RDMA}
        out = [RdmaHint(HintKind.VARIABLE, f"{name}={f.env[name]}") for name, holds in asked.items() if holds]
        plugin = (f.plugin or "").lower()
        if plugin.startswith("ibext") or "sharp" in plugin or "rdma plugin" in plugin:
            out.append(RdmaHint(HintKind.PLUGIN, f"network plugin {f.plugin}"))
        names = {a.ifname for a in (*f.bootstraps, *f.socket_interfaces)}
        ipoib = [name for name in sorted(names) if re.match(r"ib(?:p\d|s\d|\d|b)", name)]
        out += [RdmaHint(HintKind.IPOIB, f"IPoIB interface {name}") for name in ipoib]
        return tuple(out)


def killed_from_outside(event: Event) -> bool:
    """A death that NCCL did not cause: SIGKILL, the OOM killer, a scheduler's out-of-memory."""
    d = event.data
    signal = d.get("signal", "")
    return (
        signal in {"9", "SIGKILL"}
        or d.get("how", "") in {"Killed", "Out Of Memory"}
        or "oom" in event.text.lower()
        or "Killed process" in event.text
    )


def author(events: Iterable[Event]) -> str:
    """The process that printed the first of these: ``rank 3 (node07)``."""
    for e in events:
        if e.rank is not None:
            return f"rank {e.rank} ({e.host})" if e.host else f"rank {e.rank}"
        if e.host:
            return e.host
    return "job"
