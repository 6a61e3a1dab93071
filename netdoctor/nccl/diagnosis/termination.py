"""How a job ends: who died first, and who only noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from signal import Signals
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.addresses import is_ipv6
from netdoctor.nccl.diagnosis.final import complaint, error_of, words
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, author, caught
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import forced, summary
from netdoctor.nccl.diagnosis.went_on import After, after, before, order, overcome
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording
from netdoctor.textsafe import listed

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
    "unresolved": "the name {host} does not resolve, so not every process of the job was started",
    "unplaced": "no node has the free GPUs that the job asks for at once",
    "ssh": "the launcher does not get into {host} over ssh, so not every process of the job was started",
    "unhealthy": "the kubelet did not admit a pod: its node has no healthy device of those that the pod asks for",
    "slots": "the launcher has fewer slots, or less of a resource, than the job asks for: it started nothing",
}
_UNFIT = Fix(
    "give the pod what it lacks, or ask for less: a node that has it free, or a toleration or label that lets it in",
    ("kubectl describe pod <pod>; kubectl describe node <node>   # Allocatable, Allocated resources, Taints",),
)
_FIRST = Fix("read the log of the first rank that failed, from its end backwards")


def deaths(log: LogFacts) -> Iterator[Hypothesis]:
    """A process that ended by itself.  SIGABRT is how torch's watchdog ends a rank, so it is an effect."""
    # Each node's agent names the first of its own.
    firsts = sorted(log.of("elastic"), key=lambda e: e.data.get("time", "~"))
    for e in firsts[:1]:
        rank, code = e.data.get("rank"), e.data.get("code", "?")
        later = [f"rank {o.data['rank']} at {o.data['time'][-8:]}" for o in firsts[1:4] if {"rank", "time"} <= o.data.keys()]
        error = error_of(log, e)
        said = None if error or code in _ABORTS else complaint(log, e)
        more = f"; by their agents' clocks it was at {e.data['time'][-8:]}, {listed(later, 3)}" if later else ""
        more += f"; the last that it called an error: {error}" if error else ""
        yield Hypothesis(
            "rank_died",
            of_its_watchdog(log, e) or (Confidence.OPEN if code in _ABORTS else Confidence.LIKELY),
            (f"rank {rank} failed first (exit code {code}){more}" if rank else f"the first failure was exit code {code}")
            + _said_before(said),
            (e,),
            _FIRST,
            subject=f"rank {rank}" if rank else None,
        )
    died = tuple(e for e in log.of("died") if not (_by_its_parent(e, log.of("died")) or forced(log, e)))
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
        text = _ended(log, first, name, sorted({node for e in died if _by(e) == _by(first) for node in e.nodes}))
        said = complaint(log, first) if "last" not in first.data and {"code", "task"} & first.data.keys() else None
        text += _said_before(said)
        stood = tuple(e for e in log.of("stood") if "place" in e.data and e.file == first.file and e.line > first.line)[:1]
        text += "".join(f"; it stood at {e.data['place']}:{e.data['at']}, in {e.data.get('within', '?')}" for e in stood)
        native = tuple(e for e in log.of("stood") if "place" not in e.data and e.file == first.file and _native(e))[:1]
        many = max((e.count for e in died if _EACH.search(e.text) and _by(e) == _by(first)), default=1)
        if many > 1:
            name, text = "job", f"{many} processes crashed{_by(first)}, each by itself: none is the others' victim"
        text += "".join(f"; one stood in {_native(e)}" for e in native)
        stood += native
        given = log.above_info("generic") if _abort(first) else ()
        if given:  # torch's watchdog throws it on in a thread, which ends the process
            name = author(given)
            whose = "a process" if name == "job" else name
            text = f"{whose} ended{_by(first)} for an error that NCCL gave: {_last_word(given[0])}"
        yield Hypothesis("rank_died", confidence, text, (*given, *died, *stood), _FIRST, subject=name)
        bus = tuple(e for e in died if _BUS.search(f"{_by(e)} {e.text}"))
        if bus:
            text = "SIGBUS: a page of a mapped file could not be had, mostly of a full /dev/shm (64 MB in a container)"
            yield Hypothesis("shm_disabled_or_small", Confidence.QUIET, text, bus, Topic.SHARED_MEMORY)


