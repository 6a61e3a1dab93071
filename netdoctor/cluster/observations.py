"""What the nodes of a common run told each other, and the fact that is made of it: pure, on every node the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Final

from netdoctor.compare.clocks import Clock
from netdoctor.compare.traits import Family, Traits
from netdoctor.facts.base import Fact
from netdoctor.facts.runs import Caller, CommonRun, Control, Obstacle
from netdoctor.model import Word, record

# The rules between nodes are imported where they are asked for: every look at one node imports this module, none asks them.
if TYPE_CHECKING:
    from netdoctor.compare import fabrics, mtu, versions
    from netdoctor.compare.addresses import Shared
    from netdoctor.compare.majority import Fault as Found


class Fault(Word):
    """Why there is no connection, or no meeting; the values are what reports show."""

    REFUSED = "refused"
    TIMED_OUT = "timed out"
    NO_ROUTE = "no route"
    FORBIDDEN = "forbidden here"
    PROHIBITED = "prohibited here or by a firewall"
    INVALID = "blackhole route or no scope"
    NO_LOCAL_PORT = "no local port"
    NO_SUCH_HOST = "no such host"
    OWN_ADDRESS = "this node's own address"  # of the master: connections end here
    FAILED = "failed"
    PORT_TAKEN = "port"  # the master cannot listen on the meeting's port
    NO_THREAD = "no thread"  # a limit of processes counts threads, too
    TURNED_AWAY = "turned away"
    TWICE = "there already"  # another one of its number
    UNPROVEN = "not proven"  # no token, another one, another version: which node this is nobody knows
    LOST = "lost"
    SILENT = "silent"
    ANOTHER_NODE = "another node answers"
    LOOPBACK = "a loopback's address"  # of another machine: nothing is dialled
    LOSES = "loses segments of"  # small ones pass: `Miss.segment`
    STALLS = "carries no 64 KiB"


UNSURE: Final = ""  # in place of the interface: the address holds unless the host's name resolves once the ranks ask


class Proof(Word):
    """How it is known that the nodes of a meeting are those of one job (`netdoctor.cluster.secret`)."""

    TOKEN = "token"
    MUNGE = "munge"
    NOTHING = "nothing"


@record
class Refused:
    """Somebody whom the master turned away."""

    address: str  # of its connection
    why: str
    node: int | None = None  # that it said it is
    proven: bool = False  # it has the secret of the run

    def __str__(self) -> str:
        return f"{self.address}: {self.why}"


@record
class Miss:
    """Why a node was not reached, or no data followed the connection."""

    fault: Fault
    segment: int = 0  # bytes, of `Fault.LOSES`

    def __str__(self) -> str:
        return f"{self.fault} {self.segment} bytes" if self.fault is Fault.LOSES else self.fault.value

    @property
    def of_data(self) -> bool:
        """A connection is made, and no more."""
        return self.fault in (Fault.LOSES, Fault.STALLS)


@record
class Flow:
    """Data in one direction between two nodes, all connections together."""

    acked: int = 0  # bytes that arrived
    busy: float = 0.0  # seconds in which something was under way, less those in which the receiver had no room
    sent: int = 0  # bytes, those sent again included
    again: int = 0  # bytes

    def plus(self, other: Flow) -> Flow:
        return Flow(self.acked + other.acked, self.busy + other.busy, self.sent + other.sent, self.again + other.again)


@record
class OwnAddress:
    """An address of a node."""

    interface: str
    ip: str
    prefix: int
    mtu: int
    own: bool = False  # no other host may have it: see `compare.addresses.own`

    def network(self) -> str | None:
        """None where no other host can be in it."""
        from netdoctor.compare import subnets

        found = subnets.network(self.ip, self.prefix)
        return None if found is None or subnets.of_one_host(self.ip) else found


@record
class Endpoints:
    """Where the ranks of a node will listen, and all its addresses."""

    netns: str = ""  # names its network namespace among all machines; "": not known
    listen: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # backend -> interface and address, where it is known
    addresses: tuple[OwnAddress, ...] = ()


@record
class Ready:
    """What a node can run, and by what it is compared."""

    ranks: int | None = None  # None: it did not say
    backend: str = ""
    cannot: str = ""  # why it can run nothing
    traits: Traits = field(default_factory=Traits)
    via: Caller = Caller.TORCH
    fabric: str = ""  # of NVLink that its GPUs share with other nodes: `cluster.fabric.beyond`
    clock: Clock | None = None  # against node 0's; None: not measured
    obstacle: Obstacle | None = None  # of `cannot`, for code


@record
class Gone:
    """Why a node takes part no more."""

    subject: str  # of the meeting, the first that it is missing from
    why: str


@record
class Nodes:
    """One node's place in an all-reduce across nodes."""

    count: int
    rank: int  # of this node, 0 is the master
    master: str  # host name or address
    port: int  # of the meeting, not the job's MASTER_PORT
    ranks_per_node: int | None = None  # None: one a GPU, else one
    run: str = ""  # names the run; nodes of different runs refuse each other
    local_rank: int = 0  # of this process: the others of its node wait for rank 0
    local_world: int = 1
    launcher: str | None = None
    names: tuple[str, ...] = ()  # of all nodes in their order, as the launcher calls them; empty: it does not say

    def named(self) -> str:
        host = f"[{self.master}]" if ":" in self.master else self.master
        return f"{host}:{self.port}"


