"""``netdoctor expect``: `expected:` of the configuration from a node that is known to be good."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable
from typing import Final

from netdoctor import __version__, engine
from netdoctor.cli import deliver, preflight, setup
from netdoctor.cli.options import Options
from netdoctor.config.document import ConfigError
from netdoctor.config.load import Config, checked
from netdoctor.expectation.description import FLOOR_MARGIN, Part, Run, describe
from netdoctor.facts import registry
from netdoctor.facts.inventory import inventory
from netdoctor.facts.job import expected_of
from netdoctor.host.base import ReplayHost
from netdoctor.model import Health, Json, Report, Severity, Status
from netdoctor.nccl.transport import shown_network
from netdoctor.process import given, signals
from netdoctor.snapshot.snapshot import Snapshot, SnapshotError, loads
from netdoctor.textsafe import nearest


def run(options: Options, file: str | None, output: str | None, leave_out: Iterable[str]) -> int:
    """0 where it was written; the code of the verdict where the node is not known to be good."""
    try:
        without = _parts(leave_out)
        snapshot = None if file is None else _read(file)
        config = preflight.ready(options) if snapshot is None else setup.configuration(options, recorded=snapshot.policy)
        if failed := deliver.foretell(output):  # nothing else would be left of the look
            return failed
        work, partial = _looked(options, config) if snapshot is None else _replayed(config, snapshot)
    except (setup.UsageError, SnapshotError, ConfigError) as error:
        return deliver.refuse(error, options)
    if (number := signals.pending()) is not None:
        return 128 + number
    report = engine.report(work, setup.decider(config, (), partial), config.profile, partial)
    wrong = [f for f in report.findings(Status.FAIL) if not f.waived and f.severity is not Severity.INFO]
    if report.verdict.status is not Health.HEALTHY or wrong:  # a warning is of a node that has less than it could
        print(f"netdoctor: this node is not known to be good: {report.verdict.text}", file=sys.stderr)
        return report.verdict.exit_code or 4
    keys, dropped = _true(work, describe(inventory(work.facts), _runs(work), without))
    text = _yaml(report, keys, dropped)
    if output is not None:
        return deliver.write(output, text)
    deliver.put(text)
    return 0


def parts() -> list[str]:
    """What --leave-out takes."""
    return [part.value for part in Part]


def _parts(names: Iterable[str]) -> Collection[Part]:
    named = [part.strip() for text in names for part in text.split(",") if part.strip()]
    known = {part.value: part for part in Part}
    if wrong := next((name for name in named if name not in known), None):
        raise setup.UsageError(f"--leave-out: must be one of {', '.join(known)}, not {wrong!r}{nearest(wrong, known)}")
    return {known[name] for name in named}


def _read(file: str) -> Snapshot:
    try:
        return loads(given.text(file))
    except (SnapshotError, OSError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{file}: {getattr(error, 'strerror', None) or error}") from None


def _looked(options: Options, config: Config) -> tuple[engine.Work, str | None]:
    outcome = preflight.look(options, config)
    return outcome.work, outcome.partial


def _replayed(config: Config, snapshot: Snapshot) -> tuple[engine.Work, str | None]:
    if snapshot.selected:
        raise setup.UsageError("the snapshot was taken with --only: of the rest nobody knows whether it is good")
    specs, extra = setup.load_checks(config, (), ran=snapshot.ran)
    work = engine.Work(ReplayHost(snapshot.answers), specs, extra, dict(snapshot.runs))
    engine.collect(work, engine.wanted(specs))
    engine.judge_all(work)
    return work, snapshot.partial


def _runs(work: engine.Work) -> tuple[Run, ...]:
    """The run that the floor is held against; it finished, and its sums are right."""
    run = registry.of(work.facts, "Baseline").run
    if not run or not run.finished or run.verified is not True:
        return ()
    return (Run(run.experiment.device, shown_network(run), run.busbw),)


def _true(work: engine.Work, keys: dict[str, Json]) -> tuple[dict[str, Json], tuple[str, ...]]:
    """The keys that hold of the very node: of a rate only the checks know which devices are the job's."""
    before = _wrong(work, {})
    dropped = tuple(key for key in keys if _wrong(work, {key: keys[key]}) - before)
    return {key: value for key, value in keys.items() if key not in dropped}, dropped


def _wrong(work: engine.Work, keys: dict[str, Json]) -> set[tuple[str, str, str]]:
    """Findings that are no pass where the site expects this."""
    expected = expected_of({key: _plain(value) for key, value in checked({"expected": keys}).items()})
    have = {**work.facts, "Expected": expected}
    found = [f for spec in work.specs if engine.needs_fact(spec, "Expected") for f in engine.judge(spec, have)]
    return {(f.check, f.subject, f.status.value) for f in found if f.status not in (Status.PASS, Status.SKIP)}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


_HEAD: Final = """\
# What netdoctor {version} found on {host}, {day}: {verdict}
# Put it into /etc/netdoctor/config.yaml, or give it with --expect FILE.  netdoctor explain hardware.site says what judges it.
"""
_FLOOR: Final = """\
# busbw_floor is {left:.0%} of what was measured: run-to-run spread is 1 to 3 %, and 10 % less is what counts as critical.
"""


def _yaml(report: Report, keys: dict[str, Json], dropped: tuple[str, ...]) -> str:
    import yaml

    day = time.strftime("%Y-%m-%d", time.gmtime())
    text = _HEAD.format(version=__version__, host=report.identity.get("host"), day=day, verdict=report.verdict.words)
    text += _FLOOR.format(left=1 - FLOOR_MARGIN) if "busbw_floor" in keys else ""
    text += f"# Left out, for it does not hold of every part of this node: {', '.join(dropped)}\n" if dropped else ""
    return text + yaml.safe_dump({"expected": keys}, sort_keys=False, allow_unicode=True, width=120)
