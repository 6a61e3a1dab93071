"""What the nodes of a common all-reduce said, judged: pure, and on every node the same.

What comes from other nodes is hostile until it is cleaned: texts lose control characters and are cut, shapes are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from netdoctor.allreduce import verdict
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.cluster import connectivity
from netdoctor.cluster import endpoints as places
from netdoctor.cluster import network as paths
from netdoctor.cluster.connectivity import Fault, Miss
from netdoctor.cluster.endpoints import Place
from netdoctor.cluster.membership import Nodes
from netdoctor.cluster.tcp_stats import Flow
from netdoctor.cluster.tcp_stats import read as read_flows
from netdoctor.facts.runs import DEFAULT_SIZES, AllReduce, CommonRun, Obstacle, Path, Run, State, TorchFacts, Way
from netdoctor.textsafe import line

PATH: Final = Path(Way.BETWEEN_NODES)
MAX_RANKS: Final = 64  # of one node
_EVENTS: Final = frozenset({"forked", "phase", "error", "exit", "size", "verified", "result"})
_KEPT: Final = frozenset(
    {
        "event",
        "rank",
        "t",
        "pid",
        "phase",
        "error",
        "status",
        "bytes",
        "seconds",
        "wrong",
        "system_cpu",
        "user_cpu",
        "bytes_moved",
        "collective_seconds",
    }
)

_WORDS: Final = frozenset({"event", "phase", "error"})

_EARLY: Final = ("import", "rendezvous", "device", "init", "first")  # while connections are made
# Gloo on an address of the other family than its peer's (transport/tcp/device.cc).
_OTHER_FAMILY: Final = "ss1.ss_family == ss2.ss_family"
_COUNTS: Final = ("entered", "left")  # of a cut: a number a rank
_OWN: Final = ("seconds", "log", "log_text", "changes", "abandoned", "output", "mapped", "notes", "interpreter")
_NAMES: Final = ("stopped", "blocked")  # some of the ranks


@dataclass
class Heard:
    """What this node knows in the end."""

    nodes: Nodes
    hosts: dict[int, str] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    gone: dict[int, tuple[str, str]] = field(default_factory=dict)  # node -> (subject it is missing from, why)
    never: set[int] = field(default_factory=set)  # of those, who did not come at all
    places: dict[int, Place] = field(default_factory=dict)
    reach: dict[int, dict[int, Miss | None]] = field(default_factory=dict)  # from -> to -> None or why not
    taken: dict[str, dict[int, dict[int, Miss | None]]] = field(
        default_factory=dict
    )  # the same where ranks will listen, by backend
    ready: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()  # whom the master turned away
    master: tuple[Fault, str] | None = None  # kind and text of why the master was not, or is no more, to be had
    run: CommonRun | None = None
    flows: dict[int, dict[str, Flow]] = field(default_factory=dict)  # from -> address of the other end
    firsts: dict[int, int] = field(default_factory=dict)  # node -> its first rank
    seconds: float = 0.0  # until all had come

    def name(self, node: int) -> str:
        if host := self.hosts.get(node):
            return f"node {node} ({host})"
        return f"node 0 (master, {self.nodes.named()})" if node == 0 else f"node {node}"

    def backend(self) -> str | None:
        """Of the common run; None where there is none."""
        said = {line(one.get("backend"), 20) for one in self.ready.values()}
        if len(self.ready) < self.nodes.count or not said <= {"gloo", "nccl"}:
            return None
        return "nccl" if said == {"nccl"} else "gloo"

    def node_of(self, rank: int) -> int:
        return max((n for n, first in self.firsts.items() if first <= rank), key=lambda n: self.firsts[n], default=0)


def table(value: object, count: int) -> dict[int, Any]:
    """``{"2": …}`` as JSON has it, by node."""
    if not isinstance(value, Mapping):
        return {}
    return {int(k): v for k, v in value.items() if isinstance(k, str) and k.isdecimal() and len(k) < 5 and int(k) < count}


def hear(heard: Heard, subject: str, message: Mapping[str, Any]) -> dict[int, Any]:
    """Take in what the hub says about one subject; the part of each node."""
    count = heard.nodes.count
    for node, why in table(message.get("gone"), count).items():
        heard.gone.setdefault(node, (subject, line(why)))
    never = message.get("never")
    if isinstance(never, list):
        heard.never |= {n for n in never if type(n) is int and 0 <= n < count}
    refused = message.get("refused")
    if isinstance(refused, list):
        heard.refused = tuple(line(one) for one in refused[:32])
    data = table(message.get("data"), count)
    if subject == "join":
        for node, said in data.items():
            heard.hosts[node] = line(said.get("host"), 64) if isinstance(said, Mapping) else ""
            heard.addresses[node] = line(said.get("address"), 64) if isinstance(said, Mapping) else ""
    elif subject == "place":
        heard.places = {node: places.read(said) for node, said in data.items()}
    elif subject == "reach":
        for node, said in data.items():
            heard.reach[node] = _reached(said, count)
            taken = said.get("takes") if isinstance(said, Mapping) else None
            if not isinstance(taken, Mapping):
                continue
            for backend in places.BACKENDS:
                heard.taken.setdefault(backend, {})[node] = _reached(taken.get(backend), count)
    elif subject == "ready":
        heard.ready = {node: said for node, said in data.items() if isinstance(said, Mapping)}
    return data


def _reached(said: object, count: int) -> dict[int, Miss | None]:
    return {to: connectivity.read(why) for to, why in table(said, count).items()}


def ranks_of(said: Mapping[str, Any]) -> int:
    ranks = said.get("ranks")
    return ranks if type(ranks) is int and 1 <= ranks <= MAX_RANKS else 0


def experiments(heard: Heard) -> dict[int, AllReduce] | str:
    """What each node runs, the same conclusion on all; or why nothing is run."""
    if heard.gone:
        return _few([f"{heard.name(n)}: {why}" for n, (_, why) in sorted(heard.gone.items())])
    cannot = [f"{heard.name(n)}: {line(said.get('cannot'))}" for n, said in sorted(heard.ready.items()) if said.get("cannot")]
    if cannot:
        return _few(cannot)
    if len(heard.ready) < heard.nodes.count or not all(ranks_of(said) for said in heard.ready.values()):
        return "not every node said what it can run"
    nccl = all(said.get("backend") == "nccl" for said in heard.ready.values())
    sizes = _sizes(nccl)
    first, made = 0, {}
    for node in range(heard.nodes.count):
        ranks = ranks_of(heard.ready[node])
        gpus = tuple(range(ranks)) if nccl else ()
        made[node] = AllReduce("nccl" if nccl else "gloo", ranks, "cuda" if nccl else "cpu", sizes, path=PATH, gpus=gpus)
        heard.firsts[node] = first
        first += ranks
    return made


def _few(texts: Sequence[str]) -> str:
    return "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more nodes" if len(texts) > 3 else "")


def _sizes(nccl: bool) -> tuple[int, ...]:
    from netdoctor.allreduce.plan import CUDA_SIZES

    return CUDA_SIZES if nccl else DEFAULT_SIZES


def outgoing(events: Iterable[Mapping[str, Any]], cut: Interruption | None, offset: float) -> dict[str, Any]:
    """A node's own part for the others, in the hub's time.  `offset` is the hub's clock minus ours."""
    told = [{**{k: v for k, v in e.items() if k in _KEPT}, "t": e["t"] + offset} for e in events if e.get("event") in _EVENTS]
    data: dict[str, Any] = {"events": told, "cut": None}
    if cut is not None:
        data["cut"] = {
            "kind": cut.kind,
            "obstacle": cut.obstacle,
            "time": cut.time + offset,
            "seconds": cut.seconds,
            "text": cut.text,
            **{name: getattr(cut, name) for name in (*_COUNTS, *_NAMES)},
        }
    return data


