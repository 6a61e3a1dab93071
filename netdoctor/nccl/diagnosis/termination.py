"""How a job ends: who died first, who only noticed, and who waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from signal import Signals
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, author, caught
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import before, summary
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_REQUESTED = Fix(
    "ask for what the pod uses of it, and look what fills the node",
    ("kubectl describe pod <pod>; kubectl describe node <node>   # Conditions",),
    ("resources.requests and limits: {ephemeral-storage: …}; what is written goes to a volume",),
)
_NODE = Fix(
    "mend what the node says there: Slurm's clocks and keys, a path or an image that it does not have, its GPU runtime",
    ("scontrol show node <node>; journalctl -u slurmd", "kubectl describe pod <pod>; kubectl logs --previous <pod>"),
)
# What the pattern of `unstarted` caught -> what kept a process from being started.
_UNSTARTED: Final = {
    "unplaced": "no node has the free GPUs that the job asks for at once",
    "ssh": "a node does not let the launcher in over ssh, so not every process of the job was started",
    "unhealthy": "the kubelet did not admit a pod: its node has no healthy device of those that the pod asks for",
    "slots": "the launcher has fewer slots, or less of a resource, than the job asks for: it started nothing",
}
_FIRST = Fix("read the log of the first rank that failed, from its end backwards")
COMPARE = Fix("compare the ranks' collectives", ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "torchfrtrace   # flight recorder"))


def deaths(log: LogFacts) -> Iterator[Hypothesis]:
    """A process that ended by itself.  SIGABRT is how torch's watchdog ends a rank, so it is an effect."""
    for e in log.of("elastic")[:1]:
        rank, code = e.data.get("rank"), e.data.get("code", "?")
        yield Hypothesis(
            "rank_died",
            _of_its_watchdog(log, e) or (Confidence.OPEN if code in _ABORTS else Confidence.LIKELY),
            f"rank {rank} failed first (exit code {code})" if rank else f"the first failure was exit code {code}",
            (e,),
            _FIRST,
            subject=f"rank {rank}" if rank else None,
        )
    died = tuple(e for e in log.of("died") if not _by_its_parent(e, log.of("died")))
    killed = tuple(e for e in died if e.killed_from_outside)
    if killed:
        text, fault = "a process was killed from outside (SIGKILL): the out-of-memory killer, or a scheduler", None
        if any(Wording.OUT_OF_MEMORY.within(e.said) for e in killed):
            whose = (
                "limit of its container, pod or Slurm step" if any(map(_of_group, killed)) else "of the host or the container"
            )
            text, fault = f"a process was killed: the memory {whose} was used up", Fault.HOST_MEMORY
        if len(whom := caught(killed, "host")) > 1:
            text += f" ({', '.join(whom[:6])})"
        many = max((e.count for e in killed if Wording.BY_PID.within(e.text)), default=1)
        named = next((e for e in killed if e.data.get("host")), killed[0])  # the kernel's own line says less than a scheduler's
        subject = author((named,)) if many == 1 else "job"
        if many > 1 and fault is None:  # the kernel's killer takes the largest process, and looks again
            text = (
                f"{many} processes were killed from outside (SIGKILL): by somebody or a scheduler, or the out-of-memory killer"
            )
        yield Hypothesis("rank_died", Confidence.LIKELY_PLUS, text, killed, Topic.KILLED, fault=fault, subject=subject)
    elif died and not (log.above_info("generic") and all(summary(e) or _plain(e) for e in died)):
        first = _first(died)
        confidence = Confidence.EFFECT if _abort(first) else Confidence.QUIET_PLUS
        name = author((first, *(e for e in died if _by(e) == _by(first))))  # a launcher knows whose the signal was
        text = (
            f"a process ended{_by(first)}, and nothing shows which"
            if name == "job"
            else f"{name} ended first{_by(first)}; the others lost their peer"
        )
        given = log.above_info("generic") if _abort(first) else ()
        if given:  # torch's watchdog throws it on in a thread, which ends the process
            name = author(given)
            whose = "a process" if name == "job" else name
            text = f"{whose} ended{_by(first)} for an error that NCCL gave: {_last_word(given[0])}"
        yield Hypothesis("rank_died", confidence, text, (*given, *died), _FIRST, subject=name)
        bus = tuple(e for e in died if _BUS.search(f"{_by(e)} {e.text}"))
        if bus:
            text = "SIGBUS: a page of a mapped file could not be had, mostly of a full /dev/shm (64 MB in a container)"
            yield Hypothesis("shm_disabled_or_small", Confidence.QUIET, text, bus, Topic.SHARED_MEMORY)


def _last_word(given: Event) -> str:
    """NCCL's own of an error, as torch adds it; without it, the whole line."""
    found = Wording.LAST_ERROR.found(given.text)
    return found["word"] if found else given.text[:160]


