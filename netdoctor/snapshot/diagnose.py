"""Judging a snapshot: pure, answers and runs in, report out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from netdoctor import engine
from netdoctor.facts import registry
from netdoctor.facts.job import expected_of
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
    expected: Mapping[str, Any] | None = None,
) -> Report:
    """The report of a snapshot: the same as was given where it was taken, but for `volatile`; and for what is `expected`, where
    somebody says it here."""
    work = engine.Work(ReplayHost(snapshot.answers), specs, extra, dict(snapshot.runs))
    engine.collect(work, engine.wanted(specs))
    if expected is not None:
        work.facts["Expected"] = registry.there("Expected", expected_of(expected))
    engine.judge_all(work)
    return engine.report(work, decide, profile, snapshot.partial)