def combine(heard: Heard, made: Mapping[int, AllReduce], parts: Mapping[int, Any], own: Run) -> CommonRun:
    """The run of all nodes.  `own` is this node's, which has what is known of its libraries and its log."""
    world = sum(one.ranks for one in made.values())
    experiment = replace(made[heard.nodes.rank], ranks=world, gpus=())
    events: list[dict[str, Any]] = []
    cuts: list[Interruption] = []
    counts = {name: [0] * world for name in _COUNTS}
    named: dict[str, list[int]] = {name: [] for name in _NAMES}
    times: list[float | None] = [None] * world
    failed_nodes: dict[int, str] = {}
    for node, part in parts.items():
        first, ranks = heard.firsts[node], made[node].ranks
        if not isinstance(part, Mapping):
            continue
        heard.flows[node] = read_flows(part.get("flows"))
        events += _events(part.get("events"), first, ranks)
        cut = _cut(part.get("cut"), ranks)
        if cut is not None:
            cuts.append(cut)
            if cut.kind == InterruptionKind.LOST:
                failed_nodes[node] = cut.text
            times[first : first + ranks] = [cut.time] * ranks
            for name in _COUNTS:
                counts[name][first : first + ranks] = (*getattr(cut, name), *[0] * ranks)[:ranks]
            for name in _NAMES:
                named[name] += [first + n for n in getattr(cut, name)]
    # Where one node saw that nothing moved, that is what happened; the others were told to stop.
    stalled = [c for c in cuts if c.kind == InterruptionKind.STALLED]
    cut = min(stalled or cuts, key=lambda c: c.time, default=None)
    if cut is not None:
        known: dict[str, Any] = {name: tuple(values) for name, values in (*counts.items(), *named.items())}
        # Each node its own time: it learns from victims elsewhere that its rank died, sooner than it can reap it.  But what
        # fails after a node ended its ranks for the time fails by that.
        ended = min((c.time for c in cuts if c.kind in (InterruptionKind.STALLED, InterruptionKind.DEADLINE)), default=None)
        cut = replace(cut, times=tuple(_first(ended, one) for one in times), **known)
    facts = own.torch if isinstance(own.torch, TorchFacts) else None
    built = verdict.build(experiment, events, cut, facts=facts, import_seconds=own.import_seconds)
    run = CommonRun(**{one.name: getattr(built, one.name) for one in fields(built)})
    run = _lost(heard, run, made, failed_nodes)
    run = replace(run, reason=re.sub(r"\brank ([0-9]+)", lambda found: _on(heard, found), run.reason))
    kept = {
        n: getattr(own, n)
        for n in ("seconds", "log", "log_text", "changes", "abandoned", "output", "mapped", "notes", "interpreter")
    }
    return replace(run, **kept)