def nodes(log: LogFacts) -> Iterator[Hypothesis]:
    """A scheduler that says that a node has gone, and Ray that an actor has."""
    lost = log.of("node_failed")
    if lost:
        host = next(iter(caught(lost, "host")), None)
        text = f"the scheduler lost {host or 'a node'}: the job ended with it"
        how = "sinfo -R; scontrol show node <node>; the console and dmesg of that node"
        yield Hypothesis("rank_died", Confidence.STRONG_MINUS, text, lost, how=how, subject=host, fault=Fault.NODE)
        yield Hypothesis("missing_node", Confidence.STRONG_MINUS, text, lost, how=how, subject=host, fault=Fault.NODE)
        yield Hypothesis("inventory", Confidence.OPEN_MINUS, "a node of the job failed", lost)
    evicted = tuple(e for e in log.of("ended") if Wording.EVICTED.within(e.text))
    if evicted:
        full = Wording.MEMORY.within(" ".join(e.text for e in evicted))
        what = "memory" if full else next(iter(caught(evicted, "resource")), "a resource")
        text = f"Kubernetes evicted a pod of the job: its node was low on {what}"
        if all(Wording.OWN_LIMIT.within(e.text) for e in evicted):
            text = f"Kubernetes evicted a pod of the job: it wrote more than the limit of its {caught(evicted, 'why')[0]}"
        mend, fault = (Topic.KILLED, Fault.HOST_MEMORY) if full else (_REQUESTED, None)
        yield Hypothesis("rank_died", Confidence.LIKELY, text, evicted, mend, fault=fault)
    gone = log.of("actor_died")
    if gone and not log.of("exception", "oom", "cuda"):
        text = f"{f'the actor {who}' if (who := author(gone)) != 'job' else 'an actor'} of Ray died: its own log says why"
        late = any(before(e, gone[0]) for e in log.above_info("watchdog", "heartbeat"))  # it is how torch ends a process
        yield Hypothesis("rank_died", Confidence.EFFECT if late else Confidence.OPEN, text, gone, _FIRST)


def unstarted(log: LogFacts) -> Iterator[Hypothesis]:
    """Launchers, schedulers, kubelets and container runtimes that say that they did not start something."""
    events = log.of("unstarted")
    if not events:
        return
    host = next(iter(caught(events, "host")), None)
    told = next((e for e in events if e.data.get("launch") and not _VAGUE.search(e.data["launch"])), None)
    refused = next(iter(caught(events if told is None else (told,), "launch")), None)
    if told is not None:
        host = told.data.get("host") or host
    waits = next(iter(caught(events, "waits")), None)
    if refused is None and waits is not None:
        refused = waits
    text = f"the name {host} does not resolve, so" if host else "the launcher or the kubelet says that"
    text += " not every process of the job was started"
    if refused is not None:
        text = f"a program of the job was not started{f' on {host}' if host else ''}: {refused}"
    text = next((said for mark, said in _UNSTARTED.items() if any(mark in e.data for e in events)), text)
    fix = Fix(
        "see that every host or pod of the list runs, that its name resolves and that it lets the job in",
        (
            f"getent hosts {host or '<host>'}",
            f"ssh -o BatchMode=yes {host or '<host>'} true   # where the launcher uses ssh",
        ),
    )
    yield Hypothesis("missing_node", Confidence.STRONG_MINUS, text, events, fix if refused is None else _NODE, subject=host)


_BUS: Final = re.compile(r"SIGBUS|(?i:\bbus error)|code 135\b")  # 128 + SIGBUS; Linux mm/shmem.c: a tmpfs without room


# What Slurm and pyxis say of a task that is stopped because of another one's reason: ESRCH, and the step's summary.
_VAGUE: Final = re.compile(
    r"No such process|Unspecified error|pyxis: (?:container start|couldn.t start|failed to import)|error code: "
)


_ABORTS: Final = frozenset({"-6", "134"})  # SIGABRT, 128 + SIGABRT


def _of_its_watchdog(log: LogFacts, e: Event) -> Confidence | None:
    """An abort of a rank that had waited in vain is how its own watchdog ends it: whom it waited for is the story."""
    waited = (w for w in log.of("watchdog") if (w.data.get("rank") or str(w.rank)) == e.data.get("rank") and before(w, e))
    return Confidence.EFFECT if e.data.get("code") in _ABORTS and any(waited) else None


def _plain(e: Event) -> bool:
    """Exit code 1 is how Python ends after an exception: of one that NCCL's error raised it says nothing more."""
    return e.data.get("code") == "1" and "signal" not in e.data


def _by_its_parent(e: Event, died: tuple[Event, ...]) -> bool:
    """A shell's bare word of a server that ends itself and its children after one of them failed: SGLang's sigquit_handler
    calls kill_process_tree on itself (sglang.srt.entrypoints.engine)."""
    return e.data.keys() <= {"how"} and any(Wording.ENDS_ITSELF.within(d.text) and before(d, e) for d in died)