def _ended(log: LogFacts, first: Event, name: str, nodes: Sequence[str]) -> str:
    """Who ended how, and what is known of the moment before."""
    text = f"a process ended{_by(first)}, and nothing shows which"
    if nodes:
        text = f"{'processes' if len(nodes) > 1 else 'a process'} on {listed(nodes)} ended{_by(first)}"
    if name != "job":
        text = f"{name} ended first{_by(first)}; the others lost their peer"
    elif begun := first.data.get("begun"):
        text += f"; the last that the program said it did was: {begun}"
    elsewhere = next(iter(caught(log.of("stderr_elsewhere"), "path")), "") if "last" not in first.data else ""
    text += f"; what it wrote to stderr is in another file: {elsewhere}" if elsewhere else ""
    if "proc" in first.data:  # of the process that had started it, which knows no more
        text += "; it left no word of its own in this log: killed, as for want of host memory, or crashed below Python"
    return text + (f"; its last words were: {first.data['last']}" if "last" in first.data else "")


def _said_before(e: Event | None) -> str:
    return "" if e is None else f"; the last that was complained of before it: {words(e)}"


def _last_word(given: Event) -> str:
    """NCCL's own of an error, as torch adds it; without it, the whole line."""
    found = Wording.LAST_ERROR.found(given.text)
    return found["word"] if found else given.text[:160]


def _lost(log: LogFacts) -> tuple[Event, ...]:
    """Nodes that their scheduler lost; one that it missed for a while, and that worked on, it did not lose."""
    return (*log.of("node_failed"), *(e for e in log.of("node_silent") if not overcome(log, e)))


def nodes(log: LogFacts) -> Iterator[Hypothesis]:
    """A scheduler that says that a node has gone, and Ray that an actor has."""
    if lost := _lost(log):
        host = next(iter(caught(lost, "host")), None)
        text = f"the scheduler lost {host or 'a node'}: the job ended with it"
        how = "sinfo -R; scontrol show node <node>; the console and dmesg of that node"
        if all("daemon" in e.data for e in lost):
            text = f"mpirun lost its daemon on {host or 'a node'}, and ended the job: that node or pod, the daemon on it or the"
            text += " way to it failed"
            how = (
                f"on {host or 'that node'}: last -x reboot; dmesg -T | tail; of a pod: kubectl get events; kubectl describe pod"
            )
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
    gone = tuple(sorted(log.of("actor_died"), key=lambda e: "class" not in e.data))  # Ray's exception tells more than raylet
    if gone and not log.of("exception", "oom", "cuda"):
        who, named = author(gone), {"name", "class"} & gone[0].data.keys()
        text = f"the actor {who} of Ray died" if named else f"an actor of Ray{f' on {who}' if who != 'job' else ''} died"
        text += ": its own log says why"
        late = any(before(e, gone[0]) for e in log.above_info("watchdog", "heartbeat"))  # it is how torch ends a process
        said = [w for w in log.of("last_words") if any(w.file == e.file and w.line == e.line - 1 for e in gone)]
        notes = tuple(f"said right before it: {w.text[:200]} ({w.where})" for w in said)
        confidence = Confidence.EFFECT if late else Confidence.OPEN
        if (node := next(filter(None, map(_crashed, gone)), None)) is not None:
            text = f"the node {node} of Ray crashed, or Ray's control process had no answer of it any more:"
            text += f" {who if who != 'job' else 'an actor'} died with it"
            how = f"dmesg -T | tail, and Ray's gcs_server.out and raylet.out (session_latest/logs), on {node}"
            confidence = confidence if late else Confidence.LIKELY_MINUS
            yield Hypothesis("rank_died", confidence, text, gone, how=how, subject=node, notes=notes, fault=Fault.NODE)
            return
        yield Hypothesis("rank_died", confidence, text, gone, _FIRST, subject=None if who == "job" else who, notes=notes)


