"""Ranks against each other: what differs between them is named before the garbled messages that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from netdoctor.model import Fix, Severity
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.log.facts import LogFacts, RankFacts

_VERSION = Fix(
    "use one NCCL on all nodes: the one that the framework's wheel pins",
    (
        "python -c 'import torch; print(torch.cuda.nccl.version())'",
        "grep libnccl /proc/<pid>/maps",
        "pip list | grep -i nccl   # cu12 and cu13 wheels overwrite each other",
    ),
)
_SAME = Fix("set the same NCCL variables on every rank", ("env | grep NCCL_ | sort   # on every node",))
_NO_START = "the job does not start"
# How messages are cut and by whom they are carried: ranks that differ misread each other (src/graph/tuning.cc, src/init.cc).
_WIRE: Final = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NTHREADS", "NCCL_LL128_BUFFSIZE")


def groups(log: LogFacts, value: Callable[[RankFacts], str | None]) -> dict[str, list[str]]:
    """Value -> the ranks (or hosts) that have it."""
    taken: dict[str, list[str]] = {}
    for one in log.ranks:
        held = value(one)
        if held:
            rank = f"rank {one.ranks[0]}" if one.ranks else one.host
            taken.setdefault(held, []).append(rank or "a rank")
    return taken


def told(taken: dict[str, list[str]]) -> str:
    """``IB on rank 0, Socket on rank 1``; "" where all are alike."""
    return ", ".join(f"{name} on {', '.join(who[:3])}" for name, who in sorted(taken.items())) if len(taken) > 1 else ""


def failing(log: LogFacts) -> bool:
    return not log.came_up or bool(
        log.above_info("generic", "peer_closed", "garbled", "watchdog", "sizes_differ", "completion")
    )


def networks(log: LogFacts) -> Iterator[Hypothesis]:
    """One rank on IB, another on sockets: before 2.30.7 NCCL does not notice."""
    apart = told(groups(log, lambda one: one.network))
    if not apart:
        return
    garbled = log.above_info("garbled")
    how = "NCCL_NET, NCCL_IB_HCA and /dev/infiniband on the node that takes sockets: netdoctor preflight there"
    text = f"the ranks take different networks, which do not meet: {apart}"
    severity, why = (None, _NO_START) if failing(log) else (Severity.WARNING, None)
    confidence = Confidence.STRONG_PLUS if failing(log) else Confidence.OPEN
    yield Hypothesis("transport_fallback_tcp", confidence, text, garbled, how=how, why=why, severity=severity, shown=(apart,))


def links(log: LogFacts) -> Iterator[Hypothesis]:
    """RoCE on one node, InfiniBand on the other."""
    apart = told(groups(log, lambda one: "+".join(sorted({d.link.split("/")[0] for d in one.devices}))))
    if apart and failing(log):
        text = f"the ranks' adapters are of different fabrics, which do not meet: {apart}"
        fix = Fix("name the adapters of one fabric on every node", ("export NCCL_IB_HCA==mlx5_0,mlx5_1",))
        yield Hypothesis("env_misuse", Confidence.STRONG, text, log.of("modify_qp", "completion"), fix, shown=(apart,))
        yield Hypothesis("roce_gid", Confidence.OPEN_PLUS, text, log.of("modify_qp", "completion"), fix, shown=(apart,))


def versions(log: LogFacts) -> Iterator[Hypothesis]:
    """Processes of different versions in one communicator: its id is on both."""
    seen: dict[str, set[str]] = {}
    for p in log.ranks:
        for identity in p.comm_ids if p.nccl_version else ():
            seen.setdefault(identity, set()).add(p.nccl_version or "")
    if any(len(v) > 1 for v in seen.values()):
        apart = sorted({p.nccl_version for p in log.ranks if p.nccl_version})
        text = f"ranks of one job run NCCL {' and '.join(apart)}"
        shown = tuple(f"NCCL version {v}" for v in apart)
        yield Hypothesis("version_mismatch", Confidence.STRONG, text, shown=shown, fix=_VERSION)


def garbled(log: LogFacts) -> Iterator[Hypothesis]:
    """Messages of the handshake that a rank cannot read: an effect where the ranks differ in something that is known."""
    events = log.above_info("garbled")
    if events:
        text = "the ranks' handshake messages differ in size or kind: two NCCL versions, or two jobs on one port"
        known = log.broken_locally or log.of("world_size") or told(groups(log, lambda one: one.network)) or any(_differ(log))
        yield Hypothesis("version_mismatch", Confidence.EFFECT if known else Confidence.LIKELY_MINUS, text, events, _VERSION)


def _differ(log: LogFacts) -> Iterator[str]:
    yield from (f"{name}={' and '.join(values)}" for name, values in log.env_differs.items() if name in _WIRE)


def wire(log: LogFacts) -> Iterator[Hypothesis]:
    """Variables that decide how a message is cut, with different values."""
    apart = list(_differ(log))
    if apart and failing(log):
        text = f"the ranks are told to cut messages differently: {'; '.join(apart)}"
        yield Hypothesis("env_misuse", Confidence.STRONG, text, log.of("sizes_differ"), _SAME, shown=tuple(apart))


def names(log: LogFacts) -> Iterator[Hypothesis]:
    """One host name, several addresses of one interface: two machines of one name (localhost, a cloned image)."""
    seen: dict[tuple[str, str], set[str]] = {}
    for a in log.bootstraps:
        if a.host:
            seen.setdefault((a.host, a.ifname), set()).add(a.address)
    twice = next(((host, sorted(found)) for (host, _), found in seen.items() if len(found) > 1), None)
    if twice and failing(log):
        text = f"{twice[0]} is the name of two machines: {', '.join(twice[1][:4])}"
        fix = Fix("give every machine a name of its own", ("hostnamectl set-hostname <name>",))
        yield Hypothesis("duplicate_address", Confidence.OPEN_MINUS, text, shown=(text,), fix=fix)


RULES = (networks, links, versions, garbled, wire, names)
