"""The common run: what each node runs, its part merged with the others', and who is to blame where it failed.

Pure, and the same on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from netdoctor.allreduce import verdict
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.allreduce.plan import CUDA_SIZES
from netdoctor.cluster import control, messages, network
from netdoctor.cluster.observations import Cluster
from netdoctor.facts.runs import DEFAULT_SIZES, AllReduce, Caller, CommonRun, Control, Path, Run, State, TorchFacts, Way
from netdoctor.textsafe import listed

PATH: Final = Path(Way.BETWEEN_NODES)
_EARLY: Final = ("import", "rendezvous", "device", "init", "first")  # while connections are made
# Gloo on an address of the other family than its peer's (transport/tcp/device.cc).
_OTHER_FAMILY: Final = "ss1.ss_family == ss2.ss_family"
_OF_THIS_NODE: Final = (
    "seconds",
    "log",
    "log_text",
    "changes",
    "abandoned",
    "output",
    "mapped",
    "notes",
    "interpreter",
    "via",
    "nccl_version",
)


def experiments(cluster: Cluster) -> dict[int, AllReduce] | str:
    """What each node runs, the same conclusion on all; or why nothing is run."""
    if cluster.gone:
        return listed([f"{cluster.name(n)}: {gone.why}" for n, gone in sorted(cluster.gone.items())], 3, between="; ")
    cannot = [f"{cluster.name(n)}: {ready.cannot}" for n, ready in sorted(cluster.ready.items()) if ready.cannot]
    if cannot:
        return listed(cannot, 3, between="; ")
    if len(cluster.ready) < cluster.nodes.count or not all(ready.ranks for ready in cluster.ready.values()):
        return "not every node said what it can run"
    if len({ready.via for ready in cluster.ready.values()}) > 1:
        alone = [cluster.name(n) for n, ready in sorted(cluster.ready.items()) if ready.via is Caller.NCCL]
        return f"without torch, and by NCCL alone: {listed(alone, 3)}; the others use torch (--via nccl is for all of them)"
    nccl = all(ready.backend == "nccl" for ready in cluster.ready.values())
    backend, device, sizes = ("nccl", "cuda", CUDA_SIZES) if nccl else ("gloo", "cpu", DEFAULT_SIZES)
    made = {}
    path = PATH if len(cluster.ready) > 1 else Path()
    for node, ready in sorted(cluster.ready.items()):
        ranks = ready.ranks or 0
        gpus = tuple(range(ranks)) if nccl else ()
        made[node] = AllReduce(backend, ranks, device, sizes, path=path, gpus=gpus)
    return made


def first_ranks(made: Mapping[int, AllReduce]) -> dict[int, int]:
    """The number of each node's first rank in the common run."""
    first, total = {}, 0
    for node, experiment in sorted(made.items()):
        first[node] = total
        total += experiment.ranks
    return first


def combine(cluster: Cluster, made: Mapping[int, AllReduce], parts: Mapping[int, Any], own: Run) -> Cluster:
    """`cluster` with the run of all nodes.  `own` is this node's, which has what is known of its libraries and its log."""
    merged = _merge(cluster, made, parts)
    cluster = replace(cluster, flows=merged.flows, controls=merged.controls)
    world = sum(one.ranks for one in made.values())
    named = ((node, host) for node in made if (host := cluster.hosts.get(node)))
    hosts = {cluster.first_ranks[node] + rank: host for node, host in named for rank in range(made[node].ranks)}
    own_experiment = made[cluster.nodes.rank]
    built = verdict.build(
        replace(own_experiment, ranks=world, gpus=own_experiment.gpus if len(made) == 1 else ()),
        merged.events,
        merged.interruption(),
        facts=own.torch if isinstance(own.torch, TorchFacts) else None,
        import_seconds=own.import_seconds,
        hosts=hosts,
    )
    own_fields = {one.name: getattr(built, one.name) for one in fields(built)}
    common = CommonRun(**own_fields, told="", told_cause="", proven=cluster.proven, here=made[cluster.nodes.rank].ranks)
    run = _elect(cluster, common, made, merged.failed_nodes)
    return replace(cluster, run=replace(run, **{name: getattr(own, name) for name in _OF_THIS_NODE}))