# Ray's GenOwnerDiedCause and GenNodeDiedCause (src/ray/gcs): the owner's node, or the actor's own
_OWNERS_NODE: Final = re.compile(r"Owner Ip address: ?(?P<ip>[\da-fA-F.:]{3,39}) .{0,300}Owner's node has crashed")


def _crashed(e: Event) -> str | None:
    """The address of a node that Ray says is gone, with what ran there."""
    if (owner := _OWNERS_NODE.search(e.text)) is not None:
        return owner["ip"]
    return e.data.get("ip") if Wording.ITS_NODE_DIED.within(e.text) else None


def unstarted(log: LogFacts) -> Iterator[Hypothesis]:
    """Launchers, schedulers, kubelets and container runtimes that say that they did not start something."""
    events = tuple(e for e in log.of("unstarted") if not overcome(log, e))
    if not events:
        return
    host = next(iter(caught(events, "host")), None)
    if any("unhealthy" in e.data for e in events):  # a kubelet does not say which node is its own; the scheduler did
        host = next((e.data["host"] for e in reversed(log.of("placed")) if e.data.get("host")), host)
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
    text = text.replace("{host}", host or "a node")
    fix = Fix(
        "see that every host or pod of the list runs, that its name resolves and that it lets the job in",
        (
            f"getent hosts {host or '<host>'}",
            f"ssh -o BatchMode=yes {host or '<host>'} true   # where the launcher uses ssh",
        ),
    )
    fix = fix if refused is None else _NODE
    if (unfit := next((e for e in events if "fit" in e.data), None)) is not None:
        host = unfit.data.get("pod")
        text = f"the scheduler finds no node for the pod {host}: {unfit.data.get('lacks') or 'the cluster has none'}"
        fix = _UNFIT
    absent = _address_of_none(log, events)
    if absent is not None:
        text = f"Ray waits for a node under the address {absent}, which none of its nodes has: they are known by another one"
        host, fix = absent, _ADDRESS
    if refused is not None and (denied := _DENIED.match(refused)) is not None:
        fix = Fix(
            "let whoever runs the job execute that file, on every node, and see that no file system there forbids it (noexec)",
            (f"chmod +x {denied[1]}; namei -l {denied[1]}; findmnt -T {denied[1]}",),
        )
    yield Hypothesis("missing_node", Confidence.STRONG_MINUS, text, events, fix, subject=host)


# Ray gives each node a resource of the name node:<its address> (its NODE_ID_PREFIX); vLLM
# asks for that of the driver's own address, VLLM_HOST_IP (initialize_ray_cluster).
_ADDRESS: Final = Fix(
    "give each node the address by which Ray knows it",
    (
        "ray list nodes   # the addresses that it knows",
        "export VLLM_HOST_IP=<that address of this node>   # an address, no name; of its own on every node",
        "ray start --node-ip-address=<address> …",
    ),
)
_DIGITS: Final = re.compile(r"[\d.]+")


def _address_of_none(log: LogFacts, events: Sequence[Event]) -> str | None:
    """The address of a node that a request of Ray's asks for by name, where `ray status` shows GPUs that are free: all of them,
    or the address is a name.  One that is an address may be a node's whose own GPUs are taken."""
    address = next(iter(caught(events, "address")), None)
    told = max(log.of("gpus_free"), key=order, default=None)
    if address is None or told is None:
        return None
    used, every = float(told.data["used"]), float(told.data["every"])
    named = not is_ipv6(address) and not _DIGITS.fullmatch(address)
    return address if (every - used >= 1 and named) or (used == 0 and every > 0) else None


_DENIED: Final = re.compile(r"(/\S{1,300}): Permission denied")  # execve(2), EACCES


_EACH: Final = re.compile(r"Caught signal \d+ \(")  # UCX, of the process that it is part of
_HANDLERS: Final = re.compile(r"__sigaction|__restore_rt|killpg|gsignal|raise|abort|ucs_|\?\?|_?_?GI_|pthread_kill")
_NATIVE: Final = re.compile(
    r"(?:\b\d+ +0x[\da-f]{8,16} (?P<name>[\w:~]{2,200}[\w])\(|\[ *\d+\] [^\s(]{1,300}\((?P<name2>\w{2,200})\+0x)"
)
_PYTHONS: Final = re.compile(r"_?Py[A-Z_]|pybind11")


