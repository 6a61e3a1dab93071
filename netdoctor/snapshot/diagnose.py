"""Judging a snapshot: pure, answers and runs in, report out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from netdoctor import engine
from netdoctor.host.base import ReplayHost

if TYPE_CHECKING:
    from netdoctor.api import CheckSpec
    from netdoctor.model import CheckResult, Report
    from netdoctor.policy import Decide
    from netdoctor.snapshot.snapshot import Snapshot


def diagnose(
    snapshot: Snapshot,
    specs: Sequence[CheckSpec],
    decide: Decide,
    profile: str,
    extra: tuple[CheckResult, ...] = (),
) -> Report:
    """The report of a snapshot: the same as was given where it was taken, but for `volatile`."""
    work = engine.Work(ReplayHost(snapshot.answers), specs, extra, dict(snapshot.runs))
    engine.collect(work, engine.wanted(specs))
    engine.judge_all(work)
    return engine.report(work, decide, profile, snapshot.partial)
