"""What is wrong and what could not be told, in blocks of one cause and one mend, or of one reason and one way to find out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from netdoctor.facts.runs import WITH_RUN
from netdoctor.facts.vantage import FROM_JOB
from netdoctor.model import NODE, CheckResult, Finding, Fix, Status, count, plain
from netdoctor.report import alike
from netdoctor.report.values import WRONG, Row, bare, rows, spoken
from netdoctor.textsafe import as_one, clean, listed

_ORDER: Final = (Status.FAIL, Status.ERROR, Status.UNKNOWN)
_FEW: Final = 3  # of things that are told with their words
_SAID: Final = 5  # reasons of checks that have one answer
# What many checks lack at once, by the one way to it: they are one block, whatever else each has to say.
_LACKED: Final = {FROM_JOB: "the job's own view", WITH_RUN: "an all-reduce"}
# Of findings that have one mend: what each may say otherwise.  Evidence and figures are told of a check alone.
_OWN: Final = ("expected", "why", "cost", "mend", "", "to last", "note")
# As `rows` has them.
_IN_ORDER: Final = (
    *("waived", "expected", "nodes", "evidence", "line", "also", "why", "measured", "cost", "mend", "", "to last"),
    *("next", "find out", "note"),
)
_GROUNDS: Final = ("expected", "evidence", "why", "measured", "cost")
# How an unknown says why: "WHAT could not be read: WHY".
_READ: Final = "could not be (?:read|told|asked)|w(?:as|ere) not (?:asked|seen|tried|done in time)"
_LOST: Final = rf"{_READ}|did not (?:start|finish)|was run|showed it|is not known"
_WHY: Final = re.compile(rf"(?P<what>.+?) (?P<lost>{_LOST}): (?P<why>.+)")


_NAMED: Final = re.compile(r"\S*\d\S*")  # names and figures, in which messages of one kind differ


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
        if self.lacks:
            return (by_area(self.checks),)
        by_reason: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_reason.setdefault(_reason(finding) or bare(finding), []).append(finding)
        several = len(self.checks) > 1
        said = tuple(
            (f"{', '.join(dict.fromkeys(clean(f.check) for f in some))}: " if several else "")
            + (spoken(some[0]) if len(some) == 1 else _of(some) + clean(reason))
            for reason, some in by_reason.items()
        )
        kinds = {(f.cause, f.why, _NAMED.sub("", f.message.replace(f.subject, ""))) for f in self.findings}
        apart = several or len(kinds) > 1
        return said if apart and 1 < len(said) <= _SAID else ()

    @property
    def lacks(self) -> str:
        """What several checks need, where that is one thing; else ""."""
        ways = {_lacked(f) for f in self.findings}
        return _LACKED.get(ways.pop(), "") if len(ways) == 1 and len(self.checks) > 1 else ""

    @property
    def text(self) -> str:
        """Who it is about, and what is said of them."""
        if self.parts:
            return f"{count(len(self.checks), 'check')} could not tell either: mend what fails, then look again"
        if self.lacks:
            return f"{len(self.checks)} checks need {self.lacks}{self._because}: {self.hows[0]}"
        whole = any(f.subject == NODE for f in self.findings)
        subjects = [] if whole else list(dict.fromkeys(clean(f.subject) for f in self.findings))
        messages = list(dict.fromkeys(clean(f.message) for f in self.findings))
        kinds = list(dict.fromkeys(map(bare, self.findings)))
        said = kinds[0] if len(kinds) == 1 < len(messages) else as_one(messages)
        said = said or f"{kinds[0]}; and {len(kinds) - 1} alike"
        if len(messages) > 1 and (reason := self._reason):
            said = f"{listed(self._lost, _FEW)}: {reason}"
        if len(self.checks) > 1:
            common = "have one mend" if self.first.status is Status.FAIL else "could not tell"
            every = f"{len(self.checks)} checks {common}: {', '.join(self.checks)}"
            return said if len(messages) == 1 else f"{every}: {self._reason}" if self._reason and not self.each else every
        if self.each:
            said = f"{len(self.each)} faults have one mend"
        counted = self.first.status is Status.FAIL and len(self.every) > 1
        many = f" ({len(self.findings)} of {len(self.every)}{self._others})" if counted else ""
        if len(subjects) == 1 and not many and said.startswith(subjects[0]):
            return said
        said = said.removeprefix(f"{subjects[0]}: ") if len(subjects) == 1 else said
        return f"{alike.who(subjects)}{many}: {said}" if subjects else said

    @property
    def lines(self) -> tuple[str, ...]:
        """It as a part of another."""
        names = ", ".join(self.checks)
        several = len(self.checks) > 1
        if self.lacks:
            return (f"{names}: they need {self.lacks}",)
        if self.each:
            return self.each if several else tuple(f"{names}: {line}" for line in self.each)
        one = len({f.message for f in self.findings}) == 1
        said = self._reason or (clean(self.first.message) if one else "") if several else self.text
        return (f"{names}: {said}" if said else names,)

    @property
    def hows(self) -> tuple[str, ...]:
        """The ways to find out, each once; what stands in an all-reduce's way goes before it."""
        every = tuple(dict.fromkeys(clean(f.how) for f in self.findings if f.how))
        return tuple(how for how in every if how != WITH_RUN) or every

    @property
    def _others(self) -> str:
        """What the check says of its other subjects: ``; 1 more fail, 2 pass``."""
        words = [f.status.value for f in self.every if f not in self.findings]
        found = sorted(dict.fromkeys(words), key=Status.FAIL.value.__ne__)
        more = {Status.FAIL.value: "more fail"}
        return "; " + ", ".join(f"{words.count(word)} {more.get(word, word)}" for word in found) if words else ""

    @property
    def fix(self) -> Fix | None:
        """The mend of all of them."""
        return alike.mend(self.findings) or self.first.fix

    @property
    def _reason(self) -> str:
        """Why none of them could tell, where it is the same; else ""."""
        reasons = {_reason(f) for f in self.findings}
        return clean(reasons.pop() or "") if len(reasons) == 1 else ""

    @property
    def _because(self) -> str:
        """Why there was no all-reduce; why this is not the job's place stands in the report's head."""
        reasons = dict.fromkeys(clean(reason) for f in self.findings if f.how == WITH_RUN and (reason := _reason(f)))
        return f" ({'; '.join(reasons)})" if reasons else ""

    @property
    def _lost(self) -> list[str]:
        """What each of them could not tell."""
        found = (_WHY.fullmatch(clean(f.message)) for f in self.findings)
        return list(dict.fromkeys(f"{one['what']} {one['lost']}" for one in found if one))


