"""Who waits in a collective that does not end, and for whom: watchdogs, barriers, stores, what ranks count of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, caught, named, whose
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.termination import of_its_watchdog
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_PAIR: Final = 2  # of whom one alone says nothing
COMPARE = Fix("compare the ranks' collectives", ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "torchfrtrace   # flight recorder"))


def waiting(log: LogFacts) -> Iterator[Hypothesis]:
    """Watchdogs: a collective did not end.  The rank with the lowest sequence number, or without a report, is behind."""
    events = log.of("watchdog")
    stuck = log.above_info("heartbeat")
    if stuck and not events:
        text = "torch's watchdog was stuck: a CUDA or NCCL call does not return, or another thread holds the GIL in one"
        yield Hypothesis("hang", Confidence.QUIET_PLUS, text, stuck, Topic.LATE)
    counted = log.of("ras")
    if counted and not events:
        text = "by NCCL's RAS some ranks have begun fewer operations than the others: these wait for them"
        yield Hypothesis("hang", Confidence.OPEN, text, counted, Topic.LATE)
    echo = tuple(e for e in log.above_info("torch_echo") if not Wording.THROWN_BY_OTHERS.within(e.text))
    # With an error that NCCL gave, it hands that on: nobody was waited for (ProcessGroupNCCL.cpp, checkForNCCLErrors).
    if echo and not events and not stuck and not log.of("generic"):
        who, how = _behind(log, ()) or (None, "")
        text = f"{who} {how}" if who else "torch's watchdog ended a rank for what another one did"
        yield Hypothesis("hang", Confidence.QUIET_PLUS if who else Confidence.EFFECT, text, echo, Topic.LATE, subject=who)
    yield from _other_calls(log.of("stack"))
    unheard = log.above_info("store_get")
    if unheard:
        peer = unheard[0].data.get("peer", "0")
        text = f"rank {peer} did not publish the communicator's id: it did not come, or it is gone"
        gone = Wording.PEER_GONE.within(unheard[0].data.get("why", ""))
        yield Hypothesis(
            "rank_died" if gone else "hang",
            Confidence.EFFECT_PLUS if gone else Confidence.QUIET_PLUS,
            text,
            unheard,
            Topic.LATE,
        )
    yield from _other_collectives(events)
    late = ", ".join(caught(log.of("lagging"), "late"))
    if late:
        text = f"rank {late} did not come to the collective that the others wait in"
        yield Hypothesis("hang", Confidence.OPEN_PLUS, text, log.of("lagging"), Topic.LATE, subject=f"rank {late}")
    if events:
        yield _timed_out(log, events)
    barrier = log.of("barrier")
    if barrier:
        absent = next((ranks for e in barrier if (ranks := e.data.get("missing") or e.data.get("peer"))), "")
        missing = named(absent) if absent else None
        text = f"{missing or 'a rank'} did not come to the barrier"
        attendance = next((e.data for e in barrier if "came" in e.data), None)
        if attendance is not None:
            text += f": {attendance['came']} of {attendance['n']} tasks came"
        if _all_but_one(absent, attendance):
            text += "; one alone came: most likely the others were never started, or do not reach the coordinator"
        yield Hypothesis("hang", Confidence.OPEN_PLUS, text, barrier, subject=missing)
    timeout = log.of("gloo_timeout")
    if timeout and not events:
        yield Hypothesis("hang", Confidence.OPEN_MINUS, "a Gloo operation waited for a rank that did not come", timeout)


def _all_but_one(absent: str, attendance: Mapping[str, str] | None) -> bool:
    """Whether a barrier had one of at least three: by its count, or where the missing are all up to the highest but one."""
    if attendance is not None:
        return attendance["came"] == "1" and int(attendance["n"]) > _PAIR
    ranks = {int(rank) for rank in re.findall(r"\d+", absent)}
    return len(ranks) >= _PAIR and len(ranks) == max(ranks)


def _timed_out(log: LogFacts, events: tuple[Event, ...]) -> Hypothesis:
    """Who did not come to the collective that the others waited in; or that all came, and it did not end."""
    who, how = _behind(log, events) or (None, "")
    ended = (e for e in log.of("elastic") if of_its_watchdog(log, e))
    notes = tuple(f"rank {e.data['rank']} was ended by its own watchdog (exit code {e.data['code']})" for e in ended)
    text = f"a collective did not finish in time{which(events)}"
    came = 0 if who is not None else _all_came(events)
    if came > 1 and came == log.nranks:
        text = f"all {came} ranks waited in the same collective and none came out of it{which(events)}: no rank is missing, so"
        text += " what carries the data between them does not move (the transport), or a GPU stands still"
        return Hypothesis("hang", Confidence.OPEN, text, events, Topic.STUCK, _WAY, (*_ways(log), *notes))
    if came > 1 and not log.nranks:
        whole = f"all {came} ranks of this log waited in it: where the job has no others, none is missing, and the transport"
        notes = (f"{whole} between them or a GPU is to be looked at", *notes)
    text += f"; {who} {how}" if who else ""
    if who is None and log.of("ended"):
        text += "; which rank or node they waited for this log does not tell: ranks were ended before they could say anything"
        who = whose(log, events)
    return Hypothesis("hang", Confidence.QUIET_PLUS, text, events, Topic.LATE, subject=who, notes=notes)


_WAY: Final = "netdoctor preflight on every node: its all-reduce takes the transports of the job, and its checks look at each"
# What takes a transport from NCCL or chooses one for it, GID and HCA included (src/graph/paths.cc, src/transport).
_CHOOSES_A_WAY: Final = re.compile(
    r"NCCL_(?:P2P_|SHM_|NET\b|NET_GDR_|IB_(?:DISABLE|HCA|GID_INDEX|TC|SL)\b|SOCKET_IFNAME|CROSS_NIC|DMABUF|CUMEM|NVLS_|MNNVL_|PROTO|ALGO)"
)


def _all_came(events: tuple[Event, ...]) -> int:
    """How many ranks, of which none up to the highest is missing, say that they wait at one number in one operation."""
    at = {(e.data.get("op"), e.data.get("seq"), e.data.get("numel")) for e in events}
    ranks = {int(rank) for e in events if (rank := e.data.get("rank") or str(e.rank)).isdecimal()}
    same = len(at) == 1 and all(next(iter(at))[:2])
    return len(ranks) if same and ranks == set(range(len(ranks))) else 0


def _ways(log: LogFacts) -> Iterator[str]:
    """What the log shows of the transports that such a collective takes."""
    network = sorted(name for name in log.transports if name.startswith("NET/"))
    if network and log.many_nodes is False:
        yield f"GPUs of one host reach each other over the network ({', '.join(network[:3])}), not by P2P or shared memory"
    chosen = [f"{name}={value}" for name, value in log.env.items() if _CHOOSES_A_WAY.match(name)]
    if chosen:
        yield f"set here: {', '.join(chosen[:6])}; run once without them"


def _other_collectives(events: tuple[Event, ...]) -> Iterator[Hypothesis]:
    """Ranks that stand at one sequence number with different operations, or different sizes of one: none of them can end."""
    at: dict[str, dict[str, Event]] = {}
    for e in events:
        if e.data.get("seq") and e.data.get("op"):
            size = f" of {e.data['numel']} elements" if e.data["op"] in _SAME_SIZE and e.data.get("numel") else ""
            at.setdefault(e.data["seq"], {}).setdefault(f"{e.data['op']}{size}", e)
    for seq, called in at.items():
        if len(called) > 1:
            who = ", ".join(f"rank {e.data.get('rank') or e.rank} {op}" for op, e in list(called.items())[:4])
            text = f"the ranks call different collectives at sequence number {seq}: {who}"
            yield Hypothesis("hang", Confidence.STRONG_MINUS, text, tuple(called.values()), COMPARE, subject="job")
            return


def which(events: tuple[Event, ...]) -> str:
    """The operation and the ranks that say so, where these lines tell them."""
    ops, seqs = caught(events, "op"), caught(events, "seq")
    ranks = sorted({e.data.get("rank") or str(e.rank) for e in events if e.data.get("rank") or e.rank is not None}, key=int)
    if not ops:
        return ""
    at = f" number {seqs[0]}" if len(seqs) == 1 else f" numbers {', '.join(seqs[:4])}" if seqs else ""
    return f": {', '.join(ops[:3])}{at}" + (
        f", by rank {', '.join(ranks[:8])}{' …' if len(ranks) > 8 else ''}" if ranks else ""
    )


_SAME_SIZE: Final = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "_REDUCE_SCATTER_BASE", "_ALLGATHER_BASE"})


_ALL_NEEDED: Final = frozenset(("ALLREDUCE", "ALLGATHER", "_ALLGATHER_BASE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE"))
_FRAME: Final = re.compile(r"#\d+ (\S+) from (\S+)")


def _other_calls(stacks: tuple[Event, ...]) -> Iterator[Hypothesis]:
    """Ranks whose collective was called from different functions of the program."""
    callers: dict[str, list[Event]] = {}
    for e in stacks:
        own = [name for name, file in _FRAME.findall(e.text) if not Wording.TORCH_FILE.within(file)]
        if own and e.data.get("rank"):
            callers.setdefault(" in ".join(own[:2]), []).append(e)
    if len(callers) > 1:
        told = [f"rank {', '.join(sorted(e.data['rank'] for e in found))} in {call}" for call, found in callers.items()]
        text = f"the ranks wait in collectives of different calls: {'; '.join(told[:4])}"
        lines = tuple(found[0] for found in callers.values())
        yield Hypothesis("hang", Confidence.OPEN_PLUS, text, lines, COMPARE, subject="job")


def _counted(log: LogFacts) -> list[Event]:
    """What ranks had begun and ended: none has ended more than it began, as where torch prints what no collective has set yet
    (its lastCompletedSeq_ of 2.3)."""
    return [e for e in log.of("enqueued") if int(e.data["ended"]) <= int(e.data["begun"])]


def _idle(log: LogFacts) -> tuple[str, str] | None:
    """Ranks that have ended all that they had begun of a process group, in which the others wait for one more."""
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    for e in _counted(log):
        groups.setdefault(e.data["pg"], {})[e.data["rank"]] = int(e.data["begun"]), int(e.data["ended"])
    for ranks in groups.values():
        waiting = {ended for begun, ended in ranks.values() if begun > ended}
        idle = sorted((rank for rank, (begun, ended) in ranks.items() if begun == ended and ended in waiting), key=int)
        if idle and len(idle) < len(ranks):
            last = ranks[idle[0]][0]
            return f"rank {', '.join(idle[:4])}", f"has begun no collective after {last}, in the next of which the others wait"
    return None


def _ended_by_another(log: LogFacts, events: tuple[Event, ...]) -> tuple[str, str] | None:
    """A rank that waits in a collective that another has ended.  What needs all ends for all: they called different ones."""
    ended = {e.data["rank"]: int(e.data["ended"]) for e in _counted(log)}
    if len({e.data["pg"] for e in _counted(log)}) != 1:
        return None
    for e in events:
        rank, seq = e.data.get("rank") or str(e.rank), e.data.get("seq", "")
        further = [r for r, last in ended.items() if seq.isdecimal() and last >= int(seq) and r != rank]
        if further and e.data.get("op") in _ALL_NEEDED:
            others = f"rank {', '.join(sorted(further, key=int)[:4])} ended a collective of that number"
            told = f"waits in number {seq}, and {others}: the ranks have not called the same collectives in one order"
            return f"rank {rank}", told
    return None


def _behind(log: LogFacts, events: tuple[Event, ...]) -> tuple[str, str] | None:
    """Which ranks the others wait for, and what shows it."""
    if (idle := _idle(log)) is not None:
        return idle
    if (apart := _ended_by_another(log, events)) is not None:
        return apart
    seqs = {
        e.data.get("rank") or str(e.rank): int(e.data["seq"])
        for e in events
        if e.data.get("seq", "").isdecimal() and (e.data.get("rank") or e.rank is not None)
    }
    low = min(seqs.values(), default=0)
    slow = sorted((r for r, q in seqs.items() if q == low), key=int)
    if len(slow) < len(seqs):
        return f"rank {', '.join(slow[:4])}", f"is behind (sequence number {low})"
    nranks = max([log.nranks or 0, *(int(r) + 1 for r in seqs)])  # lower ranks than one that is there exist
    if 1 < len(seqs) < nranks <= 4096:
        silent = sorted(set(range(nranks)) - {int(r) for r in seqs})
        # A launcher ends the others after the first, also those that wait: what such a one did not say tells nothing.
        stopped = log.of("ended")
        if len(silent) <= min(4, len(seqs) - 1) and not stopped:
            many = len(silent) > 1
            who = f"rank{'s' if many else ''} {', '.join(map(str, silent))}"
            return who, "are silent: the others wait for them" if many else "is silent: the others wait for it"
    return None


RULES = (waiting,)
