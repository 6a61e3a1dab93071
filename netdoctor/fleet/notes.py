"""What is worth a word of many reports, and blames nobody."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from netdoctor.compare.traits import Family, Marker
from netdoctor.fleet.groups import Group
from netdoctor.fleet.machines import STALE, timed
from netdoctor.fleet.nodes import Node
from netdoctor.fleet.outliers import METRICS, Distribution
from netdoctor.model import count
from netdoctor.textsafe import listed


def _old(nodes: Sequence[Node], now: float | None) -> Iterator[str]:
    newest = max((time for time, _ in timed(nodes)[0]), default=0.0)
    if newest and now is not None and newest < now - STALE:
        yield f"the newest report is {(now - newest) / 86400:.0f} days old: what is said here was so then"


def _one_id(nodes: Sequence[Node]) -> Iterator[str]:
    """No fault by itself: images are cloned with their id (machine-id(5))."""
    by_id: dict[str, dict[str, None]] = defaultdict(dict)
    for node in nodes:
        if node.run and node.run.machine:
            by_id[node.run.machine][node.run.host] = None
    for names in by_id.values():
        if len(names) > 1:
            several = f"{len(names)} host names: {listed([*names], 4)}"
            yield f"one machine id (of a cloned image, or one machine that answered twice) under {several}"


def _misnamed(nodes: Sequence[Node]) -> Iterator[str]:
    """Files are named as anybody likes; where most are named for the host inside, the others may have been mixed up."""
    files = [run for node in nodes if node.run for run in (node.run, *node.older)]
    others = [run for run in files if not any(_names(run.file, name) for name in (run.host, run.pod) if name)]
    if others and len(others) < len(files) / 2:
        told = listed([f"{run.file} ({run.host})" for run in others], 4)
        yield f"{count(len(others), 'file')} not named for the host inside, as most are: {told}"


def _names(file: str, host: str) -> bool:
    stem, head = file.rpartition("/")[2].casefold(), host.casefold().partition(".")[0]
    before, found, after = stem.partition(head or stem)
    return not head or (bool(found) and not before[-1:].isalnum() and not after[:1].isalnum())


def of(nodes: Sequence[Node], groups: Sequence[Group], figures: Sequence[Distribution], now: float | None) -> list[str]:
    """`now` is what the age of the newest report is held against; None: nothing is said of it."""
    notes = []
    extra = [n.name for n in nodes if n.expected is False]
    if extra:
        notes.append(f"{count(len(extra), 'node')} not on the list of expected nodes: {listed(extra)}")
    single = [f"{g.members[0].name} ({g.name})" for g in groups if len(g.members) == 1]
    if single:
        kind = "its kind" if len(single) == 1 else "their kinds"
        notes.append(f"alone of {kind}, so compared with nobody: {listed(single, 4)}")
    blind = sum(n.run is not None and n.run.shape.gpus is None for n in nodes)
    if blind:
        notes.append(f"the GPUs of {count(blind, 'node')} could not be read")
    versions: dict[str, list[str]] = defaultdict(list)
    for one in groups:
        told = (n.run.traits.of(Family.NCCL) for n in one.members if n.run)
        have = Counter(version for version in told if version and not isinstance(version, Marker))
        if have:
            versions[have.most_common(1)[0][0]].append(one.name)
    if len(versions) > 1:
        notes.append(
            "kinds have different NCCL versions, a job across them is refused: "
            + "; ".join(f"{v} ({listed(g, 2)})" for v, g in sorted(versions.items()))
        )
    notes += [*_old(nodes, now), *_one_id(nodes), *_misnamed(nodes)]
    for dist in figures:
        good = dist.median / dist.best if METRICS[dist.metric].more_is_better else dist.best / dist.median
        if dist.judged and dist.metric == "busbw" and good < 0.8:
            name = groups[dist.group].name
            notes.append(f"{name}: half of the nodes reach at most {good:.0%} of the best bus bandwidth")
    return notes
