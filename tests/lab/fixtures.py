"""The machines of fixtures/hosts: loading, judging, writing."""

from __future__ import annotations

import functools
import json
import pathlib
from dataclasses import replace
from typing import Any, Final

from netdoctor import engine
from netdoctor.api import CheckSpec
from netdoctor.cli import setup
from netdoctor.config import load
from netdoctor.config.load import Config
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Report, Unavailable
from netdoctor.report import json as as_json
from netdoctor.snapshot.diagnose import diagnose as judge_snapshot
from netdoctor.snapshot.snapshot import Snapshot, dumps, loads

ROOT: Final = pathlib.Path(__file__).parents[2]
HOSTS: Final = ROOT / "fixtures" / "hosts"


def slugs() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in HOSTS.glob("*/snapshot.json")))


def snapshot(slug: str) -> Snapshot:
    return _loaded((HOSTS / slug / "snapshot.json").read_text(encoding="utf-8"))


@functools.cache
def _loaded(text: str) -> Snapshot:
    return loads(text)


@functools.cache
def specs() -> tuple[CheckSpec, ...]:
    """The checks that come with netdoctor."""
    return setup.load_checks(Config(), ())[0]


def facts_of(taken: Snapshot) -> dict[str, Any]:
    """All facts of a snapshot, runs included."""
    work = engine.Work(ReplayHost(taken.answers), specs(), facts=dict(taken.runs))
    engine.collect(work, engine.wanted(specs()))
    return work.facts


def findings(have: dict[str, Any]) -> dict[str, tuple[Finding, ...]]:
    """What every check says about these facts."""
    return {spec.id: engine.judge(spec, have) for spec in specs()}


def report(taken: Snapshot) -> Report:
    """As `netdoctor diagnose` gives it."""
    config = load.load(environ={}, site="/dev/null/x", recorded=taken.policy)
    return judge_snapshot(taken, specs(), setup.decider(config, taken.selected, taken.partial), config.profile)


def stable(taken: Snapshot) -> dict[str, Any]:
    """The report without what differs from run to run, and without the version of netdoctor."""
    data: dict[str, Any] = json.loads(as_json.render(report(taken)))
    for name in ("volatile", "tool_version"):
        data.pop(name, None)
    return data


def text_of(data: Any) -> str:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def compose() -> None:
    """Write the composed machines again."""
    from tests.support.machines import composed

    for slug in composed.NAMES:
        (HOSTS / slug / "snapshot.json").write_text(dumps(composed.read(slug).snapshot()), encoding="utf-8")


def golden() -> None:
    """Write the reports, and what the checks say about their faults; review them as a diff."""
    from tests.lab import faults

    faults.write_golden()
    for slug in slugs():
        (HOSTS / slug / "report.json").write_text(text_of(stable(snapshot(slug))), encoding="utf-8")


def without(taken: Snapshot, question: str, why: Unavailable) -> Snapshot:
    """The same machine, one answer lost."""
    return replace(taken, answers={**taken.answers, question: why})