@dataclass
class _Merged:
    """The parts of all nodes as one run's, ranks by their number in it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    interruptions: dict[int, tuple[range, Interruption]] = field(default_factory=dict)  # by node, with its ranks
    flows: dict[int, dict[str, Any]] = field(default_factory=dict)
    controls: dict[int, Control] = field(default_factory=dict)
    world: int = 0

    @property
    def failed_nodes(self) -> dict[int, str]:
        """Nodes whose ranks were lost, and why."""
        return {n: one.text for n, (_, one) in self.interruptions.items() if one.kind is InterruptionKind.LOST}

    def interruption(self) -> Interruption | None:
        """Where one node saw that nothing moved, that is what happened; the others were told to stop."""
        every = [one for _, one in self.interruptions.values()]
        stalled = [one for one in every if one.kind is InterruptionKind.STALLED]
        chosen = min(stalled or every, key=lambda one: one.time, default=None)
        if chosen is None:
            return None
        # Each node has its own time: it learns from victims elsewhere that its rank died, sooner than it can reap it.  But
        # what fails after a node ended its ranks because the time was over fails by that.
        over = (InterruptionKind.STALLED, InterruptionKind.DEADLINE)
        ended = min((one.time for one in every if one.kind in over), default=None)
        times: list[float | None] = [ended] * self.world
        counts = {name: [0] * self.world for name in messages.COUNTS}
        named: dict[str, list[int]] = {name: [] for name in messages.NAMED}
        for ranks, one in self.interruptions.values():
            for place, rank in enumerate(ranks):
                times[rank] = one.time if ended is None else min(ended, one.time)
                for name, values in counts.items():
                    reached = getattr(one, name)
                    values[rank] = reached[place] if place < len(reached) else 0
            for name, numbers in named.items():
                numbers += [ranks.start + n for n in getattr(one, name)]
        known: dict[str, Any] = {name: tuple(values) for name, values in (*counts.items(), *named.items())}
        return replace(chosen, times=tuple(times), **known)


def _merge(cluster: Cluster, made: Mapping[int, AllReduce], parts: Mapping[int, Any]) -> _Merged:
    merged = _Merged(world=sum(one.ranks for one in made.values()))
    for node, part in parts.items():
        if not isinstance(part, Mapping):
            continue
        first, ranks = cluster.first_ranks[node], made[node].ranks
        merged.flows[node] = messages.read_flows(part.get("flows"))
        if (one_way := control.read(part.get("control"))) is not None:
            merged.controls[node] = one_way
        merged.events += messages.read_events(part.get("events"), first, ranks)
        if (one := messages.read_interruption(part.get("cut"), ranks)) is not None:
            merged.interruptions[node] = range(first, first + ranks), one
    return merged


class _Cause(NamedTuple):
    """What explains a run that did not finish better than what its ranks said."""

    text: str
    nodes: Iterable[int]
    cause: str = "rank_died"


def _elect(cluster: Cluster, run: CommonRun, made: Mapping[int, AllReduce], failed_nodes: Mapping[int, str]) -> CommonRun:
    """Where a node went away, lost its ranks or cannot be reached, the others are its victims, whatever they say."""
    if run.finished:
        return run
    if lost := sorted(n for n in cluster.gone if n in cluster.first_ranks):
        text = "; ".join(f"{cluster.name(n)} was lost: {cluster.gone[n].why}" for n in lost)
        failed = replace(run, state=State.FAILED, obstacle=None)
        return _blame(cluster, failed, made, _Cause(text, lost), text)
    culprit = next((r for r in run.ranks if r.rank in run.blamed), None)
    victim = run.state == State.FAILED and culprit is not None and verdict.is_victim(culprit.error)
    if victim and failed_nodes:
        text = "; ".join(f"{cluster.name(n)}: {why}" for n, why in sorted(failed_nodes.items()))
        return _blame(cluster, run, made, _Cause(text, failed_nodes), text)
    if run.state == State.HUNG or victim or (culprit is not None and _OTHER_FAMILY in culprit.error.lower()):
        early = all(r.phase in _EARLY for r in run.ranks)
        if (cause := next(_seen_before(cluster, early), None)) is not None:
            return _blame(cluster, run, made, cause, f"{cause.text} ({run.reason})")
    return run


def _blame(cluster: Cluster, run: CommonRun, made: Mapping[int, AllReduce], cause: _Cause, reason: str) -> CommonRun:
    ranks = tuple(cluster.first_ranks[n] + r for n in cause.nodes for r in range(made[n].ranks))
    return replace(run, reason=reason, blamed=ranks, told=cause.text, told_cause=cause.cause)


def _seen_before(cluster: Cluster, early: bool) -> Iterator[_Cause]:
    """What the nodes saw before the run that explains why it stands still, the likeliest first."""
    if shared := [one for one in cluster.shared_addresses() if one.used]:
        text = "; ".join(one.text(cluster.name) for one in shared)
        yield _Cause(text, sorted({node for one in shared for node in one.nodes}), "duplicate_address")
    for found, only_early in (
        (network.unreachable(cluster), True),
        (network.unreachable_listeners(cluster), True),
        (network.losing(cluster), False),
    ):
        if found and (early or not only_early):
            nodes = [one.culprit.node for one in found if one.culprit.peer is None]
            yield _Cause("; ".join(one.text for one in found), nodes, found[0].cause)
