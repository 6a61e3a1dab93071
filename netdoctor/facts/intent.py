"""What the job needs: how many nodes it has and how that is known, which GPUs are its own, which network is meant.

Everything that lies between nodes is judged by `Intent.across` through `between_nodes`, the same way by every check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from netdoctor.config.keys import KEYS
from netdoctor.facts.base import Fact
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected, known, section
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.net import Net
from netdoctor.host.base import Host, mapping
from netdoctor.model import Finding, Kind, Status, Unavailable, Word, missing, record

PATHS: Final = "job.paths"  # which is `System`'s
JOB: Final = tuple(name.partition(".")[2] for name in KEYS if name.startswith("job.") and name != PATHS)
STATE_RANKS: Final = (
    "state job.ranks_per_node: job: {ranks_per_node: N} in the configuration, or NETDOCTOR_JOB_RANKS_PER_NODE=N"
)
STATE_NODES: Final = "state job.nodes: job: {nodes: N} in the configuration, or NETDOCTOR_JOB_NODES=N"


class Told(Word):
    """How it is known whether the job has other nodes."""

    CONFIGURATION = "configuration"  # job.nodes
    LAUNCHER = "launcher"  # it counts nodes
    WORLD = "world"  # as many ranks here as in the job, or fewer
    INDEX = "index"  # of an Indexed Job's pod: not the first
    PEER = "peer"  # MASTER_ADDR or expected.peers name another node
    NOTHING = "nothing"


class Across(NamedTuple):
    """Whether the job needs the way to other nodes; None: nothing tells.  `why` is the evidence, or what is missing."""

    needed: bool | None
    why: str


@record
class Intent(Fact):
    """What the job needs of this node.

    Where the configuration could not be read `nodes` says so, and the others are the least that a job has.
    """

    nodes: int | None | Unavailable = None  # None: nobody counts them, though they may be known to be several
    others: bool | None = None  # whether there are other nodes; None: nothing tells
    told: Told = Told.NOTHING
    why: str = "nothing says how many nodes the job has"
    ranks_here: int | None = None  # on this node: as configured, as the launcher says, or one per GPU that is seen
    ranks_most: int | None = None  # the same, but that a launcher's only task may start one per GPU that it sees
    communicators: int = 1  # NCCL communicators alive at once per rank
    shm_bytes: int = 0  # what the job itself puts into /dev/shm on this node, beside NCCL
    gloo_groups: int = 1
    by_gloo: bool = False  # the configuration says that Gloo is used; else a job may do without it, by NCCL alone
    all_to_all: bool = False
    ranks_per_node: int | None = None  # as configured
    gpus: tuple[str, ...] | Unavailable = ()  # UUIDs of the job's own, as libcuda shows them
    network: str | None | Unavailable = None  # what is meant to carry the data: expected.transport, else NCCL_NET; None: unsaid
    by_site: bool = False  # the configuration says so

    @property
    def across(self) -> Across:
        if isinstance(self.nodes, Unavailable):
            return Across(None, f"how many nodes it has could not be read: {self.nodes}")
        return Across(self.others, self.why)

    @property
    def count(self) -> int | Unavailable:
        """Nodes of the job, at least: where nothing says so it is one, where several are not counted two."""
        return self.nodes if self.nodes is not None else 2 if self.others else 1

    @property
    def uncounted(self) -> bool:
        """Whether it may have more nodes than `count`."""
        return self.nodes is None and (self.others is True or self.open is not None)

    @property
    def open(self) -> Unavailable | None:
        """Why it may have other nodes although nothing says so.

        None: it is known, or no launcher is there that would have others.
        """
        if isinstance(self.nodes, Unavailable):
            return self.nodes
        return None if self.others is not None or self.told is Told.NOTHING else Unavailable(Kind.NOT_READ, self.why)


def between_nodes(found: Finding, intent: Intent) -> Finding:
    """A finding about the way to other nodes, as much as the job needs it: the one place where this is decided.

    One node: it does not apply, and that is the evidence.  Several: as found.  Not known: what would be a fail is unknown.
    """
    needed, why = intent.across
    if needed is False and found.status is not Status.ERROR:
        return Finding(Status.SKIP, f"{why}: nothing of it goes to other nodes", found.subject, evidence=dict(found.evidence))
    if needed is None and found.status is Status.FAIL:
        return replace(
            found,
            status=Status.UNKNOWN,
            message=f"{found.message}: a fault if the job has other nodes, and {why}",
            how=STATE_NODES,
            severity=None,
            cure=None,
            perhaps=found,
        )
    return found


def if_it_starts_more(found: Finding, intent: Intent) -> Finding:
    """A fault for as many ranks as there may be, where fewer are certain: those would do."""
    return replace(
        found,
        status=Status.UNKNOWN,
        message=f"{found.message}: a fault if the launcher's one task here starts {intent.ranks_most} ranks, as torchrun does",
        how=STATE_RANKS,
        severity=None,
        cure=None,
        perhaps=found,
    )


def probe(host: Host, environ: Environ, net: Net, gpus: Gpus, expected: Expected) -> Intent | Unavailable:
    """From ``job:`` of the configuration, the launcher's variables, MASTER_ADDR and the GPUs that are seen."""
    given = section(host, "job")
    if isinstance(given, Unavailable):
        return given
    stated, launcher = known(JOB, given), environ.launcher
    by_launcher = None if isinstance(launcher, Unavailable) else _by_launcher(launcher)
    behind = (mapping(host, "config:") or {}).get("behind_lock") or ()
    if "job.nodes" in behind and by_launcher is not None and (by_launcher.nodes or 0) > stated.get("nodes", 0):
        stated.pop("nodes", None)  # the one who is judged makes the job no smaller than it is
    return infer(stated, environ, net, gpus, expected)