def _first(*times: float | None) -> float | None:
    return min((one for one in times if one is not None), default=None)


def _on(heard: Heard, found: re.Match[str]) -> str:
    host = heard.hosts.get(heard.node_of(int(found[1])))
    return f"{found[0]} ({host})" if host else found[0]


def _lost(heard: Heard, run: CommonRun, made: Mapping[int, AllReduce], failed_nodes: Mapping[int, str]) -> CommonRun:
    """Where a node went away, lost its ranks or cannot be reached, the others are its victims, whatever they say."""
    lost = sorted(n for n in heard.gone if n in heard.firsts)
    if run.finished:
        return run
    if lost:
        told = "; ".join(f"{heard.name(n)} was lost: {heard.gone[n][1]}" for n in lost)
        failed = replace(run, state=State.FAILED, reason=told, obstacle=None)
        return replace(failed, blamed=_all_of(heard, lost, made), told=told, told_cause="rank_died")
    culprit = next((r for r in run.ranks if r.rank in run.blamed), None)
    victim = run.state == State.FAILED and culprit is not None and verdict.is_victim(culprit.error)
    if victim and failed_nodes:
        told = "; ".join(f"{heard.name(n)}: {why}" for n, why in sorted(failed_nodes.items()))
        return replace(run, reason=told, blamed=_all_of(heard, failed_nodes, made), told=told, told_cause="rank_died")
    if run.state == State.HUNG or victim or (culprit is not None and _OTHER_FAMILY in culprit.error.lower()):
        early = all(r.phase in _EARLY for r in run.ranks)
        for told, nodes, cause in _in_the_way(heard, early):
            reason = f"{told} ({run.reason})"
            return replace(run, reason=reason, blamed=_all_of(heard, nodes, made), told=told, told_cause=cause)
    return run


