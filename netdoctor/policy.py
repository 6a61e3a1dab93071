"""What the findings mean for the one who asked: waivers, what a profile requires, the verdict and its exit code.

Profiles (what must be *known*; what must not *fail* is ``fail_on``):

default  allreduce.run, where a GPU and a job's torch were found
gate     also rdma.dev_infiniband, where PCI shows RDMA hardware
audit    nothing; the verdict lists what could not be seen
prolog   nothing, and no all-reduce is run: an inconclusive prolog would drain a healthy node (Slurm drains on any exit but 0)
strict   every check that does not skip

A plugin that is broken or was refused leaves every profile inconclusive, because a check that the site wanted did not look;
audit and prolog exit 0 all the same, so that a typing error in a plugin drains no node.

"Found" has three values: what could not be read counts as found, so that lost evidence never lowers what is required.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from netdoctor.causes import CAUSES
from netdoctor.model import CheckResult, Finding, Severity, Status, Verdict

HEALTHY: Final = 0
UNHEALTHY: Final = 3
INCONCLUSIVE: Final = 4
_LOST: Final = frozenset({"plugin.broken", "plugin.refused"})  # their findings: plugins whose checks did not look

PROFILE_ORDER: Final = ("audit", "prolog", "default", "gate", "strict")  # from the most lenient
FAIL_ON_ORDER: Final = ("critical", "warning", "info")  # from the most lenient
_EQUALLY_LENIENT: Final = frozenset({"audit", "prolog"})


@dataclass(frozen=True)
class Waiver:
    """A fail that the site accepts until the end of a day (UTC).  `subject` may hold ``*``; None is every subject."""

    check: str
    reason: str
    until: datetime.date
    subject: str | None = None

    def covers(self, finding: Finding) -> bool:
        if self.check != finding.check:
            return False
        return self.subject is None or self.subject == finding.subject or _matches(finding.subject, self.subject)


def _matches(subject: str, pattern: str) -> bool:
    return "*" in pattern and fnmatchcase(subject, pattern.replace("[", "[[]").replace("?", "[?]"))


@dataclass(frozen=True)
class Seen:
    """What was found on the machine; None: it could not be told."""

    gpu: bool | None = None  # any accelerator that the job would use, judged by netdoctor or not
    torch: bool | None = None  # a torch of the job's
    rdma: bool | None = None  # PCI shows RDMA hardware


def strictest(order: Sequence[str], first: str, *others: str) -> str:
    """The strictest of these values in `order` (PROFILE_ORDER, FAIL_ON_ORDER); of equally strict ones the first."""
    best = first
    for value in others:
        if order.index(value) > order.index(best) and not {value, best} <= _EQUALLY_LENIENT:
            best = value
    return best


def required(profile: str, seen: Seen) -> frozenset[str]:
    """Ids of the checks that must be able to tell (for ``strict`` also every other one: see `decide`)."""
    ids = set()
    if profile in {"default", "gate", "strict"} and seen.gpu is not False and seen.torch is not False:
        ids.add("allreduce.run")
    if profile in {"gate", "strict"} and seen.rdma is not False:
        ids.add("rdma.dev_infiniband")
    return frozenset(ids)


def decide(
    checks: Iterable[CheckResult],
    profile: str = "default",
    fail_on: str = "critical",
    *,
    waivers: Iterable[Waiver] = (),
    disabled: Iterable[str] = (),
    seen: Seen | None = None,
    selected: Iterable[str] | None = None,
    partial: str | None = None,
    today: datetime.date | None = None,
    must: Iterable[str] = (),
) -> tuple[tuple[CheckResult, ...], Verdict]:
    """The results with waivers applied, and the verdict.

    `selected` are the ids of ``--only``: what was not asked for is not required.  `partial` says why the run is not whole;
    then nothing is healthy.  `must` is required whatever the profile.  Each finding that does not count for the exit code
    has ``blocking=False``.
    """
    if profile not in PROFILE_ORDER:
        raise ValueError(f"no such profile: {profile}")
    today = today or datetime.datetime.now(datetime.timezone.utc).date()
    waivers, off, least = tuple(waivers), frozenset(disabled), Severity(fail_on).rank
    results = tuple(_disabled(c) if c.id in off else c for c in checks)
    asked = frozenset(must)
    must = (required(profile, seen or Seen()) | asked) - off
    if selected is not None:
        must &= frozenset(selected) | asked
    if profile == "strict":
        must |= {c.id for c in results} - off
    must |= {c.id for c in results if c.id in _LOST} - off
    out = tuple(
        replace(c, findings=tuple(_weigh(_completed(f, c), waivers, least, c.id in must, today) for f in c.findings))
        for c in results
    )
    return out, _verdict(out, must, profile, fail_on, partial)


def _disabled(result: CheckResult) -> CheckResult:
    """Not a skip: that it does not apply was not shown."""
    note = Finding(Status.UNKNOWN, "not judged: disabled by the configuration", check=result.id, cause=result.cause)
    return replace(result, findings=(note,))


def _completed(finding: Finding, result: CheckResult) -> Finding:
    cause = finding.cause or result.cause
    severity = finding.severity if finding.status is Status.FAIL else None
    if finding.status is Status.FAIL and severity is None:
        severity = CAUSES[cause].severity if cause in CAUSES else Severity.WARNING
    return replace(finding, check=finding.check or result.id, cause=cause, severity=severity)


def _weigh(finding: Finding, waivers: Iterable[Waiver], least: int, required: bool, today: datetime.date) -> Finding:
    if finding.status is Status.FAIL:
        fitting = sorted((w for w in waivers if w.covers(finding)), key=lambda w: w.until)
        if fitting and fitting[-1].until >= today:
            return replace(finding, waived=f"{fitting[-1].reason} (until {fitting[-1].until})", blocking=False)
        notes = tuple(f"the waiver ended on {w.until}: {w.reason}" for w in fitting)
        rank = (finding.severity or Severity.WARNING).rank
        return replace(finding, waived=None, notes=finding.notes + notes, blocking=rank >= least)
    if finding.status in {Status.UNKNOWN, Status.ERROR}:
        return replace(finding, blocking=required)
    return replace(finding, blocking=False)


def _verdict(
    checks: Sequence[CheckResult], must: frozenset[str] | set[str], profile: str, fail_on: str, partial: str | None
) -> Verdict:
    findings = [f for c in checks for f in c.findings]
    fails = sorted((f for f in findings if f.status is Status.FAIL and not f.waived), key=lambda f: -_rank(f))
    bad = [f for f in fails if f.blocking]
    causes = tuple(dict.fromkeys(f.cause or "other" for f in fails))
    blind = [c.id for c in checks if c.status in {Status.UNKNOWN, Status.ERROR} or not c.findings]
    blind += [f"{name} (did not run)" for name in sorted(must - {c.id for c in checks})]
    in_the_way = [name for name in blind if name.partition(" ")[0] in must]
    in_the_way += [c.id for c in checks if c.id in must and c.id not in blind and any(_blind(f) for f in c.findings)]
    # "Healthy" claims that something was looked at and right; skips alone do, only where nothing is left open.
    told = any(c.status in {Status.PASS, Status.FAIL} for c in checks) or (not blind and bool(findings))
    tail = f" ({partial})" if partial else ""
    if bad:
        return Verdict("unhealthy", UNHEALTHY, f"unhealthy: {_counted(fails)}: {_ids(bad + fails)}{tail}", causes)
    if partial:
        return Verdict("inconclusive", INCONCLUSIVE, f"inconclusive: the run is not whole: {partial}{_but(fails)}", causes)
    if in_the_way and _LOST.issuperset(in_the_way):
        names = ", ".join(f"{f.check}: {f.subject}" for c in checks if c.id in in_the_way for f in c.findings)
        text = f"inconclusive: the site's own checks did not all look: {names}{_but(fails)}"
        return Verdict("inconclusive", HEALTHY if profile in _EQUALLY_LENIENT else INCONCLUSIVE, text, causes)
    if in_the_way:
        text = f"inconclusive: {', '.join(in_the_way)} could not tell, and profile {profile} requires it{_but(fails)}"
        return Verdict("inconclusive", INCONCLUSIVE, text, causes)
    if not told:
        code = HEALTHY if profile in _EQUALLY_LENIENT and checks else INCONCLUSIVE
        text = f"inconclusive: nothing passed; could not tell: {', '.join(blind)}" if checks else "inconclusive: no check ran"
        return Verdict("inconclusive", code, text, causes)
    passed = sum(c.status is Status.PASS for c in checks)
    skipped = sum(c.status is Status.SKIP for c in checks)
    text = f"healthy: {passed} passed, {skipped} skipped"
    if fails:
        text = f"nothing failed at {fail_on} or above: {passed} passed, {skipped} skipped, {_counted(fails)}: {_ids(fails)}"
    waived = sum(bool(f.waived) for f in findings)
    if waived:
        text += f", {waived} waived"
    if blind:
        text += f"; could not tell: {', '.join(blind)}"
    return Verdict("healthy", HEALTHY, text, causes)


def _rank(finding: Finding) -> int:
    return finding.severity.rank if finding.severity else 0


def _blind(finding: Finding) -> bool:
    return finding.blocking and finding.status in {Status.UNKNOWN, Status.ERROR}


def _ids(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(f.check for f in findings))


def _but(fails: Sequence[Finding]) -> str:
    return f"; {_counted(fails)}: {_ids(fails)}" if fails else ""


def _counted(fails: Sequence[Finding]) -> str:
    """``2 critical, 1 warning``."""
    have = [f.severity for f in fails]
    counts = [(s, have.count(s)) for s in (Severity.CRITICAL, Severity.WARNING, Severity.INFO) if s in have]
    return ", ".join(f"{n} {s.value}{'s' if s is Severity.WARNING and n > 1 else ''}" for s, n in counts)


def unmatched(waivers: Iterable[Waiver], disabled: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Check ids in waivers and `disabled` that no check has: a typing error, or a check that is gone."""
    ids = set(known)
    named = [*(w.check for w in waivers), *disabled]
    return tuple(dict.fromkeys(name for name in named if name not in ids))


# What other programs expect of a plugin.  Only the number is translated, and only at the very end.
_STYLES: Final = {
    # Nagios plugin guidelines: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
    "nagios": ({HEALTHY: 0, UNHEALTHY: 2}, 3),
    # node-problem-detector custom plugin: 0 OK, 1 NonOK, anything else Unknown (docs/custom_plugin_monitor.md).
    "npd": ({HEALTHY: 0, UNHEALTHY: 1}, 2),
}
EXIT_STYLES: Final = ("default", *_STYLES)


def exit_code(code: int, style: str = "default", verdict: Verdict | None = None, worst: Severity | None = None) -> int:
    """`code` as the caller's `style` has it.

    `verdict` (where there is one) keeps an inconclusive 0 of ``audit`` from reading as OK; `worst` is the severity of the
    worst blocking fail: below critical it is Nagios' WARNING.
    """
    if style == "default":
        return code
    table, other = _STYLES[style]
    if code == HEALTHY and verdict is not None and verdict.status == "inconclusive":
        return other
    if style == "nagios" and code == UNHEALTHY and worst is not None and worst is not Severity.CRITICAL:
        return 1
    return table.get(code, other)