def _of_group(e: Event) -> bool:
    return Wording.MEMORY_GROUP.within(e.text)


def _abort(e: Event) -> bool:
    exited = Wording.EXIT_OF_ABORT.within(e.data.get("how", ""))
    return e.data.get("signal") == "6" or exited or Wording.ABORTED.within(e.text)


def _by(e: Event) -> str:
    signal = e.data.get("signal", "").removeprefix("SIG")
    if signal.isdecimal() and int(signal) in set(Signals):
        signal = Signals(int(signal)).name.removeprefix("SIG")
    if signal:
        return f" by SIG{signal}"
    return f" with exit code {e.data['code']}" if e.data.get("code") else f" ({e.data['how']})" if e.data.get("how") else ""


def _first(died: tuple[Event, ...]) -> Event:
    told = [e for e in died if {"signal", "code", "how", "task"} & e.data.keys()] or died
    calm = [e for e in told if not _abort(e)]
    return min(calm or told, key=lambda e: (e.at or "~", e.line))


_LEFT: Final = re.compile(r"\[rank(\d+)\]:")  # torch's mark, in which a line says whose it is


def victims(log: LogFacts) -> Iterator[Hypothesis]:
    """Lines that only say that a peer is gone."""
    if log.busbw is not None and not log.of("generic"):
        return  # the test ran to its end; ranks that leave at different moments say so
    closed = log.above_info("peer_closed")
    secondary = log.above_info("secondary")
    events = closed + secondary
    if secondary and not closed and all(Wording.OWN_PROXY.within(e.text) for e in secondary):
        return  # a rank's own proxy thread could not set up a connection, for a reason that only its WARN before says
    if events:
        peers = sorted(caught(closed, "peer"))
        lost = f"{peers[0]} closed its connection" if peers else "a rank lost the connection to its peer"
        text = f"{lost}: what these lines show is the consequence, the first failure is elsewhere"
        how = "the log of the peer that went away"
        if not log.of("died", "elastic", "actor_died", "exception", "raised", "oom", "node_failed"):
            left = [e for e in log.of("finished") if "left" in e.data and before(e, events[0])]
            who = next((told[1] for e in left if (told := _LEFT.match(e.text))), None)
            if who is not None:
                text = (
                    f"{lost}: rank {who} came to the end of its program while others still worked; no line says that it failed"
                )
                how += ": its exit status, and whether it had as many steps (uneven data, a rank that returns early)"
        yield Hypothesis("rank_died", Confidence.EFFECT_PLUS, text, events, _FIRST, how)
    elif any(Wording.REMOTE.within(e.text) for e in log.of("generic")):
        text = "NCCL reports a remote process that exited, or a network error"
        yield Hypothesis("rank_died", Confidence.EFFECT_MINUS, text, log.of("generic"), _FIRST)


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
    echo = log.above_info("torch_echo")
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
        who, how = _behind(log, events) or (None, "")
        text = f"a collective did not finish in time{_which(events)}" + (f"; {who} {how}" if who else "")
        ended = (e for e in log.of("elastic") if _of_its_watchdog(log, e))
        notes = tuple(f"rank {e.data['rank']} was ended by its own watchdog (exit code {e.data['code']})" for e in ended)
        yield Hypothesis("hang", Confidence.QUIET_PLUS, text, events, Topic.LATE, subject=who, notes=notes)
    barrier = log.of("barrier")
    if barrier:
        missing = next((f"rank {rank}" for e in barrier if (rank := e.data.get("missing") or e.data.get("peer"))), None)
        text = f"{missing or 'a rank'} did not come to the barrier"
        attendance = next((e.data for e in barrier if "came" in e.data), None)
        if attendance is not None:
            text += f": {attendance['came']} of {attendance['n']} tasks came"
        yield Hypothesis("hang", Confidence.OPEN_PLUS, text, barrier, subject=missing)
    timeout = log.of("gloo_timeout")
    if timeout and not events:
        yield Hypothesis("hang", Confidence.OPEN_MINUS, "a Gloo operation waited for a rank that did not come", timeout)


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


def _which(events: tuple[Event, ...]) -> str:
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


def _idle(log: LogFacts) -> tuple[str, str] | None:
    """Ranks that have ended all that they had begun of a process group, in which the others wait for one more."""
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    for e in log.of("enqueued"):
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
    ended = {e.data["rank"]: int(e.data["ended"]) for e in log.of("enqueued")}
    if len({e.data["pg"] for e in log.of("enqueued")}) != 1:
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
        if len(silent) <= min(4, len(seqs) - 1):
            return f"rank {', '.join(map(str, silent))}", "is silent: the others wait for it"
    return None


RULES = (deaths, nodes, unstarted, victims, waiting)