def _native(e: Event) -> str:
    """The function in which a process stood, and the last one before Python that called it, by its stack of native code."""
    names = [m["name"] or m["name2"] for m in _NATIVE.finditer(e.text)]
    own = list[str]()
    for name in names:
        if _PYTHONS.match(name):
            break
        if own or not _HANDLERS.match(name):
            own.append(name)
    if not own:
        return ""
    return own[0] + (f", called by {own[-1]}" if own[-1] != own[0] else "")


_BUS: Final = re.compile(r"SIGBUS|(?i:\bbus error)|code 135\b")  # 128 + SIGBUS; Linux mm/shmem.c: a tmpfs without room


# What Slurm and pyxis say of a task that is stopped because of another one's reason: ESRCH, and the step's summary.
_VAGUE: Final = re.compile(
    r"No such process|Unspecified error|pyxis: (?:container start|couldn.t start|failed to import)|error code: "
    r"|error running hook"
)


_ABORTS: Final = frozenset({"-6", "134"})  # SIGABRT, 128 + SIGABRT


def of_its_watchdog(log: LogFacts, e: Event) -> Confidence | None:
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
    told = [e for e in died if {"signal", "code", "how", "task", "proc"} & e.data.keys()] or died
    calm = [e for e in told if not _abort(e)]
    return min(calm or told, key=lambda e: (e.at or "~", e.line))


_OFTEN: Final = 10  # torch's heartbeat monitor looks into the store about once a second (ProcessGroupNCCL.cpp)


def store_gone(log: LogFacts) -> Iterator[Hypothesis]:
    """The host of torch's store went away, which its clients warn of again and again: they are the victims."""
    events = tuple(e for e in log.of("peer_closed") if e.mild and Wording.STORE.within(e.text))
    known = log.of("finished", "ended", "exception", "elastic", "died")
    if known or _lost(log) or sum(e.count for e in events) < _OFTEN or not all(after(log, e) is After.STOPPED for e in events):
        return
    where = next(iter(caught(events, "store")), None)
    text = f"the process that keeps torch's store{f' ({where})' if where else ''} ended or its host is gone:"
    text += " the ranks of this log only say that they no longer reach it; why, its own log says"
    how = "the log of that process, and the state of its host"
    yield Hypothesis("rank_died", Confidence.EFFECT_PLUS, text, events, _FIRST, how, subject=where or "job")


_LEFT: Final = re.compile(r"\[rank(\d+)\]:")  # torch's mark, in which a line says whose it is


def victims(log: LogFacts) -> Iterator[Hypothesis]:
    """Lines that only say that a peer is gone."""
    if log.busbw is not None and not log.of("generic"):
        return  # the test ran to its end; ranks that leave at different moments say so
    closed = log.above_info("peer_closed")
    secondary = log.above_info("secondary")
    own = tuple(e for e in secondary if Wording.OWN_SOCKET.within(e.text))
    if own and not closed and len(own) == len(secondary):
        found, call = Wording.OWN_SOCKET.found(own[0].text), Wording.FAILED_CALL.found(own[0].text)
        text = f"{call['call'] if call else 'NCCL'} failed: NCCL's own listening socket could not accept"
        text += f" ({found['why'] if found else '?'}): the process closed it while it waited;"
        text += " why stands before these lines, or in the logs of the other ranks"
        yield Hypothesis("rank_died", Confidence.OPEN, text, own, _FIRST)
        return
    events = closed + secondary
    if secondary and not closed and all(Wording.OWN_PROXY.within(e.text) for e in secondary):
        return  # a rank's own proxy thread could not set up a connection, for a reason that only its WARN before says
    if events:
        peers = sorted(caught(closed, "peer"))
        lost = f"{peers[0]} closed its connection" if peers else "a rank lost the connection to its peer"
        text = f"{lost}: what these lines show is the consequence, the first failure is elsewhere"
        how = "the log of the peer that went away"
        if not (log.of("died", "elastic", "actor_died", "exception", "raised", "oom") or _lost(log)):
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


RULES = (deaths, nodes, unstarted, victims, store_gone)
