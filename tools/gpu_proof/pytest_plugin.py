"""A pytest plugin that tells the book about each test as it ends (``-p tools.gpu_proof.pytest_plugin``)."""

from __future__ import annotations

from typing import Any

from tools.gpu_proof import tell

_WORST: dict[str, str] = {}  # test -> its worst outcome yet: a teardown may fail after a call that passed
_RANK = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "setup" and report.outcome == "passed":
        return
    before = _WORST.get(report.nodeid)
    if before is not None and _RANK[report.outcome] <= _RANK[before]:
        return
    _WORST[report.nodeid] = report.outcome
    if report.when == "teardown" and report.outcome == "passed":
        return
    tell.line(test=report.nodeid, outcome=report.outcome, text=_why(report), data=dict(report.user_properties))


def pytest_collectreport(report: Any) -> None:
    if report.outcome != "passed":
        tell.line(module=report.nodeid, outcome=report.outcome, text=_why(report))


def _why(report: Any) -> str:
    """The reason of a skip, the last lines of a failure."""
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", None)
    text = str(crash)[:500] if crash else str(report.longrepr).strip()[-500:]  # of a broken file the last lines say why
    return f"{report.when}: {text}" if getattr(report, "when", None) in ("setup", "teardown") else text
