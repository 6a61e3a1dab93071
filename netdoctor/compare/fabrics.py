"""NVLink between nodes: GPUs of one cluster and clique reach each other by it, all others by the network.

NCCL takes those ranks for one MNNVL domain whose clusterUuid and cliqueId are the same (src/init.cc, src/mnnvl.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic

from netdoctor.causes.cost import MIGHT
from netdoctor.compare.majority import Fault, N, sides
from netdoctor.model import Finding, Status, record
from netdoctor.textsafe import listed

NO_FABRIC: Final = "none"  # beyond the node
SUBJECT: Final = "NVLink fabric"
HOW: Final = "nvidia-smi -q | grep -A8 Fabric on these nodes; nvidia-imex-ctl -N; the partitions of the rack's NVLink domain"


@record
class Divided(Generic[N]):
    """Nodes that NVLink does not join, though it joins some of the job."""

    values: tuple[tuple[N, str], ...]  # by node: cliques of one cluster, or clusters
    cluster: str = ""  # of those cliques

    def faults(self, name: Callable[[N], str]) -> Iterator[Fault[N]]:
        """In one cluster whoever is in another clique than most.  Several clusters are racks: a node that is alone in its own
        may have been meant to be with the others, and nothing here tells."""
        have = sides((node, _short(value)) for node, value in self.values)
        where = have.text(name)
        if self.cluster:
            words = f"one NVLink fabric joins these nodes, and its partitions keep them apart (clique): {where}"
            most = have.majority
            blamed = tuple(node for _, nodes in have.without(most) for node in nodes) if most is not None else ()
            # A warning: of two partitions somebody may have wanted each, and the network carries what NVLink does not.
            yield Finding(Status.FAIL, words, SUBJECT, None, "fabric_manager", "one clique", how=HOW, loss=MIGHT), blamed
        elif alone := [name(nodes[0]) for nodes in have.values.values() if len(nodes) == 1]:
            words = f"NVLink joins other nodes of this job, and not {listed(alone, 3)}: {where}"
            yield Finding(Status.UNKNOWN, f"{words}: another rack, or a node that did not register", SUBJECT, how=HOW), ()
        else:
            words = f"NVLink joins some of the nodes with each other, and the network the rest: {where}"
            yield Finding(Status.PASS, words, SUBJECT), ()


def _short(value: str) -> str:
    return "no fabric beyond the node" if value == NO_FABRIC else value[:8]


def divided(fabrics: Iterable[tuple[N, str]]) -> Iterator[Divided[N]]:
    """Of (node, ``CLUSTER/CLIQUE`` or `NO_FABRIC`).  Nothing where no two nodes are in one cluster: a job that NVLink joins
    nowhere lacks nothing of it."""
    cliques: dict[str, list[tuple[N, str]]] = {}
    clusters: list[tuple[N, str]] = []
    for node, fabric in fabrics:
        cluster, _, clique = fabric.partition("/")
        clusters.append((node, cluster))
        if fabric != NO_FABRIC:
            cliques.setdefault(cluster, []).append((node, clique))
    for cluster, members in sorted(cliques.items()):
        if len({clique for _, clique in members}) > 1:
            yield Divided(tuple(members), cluster)
    if len({cluster for _, cluster in clusters}) > 1 and any(len(members) > 1 for members in cliques.values()):
        yield Divided(tuple(clusters))
