"""Ranks against each other: what differs between them is named before the garbled messages that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from netdoctor.causes.cost import STOPS, sockets
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis
from netdoctor.nccl.diagnosis.outcome import failed_by_itself
from netdoctor.nccl.log.facts import SOCKET, Event, LogFacts, RankFacts

ONE_VERSION = Fix(
    "use one NCCL on all nodes: the one that the framework's wheel pins",
    (
        "python -c 'import torch; print(torch.cuda.nccl.version())'",
        "grep libnccl /proc/<pid>/maps",
        "pip list | grep -i nccl   # cu12 and cu13 wheels overwrite each other",
    ),
)
SAME_VARIABLES = Fix("set the same NCCL variables on every rank", ("env | grep NCCL_ | sort   # on every node",))
_NO_START = "the job does not start"
# How messages are cut and by whom they are carried: ranks that differ misread each other (src/graph/tuning.cc, src/init.cc).
WIRE: Final = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NTHREADS", "NCCL_LL128_BUFFSIZE")


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


def several_runs(log: LogFacts) -> bool:
    """Whether one rank is there in two processes: of runs one after the other, which may be set up in two ways.

    A rank of a smaller communicator than the job's largest is one of another group of it.
    """
    seen: set[tuple[int, int]] = set()
    largest = max((one.nranks or 0 for one in log.ranks), default=0)
    for key in [(rank, one.nranks or 0) for one in log.ranks for rank in one.ranks if one.nranks == largest > 1]:
        if key in seen:
            return True
        seen.add(key)
    return False


def networks(log: LogFacts) -> Iterator[Hypothesis]:
    """One rank on IB, another on sockets: NCCL sees it where one connects to the other, and since 2.30.7 waits for ever."""
    apart = "" if several_runs(log) else told(groups(log, lambda one: one.network))
    met = tuple(event for event in log.of("garbled") if _of_networks(event))
    if not apart and not met:
        return
    how = "NCCL_NET, NCCL_IB_HCA and /dev/infiniband on the node that takes sockets: netdoctor preflight there"
    said = apart or "a connection of NET/Socket reached NET/IB"
    text = f"the ranks take different networks, which do not meet: {said}"
    ends = bool(met) or failing(log)
    loss, why = (STOPS, _NO_START) if ends else (sockets(needed=None), None)
    confidence = Confidence.STRONG_PLUS if ends else Confidence.OPEN
    events = met or log.above_info("garbled")
    fix = next((asked for one in log.ranks if one.network == SOCKET and (asked := _asked(one))), None)
    yield Hypothesis("transport_fallback_tcp", confidence, text, events, fix, how, why=why, loss=loss, shown=(said,))


def _of_networks(event: Event) -> bool:
    """Whether one network reached a socket of the other: ncclSocketTypeNetSocket, …NetIb (src/include/socket.h)."""
    return {event.data.get("type"), event.data.get("own")} == {"3", "4"}


def _asked(one: RankFacts) -> Fix | None:
    """The variable of a rank on sockets that asked for them, or that names no RDMA device there."""
    who, env = f"rank {one.ranks[0]}" if one.ranks else one.host or "that rank", one.env
    for name, asks in (("NCCL_NET", env.get("NCCL_NET") == SOCKET), ("NCCL_IB_DISABLE", env.get("NCCL_IB_DISABLE") == "1")):
        if asks:
            return Fix(f"remove {name}={env[name]} on {who}: it asks for sockets", (f"unset {name}",))
    hca = env.get("NCCL_IB_HCA")
    return Fix(f"NCCL_IB_HCA={hca} names nothing on {who}: name what is there", ("ls /sys/class/infiniband",)) if hca else None


def numbers(log: LogFacts) -> Iterator[Hypothesis]:
    """Ranks that count each other differently, before the handshake that goes wrong with it."""
    apart = told(groups(log, lambda one: str(one.nranks) if one.nranks else None))
    if apart and log.above_info("garbled") and not log.of("world_size"):
        text = f"the ranks do not agree how many they are: {apart}"
        fix = Fix("give every rank the same number of ranks", ("echo $RANK $WORLD_SIZE   # on every rank",))
        events = log.above_info("garbled")
        yield Hypothesis("env_misuse", Confidence.STRONG_PLUS, text, events, fix, shown=(apart,), fault=Fault.RANKS)


def links(log: LogFacts) -> Iterator[Hypothesis]:
    """RoCE on one node, InfiniBand on the other."""
    apart = (
        ""
        if several_runs(log)
        else told(groups(log, lambda one: "+".join(sorted({d.link.split("/")[0] for d in one.devices}))))
    )
    if apart and failing(log):
        text = f"the ranks' adapters are of different fabrics, which do not meet: {apart}"
        fix = Fix("name the adapters of one fabric on every node", ("export NCCL_IB_HCA==mlx5_0,mlx5_1",))
        yield Hypothesis("env_misuse", Confidence.STRONG_PLUS, text, log.of("modify_qp", "completion"), fix, shown=(apart,))
        yield Hypothesis("roce_gid", Confidence.OPEN_PLUS, text, log.of("modify_qp", "completion"), fix, shown=(apart,))


def versions(log: LogFacts) -> Iterator[Hypothesis]:
    """Processes of different versions in one communicator: its id is on both."""
    seen: dict[str, set[str]] = {}
    for p in log.ranks:
        for identity in p.comm_ids if p.nccl_version else ():
            seen.setdefault(identity, set()).add(p.nccl_version or "")
    apart = sorted({p.nccl_version for p in log.ranks if p.nccl_version})
    if any(len(v) > 1 for v in seen.values()) or (len(apart) > 1 and log.above_info("garbled")):
        text = f"ranks of one job run NCCL {' and '.join(apart)}"
        shown = tuple(f"NCCL version {v}" for v in apart)
        yield Hypothesis("version_mismatch", Confidence.STRONG, text, shown=shown, fix=ONE_VERSION)


def garbled(log: LogFacts) -> Iterator[Hypothesis]:
    """Messages of the handshake that a rank cannot read: an effect where the ranks differ in something that is known."""
    events = tuple(event for event in log.above_info("garbled") if not _of_networks(event))
    if events:
        text = "the ranks' handshake messages differ in size or kind: two NCCL versions, or two jobs on one port"
        known = failed_by_itself(log) or log.of("world_size") or any(_differ(log)) or any((*networks(log), *numbers(log)))
        yield Hypothesis("version_mismatch", Confidence.EFFECT if known else Confidence.LIKELY_MINUS, text, events, ONE_VERSION)


def _differ(log: LogFacts) -> Iterator[str]:
    yield from (f"{name}={' and '.join(values)}" for name, values in log.env_differs.items() if name in WIRE)


def wire(log: LogFacts) -> Iterator[Hypothesis]:
    """Variables that decide how a message is cut, with different values."""
    apart = list(_differ(log))
    if apart and failing(log):
        text = f"the ranks are told to cut messages differently: {'; '.join(apart)}"
        yield Hypothesis("env_misuse", Confidence.STRONG, text, log.of("sizes_differ"), SAME_VARIABLES, shown=tuple(apart))


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


RULES = (networks, numbers, links, versions, garbled, wire, names)
