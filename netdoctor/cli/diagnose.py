"""``netdoctor diagnose SNAPSHOT``: the report of what was recorded elsewhere."""

from __future__ import annotations

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.model import CheckResult, Kind
from netdoctor.process import given
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.snapshot import Snapshot, SnapshotError, loads


def run(options: Options, file: str) -> int:
    """The exit code of the report that is printed."""
    try:
        deliver.check(options)
        setup.filled(file)
        snapshot = loads(given.text(file))
        config = setup.configuration(options, recorded=snapshot.policy)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    except (SnapshotError, OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        return deliver.refuse(SnapshotError(f"{file}: {why}"), options)
    return setup.judged(config, options.exit_style, lambda lost: _judged(options, config, snapshot, lost))


def _judged(options: Options, config: Config, snapshot: Snapshot, lost: CheckResult | None) -> int:
    several = "Cluster" in snapshot.runs
    try:
        specs, extra = setup.load_checks(
            config, options.ids, cluster=several, ran=snapshot.ran, lost=lost, said=options.said("only")
        )
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    if snapshot.selected and not (options.ids or config.lock):
        specs = tuple(s for s in specs if s.id in snapshot.selected)
    narrowed = options.ids and not config.lock
    must = setup.OF_SEVERAL_NODES if _of_several_nodes(snapshot) and not narrowed else ()
    expected = config.as_answer()["expected"] if options.expect is not None else None
    decide = setup.decider(config, options.ids or snapshot.selected, snapshot.partial, must)
    return deliver.deliver(diagnose(snapshot, specs, decide, config.profile, extra, expected), options)


def _of_several_nodes(snapshot: Snapshot) -> bool:
    """Whether other nodes were met, or it cannot be told.  A look at one node alone says that it read nothing of others."""
    cluster = snapshot.runs.get("Cluster")
    return cluster is not None and (cluster.lost is None or cluster.lost.kind is not Kind.NOT_READ)