def _in_the_way(heard: Heard, early: bool) -> Iterator[tuple[str, list[int], str]]:
    """What was seen before the run that explains why it stands still: in words, the nodes, the cause."""
    if shared := paths.twice(heard):
        told = "; ".join(paths.who_shares(heard, ip, nodes) for ip, nodes in shared.items())
        yield told, sorted({node for nodes in shared.values() for node in nodes}), "duplicate_address"
    tried = paths.tried(heard)
    bad = paths.broken(paths.connections(tried))
    if bad and early:
        told = "; ".join(paths.who_and_whom(heard, whom, pairs) for whom, pairs in bad.items())
        yield told, [whom for whom in bad if isinstance(whom, int)], "firewall_connect"
    astray = paths.astray(heard, backend) if (backend := heard.backend()) else {}
    if astray and backend and early:
        told = "; ".join(paths.who_strays(heard, backend, node, pairs) for node, pairs in astray.items())
        yield told, list(astray), "socket_ifname"
    bad = paths.broken(paths.transfers(tried))
    if bad:
        told = "; ".join(paths.who_loses(heard, whom, pairs) for whom, pairs in bad.items())
        yield told, [whom for whom in bad if isinstance(whom, int)], path_cause(bad)


def path_cause(bad: Mapping[paths.Whom, paths.Pairs]) -> str:
    """Of what `transfers` shows: a lost size is an MTU, slowness alone is none."""
    return "mtu" if any(why.fault is Fault.LOSES for pairs in bad.values() for _, _, why in pairs) else "low_bandwidth"


def _all_of(heard: Heard, nodes: Iterable[int], made: Mapping[int, AllReduce]) -> tuple[int, ...]:
    return tuple(heard.firsts[n] + r for n in nodes for r in range(made[n].ranks))


def _events(said: object, first: int, ranks: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for event in said[: 400 * ranks] if isinstance(said, list) else ():
        rank = event.get("rank") if isinstance(event, Mapping) else None
        if type(rank) is int and 0 <= rank < ranks and str(event.get("event")) in _EVENTS:
            tidy = {k: line(v, 800) if k in _WORDS else v for k, v in event.items() if k in _KEPT and _fits(k, v)}
            out.append({**tidy, "rank": first + rank})
    return out


def _fits(name: str, value: object) -> bool:
    """Words are words, and numbers are numbers that a float can hold."""
    if name in _WORDS:
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _cut(said: object, ranks: int) -> Interruption | None:
    if not isinstance(said, Mapping):
        return None
    try:
        known: dict[str, Any] = {name: tuple(int(n) for n in said[name][:ranks]) for name in _COUNTS}
        known |= {name: tuple(int(n) for n in said[name][:ranks] if 0 <= int(n) < ranks) for name in _NAMES}
        kind, word = InterruptionKind(line(said["kind"], 20)), line(said["text"])
        known["obstacle"] = Obstacle(said["obstacle"]) if said.get("obstacle") else None
        when, seconds = float(said["time"]), float(said["seconds"])
        return Interruption(kind, when, seconds, text=word, **known) if abs(when) + abs(seconds) < 1e300 else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
