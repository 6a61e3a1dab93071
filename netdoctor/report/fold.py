"""A node's report folded: what is wrong in blocks of one cause and one mend, what is right by area, runs of one kind together.

Nothing is left out that a verdict rests on: `--verbose` prints a line a check, JSON all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from netdoctor.model import CheckResult, Finding, Health, Report, Status, count, size_text
from netdoctor.policy import no_accelerator
from netdoctor.report.blocks import by_area, wrong
from netdoctor.report.values import WRONG, fails, points, runs, shown, spoken
from netdoctor.textsafe import clean, listed

TOLD: Final = frozenset({"not started", "unfinished"})  # facts.runs.State: allreduce.run's message has their reason
_FEW: Final = 3  # of things that are told with their words
GLUE: Final = "\u00a0"  # a blank where no line is broken
# What a machine without GPUs can show, by the checks that look at it.
_PARTS: Final = {
    "the network": "net.",
    "limits": "process.",
    "variables": "nccl.environment",
    "the node's state": "node.",
}


def right(checks: Sequence[CheckResult]) -> Iterator[tuple[Status, str, str]]:
    """(status, who, what): of a few passes the words, of a few skips the reasons; of more than a few of either the names,
    and the reason that several skips share."""
    passed = [check for check in checks if check.status is Status.PASS]
    areas = [(area, list(group)) for area, group in groupby(passed, key=lambda check: check.id.partition(".")[0])]
    if len(passed) > _FEW:
        yield Status.PASS, "", "; ".join(_names(area, some) for area, some in areas)
        areas = []
    for area, some in areas:
        if len(some) == 1:
            yield Status.PASS, clean(some[0].id), _said(some[0]) + _more(some[0])
        else:
            yield Status.PASS, clean(area), _members(some)
    skipped: dict[str, list[str]] = {}
    for check in checks:
        if check.status is Status.SKIP:
            skipped.setdefault(_said(check), []).append(clean(check.id))
    alone = [ids[0] for ids in skipped.values() if len(ids) == 1] if len(skipped) > _FEW else []
    for reason, ids in skipped.items():
        if ids[0] not in alone:
            yield Status.SKIP, ", ".join(ids), reason
    if alone:
        yield Status.SKIP, by_area(alone), "each for its own reason (-v)"


def _names(area: str, passed: list[CheckResult]) -> str:
    """Of an area what passed; a lone one by its whole name."""
    return f"{clean(area)}: {_members(passed)}" if len(passed) > 1 else f"{clean(passed[0].id)}{_times(passed[0])}"


def _members(passed: list[CheckResult]) -> str:
    return ", ".join(f"{clean(check.id.partition('.')[2])}{_times(check)}" for check in passed)


def _said(check: CheckResult) -> str:
    first = next((f for f in check.findings if f.status is check.status), None)
    return "the check said nothing" if first is None else spoken(first)


def _passed(check: CheckResult) -> int:
    """Of how many of its subjects it says that they are right; the others of a pass do not apply."""
    return sum(f.status is Status.PASS for f in check.findings)


def _times(check: CheckResult) -> str:
    return f"{GLUE}({n})" if (n := _passed(check)) > 1 else ""


def _more(check: CheckResult) -> str:
    return f" (and {n - 1} more)" if (n := _passed(check)) > 1 else ""


def notes(checks: Iterable[CheckResult]) -> Iterator[str]:
    """What is said beside a pass or a skip."""
    for check in checks:
        for note in dict.fromkeys(n for f in check.findings if f.status not in WRONG for n in f.notes):
            yield f"{clean(check.id)}: {clean(note)}"


def scope(report: Report) -> Iterator[str]:
    """Of a machine without any accelerator: what this look at it shows, and what it does not."""
    if not any(map(no_accelerator, report.checks)):
        return
    shows, nothing = [], ["GPUs", "RDMA", "NCCL"]
    for what, start in _PARTS.items():
        some = [f.status for check in report.checks if check.id.startswith(start) for f in check.findings]
        if judged := [status for status in some if status in (Status.PASS, Status.FAIL)]:
            shows.append(f"{what}{' in part' if len(judged) + some.count(Status.SKIP) < len(some) else ''}")
        elif some:
            nothing.append(what)
    if any(run.get("state") == "finished" and run.get("backend") == "gloo" for run in report.runs):
        shows.append("an all-reduce by Gloo on the CPU")
    yield f"no GPU here: this run shows {_all_of(shows, 'and')}{'; ' if shows else ''}nothing of {_all_of(nothing, 'or')}"


def _all_of(names: Sequence[str], last: str) -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)


class Step(NamedTuple):
    """What to do first, in words, and the command that does it; "" where there is none, or the words have it."""

    words: str
    command: str = ""
    of: Finding | None = None  # whose mend it is

    @property
    def text(self) -> str:
        return f"{self.words}: {self.command}" if self.command else self.words


def first_step(report: Report) -> Step | None:
    """Of the worst fails the mend with its first command, else what leads to one; of what could not be told how it can."""
    failed = fails(report.checks)
    for _, group in groupby(failed, key=lambda f: f.severity):
        alike = list(group)
        if (worst := next((f for f in alike if f.fix is not None), None)) and worst.fix is not None:
            # One cause is often found by several checks: what can be copied comes before what has to be thought out.
            same = (f for f in alike if f.fix and f.fix.commands and f.cause == worst.cause)
            finding = worst if worst.fix.commands else next(same, worst)
            assert finding.fix is not None
            fix = next((b.fix for b in wrong(report.checks) if b.fix and finding in b.findings), finding.fix)  # for all of them
            command = next((line for line in (*fix.commands, *fix.persistent) if line.strip()), "")
            said = clean(fix.summary)
            return Step(f"first: {said}", "" if clean(command) in said else clean(command), finding)
        if found := next((f for f in alike if f.how), None):
            return Step(f"first: {clean(found.how or '')}", of=found)
    asked = [] if failed else [f for c in report.checks for f in c.findings if f.status is Status.UNKNOWN and f.how]
    if report.verdict.status is not Health.INCONCLUSIVE:  # all is well but that a run which was to be did not come to be
        asked = [f for f in asked if f.check == "allreduce.run" and any(run.get("state") in TOLD for run in report.runs)]
    asked = [f for f in asked if f.blocking] or asked
    ways = Counter(_settled_by(f, asked) for f in asked)  # the one that most of them share
    return Step(f"first: {clean(ways.most_common(1)[0][0])}") if ways else None


def _settled_by(finding: Finding, asked: Sequence[Finding]) -> str:
    """The way to find out; of "see CHECK", where that one could not tell either, its way, which settles both."""
    how = finding.how or ""
    return next((f.how for f in asked if f.how and f.check != finding.check and f"see {f.check}" in how), how)


def ran(report: Report) -> Iterator[str]:
    """The all-reduces: those that went alike on one line, with the slowest's figure."""
    lines: dict[str, list[tuple[str, str, float]]] = {}
    shared = False
    for run, figure in runs(report):
        head, path, size, speed = _run(run, figure)
        shared |= _shares(run, report.inventory.get("gpus"))
        lines.setdefault(f"{head}|{size}", []).append((path, size, speed))
    for key, group in lines.items():
        head, _, size = key.rpartition("|")
        times = Counter(path for path, _, _ in group if path)
        paths = [path if n == 1 else f"{path} ({count(n, 'run')})" for path, n in times.items()]
        where = f", {listed(paths, 2) if len(paths) < 3 else f'{len(paths)} paths between nodes'}" if paths else ""
        speeds = [speed for _, _, speed in group if speed]
        least = f", {shown(min(speeds))} GB/s bus bandwidth at {size}" if speeds else ""
        slowest = next((path for path, _, speed in group if speed == min(speeds)), "") if speeds else ""
        spread = f" ({slowest} the slowest)" if len(paths) > 2 and max(speeds, default=0) > 1.1 * min(speeds, default=0) else ""
        turns = " (its ranks take turns on a GPU: no measure of it)" if least and shared else ""
        yield head.replace("@", where, 1) + least + spread + turns


