"""``netdoctor diagnose SNAPSHOT``: the report of what was recorded elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.snapshot import Snapshot, SnapshotError, loads


def run(
    file: str,
    only: tuple[str, ...],
    profile: str | None,
    fail_on: str | None,
    format: str | None,
    output: str | None,
    checks_dir: str | None,
    exit_style: str | None,
) -> int:
    """The exit code of the report that is printed."""
    try:
        setup.known_format(format, exit_style, output)
        snapshot = _read(file)
        config = setup.configuration(None, _given(snapshot.policy, profile, fail_on, checks_dir))
        config = _with_policy(config, snapshot.policy)
        chosen = only or snapshot.selected
        specs, extra = setup.load_checks(config, only, cluster="Cluster" in snapshot.runs)
    except setup.UsageError as error:
        return setup.refuse(error, format, output)
    except (SnapshotError, OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        return setup.refuse(SnapshotError(f"{file}: {why}"), format, output)
    decide = setup.decider(config, chosen, snapshot.partial)
    return setup.deliver(diagnose(snapshot, specs, decide, config.profile, extra), format, output, exit_style)


def _read(file: str) -> Snapshot:
    if file == "-":
        return loads(sys.stdin.read())
    with open(file, encoding="utf-8") as stream:
        return loads(stream.read())


def _given(policy: Mapping[str, Any], profile: str | None, fail_on: str | None, checks_dir: str | None) -> dict[str, Any]:
    """The command line wins, then what held where the snapshot was taken."""
    return {
        "profile": profile or policy.get("profile"),
        "fail_on": fail_on or policy.get("fail_on"),
        "checks_dir": checks_dir,
    }


def _with_policy(config: Config, policy: Mapping[str, Any]) -> Config:
    """Waivers and disabled checks of the place where the snapshot was taken."""
    from dataclasses import replace
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
