"""Trees of others (tests/support/machines/collected.py) through import and diagnosis: no crash, no verdict for what nobody
looked at, and the same NUMA nodes and PCI functions as in hwloc's own expected output.

All of them: ``python -m tests.lab.trees``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.facts.pci import PciDevice
from netdoctor.model import Finding, Unavailable
from netdoctor.snapshot.import_tree import import_tree
from netdoctor.snapshot.snapshot import Snapshot, dumps, loads
from tests.lab import fixtures
from tests.support.machines import collected, lstopo

RIGHT: Final = frozenset({"unknown", "hardware unknown", "hardware pass", "hardware skip"})


@dataclass(frozen=True)
class Seen:
    """What came of one tree."""

    statuses: Counter[str]
    differs: tuple[str, ...]  # where hwloc says something else
    compared: Counter[str]  # NUMA nodes and PCI functions that both know


def imported(tree: collected.Tree) -> Snapshot:
    """As `netdoctor snapshot --import-tree` writes it and `netdoctor diagnose` reads it."""
    with tree.unpacked() as root:
        taken = import_tree(str(root), Config().as_answer(), fixtures.specs(), setup.policy_data(Config()), "test")
    return loads(dumps(taken))


def look(tree: collected.Tree) -> Seen:
    taken = imported(tree)
    statuses = Counter(_kind(f) for f in fixtures.report(taken).findings())
    if tree.expected is None:
        return Seen(statuses, (), Counter())
    theirs = lstopo.parse(tree.expected.read_text(encoding="utf-8"))
    have = fixtures.facts_of(taken)
    compared: Counter[str] = Counter()
    name, copied = tree.name.rpartition("/")[2], taken.answers.get("dir:/sys/bus/pci/devices")
    differs = (*_nodes(have["Cpu"], theirs, name, compared), *_functions(have["Pci"], theirs, copied, compared))
    return Seen(statuses, differs, compared)


def _kind(found: Finding) -> str:
    """The hardware is judged by the files, and the configuration names no folder; of all else nobody looked."""
    seen = found.check.startswith(("hardware.", "node.folders"))
    return f"hardware {found.status.value}" if seen else found.status.value


# Where lstopo's output is not about the machine as sysfs has it.
RESTRICTED: Final = {  # it shows what the recorder's cgroup was allowed
    "16amd64-4n4c-cgroup-distance-merge": "cgroup",
    "16amd64-8n2c-cpusets": "cpuset",
    "32amd64-4s2n4c-cgroup2": "cgroup",
}
ANOTHER: Final = {
    "4em64t-2c2t-ignore-reorder": "it was told to leave out levels",
}


def _nodes(cpu: Any, theirs: lstopo.Machine, name: str, compared: Counter[str]) -> Iterator[str]:
    """lstopo leaves out CPUs that are offline, and gives a node without CPUs those of its neighbours."""
    if isinstance(cpu.nodes, Unavailable) or name in ANOTHER:
        return
    online = None if isinstance(cpu.online, Unavailable) else cpu.online
    ours = {node.id: node.cpus if online is None else node.cpus & online for node in cpu.nodes}
    for number in sorted(ours.keys() | theirs.nodes.keys()):
        mine, other = ours.get(number), theirs.nodes.get(number)
        compared["NUMA nodes"] += 1
        if mine is None or not (mine == other or not mine or (name in RESTRICTED and (other or frozenset()) <= mine)):
            yield f"node {number}: {_list(mine)}, hwloc {_list(other)}"


def _list(cpus: frozenset[int] | None) -> str:
    return "none" if cpus is None else ",".join(map(str, sorted(cpus)))


def _functions(pci: Any, theirs: lstopo.Machine, copied: Any, compared: Counter[str]) -> Iterator[str]:
    """A bridge that is not among the copied folders is known from links alone; lstopo leaves it out."""
    if isinstance(pci.devices, Unavailable):
        return
    for one in pci.devices:
        other = theirs.functions.get(one.address)
        if other is None:  # a bridge, or a function that lstopo leaves out
            continue
        compared["PCI functions"] += 1
        path = tuple(step for step in one.path if step in copied)
        mine = (f"{one.vendor:04x}:{one.device:04x}", f"{one.klass >> 8:04x}", path)
        if mine != (other.id, other.klass, other.path):
            yield f"{one.address}: {mine}, hwloc {other}"
        speed = _gigabytes(one)
        if speed and other.gigabytes:
            compared["links"] += 1
            if abs(speed / other.gigabytes - 1) > 0.02:  # lstopo rounds to two digits after the point
                yield f"{one.address}: {speed:.2f} GB/s, hwloc {other.gigabytes}"
    wanted = {a for a, f in theirs.functions.items() if f.klass[:2] in ("02", "03", "12")}
    yield from (f"{a}: not seen, hwloc {theirs.functions[a]}" for a in sorted(wanted - {d.address for d in pci.devices}))


def _gigabytes(one: PciDevice) -> float | None:
    """Of the link as it runs: 8b/10b up to 5 GT/s, 128b/130b above (PCI Express Base Specification 3.0, 4.2)."""
    if isinstance(one.link, Unavailable):
        return None
    return one.link.speed * one.link.width / 8 * (0.8 if one.link.speed <= 5 else 128 / 130)


def main() -> int:
    """All trees; fetches them where they are not there."""
    if not collected.every():
        done = subprocess.run(
            ["sh", "tests/support/machines/fetch_trees.sh"], cwd=fixtures.ROOT, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode or not collected.every():
            print(f"trees: not run: {collected.MISSING}; that ended with {done.returncode}")
            return 0
    begin, statuses, compared, bad = time.monotonic(), Counter[str](), Counter[str](), 0
    for tree in collected.every():
        seen = look(tree)
        statuses += seen.statuses
        compared += seen.compared
        wrong = set(seen.statuses) - RIGHT or seen.differs
        bad += bool(wrong)
        print(f"{'BAD ' if wrong else 'ok  '}{tree.name}: {dict(seen.statuses)} {dict(seen.compared)}", flush=True)
        for line in seen.differs:
            print(f"       {line}")
    print(
        f"trees: {len(collected.every())} machines, findings {dict(statuses)}, compared with hwloc {dict(compared)}, "
        f"{bad} with something wrong, {time.monotonic() - begin:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