def _shares(run: Mapping[str, Any], gpus: object) -> bool:
    """Whether the run had more ranks than there are GPUs."""
    return run.get("device") == "cuda" and isinstance(gpus, list | tuple) and 0 < len(gpus) < int(run.get("ranks") or 0)


def _run(run: Mapping[str, Any], figure: Mapping[str, Any]) -> tuple[str, str, str, float]:
    """(what is alike, with an @ for the path; the path; largest size; its bus bandwidth)."""
    backend = {"nccl": "NCCL", "gloo": "Gloo"}.get(str(run.get("backend")), str(run.get("backend")))
    alone = " without torch" if run.get("via") == "nccl" else ""
    path = "" if run.get("path") in (None, "default") else clean(str(run.get("path")))
    head = (
        f"all-reduce: {backend}{alone}, {count(int(run.get('ranks') or 0), 'rank')} on {run.get('device')}@: {run.get('state')}"
    )
    if run.get("verified") is not None:
        head += ", data right" if run["verified"] else ", DATA WRONG"
    reason = figure.get("reason")
    if isinstance(reason, str) and reason and run.get("state") not in TOLD:
        head += f" ({reason})"
    size, speed = next(iter(points(figure.get("busbw_gb_s"))[-1:]), (0, 0.0))
    return clean(head), path, size_text(size) if size else "", speed
