"""What speaks against the newest report of a node, though it says healthy: itself, its older ones, files that were lost."""

from __future__ import annotations

from itertools import pairwise

from netdoctor.fleet.machines import CLOCK_SKEW, age
from netdoctor.fleet.nodes import Node, NodeRun, ProblemKind
from netdoctor.model import Health, Status
from netdoctor.textsafe import listed

_TELLS = frozenset("psf")  # letters of a check that could tell


def to_and_fro(newest: NodeRun, older: tuple[NodeRun, ...]) -> bool:
    """Bad, then good is a repair; good, bad, good is not, nor are two verdicts at the same moment."""
    verdicts = [(r.verdict, age(r)[0]) for r in (newest, *older) if r.verdict is not Health.INCONCLUSIVE]
    changes = [(a, b) for a, b in pairwise(verdicts) if a[0] != b[0]]
    return len(changes) > 1 or any(a[1] == b[1] for a, b in changes)


def doubts(node: Node) -> list[str]:
    """Why it is not known to be good."""
    run = node.run
    if run is None:
        return []
    return [*([run.doubt] if run.doubt else []), *_lost(node, run), *_open(run, node.older), *_order(run, node.older)]


def _lost(node: Node, run: NodeRun) -> list[str]:
    """A report that could not be read and may be newer than the one that counts."""
    newer = [p for p in node.lost if p.kind is not ProblemKind.NOT_OURS and (p.modified is None or p.modified >= run.modified)]
    return [f"a newer report of it could not be used: {listed([p.file for p in newer], 3)}"] if newer else []


def _open(run: NodeRun, older: tuple[NodeRun, ...]) -> list[str]:
    """What failed, and no newer report could tell: one that did not try the all-reduce settles nothing about it."""
    settled: set[str] = set()
    words = []
    for one, newer in zip((*older, None), (run, *older), strict=True):
        settled |= {name for name, letter in zip(newer.checks, newer.statuses, strict=True) if letter in _TELLS}
        if one is None or one.verdict is not Health.UNHEALTHY:
            continue
        failed = {i.check for i in one.items if i.status is Status.FAIL and i.blocking and not i.waived}
        if left := sorted(failed - settled):
            settled |= failed
            words.append(f"{listed(left, 4)} failed in {one.file}, and no newer report could tell")
    return words


def _order(run: NodeRun, older: tuple[NodeRun, ...]) -> list[str]:
    """A worse report that is older by its clock, and was written later: the clock may have been wrong (lost at a start)."""
    late = [r for r in older if r.verdict is not Health.HEALTHY and r.modified > run.modified + CLOCK_SKEW]
    return [
        f"{r.file} ({r.verdict}) is older by its clock, but was written later: which is newer is not known" for r in late[:1]
    ]
