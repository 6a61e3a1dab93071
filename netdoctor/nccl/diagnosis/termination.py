"""How a job ends: who died first, who only noticed, and who waits."""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, author, caught
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_FIRST = Fix("read the log of the first rank that failed, from its end backwards; the network is not it")
_KILLED = Fix(
    "see the kernel's and the scheduler's view", ("dmesg | grep -i oom", "sacct -j <job> -o JobID,State,ExitCode,MaxRSS")
)
_LATE = Fix(
    "find the rank that did not come",
    (
        "netdoctor ras   # while the job hangs, NCCL >= 2.24",
        "TORCH_FR_BUFFER_SIZE=2000, then torchfrtrace",
        "py-spy dump --pid <rank>",
    ),
)


def deaths(log: LogFacts) -> Iterator[Hypothesis]:
    """A process that ended by itself.  SIGABRT is how torch's watchdog ends a rank, so it is an effect."""
    for e in log.of("elastic")[:1]:
        rank, code = e.data.get("rank"), e.data.get("code", "?")
        yield Hypothesis(
            "rank_died",
            Confidence.OPEN if code in {"-6", "134"} else Confidence.LIKELY,
            f"rank {rank} failed first (exit code {code})" if rank else f"the first failure was exit code {code}",
            (e,),
            _FIRST,
            subject=f"rank {rank}" if rank else None,
        )
    died = log.of("died")
    killed = tuple(e for e in died if e.killed_from_outside)
    if killed:
        text, fault = "a process was killed from outside (SIGKILL): the out-of-memory killer, or a scheduler", None
        if any(Wording.OUT_OF_MEMORY.within(e.text) for e in killed):
            text, fault = "a process was killed: the host's (or the container's) memory was used up", Fault.HOST_MEMORY
        yield Hypothesis("rank_died", Confidence.LIKELY_PLUS, text, killed, _KILLED, fault=fault)
    elif died:
        first = _first(died)
        host, task = first.data.get("host"), first.data.get("task")
        name = f"task {task} on {host}" if host and task else author((first,))
        confidence = Confidence.EFFECT if _abort(first) else Confidence.QUIET_PLUS
        yield Hypothesis("rank_died", confidence, f"{name} ended first; the others lost their peer", died, _FIRST, subject=host)


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
        text = "Kubernetes evicted a pod of the job: its node was low on " + ("memory" if full else "a resource")
        yield Hypothesis("rank_died", Confidence.LIKELY, text, evicted, _KILLED, fault=Fault.HOST_MEMORY if full else None)
    gone = log.of("actor_died")
    if gone and not log.of("exception", "oom", "cuda"):
        yield Hypothesis("rank_died", Confidence.OPEN, "an actor of Ray died: its own log says why", gone, _FIRST)


def _abort(e: Event) -> bool:
    exited = Wording.EXIT_OF_ABORT.within(e.data.get("how", ""))
    return e.data.get("signal") == "6" or exited or Wording.ABORTED.within(e.text)


def _first(died: tuple[Event, ...]) -> Event:
    calm = [e for e in died if not _abort(e)]
    return min(calm or died, key=lambda e: (e.at or "~", e.line))


def victims(log: LogFacts) -> Iterator[Hypothesis]:
    """Lines that only say that a peer is gone."""
    if log.busbw is not None and not log.of("generic"):
        return  # the test ran to its end; ranks that leave at different moments say so
    closed = log.above_info("peer_closed")
    secondary = log.above_info("secondary")
    events = closed + secondary
    if not closed and all(Wording.OWN_PROXY.within(e.text) for e in secondary):
        return  # a rank's own proxy thread could not set up a connection, for a reason that only its WARN before says
    if events:
        peers = sorted(caught(closed, "peer"))
        lost = f"{peers[0]} closed its connection" if peers else "a rank lost the connection to its peer"
        text = f"{lost}: what these lines show is the consequence, the first failure is elsewhere"
        how = "the log of the peer that went away"
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
        yield Hypothesis("hang", Confidence.QUIET_PLUS, text, stuck, _LATE)
    counted = log.of("ras")
    if counted and not events:
        text = "by NCCL's RAS some ranks have begun fewer operations than the others: these wait for them"
        yield Hypothesis("hang", Confidence.OPEN, text, counted, _LATE)
    echo = log.above_info("torch_echo")
    if echo and not events and not stuck:
        yield Hypothesis("hang", Confidence.EFFECT, "torch's watchdog ended a rank for what another one did", echo, _LATE)
    unheard = log.above_info("store_get")
    if unheard:
        peer = unheard[0].data.get("peer", "0")
        text = f"rank {peer} did not publish the communicator's id: it did not come, or it is gone"
        gone = Wording.PEER_GONE.within(unheard[0].data.get("why", ""))
        yield Hypothesis(
            "rank_died" if gone else "hang", Confidence.EFFECT_PLUS if gone else Confidence.QUIET_PLUS, text, unheard, _LATE
        )
    if events:
        who, how = _behind(log, events) or (None, "")
        text = "a collective did not finish in time" + (f"; {who} {how}" if who else "")
        yield Hypothesis("hang", Confidence.QUIET_PLUS, text, events, _LATE, subject=who)
    barrier = log.of("barrier")
    if barrier:
        missing = next((f"rank {rank}" for e in barrier if (rank := e.data.get("missing") or e.data.get("peer"))), None)
        text = f"{missing or 'a rank'} did not come to the barrier"
        yield Hypothesis("hang", Confidence.OPEN_PLUS, text, barrier, subject=missing)
    timeout = log.of("gloo_timeout")
    if timeout and not events:
        yield Hypothesis("hang", Confidence.OPEN_MINUS, "a Gloo operation waited for a rank that did not come", timeout)


def _behind(log: LogFacts, events: tuple[Event, ...]) -> tuple[str, str] | None:
    """Which ranks the others wait for, and what shows it."""
    seqs = {
        e.data.get("rank") or str(e.rank): int(e.data["seq"])
        for e in events
        if e.data.get("seq", "").isdecimal() and (e.data.get("rank") or e.rank is not None)
    }
    low = min(seqs.values(), default=0)
    slow = sorted((r for r, q in seqs.items() if q == low), key=int)
    if len(slow) < len(seqs):
        return f"rank {', '.join(slow[:4])}", f"is behind (sequence number {low})"
    nranks = log.nranks
    if nranks and 1 < len(seqs) < nranks <= 4096:
        silent = sorted(set(range(nranks)) - {int(r) for r in seqs})
        if len(silent) <= 4:
            return f"rank {', '.join(map(str, silent))}", "is silent: the others wait for it"
    return None


RULES = (deaths, nodes, victims, waiting)