def infer(given: Mapping[str, Any], environ: Environ, net: Net, gpus: Gpus, expected: Expected) -> Intent:
    """`given`: what the configuration states of the job."""
    given = dict(given)
    nodes, ranks = given.pop("nodes", None), given.pop("ranks_per_node", None)
    seen = gpus.visible
    here = ranks or _ranks_here(environ.launcher, gpus)
    one_task = not ranks and not isinstance(environ.launcher, Unavailable) and environ.launcher.one_task
    intent = Intent(
        **given,
        by_gloo=bool(given.get("gloo_groups")),
        ranks_per_node=ranks,
        ranks_here=here,
        ranks_most=max(here, len(seen or gpus.all or ())) if one_task and here else here,
        gpus=seen if isinstance(seen, Unavailable) else tuple(one.uuid for one in seen),
        network=_network(environ, expected),
        by_site=isinstance(expected.transport, str),
    )
    return replace(intent, **_nodes(nodes, environ.launcher, net)._asdict())


class _Nodes(NamedTuple):
    nodes: int | None
    others: bool | None
    told: Told
    why: str


def _nodes(configured: int | None, launcher: Launcher | Unavailable, net: Net) -> _Nodes:
    """The configuration's word counts most; then that of the launcher; that another node is named counts where none counts."""
    if configured:
        return _Nodes(configured, configured > 1, Told.CONFIGURATION, f"the configuration says {_count(configured)}")
    by_launcher = None if isinstance(launcher, Unavailable) else _by_launcher(launcher)
    # What the site lists as peers says nothing about a job that a launcher counts; where its rank 0 is does.
    named = [one for one in net.others if by_launcher is None or one is net.master]
    if named and (by_launcher is None or not by_launcher.others):
        return _Nodes(None, True, Told.PEER, f"{named[0].name} is another node")
    if by_launcher is not None:
        return by_launcher
    if isinstance(launcher, Unavailable):
        return _Nodes(None, None, Told.LAUNCHER, f"the launcher's variables could not be read: {launcher}")
    if (lost := missing(*(one and one.local for one in net.perhaps_others))) is not None:
        return _Nodes(None, None, Told.PEER, f"whether MASTER_ADDR or a peer is another node could not be told: {lost}")
    if launcher.name is None:
        return _Nodes(None, None, Told.NOTHING, "nothing says how many nodes it has")
    return _Nodes(None, None, Told.LAUNCHER, f"{launcher.called} does not say how many nodes it has")


def _by_launcher(found: Launcher) -> _Nodes | None:
    """None where it counts nothing."""
    name = found.called
    if found.nodes is not None and (found.nodes > 1 or not found.several):
        return _Nodes(found.nodes, found.nodes > 1, Told.LAUNCHER, f"{name} says {_count(found.nodes)}")
    if found.world and found.local_world:
        count = -(-found.world // found.local_world)
        ranks = "the job's one rank" if found.world == 1 else f"{found.local_world} of {found.world} ranks"
        return _Nodes(count, count > 1, Told.WORLD, f"{name} has {ranks} here")
    if found.several:
        return _Nodes(None, True, Told.LAUNCHER, f"{name} says that there is more than this node")
    if found.world == 1 and found.name is not None:  # WORLD_SIZE counts pods where the container runs torchrun: one node too
        return _Nodes(1, False, Told.WORLD, f"{name} says that the job is one rank")
    if found.name is not None and (found.node_rank or 0) > 0:
        return _Nodes(None, True, Told.INDEX, f"{name} calls this number {found.node_rank}")
    return None


def _count(nodes: int) -> str:
    return "that the job has one node" if nodes == 1 else f"that the job has {nodes} nodes"


def _ranks_here(launcher: Launcher | Unavailable, gpus: Gpus) -> int | None:
    if isinstance(launcher, Unavailable):
        return None
    seen = len(gpus.visible or gpus.all or ())
    if launcher.one_task and not seen and missing(gpus.visible, gpus.all) is not None:
        return None  # it may start one for each of the GPUs that could not be counted
    return launcher.local_world or seen or None


def _network(environ: Environ, expected: Expected) -> str | None | Unavailable:
    return expected.transport if expected.transport is not None else environ.get("NCCL_NET")
