"""NUMA nodes, their distances, and what this process may run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class Node:
    """One NUMA node.  Nodes without CPUs (GH200, GB200, CXL memory) have `cpus` empty."""

    id: int
    cpus: frozenset[int]
    distances: Mapping[int, int] | Unavailable  # SLIT distance to each node id


@dataclass(frozen=True)
class Cpu:
    """CPUs and memory nodes."""

    nodes: tuple[Node, ...] | Unavailable
    allowed: frozenset[int] | Unavailable  # Cpus_allowed_list of this process: cpusets of v1 and v2 included
    memory_allowed: frozenset[int] | Unavailable  # Mems_allowed_list
    online: frozenset[int] | Unavailable

    def node_of(self, cpu: int) -> Node | None:
        nodes = () if isinstance(self.nodes, Unavailable) else self.nodes
        return next((n for n in nodes if cpu in n.cpus), None)