@record
class Culprit:
    """A node, or the way from it to its `peer`."""

    node: int
    peer: int | None = None

    @property
    def blamed(self) -> int:
        """The node that the finding counts for: of a way, its end."""
        return self.node if self.peer is None else self.peer


Reach = Mapping[int, Mapping[int, Miss | None]]  # from -> to -> None or why not


@record
class Cluster(Fact):
    """What the nodes of a common all-reduce told each other (netdoctor allreduce), and the run that they made together."""

    nodes: Nodes = Nodes(0, 0, "", 0)
    hosts: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[int, str] = field(default_factory=dict)  # by which each node came to the meeting
    gone: Mapping[int, Gone] = field(default_factory=dict)
    never_came: frozenset[int] = frozenset()  # of those
    endpoints: Mapping[int, Endpoints] = field(default_factory=dict)
    reach: Reach = field(default_factory=dict)
    listen_reach: Mapping[str, Reach] = field(default_factory=dict)  # the same where ranks will listen, by backend
    ready: Mapping[int, Ready] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()  # whom the master turned away
    proof: Proof = Proof.NOTHING  # how the nodes know each other
    master: tuple[Fault, str] | None = None  # why the master was not, or is no more, to be had
    run: CommonRun | None = None
    flows: Mapping[int, Mapping[str, Flow]] = field(default_factory=dict)  # from -> address of the other end
    controls: Mapping[int, Control] = field(default_factory=dict)  # of each node's way to the next
    first_ranks: Mapping[int, int] = field(default_factory=dict)  # of each node, once it is agreed what is run
    master_elsewhere: bool = False  # this is node 0, and no address of the master's is this host's: NAT, a Service, or a slip
    interrupted: str = ""  # why this node did not get to know all; "": it did

    @property
    def proven(self) -> bool:
        """Whether what other nodes told is theirs; a run of one node needs no proof."""
        return self.proof is not Proof.NOTHING or self.nodes.count == 1

    def claimed(self, node: int) -> tuple[Refused, ...]:
        """Who said to be this node, and did not prove it."""
        return tuple(one for one in self.refused if one.node == node and not one.proven)

    def ways(self) -> tuple[int, int]:
        """Of all ordered pairs of nodes: how many were tried, and how many there are."""
        count = self.nodes.count
        return sum(len(row) for row in self.reach.values()), count * (count - 1)

    def beside(self, node: int) -> tuple[int, ...]:
        """Other nodes of this run in the very network of this one: between them nothing leaves the machine."""
        own = self.endpoints.get(node, Endpoints()).netns
        return tuple(n for n, one in sorted(self.endpoints.items()) if n != node and own and one.netns == own)

    # Names

    def name(self, node: int) -> str:
        if host := self.hosts.get(node):
            return f"node {node} ({host})"
        return f"node 0 (master, {self.nodes.named()})" if node == 0 else f"node {node}"

    def subject(self, node: int) -> str:
        return self.hosts.get(node) or (self.nodes.names[node] if self.nodes.names else f"node {node}")

    def subject_of(self, culprit: Culprit) -> str:
        here = self.subject(culprit.node)
        return here if culprit.peer is None else f"{here} to {self.subject(culprit.peer)}"

    def node_of(self, rank: int) -> int:
        known = self.first_ranks
        return max((n for n, first in known.items() if first <= rank), key=lambda n: known[n], default=0)

    @property
    def backend(self) -> str | None:
        """Of the common run; None where there is none."""
        used = {one.backend for one in self.ready.values()}
        if len(self.ready) < self.nodes.count or not used <= {"gloo", "nccl"}:
            return None
        return "nccl" if used == {"nccl"} else "gloo"

    # Rules between nodes, by what they told

    def differences(self) -> list[versions.Difference[int]]:
        """Traits that are not the same everywhere, by name."""
        from netdoctor.compare import versions

        alike = (versions.Alike(one.traits, (node,)) for node, one in sorted(self.ready.items()))
        return sorted(versions.differences(alike), key=lambda one: str(one.trait))

    def fabrics(self) -> list[fabrics.Divided[int]]:
        """NVLink fabrics that divide the nodes."""
        from netdoctor.compare import fabrics

        return list(fabrics.divided((node, one.fabric) for node, one in sorted(self.ready.items()) if one.fabric))

    def clocks(self) -> list[Found[int]]:
        """What holds of the clocks of all nodes that got ready."""
        from netdoctor.compare.clocks import faults

        return faults({node: one.clock for node, one in sorted(self.ready.items())}, self.name)

    def mtus(self) -> list[mtu.Difference[int]]:
        """Networks of the meeting on which nodes have different MTUs; of interfaces of one name `differences` tells."""
        from netdoctor.compare import mtu

        by_name = {one.trait.name for one in self.differences() if one.family is Family.MTU}
        ports = (mtu.Port(node, network, own.interface, own.mtu) for node, network, own in self._in_networks())
        return [one for one in mtu.differences(ports) if by_name.isdisjoint(port.interface for port in one.ports)]

    def _in_networks(self) -> Iterable[tuple[int, str, OwnAddress]]:
        """Of each node, its address in each network of the meeting: the one that it came with, else its first."""
        for network in self._networks():
            for node, place in sorted(self.endpoints.items()):
                own = [one for one in place.addresses if one.network() == network]
                exact = [one for one in own if one.ip == self.addresses.get(node)]
                for one in (exact or own)[:1]:
                    yield node, network, one

    def shared_addresses(self) -> list[Shared[int]]:
        """Addresses that several hosts have: in the meeting's networks any, elsewhere those that should be a node's own."""
        from netdoctor.compare.addresses import Holder, shared

        networks = self._networks()
        placed = {node: place for node, place in sorted(self.endpoints.items()) if place.netns}
        holders = (
            Holder(node, one.ip, one.interface, used)
            for node, place in placed.items()
            for one in place.addresses
            if (used := one.network() in networks) or one.own
        )
        return list(shared(holders, lambda a, b: placed[a].netns == placed[b].netns, {None: len(placed)}))

    def _networks(self) -> list[str]:
        """The networks of the addresses by which nodes came to the meeting."""
        every = (
            one.network()
            for node, place in self.endpoints.items()
            for one in place.addresses
            if one.ip == self.addresses.get(node)
        )
        return sorted({network for network in every if network is not None})

    # The report

    def section(self) -> dict[str, object]:
        """The report's ``nodes``: who took part, as this node knows it."""
        return {
            "count": self.nodes.count,
            "rank": self.nodes.rank,
            "master": self.nodes.named(),
            "launcher": self.nodes.launcher,
            "proof": str(self.proof),
            "ways": dict(zip(("tried", "of"), self.ways(), strict=True)),
            "turned_away": [str(one) for one in self.refused],
            "master_error": [self.master[0].value, self.master[1]] if self.master else None,
            "members": [self._member(node) for node in range(self.nodes.count)],
        }

    def _known_by(self, node: int) -> str | None:
        """Why this is taken for that node; None where it was not met."""
        if node == self.nodes.rank:
            return "this node"
        return str(self.proof) if node in self.hosts else None

    def _member(self, node: int) -> dict[str, object]:
        ready, gone = self.ready.get(node, Ready()), self.gone.get(node)
        return {
            "node": node,
            "host": self.hosts.get(node),
            "address": self.addresses.get(node),
            "known_by": self._known_by(node),
            "state": "missing" if gone else "there" if node in self.hosts else "not known",
            "why": gone.why if gone else None,
            "first_rank": self.first_ranks.get(node),
            "ranks": ready.ranks,
            "backend": ready.backend or None,
            "cannot": ready.cannot or None,
            "reaches": {str(to): str(why) if why else "ok" for to, why in sorted(self.reach.get(node, {}).items())},
        }
