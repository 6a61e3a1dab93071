"""What hwloc's `lstopo` says about a machine: its NUMA nodes and PCI functions, from its text for people or its XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Function:
    """One PCI function; `path` are the bridges above it, from the root."""

    id: str  # "15b3:1013"
    klass: str  # "0207"
    path: tuple[str, ...]
    gigabytes: float | None  # of its link, per second and direction, as it runs now


@dataclass
class Machine:
    nodes: dict[int, frozenset[int]] = field(default_factory=dict)  # CPUs by NUMA node, numbers of the system
    functions: dict[str, Function] = field(default_factory=dict)  # by address


def parse(text: str) -> Machine:
    """Either format.  A machine in which hwloc met no NUMA information has one node, 0, of its own making."""
    return _xml(text) if text.startswith("<?xml") else _text(text)


_PCI = re.compile(r"PCI(Bridge)? L#\d+ \(busid=(\S+) id=(\S+) class=([0-9a-f]{4})\S*(?: link=([\d.]+)GB/s)?")


def _text(text: str) -> Machine:
    """By indentation: a NUMA node hangs beside the CPUs that are nearest to it, below their common parent."""
    out = Machine()
    lines = text.splitlines()
    caches = {number for number, line in enumerate(lines) if "MemCache L#" in line}
    above: list[tuple[int, int]] = []  # (indentation, number of the line) of the objects that the current one is in
    cpus_in: dict[int, set[int]] = {}
    node_in: dict[int, int] = {}
    bridges: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        while above and above[-1][0] >= depth:
            above.pop()
        while bridges and bridges[-1][0] >= depth:
            bridges.pop()
        if found := re.search(r"\bPU L#\d+ \(P#(\d+)", line):
            for _, place in above:
                cpus_in.setdefault(place, set()).add(int(found.group(1)))
        elif (found := re.search(r"\bNUMANode(?:\(\w+\))? L#\d+ \(P#(\d+)", line)) and above:
            # A node behind a memory-side cache: the cache holds no CPUs.
            node_in[int(found.group(1))] = next((p for _, p in reversed(above) if p not in caches), above[0][1])
        elif found := _PCI.search(line):
            bridge, address, ids, klass, link = found.groups()
            if bridge:
                bridges.append((depth, address))
            else:
                out.functions[address] = Function(ids, klass, tuple(b for _, b in bridges), float(link) if link else None)
        above.append((depth, number))
    out.nodes = {node: frozenset(cpus_in.get(place, ())) for node, place in node_in.items()}
    return out


def _xml(text: str) -> Machine:
    out = Machine()
    for one in ET.fromstring(text).iter("object"):
        if one.get("type") == "NUMANode":
            out.nodes[int(one.get("os_index", "0"))] = _bits(one.get("cpuset") or "")
    for one, path in _walk(ET.fromstring(text), ()):
        ids, klass = _ids(one)
        out.functions[one.get("pci_busid", "")] = Function(ids, klass, path, float(one.get("pci_link_speed", "0")) or None)
    return out


def _walk(holder: ET.Element, path: tuple[str, ...]) -> Iterator[tuple[ET.Element, tuple[str, ...]]]:
    for one in holder:
        kind, address = one.get("type"), one.get("pci_busid")
        if kind == "PCIDev":
            yield one, path
        yield from _walk(one, (*path, address) if kind == "Bridge" and address else path)


def _ids(one: ET.Element) -> tuple[str, str]:
    """ "0207 [15b3:1011] [15b3:0179] 00"."""
    klass, ids = (one.get("pci_type") or "").split()[:2]
    return ids.strip("[]"), klass


def _bits(mask: str) -> frozenset[int]:
    """ "0x000000ff,0xffffffff": words of 32 bits, the highest first."""
    value = 0
    for word in mask.split(","):
        value = value << 32 | int(word or "0", 16)
    return frozenset(n for n in range(value.bit_length()) if value >> n & 1)
