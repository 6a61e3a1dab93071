"""``netdoctor diagnose SNAPSHOT``: the report of what was recorded elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.snapshot import Snapshot, SnapshotError, loads


def run(options: Options, file: str) -> int:
    """The exit code of the report that is printed."""
    try:
        deliver.check(options)
        snapshot = _read(file)
        config = setup.configuration(_with_choices(options, snapshot.policy))
        config = _with_policy(config, snapshot.policy)
        specs, extra = setup.load_checks(config, options.ids, cluster="Cluster" in snapshot.runs)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    except (SnapshotError, OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        return deliver.refuse(SnapshotError(f"{file}: {why}"), options)
    decide = setup.decider(config, options.ids or snapshot.selected, snapshot.partial)
    return deliver.deliver(diagnose(snapshot, specs, decide, config.profile, extra), options)


def _read(file: str) -> Snapshot:
    if file == "-":
        return loads(sys.stdin.read())
    with open(file, encoding="utf-8") as stream:
        return loads(stream.read())


def _with_choices(options: Options, policy: Mapping[str, Any]) -> Options:
    """The command line wins, then what held where the snapshot was taken."""
    profile, fail_on = options.profile or policy.get("profile"), options.fail_on or policy.get("fail_on")
    return replace(options, profile=profile, fail_on=fail_on)


def _with_policy(config: Config, policy: Mapping[str, Any]) -> Config:
    """Waivers and disabled checks of the place where the snapshot was taken."""
    from datetime import date

    from netdoctor.policy import Waiver

    try:
        waivers = tuple(
            Waiver(str(w["check"]), str(w["reason"]), date.fromisoformat(w["until"]), w.get("subject"))
            for w in policy.get("waivers") or ()
        )
        disabled = tuple(str(i) for i in policy.get("disabled") or ())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"policy of another shape: {error}") from None
    return replace(config, waivers=waivers, disabled=disabled)
