"""A node's report folded: what is wrong in blocks of one cause and one mend, what is right by area, runs of one kind together.

Nothing is left out that a verdict rests on: `--verbose` prints a line a check, JSON all of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from netdoctor.model import NODE, CheckResult, Finding, Health, Report, Status, count, plain, size_text
from netdoctor.policy import no_accelerator
from netdoctor.report.values import MOST_NAMES, WRONG, Row, fails, points, rest, rows, runs, shown
from netdoctor.textsafe import clean, listed

_ORDER: Final = (Status.FAIL, Status.ERROR, Status.UNKNOWN)


TOLD: Final = frozenset({"not started", "unfinished"})  # facts.runs.State: allreduce.run's message has their reason
_FEW: Final = 3  # of things that are told with their words
GLUE: Final = "\u00a0"  # a blank where no line is broken
_SAID: Final = 5  # reasons of checks that have one answer
# Of findings that have one mend: what each may say otherwise.  Evidence and figures are told of a check alone.
_OWN: Final = ("expected", "why", "cost", "mend", "", "to last", "note")
# What a machine without GPUs can show, by the checks that look at it.
_PARTS: Final = {
    "the network": "net.",
    "limits": "process.",
    "variables": "nccl.environment",
    "the node's state": "node.",
}
_GROUNDS: Final = ("expected", "evidence", "why", "measured", "cost")
# How an unknown says why: "WHAT could not be read: WHY".
_READ: Final = "could not be (?:read|told|asked)|w(?:as|ere) not (?:seen|tried|done in time)"
_LOST: Final = rf"{_READ}|did not (?:start|finish)|was run|is not known"
_WHY: Final = re.compile(rf"(?P<what>.+?) (?P<lost>{_LOST}): (?P<why>.+)")


class Block(NamedTuple):
    """Findings that have one answer."""

    findings: tuple[Finding, ...]
    every: tuple[Finding, ...]  # of the check; (): they are of several checks
    parts: tuple[Block, ...] = ()  # what could not be told beside a fail: a part for each reason

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(clean(finding.check) for finding in self.findings))

    @property
    def each(self) -> tuple[str, ...]:
        """What the checks say, where that differs and is little: those of one reason together."""
        if self.parts:
            return tuple(line for part in self.parts for line in part.lines)
        by_reason: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_reason.setdefault(_reason(finding) or finding.message, []).append(finding)
        several = len(self.checks) > 1
        said = tuple(
            (f"{', '.join(dict.fromkeys(clean(f.check) for f in some))}: " if several else "")
            + (spoken(some[0]) if len(some) == 1 else clean(reason))
            for reason, some in by_reason.items()
        )
        apart = several or len({(f.cause, f.why) for f in self.findings}) > 1
        return said if apart and 1 < len(said) <= _SAID else ()

    @property
    def text(self) -> str:
        """Who it is about, and what is said of them."""
        if self.parts:
            return f"{count(len(self.checks), 'check')} could not tell either: mend what fails, then look again"
        whole = any(f.subject == NODE for f in self.findings)
        subjects = [] if whole else list(dict.fromkeys(clean(f.subject) for f in self.findings))
        messages = list(dict.fromkeys(clean(f.message) for f in self.findings))
        said = messages[0] if len(messages) == 1 else f"{messages[0]}; and {len(messages) - 1} alike"
        if len(messages) > 1 and (reason := self._reason):
            said = f"{listed(self._lost, _FEW)}: {reason}"
        if len(self.checks) > 1:
            alike = "have one mend" if self.first.status is Status.FAIL else "could not tell"
            every = f"{len(self.checks)} checks {alike}: {', '.join(self.checks)}"
            return said if len(messages) == 1 else f"{every}: {self._reason}" if self._reason and not self.each else every
        if self.each:
            said = f"{len(messages)} faults have one mend"
        many = f" ({len(self.findings)} of {len(self.every)}{self._others})" if len(self.every) > 1 else ""
        if len(subjects) == 1 and not many and said.startswith(subjects[0]):
            return said
        said = said.removeprefix(f"{subjects[0]}: ") if len(subjects) == 1 else said
        return f"{listed(subjects, MOST_NAMES)}{many}: {said}" if subjects else said

    @property
    def lines(self) -> tuple[str, ...]:
        """It as a part of another."""
        names = ", ".join(self.checks)
        several = len(self.checks) > 1
        if self.each:
            return self.each if several else tuple(f"{names}: {line}" for line in self.each)
        alike = len({f.message for f in self.findings}) == 1
        said = self._reason or (clean(self.first.message) if alike else "") if several else self.text
        return (f"{names}: {said}" if said else names,)

    @property
    def hows(self) -> tuple[str, ...]:
        """The ways to find out, each once."""
        return tuple(dict.fromkeys(clean(f.how) for f in self.findings if f.how))

    @property
    def _others(self) -> str:
        """What the check says of its other subjects: ``; 1 unknown, 2 pass``."""
        words = [f.status.value for f in self.every if f not in self.findings]
        return "; " + ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) if words else ""

    @property
    def _reason(self) -> str:
        """Why none of them could tell, where it is the same; else ""."""
        reasons = {_reason(f) for f in self.findings}
        return clean(reasons.pop() or "") if len(reasons) == 1 else ""

    @property
    def _lost(self) -> list[str]:
        """What each of them could not tell."""
        found = (_WHY.fullmatch(clean(f.message)) for f in self.findings)
        return list(dict.fromkeys(f"{one['what']} {one['lost']}" for one in found if one))


def told(block: Block, *, short: bool = False) -> list[Row]:
    """What stands below a block: of its first finding all, of the others what they say otherwise; then each way to find out.

    `short`, for a screen: of an unknown that is in nobody's way only what it says, and what to do.
    """
    out = [row for row in rows(block.first) if row.label != "find out"] if len(block.checks) == 1 else []
    if short and block.first.status is Status.UNKNOWN and not any(f.blocking for f in block.findings):
        out = [row for row in out if row.label not in _GROUNDS]
    if block.first.status is Status.FAIL:
        more = dict.fromkeys(row for f in block.findings for row in rows(f) if row.label in _OWN and row not in out)
        every = [*out, *more]
        labels = list(dict.fromkeys([*(row.label for row in out), *_OWN]))
        return sorted(every, key=lambda row: labels.index(row.label)) if more else out
    return [*out, *(Row("" if number else "find out", (how,)) for number, how in enumerate(block.hows))]


def wrong(checks: Sequence[CheckResult]) -> list[Block]:
    """What fails, the worst first; then what netdoctor broke on, and what it could not tell."""
    every = {check.id: check.findings for check in checks}
    silent = [Finding(Status.ERROR, "the check said nothing", check=check.id) for check in checks if not check.findings]
    found = [finding for check in checks for finding in check.findings if finding.status in WRONG] + silent
    found.sort(key=lambda f: (_ORDER.index(f.status), bool(f.waived), not f.blocking, -(f.severity.rank if f.severity else 0)))
    shared = Counter(_bare(finding) for finding in found)
    blocks: dict[str, list[Finding]] = {}
    for finding in found:
        bare = _bare(finding)
        blocks.setdefault(bare if bare and shared[bare] > 1 else _alike(finding), []).append(finding)
    for key, some in list(blocks.items()):  # of one reason, and with one way to find out: others may name the same way
        ways = {f.how: f for f in some if f.how}
        same = blocks.get(_alike(*ways.values())) if shared.get(key, 0) > 1 and len(ways) == 1 else None
        if same is not None:
            same += blocks.pop(key)
    return _behind(
        [Block(tuple(one), every.get(one[0].check, ()) if len({f.check for f in one}) == 1 else ()) for one in blocks.values()]
    )


def _behind(blocks: list[Block]) -> list[Block]:
    """Where something fails, what could not be told is one block: most of it follows from the fail (a driver that is not
    ready answers nobody), and the rest is found out after the mend.  What says more than a reason keeps its own."""
    counts = any(b.first.status is Status.FAIL and any(f.blocking and not f.waived for f in b.findings) for b in blocks)
    parts = [b for b in blocks if all(f.status is Status.UNKNOWN and not f.waived and not _more(f) for f in b.findings)]
    if not counts or len(parts) < 2:
        return blocks
    one = Block(tuple(f for part in parts for f in part.findings), (), tuple(parts))
    at = blocks.index(parts[0])
    return [*(b for b in blocks[:at]), one, *(b for b in blocks[at:] if b not in parts)]


def _alike(finding: Finding) -> str:
    """Two findings with it are one block: a fail has one cause and one mend, an unknown one way to find out."""
    status = (finding.status.value, finding.severity and finding.severity.value, finding.waived)
    if finding.status is Status.UNKNOWN and finding.how and finding.fix is None:
        return repr((*status, finding.how))
    if finding.fix is not None and finding.status is Status.FAIL:
        return repr((*status, plain(finding.fix)))
    answer = (finding.fix or finding.how) and plain((finding.fix, finding.how, finding.why, finding.expected))
    return repr((*status, finding.check, finding.cause, answer or finding.message))


def _bare(finding: Finding) -> str:
    """Unknowns with it are one block, however each is found out: they say one reason and nothing else; "" of all others."""
    reason = _reason(finding)
    return "" if reason is None or _more(finding) else repr((finding.status.value, reason))


def _more(finding: Finding) -> bool:
    """It has more than words and a way to find out."""
    return any((finding.fix, finding.expected, finding.why, *finding.evidence, *finding.measured, *finding.notes))


def _reason(finding: Finding) -> str | None:
    said = _WHY.fullmatch(finding.message) if finding.status is Status.UNKNOWN else None
    return said and said["why"]


def right(checks: Sequence[CheckResult], *, short: bool = False) -> Iterator[tuple[Status, str, str]]:
    """(status, who, what): passes by area, a lone one with its words; skips by their reason.

    `short`, for a screen: of more than a few passes the names alone, and of more than a few skips the reasons that several
    share.
    """
    passed = [check for check in checks if check.status is Status.PASS]
    areas = [(area, list(group)) for area, group in groupby(passed, key=lambda check: check.id.partition(".")[0])]
    if short and len(passed) > _FEW:
        yield Status.PASS, "", "; ".join(_names(area, some) for area, some in areas)
        areas = []
    for area, some in areas:
        if len(some) == 1:
            yield Status.PASS, clean(some[0].id), _count(some[0]) + _said(some[0])
        else:
            yield Status.PASS, clean(area), _members(some)
    skipped: dict[str, list[str]] = {}
    for check in checks:
        if check.status is Status.SKIP:
            skipped.setdefault(_said(check), []).append(clean(check.id))
    alone = [ids[0] for ids in skipped.values() if len(ids) == 1] if short and len(skipped) > _FEW else []
    for reason, ids in skipped.items():
        if ids[0] not in alone:
            yield Status.SKIP, ", ".join(ids), reason
    if alone:
        yield Status.SKIP, ", ".join(alone), "each for its own reason (-v)"


def _names(area: str, passed: list[CheckResult]) -> str:
    """Of an area what passed; a lone one by its whole name."""
    return f"{clean(area)}: {_members(passed)}" if len(passed) > 1 else f"{clean(passed[0].id)}{_times(passed[0])}"


def _members(passed: list[CheckResult]) -> str:
    return ", ".join(f"{clean(check.id.partition('.')[2])}{_times(check)}" for check in passed)


def _said(check: CheckResult) -> str:
    first = next((f for f in check.findings if f.status is check.status), None)
    return "the check said nothing" if first is None else spoken(first)


def spoken(finding: Finding) -> str:
    """What it says, with whom it is about."""
    subject, message = clean(finding.subject), clean(finding.message)
    return message if finding.subject == NODE or message.startswith(f"{subject}: ") else f"{subject}: {message}"


def _times(check: CheckResult) -> str:
    """How many of its subjects pass, where it has several."""
    if len(check.findings) < 2:
        return ""
    alike = sum(f.status is check.status for f in check.findings)
    return f"{GLUE}({alike})" if alike == len(check.findings) else f"{GLUE}({alike}{GLUE}of{GLUE}{len(check.findings)})"


def _count(check: CheckResult) -> str:
    """``9 of 10 (1 skip): ``, for a check that has several subjects."""
    if len(check.findings) < 2:
        return ""
    alike = sum(f.status is check.status for f in check.findings)
    return f"{alike} of {len(check.findings)}{rest(check)}: "


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
        if (finding := next((f for f in alike if f.fix is not None), None)) and finding.fix is not None:
            command = next((line for line in finding.fix.commands if line.strip()), "")
            said = clean(finding.fix.summary)
            return Step(f"first: {said}", "" if clean(command) in said else clean(command), finding)
        if found := next((f for f in alike if f.how), None):
            return Step(f"first: {clean(found.how or '')}", of=found)
    if failed or report.verdict.status is not Health.INCONCLUSIVE:
        return None
    asked = [f for c in report.checks for f in c.findings if f.status is Status.UNKNOWN and f.how]
    first = next(iter(sorted(asked, key=lambda f: not f.blocking)), None)
    if first is None or first.how is None:
        return None
    # "see CHECK": that one could not tell either, and says what would settle both.
    known = first.how
    named = next((f.how for f in asked if f.how and f.check != first.check and f"see {f.check}" in known), known)
    return Step(f"first: {clean(named)}")


def ran(report: Report) -> Iterator[str]:
    """The all-reduces: those that went alike on one line, with the slowest's figure."""
    lines: dict[str, list[tuple[str, str, float]]] = {}
    for run, figure in runs(report):
        head, path, size, speed = _run(run, figure)
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
        yield head.replace("@", where, 1) + least + spread


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
