"""What in a healthy report contradicts its verdict: such a report was not made by netdoctor's policy, or not kept whole."""

from __future__ import annotations

from typing import Any, Final

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


def contradiction(verdict: dict[str, Any], checks: list[Any], runs: object, figures: object) -> str:
    """Of a report whose verdict is healthy; "": nothing."""
    if (code := verdict.get("exit_code", 0)) != 0:
        return f"its verdict is healthy, and its exit code {as_line(code, 40)}"
    if len(checks) > MAX_LIST:
        return f"it has more than {MAX_LIST:,} checks"
    for check in checks:
        if wrong := _check(check.get("status"), check.get("findings")):
            return f"{as_line(check.get('id'), 100)}: {wrong}"
    if any(check.get("id") == "allreduce.run" and check["status"] not in ("pass", "skip") for check in checks):
        return ""  # this check tells of every run: a fail that is waived, or what could not be told
    if not isinstance(runs, list) or not isinstance(figures, list) or len(runs) != len(figures):
        return "its all-reduces do not go with their figures"
    return next(
        (f"its all-reduce contradicts it: {wrong}" for pair in zip(runs, figures, strict=True) if (wrong := _run(*pair))), ""
    )


def _check(status: object, findings: object) -> str:
    within = _WITHIN.get(status) if isinstance(status, str) else None
    if within is None:
        return "its status is none that a check has"
    shown = False
    for finding in findings if isinstance(findings, list) else ():
        one = finding.get("status") if isinstance(finding, dict) else None
        if not isinstance(one, str) or one not in within:
            return f"it says {status}, and has a finding that does not go with it"
        shown = shown or one == status
        if one == "fail" and not finding.get("waived"):
            if finding.get("blocking") is True:
                return "a fail that blocks, and the verdict is healthy"
            if finding.get("severity") not in ("info", "warning"):  # blocks at every threshold
                return "a critical fail that nobody waived, and the verdict is healthy"
        elif one in ("unknown", "error") and finding.get("blocking") is True:
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
    return ""