def told(block: Block, *, whole: bool = True) -> list[Row]:
    """What stands below a block: of its first finding all, of the others what they say otherwise; then each way to find out.

    Not `whole`, for a screen: of an unknown that is in nobody's way only what it says, and what to do.
    """
    findings = [replace(f, fix=block.fix) for f in block.findings] if alike.mend(block.findings) else list(block.findings)
    out = [row for row in rows(findings[0]) if row.label != "find out"] if len(block.checks) == 1 else []
    if not whole and block.first.status is Status.UNKNOWN and not any(f.blocking for f in block.findings):
        out = [row for row in out if row.label not in _GROUNDS]
    if block.first.status is Status.FAIL:
        more = dict.fromkeys(row for f in findings for row in rows(f) if row.label in _OWN and row not in out)
        return sorted([*out, *more], key=lambda row: _IN_ORDER.index(row.label)) if more else out
    hows = () if block.lacks else block.hows
    return [*out, *(Row("" if number else "find out", (how,)) for number, how in enumerate(hows))]


def wrong(checks: Sequence[CheckResult]) -> list[Block]:
    """What fails, the worst first; then what netdoctor broke on, and what it could not tell."""
    every = {check.id: check.findings for check in checks}
    silent = [Finding(Status.ERROR, "the check said nothing", check=check.id) for check in checks if not check.findings]
    found = [finding for check in checks for finding in check.findings if finding.status in WRONG] + silent
    found.sort(key=lambda f: (_ORDER.index(f.status), bool(f.waived), not f.blocking, -(f.severity.rank if f.severity else 0)))
    shared = Counter(_bare(finding) for finding in found)
    own = {_bare(finding) for finding in found if not _lacked(finding)}  # reasons with a way of their own: no torch, a lock
    blocks: dict[str, list[Finding]] = {}
    for finding in found:
        bare = _bare(finding)
        apart = not bare or shared[bare] < 2 or bare not in own
        blocks.setdefault(_alike(finding) if apart else bare, []).append(finding)
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
        # Who has seen something without an all-reduce says more than that there was none.
        own = finding.check if finding.how == WITH_RUN and finding.evidence else ""
        return repr((*status, finding.how, own))
    if finding.fix is not None and finding.status is Status.FAIL:
        return repr((*status, alike.anyones(finding)))
    answer = (finding.fix or finding.how) and plain((finding.fix, finding.how, finding.why, finding.expected))
    return repr((*status, finding.check, finding.cause, answer or finding.message))


def _of(findings: list[Finding]) -> str:
    """Whose fault it is; of what could not be told the reason alone is said."""
    fails = findings[0].status is Status.FAIL and not any(f.subject == NODE for f in findings)
    return f"{alike.who(f.subject for f in findings)}: " if fails else ""


def _lacked(finding: Finding) -> str:
    """The way to what it and others lack; "" where it lacks something of its own."""
    return finding.how if finding.how in _LACKED and finding.status is Status.UNKNOWN and finding.fix is None else ""


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


def by_area(ids: Iterable[str]) -> str:
    """``net: errors, reach; node.system``."""
    areas: dict[str, list[str]] = {}
    for one in sorted(ids):
        areas.setdefault(clean(one).partition(".")[0], []).append(clean(one).partition(".")[2])
    return "; ".join(f"{area}: {', '.join(some)}" if len(some) > 1 else f"{area}.{some[0]}" for area, some in areas.items())
