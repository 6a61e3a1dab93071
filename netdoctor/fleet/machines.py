"""Which reports are of one machine: several of one name may be of one node, or of machines that share the name.

What shows it, the strongest first: GPUs (their UUIDs are the cards' own); the name, where the cluster gave it (a pod's
NODE_NAME: pods of one node see different GPUs); the machine id.  The last alone is weak: a node without a disk or one that was
installed anew has another one, and images are cloned with theirs (machine-id(5)).  But an id that comes back after another one,
or within a minute of it, is of a second machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Final

from netdoctor.fleet.nodes import Node, NodeRun

ANEW: Final = 60.0  # seconds that no installation ends within: reports so close are not from before and after one
STALE: Final = 7 * 86400.0  # a report this much older than the newest one is of another week
CLOCK_SKEW: Final = 300.0  # seconds; Kerberos' usual bound: beyond it clocks are not synchronised (RFC 4120, 5 minutes)


def by_machine(runs: Iterable[NodeRun]) -> list[Node]:
    """One node per machine; where several share a name each gets its pod's name or a number."""
    by_host: dict[str, list[NodeRun]] = defaultdict(list)
    for run in runs:
        by_host[run.host].append(run)
    _with_full_names(by_host)
    nodes = []
    for host, having in by_host.items():
        machines = _machines(having)
        pods = all(run.pod for run in having)
        for number, several in enumerate(machines, 1):
            newest, *older = sorted(several, key=age, reverse=True)
            name = f"{host} (pod {newest.pod})" if pods else f"{host} (machine {number})"
            nodes.append(Node(host if len(machines) == 1 else name, run=newest, older=tuple(older)))
    return nodes


def _with_full_names(by_host: dict[str, list[NodeRun]]) -> None:
    """Reports under `n1` go to those under `n1.cluster` where the machine is the same: it got a domain in between."""
    full: dict[str, list[str]] = defaultdict(list)
    for host in by_host:
        if "." in host:
            full[host.partition(".")[0]].append(host)
    for short, names in full.items():
        known = {run.installation for run in by_host.get(short, ())} - {None}
        if len(names) == 1 and known & {run.installation for run in by_host[names[0]]}:
            by_host[names[0]] += by_host.pop(short)


def _machines(runs: list[NodeRun]) -> list[list[NodeRun]]:
    """Runs by machine: those that share a GPU are one; those that show none by what else there is."""
    owner: dict[str, int] = {}  # which machine a GPU was seen in
    machines: dict[int, list[NodeRun]] = {}
    unnamed = []
    for number, run in enumerate(sorted(runs, key=lambda r: r.file)):
        if not run.ids:
            unnamed.append(run)
            continue
        same = sorted({owner[one] for one in run.ids if one in owner})
        machine = same[0] if same else number
        machines.setdefault(machine, []).append(run)
        for other in same[1:]:  # this report shows that they are one
            machines[machine] += machines.pop(other)
        owner.update((one, machine) for r in (machines[machine] if len(same) > 1 else [run]) for one in r.ids)
    out = list(machines.values())
    if len(out) == 1:
        out[0] += unnamed
        return out
    rest: list[NodeRun] = []
    for run in unnamed:
        having = [one for one in out if run.machine and any(r.machine == run.machine for r in one)]
        (having[0] if len(having) == 1 else rest).append(run)
    return [*out, *(_alternating(rest) if rest else ())]


def _alternating(runs: list[NodeRun]) -> list[list[NodeRun]]:
    """One machine, unless a machine id comes back after another one, or follows it at once."""
    known = sorted((run for run in runs if run.machine), key=age)
    turns = [one for one, _ in groupby(known, key=lambda r: r.machine)]
    if len(turns) == len(set(turns)) and not any(_at_once(a, b) for a, b in pairwise(known)):
        return [runs]
    by_id: dict[str, list[NodeRun]] = defaultdict(list)
    for run in runs:
        by_id[run.machine or turns[-1]].append(run)
    return list(by_id.values())


def _at_once(one: NodeRun, other: NodeRun) -> bool:
    timed = one.time is not None and other.time is not None
    return timed and one.machine != other.machine and abs(age(one)[0] - age(other)[0]) < ANEW


def age(run: NodeRun) -> tuple[float, float, str]:
    """Newer is greater.  A clock that runs ahead of the file's time is not believed."""
    when = run.modified if run.time is None or run.skewed > CLOCK_SKEW else run.time
    return when, run.modified, run.file


def timed(nodes: Iterable[Node]) -> tuple[list[tuple[float, Node]], list[tuple[float, Node]]]:
    """When each was looked at, the oldest first; and those whose time nothing bears out: one that is alone a week after the
    others, which agree, where its file is not (copies get the time of the copy).

    Its clock is ahead, or it alone was reached.
    """
    every = [(n.run.time, n.run.modified, n) for n in nodes if n.run and n.run.time is not None and n.run.skewed <= CLOCK_SKEW]
    every.sort(key=lambda one: one[:2])
    alone = 0
    while alone + 2 < len(every) and _nothing_bears_out(every[: len(every) - alone]):
        alone += 1
    agree = len(every) - alone
    if alone and every[agree - 1][0] - every[agree - 2][0] > STALE:
        agree = len(every)
    known = [(time, node) for time, _, node in every]
    return known[:agree], known[agree:]


def _nothing_bears_out(every: Sequence[tuple[float, float, Node]]) -> bool:
    """The time of the last of these."""
    (time, written, _), others = every[-1], every[:-1]
    return time - others[-1][0] > STALE and written - max(modified for _, modified, _ in others) <= STALE


def newest_of_others(run: NodeRun, older: tuple[NodeRun, ...]) -> list[NodeRun]:
    """The newest report from each other vantage: what a pod saw does not settle what was seen from the host."""
    first: dict[str, NodeRun] = {}
    for one in older:  # the newest first
        if one.shape.vantage != run.shape.vantage:
            first.setdefault(one.shape.vantage, one)
    return list(first.values())


def unique(nodes: list[Node]) -> None:
    """A name stands for one node, also where a node calls itself like one that was numbered here."""
    taken: set[str] = set()
    for node in nodes:
        name, number = node.name, 2
        while node.name in taken:
            node.name, number = f"{name} #{number}", number + 1
        taken.add(node.name)
