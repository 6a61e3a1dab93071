"""NUMA nodes, their distances, and what this process may run on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, mapping, names, read
from netdoctor.model import Kind, Unavailable, record

MAX_CPUS: Final = 1 << 16  # more than any machine has: a list with more is rubbish
_NODES: Final = "/sys/devices/system/node"
_ISOLATED: Final = "/sys/devices/system/cpu/isolated"


@record
class Node:
    """One NUMA node.  Nodes without CPUs (GH200, GB200, CXL memory) have `cpus` empty."""

    id: int
    cpus: frozenset[int]
    distances: Mapping[int, int] | Unavailable  # SLIT distance to each node id


@record
class MemoryPolicy:
    """The memory policy that ranks inherit (numactl)."""

    mode: str  # "default" "preferred" "bind" "interleave" "local" …
    nodes: frozenset[int]


@record
class Cpu(Fact):
    """CPUs and memory nodes."""

    nodes: tuple[Node, ...] | Unavailable
    allowed: frozenset[int] | Unavailable  # Cpus_allowed_list of this process: cpusets of v1 and v2 included
    memory_allowed: frozenset[int] | Unavailable  # Mems_allowed_list
    online: frozenset[int] | Unavailable
    memory_policy: MemoryPolicy | Unavailable = Unavailable(Kind.NOT_READ)
    isolated: frozenset[int] | Unavailable = frozenset()  # by isolcpus: to these the scheduler moves no thread by itself


def probe(host: Host) -> Cpu:
    """NUMA nodes from sysfs, what this process may use from /proc/self/status."""
    status = read(host, "/proc/self/status")
    online = cpu_list(read(host, "/sys/devices/system/cpu/online"), "/sys/devices/system/cpu/online")
    return Cpu(
        _nodes(host, online),
        _mask(status, "Cpus_allowed_list"),
        _mask(status, "Mems_allowed_list"),
        online,
        _policy(host),
        cpu_list(read(host, _ISOLATED), _ISOLATED),
    )


def _policy(host: Host) -> MemoryPolicy | Unavailable:
    got = mapping(host, "ask:mempolicy")
    if isinstance(got, Unavailable):
        return got
    mode, nodes = got.get("mode"), got.get("nodes")
    if not isinstance(mode, str) or not isinstance(nodes, list) or not all(type(n) is int for n in nodes):
        return Unavailable(Kind.MALFORMED, "ask:mempolicy")
    return MemoryPolicy(mode, frozenset(nodes))


def cpu_list(text: str | Unavailable, what: str) -> frozenset[int] | Unavailable:
    """ "0-3,8" as numbers; the empty list of a node without CPUs is the empty set.

    Linux 5.15 ends some of these files with a zero byte (bitmap_print_to_buf counted the string's own; hwloc keeps such a
    tree, 128arm-2pa2n8cluster4co).
    """
    if isinstance(text, Unavailable):
        return text
    found: set[int] = set()
    text = text.rstrip("\0").strip()
    for part in text.split(",") if text else ():
        range_of = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if range_of is None:
            return Unavailable(Kind.MALFORMED, f"{what}: {text[:60]!r}")
        low, high = int(range_of.group(1)), int(range_of.group(2) or range_of.group(1))
        if not low <= high < MAX_CPUS:
            return Unavailable(Kind.MALFORMED, f"{what}: {text[:60]!r}")
        found.update(range(low, high + 1))
    return frozenset(found)


def _mask(status: str | Unavailable, name: str) -> frozenset[int] | Unavailable:
    if isinstance(status, Unavailable):
        return status
    line = re.search(rf"^{name}:[ \t]*(\S+)[ \t]*$", status, re.MULTILINE)
    if line is None:
        return Unavailable(Kind.MALFORMED, f"/proc/self/status has no {name}")
    return cpu_list(line.group(1), name)


def _nodes(host: Host, online: frozenset[int] | Unavailable) -> tuple[Node, ...] | Unavailable:
    listed = names(host, _NODES)
    if isinstance(listed, Unavailable):
        above = names(host, "/sys/devices/system") if listed.kind == Kind.ABSENT else listed
        if isinstance(above, Unavailable) or "cpu" not in above or isinstance(online, Unavailable):
            return listed
        return (Node(0, online, {0: 10}),)  # a kernel built without NUMA: one node, and it says so by having no such folder
    ids = sorted(int(name[4:]) for name in listed if re.fullmatch(r"node\d{1,5}", name, re.ASCII))
    if not ids:
        return Unavailable(Kind.EMPTY, f"{_NODES} shows no node")
    found: list[Node] = []
    for number in ids:
        cpus = cpu_list(read(host, f"{_NODES}/node{number}/cpulist"), f"node{number}/cpulist")
        if isinstance(cpus, Unavailable):
            return cpus
        if twice := {
            cpu for node in found for cpu in node.cpus & cpus
        }:  # firmware tables gone wrong: nobody can say where it is
            return Unavailable(Kind.MALFORMED, f"CPU {min(twice)} is in two nodes, one of them {number}")
        found.append(Node(number, cpus, _distances(host, number, ids)))
    if not isinstance(online, Unavailable) and (lost := online.difference(*(node.cpus for node in found))):
        return Unavailable(Kind.MALFORMED, f"CPU {min(lost)} is online and in no node")  # a cpulist that was cut off
    return tuple(found)


def _distances(host: Host, number: int, ids: list[int]) -> Mapping[int, int] | Unavailable:
    """One number per online node, in their order (Documentation/ABI/stable/sysfs-devices-node)."""
    text = read(host, f"{_NODES}/node{number}/distance")
    if isinstance(text, Unavailable):
        return text
    values = text.split()
    if len(values) != len(ids) or not all(re.fullmatch(r"\d{1,3}", v, re.ASCII) for v in values):
        return Unavailable(Kind.MALFORMED, f"node{number}/distance: {text[:60]!r}")
    return dict(zip(ids, map(int, values), strict=True))
