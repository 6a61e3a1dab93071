"""What the findings mean for the one who asked: waivers, what a profile requires, the verdict and its exit code.

Every command that judges asks here, and no exit code of a verdict is made anywhere else.

Profiles (what must be *known*; what must not *fail* is ``fail_on``):

default  allreduce.run, where a GPU and a job's torch or a libnccl were found
         and that nothing critical hangs on how many nodes the job has, where nobody says that
gate     also rdma.dev_infiniband, where PCI shows RDMA hardware, and the all-reduce wherever the job has a torch or a libnccl
audit    nothing; the verdict lists what could not be seen
prolog   nothing, and no all-reduce is run: an inconclusive prolog would drain a healthy node (Slurm drains on any exit but 0)
strict   every check that does not skip

A log, variables, a running job and a fleet must be judged at all (log.job, nccl.environment, ras.ranks, fleet.nodes), whatever
the profile of the nodes is.

A plugin that is broken or was refused, and a check that crashed, leave every profile inconclusive: somebody did not look;
audit and prolog exit 0 all the same, so that a typing error in a plugin drains no node.

"Found" has three values: what could not be read counts as found, so that lost evidence never lowers what is required.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final

from netdoctor.model import CheckResult, Command, Finding, Health, Severity, Status, Verdict, record
from netdoctor.textsafe import listed

HEALTHY: Final = 0
UNHEALTHY: Final = 3
INCONCLUSIVE: Final = 4
_LOST: Final = frozenset({"plugin.broken", "plugin.missing", "plugin.refused"})  # of each finding: checks that did not look

PROFILE_ORDER: Final = ("audit", "prolog", "default", "gate", "strict")  # from the most lenient
FAIL_ON_ORDER: Final = ("critical", "warning", "info")  # from the most lenient
_EQUALLY_LENIENT: Final = frozenset({"audit", "prolog"})
_JUDGED: Final = frozenset({Status.PASS, Status.FAIL})
_ANYWHERE: Final = frozenset({"node.clock"})  # right on nearly every machine: its pass alone makes no node healthy


@record
class Waiver:
    """A fail that the site accepts until the end of a day (UTC).  `subject` may hold ``*``; None is every subject."""

    check: str
    reason: str
    until: datetime.date
    subject: str | None = None

    def covers(self, finding: Finding) -> bool:
        if self.check != finding.check or self.subject == finding.subject:
            return self.check == finding.check
        return not finding.waived_by_name and (self.subject is None or _matches(finding.subject, self.subject))

    def text(self) -> str:
        """What is kept of it in a finding."""
        return f"{self.reason} (until {self.until})"


_WAIVED: Final = re.compile(r".+ \(until (\d{4}-\d\d-\d\d)\)", re.ASCII | re.DOTALL)


def waived_until(text: object) -> str:
    """The last day (UTC) of the waiver of which a finding of a report holds the text; "": it is none."""
    found = _WAIVED.fullmatch(text) if isinstance(text, str) else None
    return found[1] if found else ""


def _matches(subject: str, pattern: str) -> bool:
    return "*" in pattern and fnmatchcase(subject, pattern.replace("[", "[[]").replace("?", "[?]"))


@record
class Seen:
    """What was found on the machine; None: it could not be told."""

    gpu: bool | None = None  # any accelerator that the job would use, judged by netdoctor or not
    library: bool | None = None  # what an all-reduce goes by: a torch of the job's, or a libnccl
    rdma: bool | None = None  # PCI shows RDMA hardware
    run_lost: bool = False  # an all-reduce that should be there is not, or was refused: not one that was never wanted


def strictest(order: Sequence[str], first: str, *others: str) -> str:
    """The strictest of these values in `order` (PROFILE_ORDER, FAIL_ON_ORDER); of equally strict ones the first."""
    best = first
    for value in others:
        if order.index(value) > order.index(best) and not {value, best} <= _EQUALLY_LENIENT:
            best = value
    return best


# The policy with a configuration, as those call it who make reports: results and facts in, results and verdict out.
Decide = Callable[[tuple[CheckResult, ...], Mapping[str, Any]], tuple[tuple[CheckResult, ...], Verdict]]

# What each command is asked for: it must be able to tell this, unless the profile requires nothing.
_ASKED: Final = {
    Command.LOG: "log.job",
    Command.ENV: "nccl.environment",
    Command.RAS: "ras.ranks",
    Command.FLEET: "fleet.nodes",
}
_ALSO_ASKED: Final = frozenset({"fleet.expected"})  # and this where it is: the site says what every node must have
FAIL_ON: Final = {Command.ENV: "warning", Command.FLEET: "warning"}  # where nothing is said; of the others it is critical


def gates(profile: str) -> bool:
    """Whether it stands for what starts next: of such a look nothing may be left out."""
    return profile in {"gate", "strict"}


def required(profile: str, seen: Seen, command: Command = Command.PREFLIGHT) -> frozenset[str]:
    """Ids of the checks that must be able to tell (for ``strict`` also every other one: see `decide`)."""
    if command in _ASKED:  # a profile is about nodes: a site that only audits them still wants an answer from a log
        return frozenset({_ASKED[command]})
    if profile in _EQUALLY_LENIENT:
        return frozenset()
    ids = set()
    # Before a gate a torch that does not load, or that ends in its first step, is the job's end, with or without a GPU.
    if seen.run_lost or (seen.library is not False and (seen.gpu is not False or gates(profile))):
        ids.add("allreduce.run")
    if gates(profile) and seen.rdma is not False:
        ids.add("rdma.dev_infiniband")
    return frozenset(ids)


def decide(
    checks: Iterable[CheckResult],
    profile: str = "default",
    fail_on: str = "critical",
    *,
    command: Command = Command.PREFLIGHT,
    waivers: Iterable[Waiver] = (),
    disabled: Iterable[str] = (),
    seen: Seen | None = None,
    selected: Iterable[str] | None = None,
    partial: str | None = None,
    today: datetime.date | None = None,
    must: Iterable[str] = (),
    gate: bool = False,
) -> tuple[tuple[CheckResult, ...], Verdict]:
    """The results with waivers applied, and the verdict.

    `selected` are the ids of ``--only``: what was not asked for is not required, and the node is not called healthy, though
    nothing of it failed.  `partial` says why the run is not whole; then nothing is healthy.  `must` is required whatever the
    profile.  With `gate` a job starts on exit 0: whatever the profile, nothing inconclusive is that.  Each finding that does
    not count for the exit code has ``blocking=False``.
    """
    if profile not in PROFILE_ORDER:
        raise ValueError(f"no such profile: {profile}")
    today = today or datetime.datetime.now(datetime.timezone.utc).date()
    waivers, off, least = tuple(waivers), frozenset(disabled), Severity(fail_on).rank
    results = tuple(_disabled(c) if c.id in off else c for c in checks)
    asked = frozenset(must)
    must = (required(profile, seen or Seen(), command) | asked) - (off - {_ASKED.get(command)})
    if selected is not None:
        must &= frozenset(selected) | asked
    if profile == "strict":
        must |= {c.id for c in results} - off
    silent = (c.id for c in results if not c.findings)  # as one that crashed
    broken = {c.id for c in results if c.id in _LOST or any(f.status is Status.ERROR for f in c.findings)}.union(silent) - off
    must |= {c.id for c in results if c.id in _ALSO_ASKED} - off
    must |= broken | {c.id for c in results for f in c.findings if f.perhaps and _needs_intent(f.perhaps, profile, least)}
    out = tuple(
        replace(c, findings=tuple(_weigh(f, waivers, least, c.id in must, profile == "strict", today) for f in c.findings))
        for c in results
    )
    who = f"profile {profile}" if gates(profile) or not gate else "a gate"
    requires = "" if command in _ASKED else f", and {who} requires it"
    lenient = profile in _EQUALLY_LENIENT and command not in _ASKED
    weighed = _weighed(out, must, broken, partial, _ANYWHERE - frozenset(selected or ()))
    if weighed.outcome is Outcome.WELL and selected is not None:
        weighed = replace(weighed, outcome=Outcome.NARROWED)
    elif (
        weighed.outcome is Outcome.WELL
        and command not in _ASKED
        and (blind := _stands_for(seen or Seen(), lenient=lenient) - off & set(weighed.blind))
    ):
        weighed = replace(weighed, outcome=Outcome.BLIND, in_the_way=tuple(sorted(blind)))
    elif weighed.outcome is Outcome.WELL and weighed.blind and any(map(no_accelerator, out)):
        weighed = replace(weighed, outcome=Outcome.BARE)
    return out, _verdict(weighed, fail_on, partial, requires, lenient=lenient and not gate)


def _stands_for(seen: Seen, *, lenient: bool) -> frozenset[str]:
    """What nobody calls a node healthy without, required or not: what hardware is there, where that is not known at all; of an
    audit or a prolog, which stop nobody for it, also where it is known in part, and the all-reduce where one was wanted."""
    hardware = ("hardware.accelerator",) if lenient or seen.gpu is None else ()
    return frozenset({*hardware, *(("allreduce.run",) if lenient and seen.run_lost else ())})


def _needs_intent(fail: Finding, profile: str, least: int) -> bool:
    """Whether a fault that counts only in a job of several nodes is in the way, where nothing says how many there are."""
    return profile in {"gate", "strict"} or (profile not in _EQUALLY_LENIENT and _rank(fail) >= least)


def no_accelerator(check: CheckResult) -> bool:
    """Whether it says that the machine has none at all."""
    return check.id == "hardware.accelerator" and check.status is Status.SKIP


def _disabled(result: CheckResult) -> CheckResult:
    """Not a skip: that it does not apply was not shown."""
    note = Finding(Status.UNKNOWN, "not judged: disabled by the configuration", check=result.id, cause=result.cause)
    return replace(result, findings=(note,))


def _weigh(
    finding: Finding, waivers: Iterable[Waiver], least: int, required: bool, strict: bool, today: datetime.date
) -> Finding:
    if finding.status is Status.FAIL:
        fitting = sorted((w for w in waivers if w.covers(finding)), key=lambda w: w.until)
        if fitting and fitting[-1].until >= today:
            return replace(finding, waived=fitting[-1].text(), blocking=False)
        notes = tuple(f"the waiver ended on {w.until}: {w.reason}" for w in fitting)
        return replace(finding, waived=None, notes=finding.notes + notes, blocking=_rank(finding) >= least)
    if finding.status in {Status.UNKNOWN, Status.ERROR}:  # one that says itself that it is not in the way is so, unless strict
        return replace(finding, blocking=required and (finding.blocking or strict))
    return replace(finding, blocking=False)


class Outcome(Enum):
    """What the findings come to; the first that holds, in this order."""

    FAILED = "something failed, and counts"
    PARTIAL = "the run is not whole"
    PLUGINS = "a plugin is broken or refused, or a check crashed, and nothing else is in the way"
    REQUIRED = "what had to be able to tell could not"
    NOTHING_RAN = "no check ran"
    NOTHING_TOLD = "no check could tell anything"
    NARROWED = "nothing failed of what was asked for"
    BLIND = "nothing failed, and what a lenient profile stands for could not be told"
    BARE = "nothing that counts failed; no GPU, so no all-reduce of NCCL's, stands for what could not be told"
    WELL = "nothing that counts failed"


@record
class _Weighed:
    outcome: Outcome
    checks: tuple[CheckResult, ...]
    fails: tuple[Finding, ...]  # that are not waived, the worst first
    blind: tuple[str, ...]  # checks that could not tell, or did not run
    in_the_way: tuple[str, ...]  # those of them that had to


def _weighed(
    checks: tuple[CheckResult, ...], must: frozenset[str], broken: set[str], partial: str | None, aside: frozenset[str]
) -> _Weighed:
    """`aside` are checks whose pass is no evidence of health."""
    findings = [f for c in checks for f in c.findings]
    fails = tuple(sorted((f for f in findings if f.status is Status.FAIL and not f.waived), key=lambda f: -_rank(f)))
    absent = sorted(must - {c.id for c in checks})
    blind = [c.id for c in checks if c.status in {Status.UNKNOWN, Status.ERROR} or not c.findings]
    could = {c.id for c in checks if c.id in must and c.findings and not any(_blind(f) for f in c.findings)}
    in_the_way = [c.id for c in checks if c.id in must - could]
    # "Healthy" claims that something was looked at and right; skips alone do, only where nothing is left open, and what is
    # waived is open.  A fail that does not count was judged, and the words say that it failed.
    passed = any(f.status is Status.PASS for c in checks if c.id not in aside.union(blind) for f in c.findings)
    passed = passed or any(f.status in _JUDGED and not f.waived for c in checks if c.id in could for f in c.findings)
    told = (
        passed
        or bool(fails)
        or (bool(findings) and all(c.status is Status.SKIP or (c.status is Status.PASS and c.id in aside) for c in checks))
    )
    conditions = (
        (Outcome.FAILED, any(f.blocking for f in fails)),
        (Outcome.PARTIAL, partial),
        (Outcome.PLUGINS, in_the_way and not absent and broken.issuperset(in_the_way)),
        (Outcome.REQUIRED, in_the_way or absent),
        (Outcome.NOTHING_RAN, not checks),
        (Outcome.NOTHING_TOLD, not told),
        (Outcome.WELL, True),
    )
    missing = tuple(f"{name} (did not run)" for name in absent)
    return _Weighed(
        next(outcome for outcome, holds in conditions if holds), checks, fails, (*blind, *missing), (*in_the_way, *missing)
    )


def _verdict(weighed: _Weighed, fail_on: str, partial: str | None, requires: str, *, lenient: bool) -> Verdict:
    """The words and the exit code of an outcome."""
    fails, but = weighed.fails, f"; {_counted(weighed.fails)}: {_ids(weighed.fails)}" if weighed.fails else ""
    unlooked = HEALTHY if lenient else INCONCLUSIVE
    blind, in_the_way = (listed(ids, 4) for ids in (weighed.blind, weighed.in_the_way))  # one line: a report names all
    left = [f"{n} waived" for n in (_waived(weighed),) if n] + [f"could not tell: {blind}" for _ in weighed.blind[:1]]
    whose = "the site's own checks" if _LOST.issuperset(weighed.in_the_way) else "checks"
    bad_first = sorted(fails, key=lambda f: not f.blocking)
    health, code, words = {
        Outcome.FAILED: (
            Health.UNHEALTHY,
            UNHEALTHY,
            f"{_counted(fails)}: {_ids(bad_first)}{f' ({partial})' if partial else ''}",
        ),
        Outcome.PARTIAL: (Health.INCONCLUSIVE, INCONCLUSIVE, f"the run is not whole: {partial}{but}"),
        Outcome.PLUGINS: (Health.INCONCLUSIVE, unlooked, f"{whose} did not all look: {_lost(weighed)}{but}"),
        Outcome.REQUIRED: (Health.INCONCLUSIVE, INCONCLUSIVE, f"{in_the_way} could not tell{requires}{but}"),
        Outcome.NOTHING_RAN: (Health.INCONCLUSIVE, INCONCLUSIVE, "no check ran"),
        Outcome.NOTHING_TOLD: (Health.INCONCLUSIVE, unlooked, "; ".join([_nothing(weighed), *left])),
        Outcome.NARROWED: (Health.INCONCLUSIVE, HEALTHY, f"nothing failed of what was asked for: {_well(weighed, blind)}"),
        Outcome.BLIND: (Health.INCONCLUSIVE, unlooked, f"{in_the_way} could not tell: {_well(weighed, blind)}"),
        **dict.fromkeys((Outcome.BARE, Outcome.WELL), (Health.HEALTHY, HEALTHY, _well(weighed, blind))),
    }[weighed.outcome]
    if weighed.outcome is Outcome.NARROWED:  # neither a good node nor a doubt
        text = words
    elif health is Health.HEALTHY and fails:  # not called healthy: something is wrong, if nothing that counts
        text = words = f"nothing failed at {fail_on} or above: {words}"
    elif weighed.outcome is Outcome.BARE:
        text = f"nothing failed of what could be told without a GPU: {words}"
    else:
        text = f"{health}: {words}"
    return Verdict(health, code, text, tuple(dict.fromkeys(f.cause or "other" for f in fails)), words)


def _well(weighed: _Weighed, blind: str) -> str:
    passed = sum(c.status is Status.PASS for c in weighed.checks)
    skipped = sum(c.status is Status.SKIP for c in weighed.checks)
    waived = _waived(weighed)
    return (
        f"{passed} passed, {skipped} skipped"
        + (f", {_counted(weighed.fails)}: {_ids(weighed.fails)}" if weighed.fails else "")
        + (f", {waived} waived" if waived else "")
        + (f"; could not tell: {blind}" if blind else "")
    )


def _nothing(weighed: _Weighed) -> str:
    aside = [c.id for c in weighed.checks if c.id in _ANYWHERE and c.status is Status.PASS]
    return f"nothing passed but {', '.join(aside)}" if aside else "nothing passed"


def _waived(weighed: _Weighed) -> int:
    return sum(bool(f.waived) for c in weighed.checks for f in c.findings)


def _lost(weighed: _Weighed) -> str:
    """Plugins by name."""
    return ", ".join(f"{f.check}: {f.subject}" for c in weighed.checks if c.id in weighed.in_the_way for f in c.findings)


def _rank(finding: Finding) -> int:
    return (finding.severity or Severity.WARNING).rank


def _blind(finding: Finding) -> bool:
    return finding.blocking and finding.status in {Status.UNKNOWN, Status.ERROR}


def _ids(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(f.check for f in findings))


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


def styled(code: int, style: str | None) -> int:
    """A code that is no verdict's in the caller's `style`; one that is not known changes nothing."""
    return exit_code(code, style) if style in EXIT_STYLES else code


def exit_code(code: int, style: str = "default", verdict: Verdict | None = None, worst: Severity | None = None) -> int:
    """`code` as the caller's `style` has it.

    `verdict` (where there is one) keeps an inconclusive 0 of ``audit`` from reading as OK; `worst` is the severity of the
    worst blocking fail: below critical it is Nagios' WARNING.
    """
    if style == "default":
        return code
    table, other = _STYLES[style]
    if code == HEALTHY and verdict is not None and verdict.status is Health.INCONCLUSIVE:
        return other
    if style == "nagios" and code == UNHEALTHY and worst is not None and worst is not Severity.CRITICAL:
        return 1
    return table.get(code, other)
