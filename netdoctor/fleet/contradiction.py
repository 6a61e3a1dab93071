"""What in a healthy report contradicts its verdict: such a report was not made by netdoctor's policy, or not kept whole."""

from __future__ import annotations

from typing import Any, Final

from netdoctor.facts.runs import wrong_figures
from netdoctor.policy import waived_until
from netdoctor.textsafe import as_line

MAX_LIST: Final = 4096  # entries looked at in any list of a report

# What a check may hold, by what it says itself: the worst of its findings (model.CheckResult.status).
_WITHIN: Final = {
    "pass": frozenset({"pass", "skip"}),
    "skip": frozenset({"skip"}),
    "unknown": frozenset({"unknown", "pass", "skip"}),
    "error": frozenset({"error", "unknown", "pass", "skip"}),
    "fail": frozenset({"fail", "error", "unknown", "pass", "skip"}),
}


def contradiction(verdict: dict[str, Any], checks: list[Any], runs: object, volatile: dict[str, Any]) -> str:
    """Of a report whose verdict is healthy; "": nothing."""
    figures, day = volatile.get("runs"), _text(volatile.get("time"))[:10]
    if (code := verdict.get("exit_code", 0)) != 0:
        return f"its verdict is healthy, and its exit code {as_line(code, 40)}"
    if len(checks) > MAX_LIST:
        return f"it has more than {MAX_LIST:,} checks"
    for check in checks:
        if wrong := _check(check.get("status"), check.get("findings"), day):
            return f"{as_line(check.get('id'), 100)}: {wrong}"
    have = {_text(check.get("id")): check["status"] for check in checks}
    # Else this check tells of every run: a fail that is waived, or what could not be told.
    wrong = _runs(runs, figures) if have.get("allreduce.run", "pass") in ("pass", "skip") else ""
    return wrong or _gone(have, volatile.get("seconds"))


def _gone(have: dict[str, Any], seconds: object) -> str:
    timed = [name[6:] for name in seconds if name.startswith("check ")] if isinstance(seconds, dict) else []
    return next((f"{as_line(name, 100)} was judged, and is not among its checks" for name in timed if name not in have), "")


def _runs(runs: object, figures: object) -> str:
    if not isinstance(runs, list) or not isinstance(figures, list) or len(runs) != len(figures):
        return "its all-reduces do not go with their figures"
    return next(
        (f"its all-reduce contradicts it: {wrong}" for pair in zip(runs, figures, strict=True) if (wrong := _run(*pair))), ""
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _check(status: object, findings: object, day: str) -> str:
    """`day` is that of the report."""
    within = _WITHIN.get(status) if isinstance(status, str) else None
    if within is None:
        return "its status is none that a check has"
    shown = False
    for finding in findings if isinstance(findings, list) else ():
        one = finding.get("status") if isinstance(finding, dict) else None
        if not isinstance(one, str) or one not in within:
            return f"it says {status}, and has a finding that does not go with it"
        shown = shown or one == status
        if one == "error":
            return "it crashed, and the verdict is healthy"
        if one == "fail" and finding.get("waived"):
            if not (until := waived_until(finding["waived"])):
                return f"a fail that is waived by {as_line(finding['waived'], 40)}, which is no waiver"
            if until < day:
                return f"a fail that is waived until {until}, and the report is of {as_line(day, 10)}"
        elif one == "fail":
            if finding.get("blocking") is True:
                return "a fail that blocks, and the verdict is healthy"
            if finding.get("severity") not in ("info", "warning"):  # blocks at every threshold
                return "a critical fail that nobody waived, and the verdict is healthy"
        elif one == "unknown" and finding.get("blocking") is True:
            return "it had to be able to tell, and could not, and the verdict is healthy"
    return "" if shown else f"it says {status}, and no finding of it does"


def _run(run: object, figures: object) -> str:
    """Of an all-reduce that allreduce.run does not call wrong."""
    if not isinstance(run, dict) or not isinstance(figures, dict) or not isinstance(ranks := figures.get("ranks"), list):
        return "it is none"
    if (state := run.get("state")) != "finished":
        return f"its state is {as_line(state, 40)}"
    if run.get("verified") is not True:
        return "its data was wrong, or not compared"
    have = {one["rank"] for one in ranks if isinstance(one, dict) and type(one.get("rank")) is int}
    if len(have) != run.get("ranks"):
        return f"it tells of {len(have)} of {as_line(run.get('ranks'), 40)} ranks"
    for one in ranks:
        if not isinstance(one, dict) or one.get("error") or one.get("wrong") or one.get("phase") != "done":
            return f"rank {as_line(one.get('rank') if isinstance(one, dict) else one, 40)} was not done, or has wrong data"
    return wrong_figures(figures.get("busbw_gb_s"), figures.get("latency_s"), run.get("ranks"))
